//! Readers, writers and deleters that meet inside one process.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use forebay_core::Kind;
use forebay_lake::{FolderLake, Lake, ListOptions, PutOptions};
use forebay_testkit::patterned;
use futures::future::join_all;

use super::{fresh, key, md5_hex, names, private_files, read};

/// The ETag that a reader sees is always that of the bytes it gets, and never a made-up one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_see_bytes_and_etag_of_the_same_write() {
    let (root, lake) = fresh();
    let bodies: Vec<Bytes> = (0..20)
        .map(|seed| patterned(200 + seed as usize * 7919, seed))
        .collect();
    let versions: Arc<HashSet<String>> = Arc::new(bodies.iter().map(|body| md5_hex(body)).collect());
    lake.put(&key("k"), bodies[0].clone(), PutOptions::default())
        .await
        .unwrap();
    let is_done = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let (lake, versions, is_done) = (lake.clone(), Arc::clone(&versions), Arc::clone(&is_done));
            tokio::spawn(async move {
                let mut reads = 0;
                while !is_done.load(Ordering::Relaxed) {
                    check_one_read(&lake, &versions).await;
                    reads += 1;
                }
                reads
            })
        })
        .collect();
    let written = key("k");
    for round in 0..15 {
        let writes = bodies
            .iter()
            .skip(round % 3)
            .map(|body| lake.put(&written, body.clone(), PutOptions::default()));
        for write in join_all(writes).await {
            write.unwrap();
        }
    }
    is_done.store(true, Ordering::Relaxed);
    for reader in readers {
        assert!(reader.await.unwrap() > 0);
    }
    assert_eq!(
        private_files(root.path(), "meta").len(),
        1,
        "the sidecars of replaced objects are gone"
    );
}

async fn check_one_read(lake: &FolderLake, versions: &HashSet<String>) {
    let (version, bytes) = read(lake, "k").await.unwrap();
    assert_eq!(md5_hex(&bytes), version, "get");
    let head = lake.head(&key("k")).await.unwrap();
    assert!(
        versions.contains(head.version.as_str()),
        "head said {}",
        head.version
    );
    let page = lake.list(ListOptions::default()).await.unwrap();
    assert_eq!(
        page.objects.len(),
        1,
        "an object that is overwritten is always listed"
    );
    let listed = page.objects[0].version.as_str();
    assert!(versions.contains(listed), "list said {listed}");
}

/// A delete removes the folder that it leaves empty; a put that is on its way into it makes it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn puts_survive_the_pruning_of_their_folder() {
    let (root, lake) = fresh();
    let workers = (0..4).map(|worker| {
        let lake = lake.clone();
        tokio::spawn(async move {
            for round in 0..60 {
                let name = key(&format!("deep/er/w{worker}"));
                lake.put(&name, Bytes::from(format!("{round}")), PutOptions::default())
                    .await
                    .unwrap();
                assert!(lake.head(&name).await.is_ok());
                lake.delete(&name).await.unwrap();
                assert_eq!(lake.head(&name).await.unwrap_err().kind(), Kind::NotFound);
            }
        })
    });
    for worker in join_all(workers).await {
        worker.unwrap();
    }
    assert!(names(&lake).await.is_empty());
    assert!(!root.path().join("deep").exists(), "empty folders are removed");
}
