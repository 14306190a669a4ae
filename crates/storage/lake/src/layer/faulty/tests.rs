use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_core::{Kind, ObjectKey};
use futures::{FutureExt, TryStreamExt};

use super::*;
use crate::MemoryLake;

const BYTES: usize = 3 << 20;

async fn lake() -> (MemoryLake, Faulty, ObjectKey) {
    let memory = MemoryLake::new();
    let key = ObjectKey::new("k").unwrap();
    memory
        .put(&key, Bytes::from(vec![1; BYTES]), PutOptions::default())
        .await
        .unwrap();
    let faulty = Faulty::new(Arc::new(memory.clone()), 1);
    (memory, faulty, key)
}

/// Returns what the body gave, and how it ended.
async fn drain(mut body: ByteStream) -> (Vec<u8>, Option<Kind>) {
    let mut bytes = Vec::new();
    loop {
        match body.try_next().await {
            Ok(Some(piece)) => bytes.extend_from_slice(&piece),
            Ok(None) => return (bytes, None),
            Err(error) => return (bytes, Some(error.kind())),
        }
    }
}

async fn read(faulty: &Faulty, key: &ObjectKey) -> (Vec<u8>, Option<Kind>) {
    drain(faulty.get(key, GetOptions::default()).await.unwrap().body).await
}

#[tokio::test]
async fn scripted_faults_are_used_up_in_order() {
    let (_, faulty, key) = lake().await;
    faulty.script(Operation::Head, Fault::Error(Kind::Throttled));
    faulty.script(Operation::Head, Fault::Error(Kind::Timeout));
    assert_eq!(faulty.head(&key).await.unwrap_err().kind(), Kind::Throttled);
    assert_eq!(faulty.head(&key).await.unwrap_err().kind(), Kind::Timeout);
    assert!(faulty.head(&key).await.is_ok());
    assert_eq!(faulty.hits(), 2);
}

#[tokio::test]
async fn short_body_breaks_off_at_the_exact_byte() {
    let (_, faulty, key) = lake().await;
    for after_bytes in [0, 1, (1 << 20) + 17, BYTES as u64 - 1] {
        faulty.script(Operation::Get, Fault::ShortBody { after_bytes });
        let (bytes, end) = read(&faulty, &key).await;
        assert_eq!((bytes.len() as u64, end), (after_bytes, Some(Kind::Unavailable)));
    }
}

#[tokio::test]
async fn corrupt_body_has_one_wrong_byte() {
    let (_, faulty, key) = lake().await;
    faulty.script(
        Operation::Get,
        Fault::CorruptBody {
            at_byte: (1 << 20) + 5,
        },
    );
    let (bytes, end) = read(&faulty, &key).await;
    let wrong: Vec<usize> = (0..BYTES).filter(|index| bytes[*index] != 1).collect();
    assert_eq!((bytes.len(), end, wrong), (BYTES, None, vec![(1 << 20) + 5]));
}

#[tokio::test]
async fn an_error_after_the_work_leaves_the_work_done() {
    let (memory, faulty, _) = lake().await;
    let other = ObjectKey::new("other").unwrap();
    faulty.script(Operation::Put, Fault::ErrorAfter(Kind::Timeout));
    let result = faulty
        .put(&other, Bytes::from_static(b"x"), PutOptions::default())
        .await;
    assert_eq!(result.unwrap_err().kind(), Kind::Timeout);
    assert!(memory.head(&other).await.is_ok());
}

#[tokio::test]
async fn stalls_wait_until_released() {
    let (_, faulty, key) = lake().await;
    faulty.script(Operation::Head, Fault::Stall);
    faulty.script(Operation::Get, Fault::StallBody { after_bytes: 100 });
    let mut head = faulty.head(&key);
    let mut body = std::pin::pin!(read(&faulty, &key));
    assert!((&mut head).now_or_never().is_none() && (&mut body).now_or_never().is_none());
    assert_eq!(faulty.stalled(), 2);
    faulty.release();
    let both = async { (head.await.is_ok(), body.await.0.len()) };
    assert_eq!(
        tokio::time::timeout(Duration::from_secs(5), both).await.unwrap(),
        (true, BYTES)
    );
    assert_eq!(faulty.stalled(), 0);
}

#[tokio::test]
async fn a_hook_can_replace_the_object_in_the_middle_of_a_read() {
    let (memory, faulty, key) = lake().await;
    let before = memory.head(&key).await.unwrap().version;
    let (lake, replaced) = (memory.clone(), key.clone());
    let hook: FaultHook = Arc::new(move || {
        let (lake, key) = (lake.clone(), replaced.clone());
        async move {
            lake.put(&key, Bytes::from_static(b"new"), PutOptions::default())
                .await
                .unwrap();
        }
        .boxed()
    });
    faulty.script(
        Operation::Get,
        Fault::Hook {
            after_bytes: 10,
            hook,
        },
    );
    let (bytes, end) = read(&faulty, &key).await;
    assert_eq!((bytes.len(), end), (BYTES, None));
    assert_ne!(memory.head(&key).await.unwrap().version, before);
}

#[tokio::test]
async fn the_same_seed_gives_the_same_storm() {
    let storm = async |seed: u64| {
        let memory = MemoryLake::new();
        let faulty = Faulty::new(Arc::new(memory), seed);
        faulty.random(Operation::List, 0.5, Fault::Error(Kind::Unavailable));
        let mut outcomes = Vec::new();
        for _ in 0..64 {
            outcomes.push(faulty.list(ListOptions::default()).await.is_ok());
        }
        outcomes
    };
    let first = storm(7).await;
    assert_eq!(first, storm(7).await);
    assert_ne!(first, storm(8).await);
    assert!(first.contains(&true) && first.contains(&false));
}
