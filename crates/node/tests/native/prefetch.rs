//! `Prefetch` and `WorkingSet`: bytes that are brought in ahead, objects that are read in rounds.

use forebay_wire::objects;
use forebay_wire::objects::{WorkingSet, WorkingSetObject};
use forebay_wire::{Item, ItemRange, TierBytes};

use crate::fixture::{Client, TestNode, item, name, pattern, range};

const MIB: usize = 1 << 20;

fn prefetch(client: &mut Client, items: Vec<Item>) -> Vec<Result<TierBytes, String>> {
    let request = objects::Request::Prefetch { items, timeout_ms: 0 };
    let Ok(objects::Answer::Prefetched(found)) = client.ask(&request) else {
        panic!("an answer of another kind");
    };
    found
        .into_iter()
        .map(|one| one.map_err(|failure| failure.kind))
        .collect()
}

/// Writes past the node, so that it is not in the cache.
fn put_cold(node: &TestNode, key: &str, bytes: &[u8]) {
    let lake = node.node.node().unwrap().options().data_dir.join("lake/box");
    std::fs::write(lake.join(key), bytes).unwrap();
}

#[test]
fn prepared_bytes_are_read_from_ram_and_nothing_is_leased() {
    let node = TestNode::start();
    let mut client = node.client();
    let content = pattern(3 * MIB, 4);
    put_cold(&node, "cold", &content);
    let items = || {
        vec![
            item("cold", range(100, 2_000_000)),
            item("cold", ItemRange::Whole),
        ]
    };
    let first = prefetch(&mut client, items());
    let lake: u64 = first.iter().map(|one| one.as_ref().unwrap().lake).sum();
    assert!(lake > 0);
    assert_eq!(node.stats().leases, 0);
    let again = prefetch(&mut client, items());
    let all = TierBytes {
        ram: 3 * MIB as u64,
        ..TierBytes::default()
    };
    assert_eq!(again[1], Ok(all));
    let found = client.get("cold");
    assert_eq!(found.sources.lake, 0);
    assert!(client.bytes_of(&found) == content);
}

#[test]
fn each_prepared_item_has_a_result_of_its_own() {
    let node = TestNode::start();
    let mut client = node.client();
    client.put("key", &pattern(1000, 1));
    let mut changed = item("key", ItemRange::Whole);
    changed.version = Some("other".into());
    let found = prefetch(
        &mut client,
        vec![
            item("missing", ItemRange::Whole),
            item("key", range(10, 20)),
            changed,
            item("key", range(5000, 1)),
        ],
    );
    assert_eq!(found[0], Err("not_found".into()));
    assert_eq!(found[1].as_ref().unwrap().ram, 20);
    assert_eq!(found[2], Err("changed".into()));
    assert_eq!(found[3], Err("out_of_range".into()));
}

/// Reads all objects once; bytes that came from the lake.
fn round(client: &mut Client, keys: &[String]) -> u64 {
    let mut lake = 0;
    for key in keys {
        let found = prefetch(client, vec![item(key, ItemRange::Whole)]);
        lake += found[0].as_ref().unwrap().lake;
    }
    lake
}

#[test]
fn a_working_set_stays_although_it_does_not_all_fit() {
    let node = TestNode::start();
    let mut client = node.client();
    let keys: Vec<String> = (0..48).map(|number| format!("shard-{number:02}")).collect();
    for (number, key) in keys.iter().enumerate() {
        put_cold(&node, key, &pattern(2 * MIB, number as u64));
    }
    let objects: Vec<WorkingSetObject> = keys
        .iter()
        .map(|key| {
            let Ok(objects::Answer::Stat(stat)) = client.ask(&objects::Request::Stat(name(key))) else {
                panic!("no metadata");
            };
            WorkingSetObject {
                object: name(key),
                version: stat.version,
                bytes: stat.bytes,
            }
        })
        .collect();
    let keep = objects::Request::WorkingSet(WorkingSet {
        id: 1,
        reader: 1,
        ahead_bytes: 8 * MIB as u64,
        is_dense: false,
        objects,
    });
    assert_eq!(
        client.ask(&keep),
        Ok(objects::Answer::WorkingSetKept {
            ram_bytes: 64 * MIB as u64
        })
    );
    let all = 96 * MIB as u64;
    assert_eq!(round(&mut client, &keys), all);
    // 64 MiB of RAM, 8 of them for what comes next: half of the data at least stays, in whatever order it is
    // asked for.
    for _ in 0..3 {
        let lake = round(&mut client, &keys);
        assert!(lake <= all / 2, "{lake} of {all} came from the lake");
    }
    assert_eq!(
        client.ask(&objects::Request::DropWorkingSet { reader: 1 }),
        Ok(objects::Answer::Done)
    );
    assert_eq!(
        client.ask(&objects::Request::DropWorkingSet { reader: 1 }),
        Ok(objects::Answer::Done)
    );
}
