use bytes::Bytes;

use super::*;

async fn push_all(
    reservoir: &Arc<Reservoir>,
    object: &ObjectVersion,
    bytes_hint: Option<u64>,
) -> crate::Fill {
    let mut fill = reservoir.begin_fill(bytes_hint);
    for chunk in content(object, whole(object)).chunks(77_777) {
        fill.push(&Bytes::copy_from_slice(chunk)).await;
    }
    fill
}

#[tokio::test]
async fn reading_what_was_just_written_costs_no_source_bytes() {
    let (reservoir, source) = (reservoir(64 * MIB).await, FakeSource::new());
    for (number, bytes) in [1, 70_000, MIB, 2 * MIB, 5 * MIB + 333].into_iter().enumerate() {
        for hint in [Some(bytes), None] {
            let object = object(&format!("written-{number}-{hint:?}"), "1", bytes);
            push_all(&reservoir, &object, hint).await.commit(&object);
            check(&reservoir, &object, whole(&object), &source).await;
        }
    }
    assert_eq!(source.request_count(), 0);
}

#[tokio::test]
async fn a_fill_that_is_dropped_leaves_nothing() {
    let reservoir = reservoir(64 * MIB).await;
    let object = object("a", "1", 5 * MIB);
    drop(push_all(&reservoir, &object, Some(object.bytes)).await);
    drop(push_all(&reservoir, &object, None).await);
    let stats = reservoir.stats();
    assert_eq!((stats.ram_used_bytes, stats.ram_pages), (0, 0));
    assert_eq!(reservoir.counters.write_fill_bytes.get(), 0);
}

#[tokio::test]
async fn a_fill_of_another_size_than_the_object_is_forgotten() {
    let reservoir = reservoir(64 * MIB).await;
    let object = object("a", "1", 5 * MIB);
    let longer = ObjectVersion {
        bytes: object.bytes + 1,
        ..object.clone()
    };
    push_all(&reservoir, &object, None).await.commit(&longer);
    assert_eq!(reservoir.stats().ram_used_bytes, 0);
}

#[tokio::test]
async fn a_fill_that_is_too_large_gives_up_and_frees_its_memory() {
    let options = ReservoirOptions {
        write_fill_bytes_max: 2 * MIB,
        ..options(64 * MIB)
    };
    let reservoir = Reservoir::open(options).await.unwrap();
    let object = object("a", "1", 3 * MIB);
    for hint in [Some(object.bytes), Some(MIB), None] {
        let fill = push_all(&reservoir, &object, hint).await;
        assert_eq!(reservoir.stats().ram_used_bytes, 0, "{hint:?}");
        fill.commit(&object);
    }
    assert_eq!(reservoir.stats().ram_pages, 0);
}

#[tokio::test]
async fn a_wrong_hint_is_harmless() {
    let (reservoir, source) = (reservoir(64 * MIB).await, FakeSource::new());
    for hint in [0, 1, MIB, 2 * MIB + 1, 20 * MIB] {
        let object = object(&format!("hint-{hint}"), "1", 3 * MIB);
        push_all(&reservoir, &object, Some(hint)).await.commit(&object);
        check(&reservoir, &object, whole(&object), &source).await;
    }
}

#[tokio::test]
async fn writes_under_way_never_take_all_memory() {
    let (reservoir, source) = (reservoir(16 * MIB).await, FakeSource::new());
    let object = object("a", "1", 6 * MIB);
    let fills = futures::future::join_all((0..8).map(|_| push_all(&reservoir, &object, None))).await;
    assert!(reservoir.stats().ram_used_bytes <= 8 * MIB);
    let other = super::object("other", "1", 2 * MIB);
    check(&reservoir, &other, whole(&other), &source).await;
    assert_eq!(reservoir.stats().bypassed_bytes, 0);
    drop(fills);
}
