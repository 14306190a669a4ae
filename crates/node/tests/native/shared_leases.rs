//! Small items of one batch share a lease: what that saves, and what it must not change.

use std::collections::BTreeSet;

use forebay_wire::Item;
use forebay_wire::objects;

use crate::fixture::{TestNode, item, lease_of, pattern, range};

/// What one lease may hold together.
const SHARED_BYTES_MAX: u64 = 256 << 10;

fn ranges(key: &str, count: u64, bytes: u64) -> Vec<Item> {
    (0..count)
        .map(|number| item(key, range(number * bytes, bytes)))
        .collect()
}

#[test]
fn small_items_share_a_lease_that_ends_as_a_whole() {
    let node = TestNode::start();
    let mut client = node.client();
    let content = pattern(1 << 20, 1);
    client.put("key", &content);
    client.get("key");
    let before = node.stats();
    let found = client.read(ranges("key", 64, 4096));
    let leases: BTreeSet<u64> = found.iter().flatten().map(lease_of).collect();
    assert_eq!(leases.len(), 1);
    let stats = node.stats();
    assert_eq!(
        (
            stats.leases - before.leases,
            stats.leased_bytes - before.leased_bytes
        ),
        (1, 64 * 4096)
    );
    for (number, found) in found.iter().flatten().enumerate() {
        assert!(
            client.bytes_of(found) == content[number * 4096..][..4096],
            "{number}"
        );
    }
    client
        .ask(&objects::Request::Release {
            leases: leases.into_iter().collect(),
        })
        .unwrap();
    assert_eq!(node.stats().leased_bytes, before.leased_bytes);
}

#[test]
fn large_items_have_leases_of_their_own() {
    let node = TestNode::start();
    let mut client = node.client();
    client.put("key", &pattern(4 << 20, 1));
    client.get("key");
    let found = client.read(ranges("key", 16, SHARED_BYTES_MAX));
    let leases: BTreeSet<u64> = found.iter().flatten().map(lease_of).collect();
    assert_eq!(leases.len(), 16);
    let found = client.read(ranges("key", 64, 52_000));
    let leases: Vec<u64> = found.iter().flatten().map(lease_of).collect();
    let fit = usize::try_from(SHARED_BYTES_MAX / 52_000).unwrap();
    for lease in &leases {
        assert!(leases.iter().filter(|other| *other == lease).count() <= fit);
    }
}

#[test]
fn an_item_that_fails_does_not_shift_the_leases_of_the_others() {
    let node = TestNode::start();
    let mut client = node.client();
    let content = pattern(600_000, 1);
    client.put("key", &content);
    client.get("key");
    let mut items = ranges("key", 3, 200_000);
    items.insert(1, item("absent", range(0, 10)));
    let found = client.read(items);
    assert_eq!(found[1].as_ref().unwrap_err().kind, "not_found");
    let leases: Vec<u64> = found.iter().flatten().map(lease_of).collect();
    client
        .ask(&objects::Request::Release {
            leases: vec![leases[0]],
        })
        .unwrap();
    // The second and third are still held: their bytes can be looked at.
    for (number, found) in [(1, &found[2]), (2, &found[3])] {
        let found = found.as_ref().unwrap();
        assert!(client.bytes_of(found) == content[number * 200_000..][..200_000]);
    }
}
