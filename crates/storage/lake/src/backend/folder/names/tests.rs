use std::collections::BTreeSet;
use std::fs;

use bytes::Bytes;
use forebay_core::ObjectKey;

use super::*;
use crate::{FolderLake, Lake, ListOptions, ListPage, MemoryLake, PutOptions};

const FILES: usize = LARGE_NAMES_MIN + 200;

fn name_of(index: usize) -> String {
    // Some sort before and some after the folder `k5/`.
    format!("k{}{index}", ['!', '-', '5', 'z'][index % 4])
}

/// A flat folder of many files with a folder and a marker among them.
fn large(prefix: &str) -> (tempfile::TempDir, FolderLake, BTreeSet<String>) {
    let root = tempfile::tempdir().unwrap();
    let lake = FolderLake::open(root.path()).unwrap();
    let mut keys: BTreeSet<String> = (0..FILES)
        .map(|index| format!("{prefix}{}", name_of(index)))
        .collect();
    keys.extend([format!("{prefix}k5/below"), format!("{prefix}k5/x/y")]);
    fs::create_dir_all(root.path().join(prefix).join("k5/x")).unwrap();
    for key in &keys {
        fs::write(root.path().join(key), key).unwrap();
    }
    (root, lake, keys)
}

/// Lists until the names are cached: the folder must have been left alone for a moment.
async fn list_until_kept(lake: &FolderLake, prefix: &str) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while lake.tree.names().folders() == 0 {
        assert!(
            tokio::time::Instant::now() < deadline,
            "the names are never cached"
        );
        list(lake, prefix, None).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn list(lake: &dyn Lake, prefix: &str, start_after: Option<String>) -> ListPage {
    let options = ListOptions {
        prefix: prefix.to_owned(),
        start_after,
        limit: 10_000,
        ..ListOptions::default()
    };
    lake.list(options).await.unwrap()
}

async fn keys(lake: &FolderLake, prefix: &str) -> BTreeSet<String> {
    let page = list(lake, prefix, None).await;
    page.objects.iter().map(|object| object.key.to_string()).collect()
}

#[tokio::test]
async fn kept_names_give_the_same_pages_as_the_reference() {
    for folder in ["", "d/"] {
        let (_root, lake, names) = large(folder);
        let reference = MemoryLake::new();
        for name in &names {
            let key = ObjectKey::new(name).unwrap();
            reference
                .put(&key, Bytes::new(), PutOptions::default())
                .await
                .unwrap();
        }
        list_until_kept(&lake, folder).await;
        for prefix in ["", "k", "k5", "k5/", "k-", "q", "d", "d/k5", "d/k5/"] {
            for start in [
                "", "a", "k5", "k5/", "k5/below", "k5/x/y", "k-1", "z", "d", "d/", "d/k5/c", "d/k-1",
            ] {
                for (delimiter, limit) in [(None, 7), (Some("/"), 7), (Some("/"), 2_000), (Some("-"), 3)] {
                    let options = ListOptions {
                        prefix: prefix.to_owned(),
                        delimiter: delimiter.map(str::to_owned),
                        start_after: Some(start.to_owned()).filter(|start| !start.is_empty()),
                        limit,
                    };
                    let (real, expected) = (
                        lake.list(options.clone()).await.unwrap(),
                        reference.list(options.clone()).await.unwrap(),
                    );
                    let keys = |page: &ListPage| -> Vec<String> {
                        page.objects.iter().map(|object| object.key.to_string()).collect()
                    };
                    assert_eq!(keys(&real), keys(&expected), "objects of {options:?}");
                    assert_eq!(
                        (&real.prefixes, &real.next),
                        (&expected.prefixes, &expected.next),
                        "prefixes of {options:?}"
                    );
                }
            }
        }
        assert_eq!(
            lake.tree.names().folders(),
            1,
            "the names were cached all the time"
        );
    }
}

#[tokio::test]
async fn every_change_shows_in_the_next_listing_though_names_are_kept() {
    let (root, lake, mut expected) = large("d/");
    for round in 0..2 {
        list_until_kept(&lake, "d/").await;
        assert_eq!(keys(&lake, "d/").await, expected);
        // Changes within one tick of the kernel's clock, each followed by a listing.
        for step in 0..15 {
            let (put, foreign) = (
                format!("d/put-{round}-{step}"),
                format!("d/foreign-{round}-{step}"),
            );
            let key = ObjectKey::new(&put).unwrap();
            lake.put(&key, Bytes::new(), PutOptions::default()).await.unwrap();
            expected.insert(put);
            assert_eq!(keys(&lake, "d/").await, expected);
            fs::write(root.path().join(&foreign), "").unwrap();
            expected.insert(foreign.clone());
            assert_eq!(keys(&lake, "d/").await, expected);
            fs::remove_file(root.path().join(&foreign)).unwrap();
            expected.remove(&foreign);
            assert_eq!(keys(&lake, "d/").await, expected);
        }
        lake.tree.names().0.lock().clear();
    }
}

#[test]
fn changes_within_one_tick_of_the_clock_show() {
    let root = tempfile::tempdir().unwrap();
    for index in 0..LARGE_NAMES_MIN {
        fs::write(root.path().join(name_of(index)), "").unwrap();
    }
    let folder = OwnedFd::from(fs::File::open(root.path()).unwrap());
    let bounds = Bounds {
        prefix: "",
        start_after: None,
    };
    let cached = NameCache::default();
    let count = || {
        let mut names = cached.read(&folder, "", &bounds).unwrap();
        std::iter::from_fn(|| names.pop()).count()
    };
    for round in 0..300 {
        fs::write(root.path().join("new"), "").unwrap();
        assert_eq!(count(), LARGE_NAMES_MIN + 1, "round {round}");
        fs::remove_file(root.path().join("new")).unwrap();
        assert_eq!(count(), LARGE_NAMES_MIN, "round {round}");
    }
}

#[test]
fn a_folder_that_changed_a_moment_ago_is_not_settled() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_millis(5_000);
    let settled = |modified_ms: u64, changed_ms: u64| {
        let time = |ms: u64| ((ms / 1_000) as i64, ms % 1_000 * 1_000_000);
        let (modified, changed) = (time(modified_ms), time(changed_ms));
        FolderStamp {
            device: 1,
            inode: 1,
            modified,
            changed,
        }
        .is_settled(now)
    };
    assert!(settled(4_800, 4_800));
    assert!(!settled(4_950, 4_950), "less than a tick ago");
    assert!(!settled(1_000, 4_950), "touched back to an old date");
    assert!(!settled(9_000, 9_000), "in the future");
}

#[test]
fn what_is_kept_is_bounded() {
    let cached = NameCache::default();
    let stamp = |inode| FolderStamp {
        device: 1,
        inode,
        modified: (0, 0),
        changed: (0, 0),
    };
    for inode in 0..20 {
        let names = Arc::default();
        cached.keep(CachedFolder {
            stamp: stamp(inode),
            names,
            bytes: CACHED_BYTES_MAX / 3,
        });
    }
    assert_eq!(cached.folders(), 3, "by bytes");
    for inode in 0..20 {
        cached.keep(CachedFolder {
            stamp: stamp(inode),
            names: Arc::default(),
            bytes: 1,
        });
    }
    assert_eq!(cached.folders(), CACHED_FOLDERS_MAX, "by number");
    assert!(cached.find(stamp(19)).is_some() && cached.find(stamp(1)).is_none());
}
