//! Reading: batches, ranges, versions.

use forebay_wire::objects;
use forebay_wire::objects::ListRequest;
use forebay_wire::{BATCH_ITEMS_MAX, Item, ItemRange};

use rustix::fs::SealFlags;

use crate::fixture::{TestNode, item, lease_of, name, pattern, range};

#[test]
fn what_was_put_is_read_back_from_shared_memory() {
    let node = TestNode::start();
    let mut client = node.client();
    for (key, bytes) in [("small", 10), ("block", 65_537), ("pages", 3 << 20)] {
        let content = pattern(bytes, 1);
        let version = client.put(key, &content);
        let found = client.get(key);
        assert_eq!(
            (found.version.as_str(), found.object_bytes),
            (version.as_str(), bytes as u64)
        );
        assert!(client.bytes_of(&found) == content, "{key}");
    }
}

#[test]
fn a_cold_read_fetches_and_a_warm_one_does_not() {
    let node = TestNode::start();
    let mut client = node.client();
    let content = pattern(200_000, 2);
    client.put("key", &content);
    // Written past the node, so that it is not in the cache.
    let lake = node.node.node().unwrap().options().data_dir.join("lake/box/cold");
    std::fs::write(lake, &content).unwrap();
    let cold = client.get("cold");
    assert_eq!((cold.sources.ram, cold.sources.lake), (0, 200_000));
    let warm = client.get("cold");
    assert_eq!((warm.sources.ram, warm.sources.lake), (200_000, 0));
    assert!(client.bytes_of(&cold) == content && client.bytes_of(&warm) == content);
    assert_ne!(lease_of(&cold), lease_of(&warm));
}

#[test]
fn each_item_of_a_batch_has_a_result_of_its_own_in_order() {
    let node = TestNode::start();
    let mut client = node.client();
    let content = pattern(100_000, 3);
    let version = client.put("key", &content);
    client.put("empty", b"");
    let mut changed = item("key", ItemRange::Whole);
    changed.version = Some("other".into());
    let mut pinned = item("key", range(5, 1));
    pinned.version = Some(version);
    let mut no_bucket = item("key", ItemRange::Whole);
    no_bucket.object.bucket = "UPPER".into();
    let items = vec![
        item("key", range(10, 20)),
        item("missing", ItemRange::Whole),
        item("key", ItemRange::Last(7)),
        item("key", range(99_990, 1000)),
        item("key", range(100_001, 1)),
        item("empty", ItemRange::Whole),
        changed,
        pinned,
        no_bucket,
        item("key", range(3, 0)),
    ];
    let results = client.read(items);
    let mut seen = Vec::new();
    for result in &results {
        seen.push(match result {
            Ok(found) => Ok(client.bytes_of(found)),
            Err(failure) => Err(failure.kind.as_str()),
        });
    }
    let part = |range: std::ops::Range<usize>| Ok(content[range].to_vec());
    let expected = [
        part(10..30),
        Err("not_found"),
        part(99_993..100_000),
        part(99_990..100_000),
        Err("out_of_range"),
        Ok(Vec::new()),
        Err("changed"),
        part(5..6),
        Err("invalid_input"),
        Ok(Vec::new()),
    ];
    assert_eq!(seen, expected);
    let empty = results[5].as_ref().unwrap();
    assert!(empty.view.is_none(), "nothing to hold");
}

#[test]
fn a_batch_that_is_too_large_is_refused_as_a_whole() {
    let node = TestNode::start();
    let items: Vec<Item> = (0..=BATCH_ITEMS_MAX)
        .map(|_| item("k", ItemRange::Whole))
        .collect();
    let answer = node
        .client()
        .ask(&objects::Request::Read { items, timeout_ms: 0 });
    assert!(matches!(answer, Err(failure) if failure.kind == "invalid_input"));
}

#[test]
fn a_segment_cannot_be_written_by_who_maps_it() {
    let node = TestNode::start();
    let mut client = node.client();
    client.put("key", &pattern(100_000, 4));
    let found = client.get("key");
    let part = found.view.as_ref().unwrap().parts[0];
    let (_, memfd) = client.map(part.segment).unwrap();
    assert_eq!(
        rustix::io::pwrite(&memfd, b"x", part.offset).unwrap_err(),
        rustix::io::Errno::PERM
    );
    let seals = rustix::fs::fcntl_get_seals(&memfd).unwrap();
    assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE));
    assert_eq!(client.map(u64::MAX).unwrap_err().kind, "not_found");
}

#[test]
fn stat_list_and_delete_say_what_the_lake_has() {
    let node = TestNode::start();
    let mut client = node.client();
    let version = client.put("a/one", b"1");
    client.put("a/two", b"22");
    client.put("b", b"333");
    match client.ask(&objects::Request::Stat(name("a/one"))) {
        Ok(objects::Answer::Stat(stat)) => assert_eq!((stat.bytes, stat.version), (1, version)),
        other => panic!("{other:?}"),
    }
    let mut list = ListRequest {
        bucket: "box".into(),
        prefix: String::new(),
        delimiter: Some("/".into()),
        after: None,
        limit: 0,
    };
    match client.ask(&objects::Request::List(list.clone())) {
        Ok(objects::Answer::Listed(listed)) => {
            assert_eq!(listed.prefixes, ["a/"]);
            assert_eq!(listed.objects.len(), 1);
            assert_eq!(
                (listed.objects[0].key.as_str(), listed.objects[0].bytes),
                ("b", 3)
            );
        }
        other => panic!("{other:?}"),
    }
    list.delimiter = None;
    list.limit = 1;
    let mut keys = Vec::new();
    loop {
        let Ok(objects::Answer::Listed(page)) = client.ask(&objects::Request::List(list.clone())) else {
            panic!("no page");
        };
        keys.extend(page.objects.into_iter().map(|object| object.key));
        list.after = page.next;
        if list.after.is_none() {
            break;
        }
    }
    assert_eq!(keys, ["a/one", "a/two", "b"]);
    assert_eq!(
        client.ask(&objects::Request::Delete(name("b"))),
        Ok(objects::Answer::Done)
    );
    assert_eq!(
        client.ask(&objects::Request::Delete(name("b"))),
        Ok(objects::Answer::Done)
    );
    assert!(
        matches!(client.ask(&objects::Request::Stat(name("b"))), Err(failure) if failure.kind == "not_found")
    );
}
