//! What may lie in the folder of a save, and what may not.

use super::*;
use crate::checkpoint::testing::Rank;

const ID: &str = "a-0000000000000001.0";

fn room() -> Arc<Room> {
    Arc::new(Room::new(u64::MAX))
}

async fn promised(data_dir: &Path) -> Disk {
    let disk = Disk::make(data_dir, ID, &room()).unwrap();
    let what = What::Object {
        name: "state".into(),
        kind: "bytes".into(),
    };
    disk.write(what, Bytes::from_static(b"state"));
    disk.promise(ID, "a-0000000000000001", &Rank::of(1, 0, 1).begin(), Some(0))
        .await
        .unwrap();
    disk
}

#[tokio::test]
async fn a_folder_that_is_there_is_refused_and_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    drop(promised(dir.path()).await);
    let error = Disk::make(dir.path(), ID, &room()).unwrap_err();
    assert_eq!(error.kind(), Kind::Conflict, "{error}");
    assert_eq!(left_behind(dir.path(), &room()).unwrap().len(), 1);
}

#[tokio::test]
async fn a_removal_that_stops_halfway_leaves_no_promise() {
    let dir = tempfile::tempdir().unwrap();
    let disk = promised(dir.path()).await;
    disk.take_back().unwrap();
    assert!(disk.folder.join("piece-00000").exists());
    assert!(left_behind(dir.path(), &room()).unwrap().is_empty());
    assert!(!disk.folder.exists());
}
