//! The folder lake: the behaviour suite, and what is special about a folder.

use std::sync::Arc;

use forebay_lake::{FolderLake, Prefixed};
use forebay_testkit::{LakeTraits, lake_suite};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn folder_behaves_like_a_lake() {
    let folder = tempfile::tempdir().unwrap();
    lake_suite(
        Arc::new(FolderLake::open(folder.path()).unwrap()),
        LakeTraits::exact(),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefixed_folder_behaves_like_a_lake() {
    let folder = tempfile::tempdir().unwrap();
    let lake = FolderLake::open(folder.path()).unwrap();
    lake_suite(
        Arc::new(Prefixed::new(Arc::new(lake), "bucket/")),
        LakeTraits::exact(),
    )
    .await;
}
