//! Listings of a folder against the reference, page by page, and under writers.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use forebay_lake::{FolderLake, Lake, ListOptions, MemoryLake, PutOptions};
use proptest::prelude::*;

use super::{fresh, key};

fn make_files(root: &Path, names: &BTreeSet<String>) {
    for name in names {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }
}

/// Keys that a folder can hold together: no odd segments, none the folder of another.
fn storable(names: BTreeSet<String>) -> BTreeSet<String> {
    let is_path = |name: &str| name.split('/').all(|segment| !matches!(segment, "" | "." | ".."));
    let names: BTreeSet<String> = names.into_iter().filter(|name| is_path(name)).collect();
    let is_folder = |name: &str| names.iter().any(|other| other.starts_with(&format!("{name}/")));
    names.iter().filter(|name| !is_folder(name)).cloned().collect()
}

fn key_text() -> impl Strategy<Value = String> {
    proptest::string::string_regex("[ab0/!.é-]{1,7}").unwrap()
}

fn options() -> impl Strategy<Value = ListOptions> {
    let text = || proptest::string::string_regex("[ab0/!.é-]{0,4}").unwrap();
    let delimiter = prop_oneof![
        Just(None),
        Just(Some("/".to_owned())),
        Just(Some("a".to_owned())),
        Just(Some("-/".to_owned())),
        Just(Some("é".to_owned())),
        Just(Some(String::new()))
    ];
    (text(), proptest::option::of(text()), delimiter, 0..5_usize).prop_map(
        |(prefix, start_after, delimiter, limit)| ListOptions {
            prefix,
            delimiter,
            start_after,
            limit,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_folder_lists_as_the_reference_does(
        names in proptest::collection::btree_set(key_text(), 0..40),
        options in proptest::collection::vec(options(), 20),
    ) {
        let names = storable(names);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (root, lake) = fresh();
        make_files(root.path(), &names);
        let reference = MemoryLake::new();
        runtime.block_on(async {
            for name in &names {
                reference.put(&key(name), Bytes::new(), PutOptions::default()).await.unwrap();
            }
            for options in options {
                let (real, expected) = (lake.list(options.clone()).await.unwrap(), reference.list(options.clone()).await.unwrap());
                let keys = |page: &forebay_lake::ListPage| -> Vec<String> {
                    page.objects.iter().map(|object| object.key.to_string()).collect()
                };
                assert_eq!(keys(&real), keys(&expected), "objects of {options:?} among {names:?}");
                assert_eq!(&real.prefixes, &expected.prefixes, "prefixes of {options:?} among {names:?}");
                assert_eq!(&real.next, &expected.next, "next of {options:?} among {names:?}");
            }
        });
    }
}

async fn all_pages(lake: &FolderLake, prefix: &str, limit: usize) -> Vec<String> {
    let mut names = Vec::new();
    let mut start_after = None;
    loop {
        let options = ListOptions {
            prefix: prefix.to_owned(),
            limit,
            start_after,
            ..ListOptions::default()
        };
        let page = lake.list(options).await.unwrap();
        assert!(page.objects.len() <= limit);
        names.extend(page.objects.iter().map(|object| object.key.to_string()));
        match page.next {
            None => return names,
            next => start_after = next,
        }
    }
}

#[tokio::test]
async fn five_thousand_keys_page_whole_at_every_limit() {
    let (root, lake) = fresh();
    let names: BTreeSet<String> = (0..5000)
        .map(|index| match index % 10 {
            0 => format!("top-{index}"),
            folder => format!("folder-{}/{}/k{index}", folder * 10 + index % 7, index % 3),
        })
        .collect();
    make_files(root.path(), &names);
    let names: Vec<String> = names.into_iter().collect();
    for limit in [1, 7, 1000] {
        assert!(all_pages(&lake, "", limit).await == names, "limit {limit}");
    }
}

/// Keys that are there all the time are on every listing, whatever others write, overwrite and delete.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_is_complete_while_others_write() {
    let (root, lake) = fresh();
    let stable: BTreeSet<String> = (0..2000)
        .map(|index| format!("s{}/k{index}", index % 3))
        .collect();
    make_files(root.path(), &stable);
    let is_done = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..3)
        .map(|writer| {
            let (lake, is_done) = (lake.clone(), Arc::clone(&is_done));
            tokio::spawn(async move {
                for round in 0_u64.. {
                    if is_done.load(Ordering::Relaxed) {
                        return round;
                    }
                    let moving = key(&format!("s{writer}/moving-{}", round % 50));
                    let overwritten = key(&format!(
                        "s{writer}/k{}",
                        (round * 3 + writer) % 2000 / 3 * 3 + writer
                    ));
                    for written in [&moving, &overwritten] {
                        lake.put(written, Bytes::from_static(b"x"), PutOptions::default())
                            .await
                            .unwrap();
                    }
                    lake.delete(&moving).await.unwrap();
                }
                0
            })
        })
        .collect();
    for _ in 0..10 {
        let listed: BTreeSet<String> = all_pages(&lake, "s", 300).await.into_iter().collect();
        let missing: Vec<_> = stable.difference(&listed).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
    is_done.store(true, Ordering::Relaxed);
    for writer in writers {
        assert!(
            writer.await.unwrap() > 0,
            "the writers must have written meanwhile"
        );
    }
}
