//! Random operations on the local lakes against the reference.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use forebay_lake::{FolderLake, MemoryLake, Prefixed};
use forebay_testkit::lake_model;

const STEPS: usize = 500;

async fn folder_agrees_with_the_reference(seed: u64) {
    let folder = tempfile::tempdir().unwrap();
    lake_model(Arc::new(FolderLake::open(folder.path()).unwrap()), seed, STEPS).await;
}

#[tokio::test]
async fn folder_agrees_with_the_reference_seed_1() {
    folder_agrees_with_the_reference(1).await;
}

#[tokio::test]
async fn folder_agrees_with_the_reference_seed_2() {
    folder_agrees_with_the_reference(2).await;
}

#[tokio::test]
async fn folder_agrees_with_the_reference_seed_3() {
    folder_agrees_with_the_reference(3).await;
}

#[tokio::test]
async fn prefixed_folder_agrees_with_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    let lake = FolderLake::open(folder.path()).unwrap();
    lake_model(Arc::new(Prefixed::new(Arc::new(lake), "b/")), 4, STEPS).await;
}

#[tokio::test]
async fn prefixed_memory_agrees_with_the_reference() {
    lake_model(
        Arc::new(Prefixed::new(Arc::new(MemoryLake::new()), "b/")),
        5,
        STEPS,
    )
    .await;
}
