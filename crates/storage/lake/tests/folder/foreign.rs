//! Files that others put into the folder, and what others do to ours.

use std::fs::{self, File};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use forebay_core::Kind;
use forebay_lake::{Attributes, CopyOptions, FolderLake, GetOptions, Lake, ListOptions, PutMode, PutOptions};
use futures::TryStreamExt;

use super::{fresh, key, kind_of, md5_hex, names, private_files, read};

async fn listed_version(lake: &FolderLake, name: &str) -> String {
    let page = lake
        .list(ListOptions {
            prefix: name.to_owned(),
            ..ListOptions::default()
        })
        .await
        .unwrap();
    page.objects[0].version.as_str().to_owned()
}

fn typed(content_type: &str) -> PutOptions {
    let attributes = Attributes {
        content_type: Some(content_type.to_owned()),
        ..Attributes::default()
    };
    PutOptions {
        attributes,
        ..PutOptions::default()
    }
}

#[tokio::test]
async fn a_file_put_there_by_cp_is_an_object() {
    let (root, lake) = fresh();
    fs::create_dir_all(root.path().join("data/deep")).unwrap();
    fs::write(root.path().join("data/deep/file.txt"), "by hand").unwrap();

    let head = lake.head(&key("data/deep/file.txt")).await.unwrap();
    assert_eq!((head.bytes, head.attributes), (7, Attributes::default()));
    assert!(
        head.version.as_str().starts_with("f-"),
        "{} is not made from the bytes",
        head.version
    );
    assert_eq!(
        read(&lake, "data/deep/file.txt").await.unwrap(),
        (head.version.to_string(), "by hand".into())
    );
    assert_eq!(listed_version(&lake, "data/").await, head.version.as_str());
}

#[tokio::test]
async fn a_changed_foreign_file_has_another_version() {
    let (root, lake) = fresh();
    let path = root.path().join("k");
    fs::write(&path, "12345").unwrap();
    let set_time = |seconds| {
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(UNIX_EPOCH + Duration::from_secs(seconds))
            .unwrap();
    };
    let version = async || lake.head(&key("k")).await.unwrap().version;
    set_time(1000);
    let first = version().await;
    assert_eq!(version().await, first, "an unchanged file keeps its version");
    fs::write(&path, "54321").unwrap();
    set_time(1001);
    let second = version().await;
    fs::write(&path, "longer than before").unwrap();
    set_time(1001);
    let third = version().await;
    assert!(first != second && second != third && first != third);
}

#[tokio::test]
async fn what_we_keep_beside_a_file_is_ignored_after_cp_over_it() {
    let (root, lake) = fresh();
    lake.put(&key("k"), Bytes::from_static(b"ours"), typed("text/ours"))
        .await
        .unwrap();
    assert_eq!(listed_version(&lake, "k").await, md5_hex(b"ours"));

    fs::write(root.path().join("k"), "theirs").unwrap();
    let head = lake.head(&key("k")).await.unwrap();
    assert!(head.version.as_str().starts_with("f-"));
    assert_eq!((head.bytes, head.attributes), (6, Attributes::default()));
    assert_eq!(listed_version(&lake, "k").await, head.version.as_str());

    lake.put(&key("k"), Bytes::from_static(b"ours again"), typed("text/again"))
        .await
        .unwrap();
    let head = lake.head(&key("k")).await.unwrap();
    assert_eq!(head.version.as_str(), md5_hex(b"ours again"));
    assert_eq!(head.attributes.content_type.as_deref(), Some("text/again"));
}

#[tokio::test]
async fn a_file_moved_over_ours_is_a_foreign_file() {
    let (root, lake) = fresh();
    lake.put(&key("k"), Bytes::from_static(b"ours"), typed("text/ours"))
        .await
        .unwrap();
    fs::write(root.path().join("new"), "them").unwrap();
    fs::rename(root.path().join("new"), root.path().join("k")).unwrap();
    let head = lake.head(&key("k")).await.unwrap();
    assert!(head.version.as_str().starts_with("f-") && head.attributes == Attributes::default());
    assert_eq!(names(&lake).await, ["k"]);
}

#[tokio::test]
async fn our_file_under_another_name_is_a_foreign_file() {
    let (root, lake) = fresh();
    lake.put(&key("k"), Bytes::from_static(b"ours"), typed("text/ours"))
        .await
        .unwrap();
    fs::rename(root.path().join("k"), root.path().join("moved")).unwrap();
    assert_eq!(kind_of(lake.head(&key("k")).await), Some(Kind::NotFound));
    assert!(
        lake.head(&key("moved"))
            .await
            .unwrap()
            .version
            .as_str()
            .starts_with("f-")
    );
}

#[tokio::test]
async fn a_damaged_sidecar_is_ignored() {
    let (root, lake) = fresh();
    lake.put(&key("k"), Bytes::from_static(b"ours"), typed("text/ours"))
        .await
        .unwrap();
    let sidecars = private_files(root.path(), "meta");
    assert_eq!(sidecars.len(), 1);
    fs::write(&sidecars[0], "{\"format\":\"forebay-folder-obj").unwrap();
    let (version, bytes) = read(&lake, "k").await.unwrap();
    assert!(version.starts_with("f-") && bytes == "ours");
}

