//! Keys and links that would lead out of the folder, and keys that a folder cannot hold.

use std::fs;
use std::os::unix::fs::symlink;

use bytes::Bytes;
use forebay_core::{Kind, Result};
use forebay_lake::{
    Attributes, CopyOptions, FolderLake, GetOptions, Lake, ListOptions, PutMode, PutOptions, UploadId,
};

use super::{fresh, key, kind_of, names, read};

async fn put(lake: &FolderLake, name: &str) -> Result<()> {
    lake.put(&key(name), Bytes::from_static(b"x"), PutOptions::default())
        .await
        .map(drop)
}

#[tokio::test]
async fn keys_that_would_escape_are_refused_by_every_operation() {
    let outside = tempfile::tempdir().unwrap();
    let root = outside.path().join("lake");
    let lake = FolderLake::create(&root).unwrap();
    fs::write(outside.path().join("secret"), "secret").unwrap();
    put(&lake, "good").await.unwrap();
    let long = "x".repeat(256);
    let keys = [
        "../secret",
        "a/../../secret",
        "/etc/passwd",
        ".",
        "a/./b",
        "a//b",
        ".forebay/folder/tmp/x",
        &long,
    ];
    for bad in keys {
        let refused = Some(Kind::InvalidInput);
        assert_eq!(kind_of(put(&lake, bad).await), refused, "put {bad}");
        assert_eq!(kind_of(lake.head(&key(bad)).await), refused, "head {bad}");
        assert_eq!(
            kind_of(lake.get(&key(bad), GetOptions::default()).await),
            refused,
            "get {bad}"
        );
        assert_eq!(kind_of(lake.delete(&key(bad)).await), refused, "delete {bad}");
        let copy = CopyOptions::default();
        assert_eq!(
            kind_of(lake.copy(&key(bad), &key("to"), copy.clone()).await),
            refused,
            "copy from {bad}"
        );
        assert_eq!(
            kind_of(lake.copy(&key("good"), &key(bad), copy).await),
            refused,
            "copy to {bad}"
        );
        assert_eq!(
            kind_of(lake.start_upload(&key(bad), Attributes::default()).await),
            refused,
            "upload {bad}"
        );
        assert_eq!(
            kind_of(lake.writer(&key(bad), PutOptions::default(), None).await),
            refused,
            "writer {bad}"
        );
    }
    let entries: Vec<_> = fs::read_dir(outside.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(entries.len(), 2, "nothing new outside: {entries:?}");
    assert_eq!(fs::read(outside.path().join("secret")).unwrap(), b"secret");
}

#[tokio::test]
async fn links_are_neither_followed_nor_listed_nor_removed() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "secret").unwrap();
    let (root, lake) = fresh();
    put(&lake, "real").await.unwrap();
    symlink(outside.path().join("secret"), root.path().join("link")).unwrap();
    symlink(outside.path(), root.path().join("folder")).unwrap();
    symlink(root.path().join("real"), root.path().join("inside")).unwrap();

    for name in ["link", "folder/secret", "inside"] {
        assert_eq!(
            kind_of(lake.head(&key(name)).await),
            Some(Kind::NotFound),
            "head {name}"
        );
        assert_eq!(
            kind_of(read(&lake, name).await),
            Some(Kind::NotFound),
            "get {name}"
        );
        lake.delete(&key(name)).await.unwrap();
    }
    assert_eq!(kind_of(put(&lake, "folder/new").await), Some(Kind::Conflict));
    let create = PutOptions {
        mode: PutMode::Create,
        ..PutOptions::default()
    };
    assert_eq!(
        kind_of(lake.put(&key("link"), Bytes::new(), create).await),
        Some(Kind::Conflict)
    );
    assert_eq!(names(&lake).await, ["real"]);
    for prefix in ["folder/", "folder/s"] {
        let page = lake
            .list(ListOptions {
                prefix: prefix.to_owned(),
                ..ListOptions::default()
            })
            .await
            .unwrap();
        assert!(page.objects.is_empty(), "{prefix}");
    }
    assert!(root.path().join("link").is_symlink() && root.path().join("folder").is_symlink());

    put(&lake, "link").await.unwrap();
    assert_eq!(
        fs::read(outside.path().join("secret")).unwrap(),
        b"secret",
        "the link was replaced, not written through"
    );
}

