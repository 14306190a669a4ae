use super::*;
use crate::CacheChange;

async fn filled(ram_bytes: u64, keys: &[&str]) -> (Arc<Reservoir>, Arc<FakeSource>) {
    let (reservoir, source) = (reservoir(ram_bytes).await, FakeSource::new());
    for key in keys {
        let object = object(key, "1", MIB);
        check(&reservoir, &object, whole(&object), &source).await;
    }
    (reservoir, source)
}

#[tokio::test]
async fn evict_takes_what_is_under_the_prefix() {
    let (reservoir, _source) = filled(64 * MIB, &["a/1", "a/2", "b/1"]).await;
    assert_eq!(
        reservoir.evict(&bucket(), "a/"),
        CacheChange {
            objects: 2,
            bytes: 2 * MIB
        }
    );
    assert_eq!(reservoir.evict(&bucket(), "a/"), CacheChange::default());
    assert_eq!(reservoir.resident(&object("b/1", "1", MIB)).ram_bytes, MIB);
}

#[tokio::test]
async fn pinned_objects_stay_through_churn_and_go_when_unpinned() {
    let (reservoir, source) = filled(16 * MIB, &["pinned/1"]).await;
    assert_eq!(
        reservoir.pin(&bucket(), "pinned/"),
        CacheChange {
            objects: 1,
            bytes: MIB
        }
    );
    let later = object("pinned/2", "1", MIB);
    check(&reservoir, &later, whole(&later), &source).await;
    assert_eq!(reservoir.stats().pinned_bytes, 2 * MIB);
    let scan = object("scan", "1", 100 * MIB);
    check(&reservoir, &scan, whole(&scan), &source).await;
    assert_eq!(reservoir.resident(&object("pinned/1", "1", MIB)).ram_bytes, MIB);
    assert_eq!(reservoir.resident(&later).ram_bytes, MIB);
    assert_eq!(reservoir.evict(&bucket(), "pinned/"), CacheChange::default());
    assert_eq!(
        reservoir.unpin(&bucket(), "pinned/"),
        CacheChange {
            objects: 2,
            bytes: 2 * MIB
        }
    );
    check(
        &reservoir,
        &object("scan-2", "1", 100 * MIB),
        range(0, 100 * MIB),
        &source,
    )
    .await;
    assert_eq!(reservoir.resident(&later).ram_bytes, 0);
    assert_eq!(reservoir.stats().pinned_bytes, 0);
}

#[tokio::test]
async fn pins_are_capped_so_that_others_still_get_memory() {
    let (reservoir, source) = filled(16 * MIB, &[]).await;
    reservoir.pin(&bucket(), "");
    let object = object("huge", "1", 60 * MIB);
    check(&reservoir, &object, whole(&object), &source).await;
    let stats = reservoir.stats();
    assert_eq!(stats.pinned_bytes, 12 * MIB);
    assert_eq!(stats.bypassed_bytes, 0);
    reservoir.forget(&bucket(), &object.key);
    assert_eq!(reservoir.stats().pinned_bytes, 0);
}

#[tokio::test]
async fn forget_takes_every_version() {
    let (reservoir, source) = filled(64 * MIB, &["a"]).await;
    let second = object("a", "2", MIB);
    check(&reservoir, &second, whole(&second), &source).await;
    reservoir.forget(&bucket(), &second.key);
    assert_eq!(reservoir.stats().ram_pages, 0);
    check(&reservoir, &second, whole(&second), &source).await;
    assert_eq!(source.sent(), 3 * MIB);
}

#[tokio::test]
async fn a_read_goes_on_when_its_object_is_forgotten() {
    use futures::StreamExt;
    let (reservoir, source) = filled(32 * MIB, &[]).await;
    let object = object("a", "1", 20 * MIB);
    let mut stream = reservoir.read(&object, whole(&object), &shared(&source));
    let mut position = 0;
    while let Some(piece) = stream.next().await {
        let piece = piece.unwrap();
        let end = position + piece.bytes.len() as u64;
        assert!(piece.bytes[..] == content(&object, range(position, end)));
        position = end;
        reservoir.forget(&bucket(), &object.key);
    }
    assert_eq!(position, object.bytes);
    drop(stream);
    eventually("all memory is free", || reservoir.stats().ram_used_bytes == 0).await;
}

#[tokio::test]
async fn readers_of_an_object_that_is_evicted_still_share_its_fetches() {
    let (reservoir, source) = (reservoir(32 * MIB).await, FakeSource::new());
    let object = object("a", "1", 20 * MIB);
    let mut readers: Vec<_> = (0..8)
        .map(|_| (reservoir.read(&object, whole(&object), &shared(&source)), 0))
        .collect();
    // All go in step, and the object is evicted once they are under way.
    let mut is_evicted = false;
    while readers.iter().any(|(_, position)| *position < object.bytes) {
        for (stream, position) in &mut readers {
            let piece = stream.try_next().await.unwrap();
            *position += piece.map_or(0, |piece| piece.bytes.len() as u64);
        }
        if !is_evicted && readers[0].1 >= 2 * MIB {
            is_evicted = reservoir.evict(&bucket(), "").objects == 1;
        }
    }
    assert!(is_evicted);
    assert!(source.sent() <= object.bytes + 4 * MIB, "{} bytes", source.sent());
}
