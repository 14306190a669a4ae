//! Objects so large that what is written is synced while the rest still comes in.

use bytes::Bytes;
use forebay_lake::{Lake, PutOptions};

use super::{fresh, key, md5_hex, private_files, read};

/// More than two syncs' worth, and no multiple of anything.
const BYTES: usize = (40 << 20) + 12_345;
const CHUNK_BYTES: usize = 300_001;

fn body() -> Vec<u8> {
    (0..BYTES).map(|at| ((at % 251) ^ (at >> 16)) as u8).collect()
}

#[tokio::test]
async fn a_large_write_keeps_every_byte_and_its_etag() {
    let (_root, lake) = fresh();
    let body = body();
    let mut writer = lake
        .writer(&key("large"), PutOptions::default(), Some(BYTES as u64))
        .await
        .unwrap();
    for chunk in body.chunks(CHUNK_BYTES) {
        writer.write(Bytes::copy_from_slice(chunk)).await.unwrap();
    }
    writer.finish(PutOptions::default()).await.unwrap();
    let (version, found) = read(&lake, "large").await.unwrap();
    assert!(found == body, "the bytes are another's");
    assert_eq!(version, md5_hex(&body));
}

#[tokio::test]
async fn a_large_write_that_is_aborted_leaves_nothing() {
    let (root, lake) = fresh();
    let mut writer = lake
        .writer(&key("large"), PutOptions::default(), Some(BYTES as u64))
        .await
        .unwrap();
    assert_eq!(private_files(root.path(), "tmp").len(), 1);
    for chunk in body().chunks(CHUNK_BYTES) {
        writer.write(Bytes::copy_from_slice(chunk)).await.unwrap();
    }
    writer.abort().await.unwrap();
    assert!(lake.head(&key("large")).await.is_err());
    assert!(private_files(root.path(), "tmp").is_empty());
}