#[tokio::test]
async fn a_file_written_to_while_it_is_read_is_changed_and_never_mixed() {
    let (root, lake) = fresh();
    let old = vec![1; 6 << 20];
    lake.put(&key("k"), old.into(), PutOptions::default())
        .await
        .unwrap();
    let mut body = lake.get(&key("k"), GetOptions::default()).await.unwrap().body;
    let mut bytes = body.try_next().await.unwrap().unwrap().to_vec();
    fs::write(root.path().join("k"), vec![2; 6 << 20]).unwrap();
    let end = loop {
        match body.try_next().await {
            Ok(Some(piece)) => bytes.extend_from_slice(&piece),
            Ok(None) => panic!("the read must not end well"),
            Err(error) => break error.kind(),
        }
    };
    assert_eq!(end, Kind::Changed);
    assert!(
        bytes.iter().all(|byte| *byte == 1),
        "nothing of the new bytes may come through"
    );
}

#[tokio::test]
async fn a_foreign_file_can_be_updated_and_copied_and_deleted() {
    let (root, lake) = fresh();
    fs::write(root.path().join("k"), "foreign").unwrap();
    lake.copy(&key("k"), &key("copy"), CopyOptions::default())
        .await
        .unwrap();
    assert_eq!(
        read(&lake, "copy").await.unwrap(),
        (md5_hex(b"foreign"), "foreign".into())
    );

    let token = lake.head(&key("k")).await.unwrap().token;
    fs::write(root.path().join("k"), "changed meanwhile").unwrap();
    let update = |token| PutOptions {
        mode: PutMode::Update(token),
        ..PutOptions::default()
    };
    let result = lake.put(&key("k"), Bytes::from_static(b"x"), update(token)).await;
    assert_eq!(kind_of(result), Some(Kind::PreconditionFailed));
    let token = lake.head(&key("k")).await.unwrap().token;
    lake.put(&key("k"), Bytes::from_static(b"x"), update(token))
        .await
        .unwrap();

    fs::write(root.path().join("gone"), "foreign").unwrap();
    lake.delete(&key("gone")).await.unwrap();
    assert_eq!(names(&lake).await, ["copy", "k"]);
}

#[tokio::test]
async fn what_writers_leave_behind_is_removed_after_a_day() {
    let (root, lake) = fresh();
    lake.put(&key("k"), Bytes::from_static(b"x"), PutOptions::default())
        .await
        .unwrap();
    let tmp = root.path().join(".forebay/folder/tmp");
    let now = fs::metadata(root.path().join("k")).unwrap().modified().unwrap();
    for (name, age_s) in [("old", 25 * 3600), ("young", 23 * 3600)] {
        let file = File::create(tmp.join(name)).unwrap();
        file.set_modified(now - Duration::from_secs(age_s)).unwrap();
    }
    drop(FolderLake::open(root.path()).unwrap());
    let left = private_files(root.path(), "tmp");
    assert!(left.len() == 1 && left[0].ends_with("/young"), "{left:?}");
}

#[tokio::test]
async fn nothing_is_left_behind_by_refused_dropped_and_replaced_writes() {
    let (root, lake) = fresh();
    lake.put(&key("k"), Bytes::from_static(b"one"), PutOptions::default())
        .await
        .unwrap();
    lake.put(&key("k"), Bytes::from_static(b"two"), PutOptions::default())
        .await
        .unwrap();
    let create = PutOptions {
        mode: PutMode::Create,
        ..PutOptions::default()
    };
    assert_eq!(
        kind_of(lake.put(&key("k"), Bytes::from_static(b"x"), create).await),
        Some(Kind::AlreadyExists)
    );
    let wrong = PutOptions {
        md5: Some([0; 16]),
        ..PutOptions::default()
    };
    assert_eq!(
        kind_of(lake.put(&key("k"), Bytes::from_static(b"x"), wrong).await),
        Some(Kind::Checksum)
    );
    drop(lake.writer(&key("k"), PutOptions::default(), None).await.unwrap());
    let upload = lake
        .start_upload(&key("up"), Attributes::default())
        .await
        .unwrap();
    lake.abort_upload(&key("up"), &upload).await.unwrap();

    assert_eq!(private_files(root.path(), "tmp"), [""; 0]);
    assert_eq!(private_files(root.path(), "uploads"), [""; 0]);
    assert_eq!(
        private_files(root.path(), "meta").len(),
        1,
        "one object, one sidecar"
    );
    lake.delete(&key("k")).await.unwrap();
    assert_eq!(private_files(root.path(), "meta"), [""; 0]);
}

/// The message said "abort the upload", and the abort failed with the same message.
#[tokio::test]
async fn an_upload_with_a_damaged_record_can_be_aborted() {
    let (root, lake) = fresh();
    let upload = lake.start_upload(&key("k"), Attributes::default()).await.unwrap();
    let record = root
        .path()
        .join(".forebay/folder/uploads")
        .join(&upload.0)
        .join("upload.json");
    fs::write(record, "torn").unwrap();
    let completed = lake
        .complete_upload(&key("k"), &upload, &[], PutOptions::default())
        .await;
    assert!(completed.is_err());
    lake.abort_upload(&key("k"), &upload).await.unwrap();
    assert!(private_files(root.path(), "uploads").is_empty());
}
