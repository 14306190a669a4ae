//! The folder lake: the behaviour suite, and what is special about a folder.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod crash;
mod escape;
mod foreign;
mod large;
mod listing;
mod processes;
mod races;

use std::path::Path;
use std::sync::Arc;

use forebay_core::{Kind, ObjectKey, Result};
use forebay_lake::{FolderLake, GetOptions, Lake, ListOptions, Prefixed};
use forebay_testkit::{LakeTraits, lake_suite, read_all};
use md5::{Digest, Md5};
use tempfile::TempDir;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn folder_behaves_like_a_lake() {
    let (_root, lake) = fresh();
    lake_suite(Arc::new(lake), LakeTraits::exact()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefixed_folder_behaves_like_a_lake() {
    let (_root, lake) = fresh();
    lake_suite(
        Arc::new(Prefixed::new(Arc::new(lake), "bucket/")),
        LakeTraits::exact(),
    )
    .await;
}

/// An empty folder lake.
fn fresh() -> (TempDir, FolderLake) {
    let root = tempfile::tempdir().unwrap();
    let lake = FolderLake::open(root.path()).unwrap();
    (root, lake)
}

fn key(text: &str) -> ObjectKey {
    ObjectKey::new(text).unwrap()
}

fn md5_hex(bytes: &[u8]) -> String {
    hex::encode(Md5::digest(bytes))
}

fn kind_of<T>(result: Result<T>) -> Option<Kind> {
    result.err().map(|error| error.kind())
}

/// The version that `get` says and the bytes that it gives.
async fn read(lake: &FolderLake, name: &str) -> Result<(String, bytes::Bytes)> {
    let result = lake.get(&key(name), GetOptions::default()).await?;
    let version = result.meta.version.as_str().to_owned();
    Ok((version, read_all(result.body).await?))
}

/// All keys of the lake.
async fn names(lake: &FolderLake) -> Vec<String> {
    let page = lake
        .list(ListOptions {
            limit: 10_000,
            ..ListOptions::default()
        })
        .await
        .unwrap();
    page.objects.iter().map(|object| object.key.to_string()).collect()
}

/// The files below a private area, to see what is left behind.
fn private_files(root: &Path, area: &str) -> Vec<String> {
    let mut files = Vec::new();
    let mut folders = vec![root.join(".forebay/folder").join(area)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path.display().to_string());
            }
        }
    }
    files
}