#[tokio::test]
async fn pipes_and_other_things_are_no_objects() {
    let (root, lake) = fresh();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let path = root.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    fs::create_dir(root.path().join("empty")).unwrap();
    for name in ["pipe", "empty"] {
        assert_eq!(kind_of(read(&lake, name).await), Some(Kind::NotFound), "{name}");
    }
    let options = ListOptions {
        delimiter: Some("/".to_owned()),
        ..ListOptions::default()
    };
    let page = lake.list(options).await.unwrap();
    assert!(page.objects.is_empty() && page.prefixes.is_empty(), "{page:?}");
}

#[tokio::test]
async fn a_key_cannot_be_a_folder_and_an_object() {
    let (_root, lake) = fresh();
    put(&lake, "a/b").await.unwrap();
    put(&lake, "file").await.unwrap();
    for bad in ["a", "file/below", "file/below/deeper"] {
        let error = put(&lake, bad).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Conflict, "{error}");
        assert!(error.to_string().contains("choose another key"), "{error}");
        let create = PutOptions {
            mode: PutMode::Create,
            ..PutOptions::default()
        };
        assert_eq!(
            kind_of(lake.put(&key(bad), Bytes::new(), create).await),
            Some(Kind::Conflict),
            "{bad}"
        );
    }
    lake.delete(&key("a")).await.unwrap();
    assert_eq!(names(&lake).await, ["a/b", "file"]);
}

#[tokio::test]
async fn the_private_area_is_hidden_and_our_documents_are_not() {
    let (_root, lake) = fresh();
    for name in [".forebay/buckets/x.json", "b/.forebay/folder/y", "k"] {
        put(&lake, name).await.unwrap();
    }
    assert_eq!(
        names(&lake).await,
        [".forebay/buckets/x.json", "b/.forebay/folder/y", "k"]
    );
    for prefix in [".forebay/folder/", ".forebay/folder/tmp", ".forebay/folder/meta/"] {
        let page = lake
            .list(ListOptions {
                prefix: prefix.to_owned(),
                ..ListOptions::default()
            })
            .await
            .unwrap();
        assert!(page.objects.is_empty(), "{prefix}");
    }
    lake.delete(&key(".forebay/buckets/x.json")).await.unwrap();
    let options = ListOptions {
        delimiter: Some("/".to_owned()),
        ..ListOptions::default()
    };
    assert_eq!(
        lake.list(options).await.unwrap().prefixes,
        ["b/"],
        "only private things are left in .forebay"
    );
}

#[tokio::test]
async fn upload_ids_are_no_paths() {
    let (_root, lake) = fresh();
    lake.start_upload(&key("k"), Attributes::default()).await.unwrap();
    for id in ["..", ".", "", "../tmp", "ABCDEF", &"0".repeat(32)] {
        let result = lake
            .complete_upload(&key("k"), &UploadId(id.to_owned()), &[], PutOptions::default())
            .await;
        assert!(
            matches!(kind_of(result), Some(Kind::NotFound | Kind::InvalidInput)),
            "{id}"
        );
        lake.abort_upload(&key("k"), &UploadId(id.to_owned()))
            .await
            .unwrap();
    }
}

#[test]
fn a_folder_that_is_not_there_is_a_clear_error() {
    let root = tempfile::tempdir().unwrap();
    let error = FolderLake::open(root.path().join("absent")).unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(error.to_string().contains("absent"), "{error}");
    fs::write(root.path().join("file"), "x").unwrap();
    assert!(FolderLake::open(root.path().join("file")).is_err());
}
