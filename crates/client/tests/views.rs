//! Views: mapped in place, side by side, copied; leases and when they end; handles; reads into memory of the
//! caller.

mod fixture;

use std::sync::Arc;

use fixture::{FakeNode, MIB, Request, connect, item, name, pattern, until};
use forebay_client::{Entry, ViewHandle};
use forebay_client::{ItemRange, ListOptions, Name};
use forebay_core::Kind;
use forebay_wire::objects::ViewPart;
use forebay_wire::{objects, session};

/// Pieces of these sizes, each in a segment of its own and 2 MiB behind its start.
fn scatter(node: &FakeNode, key: &str, content: &[u8], sizes: &[usize]) {
    let mut books = node.books();
    let mut rest = content;
    let mut parts = Vec::new();
    for (index, bytes) in sizes.iter().enumerate() {
        let (piece, behind) = rest.split_at(*bytes);
        rest = behind;
        // The first piece ends and all others start at a page.
        let lead = if index == 0 {
            bytes.next_multiple_of(4096) - bytes
        } else {
            0
        };
        let mut all = vec![0xdd; 2 * MIB + lead];
        all.extend_from_slice(piece);
        all.resize(all.len().next_multiple_of(4096) + 4096, 0xdd);
        let segment = books.add_segment(&all);
        parts.push(ViewPart {
            segment,
            offset: (2 * MIB + lead) as u64,
            bytes: *bytes as u64,
        });
    }
    books.add_parts(key, parts);
}

#[test]
fn a_view_is_mapped_in_place_and_its_lease_ends_with_the_last_clone() {
    let node = FakeNode::start();
    let content = pattern(1, 100_000);
    node.books().add_object("a", &content);
    let client = connect(&node);
    let view = client.get(&name("a"), ItemRange::Whole, None).unwrap();
    assert!(view.is_mapped());
    assert_eq!(&view[..], content);
    assert_eq!(view.object_bytes(), 100_000);
    let clone = view.clone();
    drop(view);
    assert_eq!(node.books().holders(), 1);
    assert_eq!(&clone[..], content);
    drop(clone);
    until("the lease is given back", || node.books().holders() == 0);
    let stats = client.stats();
    assert_eq!(
        (stats.mapped_bytes, stats.copied_bytes, stats.ram_bytes),
        (100_000, 0, 100_000)
    );
}

#[test]
fn ranges_are_cut_at_the_end_and_refused_behind_it() {
    let node = FakeNode::start();
    let content = pattern(2, 10_000);
    node.books().add_object("a", &content);
    let client = connect(&node);
    let range = |offset, length| client.get(&name("a"), ItemRange::Range { offset, length }, None);
    assert_eq!(&range(9_990, 100).unwrap()[..], &content[9_990..]);
    assert_eq!(range(10_000, 1).unwrap_err().kind(), Kind::OutOfRange);
    assert_eq!(
        &client.get(&name("a"), ItemRange::Last(7), None).unwrap()[..],
        &content[9_993..]
    );
}

#[test]
fn an_empty_object_is_an_empty_view_without_a_lease() {
    let node = FakeNode::start();
    node.books().add_parts("empty", Vec::new());
    let client = connect(&node);
    let view = client.get(&name("empty"), ItemRange::Whole, None).unwrap();
    assert!(view.is_empty());
    assert_eq!(node.books().holders(), 0);
    assert!(client.open_handle(&view.handle()).unwrap().is_empty());
}

#[test]
fn a_segment_is_asked_for_once() {
    let node = FakeNode::start();
    node.books().add_object("a", &pattern(3, 5000));
    let client = connect(&node);
    for _ in 0..10 {
        client.get(&name("a"), ItemRange::Whole, None).unwrap();
    }
    let log = &node.books().log;
    assert_eq!(
        log.iter()
            .filter(|request| matches!(request, Request::Session(session::Request::MapSegment { .. })))
            .count(),
        1
    );
}

#[test]
fn large_pieces_of_several_segments_are_mapped_side_by_side() {
    let node = FakeNode::start();
    let sizes = [MIB + 123, 2 * MIB, MIB, 700_001];
    let content = pattern(4, sizes.iter().sum());
    scatter(&node, "big", &content, &sizes);
    let client = connect(&node);
    let view = client.get(&name("big"), ItemRange::Whole, None).unwrap();
    assert!(view.is_mapped());
    assert!(view[..] == content[..], "the bytes differ");
    assert_eq!(client.stats().copied_bytes, 0);
    let place = view.as_ptr();
    drop(view);
    until("the lease is given back", || node.books().holders() == 0);
    let again = client.get(&name("big"), ItemRange::Whole, None).unwrap();
    assert!(again[..] == content[..], "the bytes differ");
    assert_eq!(again.as_ptr(), place, "mapped side by side once");
    let range = ItemRange::Range {
        offset: 1,
        length: 4 << 20,
    };
    let part = client.get(&name("big"), range, None).unwrap();
    assert!(part[..] == content[1..=4 << 20], "other parts are mapped anew");
}

#[test]
fn pieces_are_read_where_they_lie_and_their_lease_ends_with_them() {
    let node = FakeNode::start();
    // Neither large nor at pages: a view of them would be a copy.
    let sizes = [1, 70_000, 5, MIB + 123];
    let content = pattern(5, sizes.iter().sum());
    scatter(&node, "apart", &content, &sizes);
    let client = connect(&node);
    let item = item("apart");
    let pieces = client.read(vec![item]).unwrap().remove(0).unwrap();
    assert_eq!(
        (pieces.bytes(), pieces.object_bytes()),
        (content.len(), content.len() as u64)
    );
    for range in [
        0..content.len(),
        0..1,
        1..2,
        69_999..70_007,
        70_006..70_006,
        70_001..content.len(),
    ] {
        let bytes: Vec<u8> = pieces.slices(range.clone()).flatten().copied().collect();
        assert!(bytes == content[range.clone()], "{range:?} differs");
    }
    assert_eq!(pieces.slices(0..content.len()).count(), sizes.len());
    assert_eq!(client.stats().copied_bytes, 0);
    drop(pieces);
    until("the lease is given back", || node.books().holders() == 0);
}

#[test]
fn parts_are_views_of_their_own_under_one_lease() {
    let node = FakeNode::start();
    let sizes = [1, 70_000, 5, MIB + 123];
    let content = pattern(6, sizes.iter().sum());
    scatter(&node, "parts", &content, &sizes);
    let client = connect(&node);
    let mut parts = client
        .read(vec![item("parts")])
        .unwrap()
        .remove(0)
        .unwrap()
        .pieces()
        .unwrap();
    let mut first = 0;
    for (part, bytes) in parts.iter().zip(sizes) {
        assert_eq!(part.offset(), first as u64);
        assert!(
            part[..] == content[first..first + bytes],
            "the part at {first} differs"
        );
        first += bytes;
    }
    assert_eq!((first, parts.len()), (content.len(), sizes.len()));
    assert_eq!(client.stats().copied_bytes, 0);
    let last = parts.pop().unwrap();
    drop(parts);
    assert_eq!(node.books().holders(), 1, "one part holds the lease of all");
    assert!(last[..] == content[content.len() - last.len()..]);
    drop(last);
    until("the lease is given back", || node.books().holders() == 0);
}

#[test]
fn pieces_of_a_new_node_are_never_taken_for_those_of_the_old_one() {
    let folder = fixture::Folder::new();
    let sizes = [MIB, 2 * MIB];
    let old = pattern(30, sizes.iter().sum());
    let new = pattern(31, sizes.iter().sum());
    let mut node = FakeNode::start_at(&folder.socket(), 1);
    scatter(&node, "big", &old, &sizes);
    let client = connect(&node);
    let kept = client.get(&name("big"), ItemRange::Whole, None).unwrap();
    node.stop();
    let node = FakeNode::start_at(&folder.socket(), 2);
    scatter(&node, "big", &new, &sizes);
    let view = client.get(&name("big"), ItemRange::Whole, None).unwrap();
    assert!(view[..] == new[..], "the bytes are the new node's");
    assert!(kept[..] == old[..], "an old view keeps its bytes");
}

#[test]
fn small_pieces_are_copied_and_their_lease_ends_at_once() {
    let node = FakeNode::start();
    let sizes = [4096, 8192, 100];
    let content = pattern(5, sizes.iter().sum());
    scatter(&node, "small", &content, &sizes);
    let client = connect(&node);
    let view = client.get(&name("small"), ItemRange::Whole, None).unwrap();
    assert!(!view.is_mapped());
    assert_eq!(&view[..], content);
    until("the lease is given back", || node.books().holders() == 0);
    assert_eq!(client.stats().copied_bytes, content.len() as u64);
}

#[test]
fn pieces_that_do_not_meet_at_a_page_are_copied() {
    let node = FakeNode::start();
    let content = pattern(6, 2 * MIB);
    let segment = node.books().add_segment(&content);
    let part = |offset: usize, bytes: usize| ViewPart {
        segment,
        offset: offset as u64,
        bytes: bytes as u64,
    };
    node.books().add_parts("odd", vec![part(1, MIB), part(7, MIB)]);
    let client = connect(&node);
    let view = client.get(&name("odd"), ItemRange::Whole, None).unwrap();
    assert!(!view.is_mapped());
    assert!(view[..MIB] == content[1..=MIB] && view[MIB..] == content[7..MIB + 7]);
}

#[test]
fn a_batch_keeps_its_order_and_each_item_has_its_own_result() {
    let node = FakeNode::start();
    for index in 0..20 {
        node.books()
            .add_object(&format!("k{index}"), &pattern(index, 3000));
    }
    let client = connect(&node);
    let mut items: Vec<_> = (0..20).rev().map(|index| item(&format!("k{index}"))).collect();
    items.insert(5, item("missing"));
    let views = client.get_batch(items).unwrap();
    assert_eq!(views[5].as_ref().unwrap_err().kind(), Kind::NotFound);
    let found: Vec<_> = views.iter().filter_map(|view| view.as_ref().ok()).collect();
    for (view, index) in found.iter().zip((0..20).rev()) {
        assert_eq!(&view[..], pattern(index, 3000));
    }
}

#[test]
fn the_leases_of_a_batch_go_back_in_few_messages() {
    let node = FakeNode::start();
    node.books().add_object("a", &pattern(7, 4096));
    let client = connect(&node);
    let views = client.get_batch((0..64).map(|_| item("a")).collect()).unwrap();
    assert_eq!(node.books().holders(), 64);
    drop(views);
    until("all leases are given back", || node.books().holders() == 0);
    let releases = node.books().releases();
    // One at most for each millisecond that dropping takes, and the last one.
    assert!(releases <= 16, "{releases} messages");
}

#[test]
fn returns_travel_in_front_of_the_next_request() {
    let node = FakeNode::start();
    node.books().add_object("a", &pattern(8, 4096));
    let client = connect(&node);
    let kept = client.get(&name("a"), ItemRange::Whole, None).unwrap();
    for _ in 0..200 {
        client.get(&name("a"), ItemRange::Whole, None).unwrap();
    }
    client.ping().unwrap();
    assert_eq!(node.books().holders(), 1);
    drop(kept);
    until("all leases are given back", || node.books().holders() == 0);
}

#[test]
fn threads_share_one_client() {
    let node = FakeNode::start();
    let contents: Vec<_> = (0..16)
        .map(|index| pattern(index, 20_000 + index as usize))
        .collect();
    for (index, content) in contents.iter().enumerate() {
        node.books().add_object(&format!("k{index}"), content);
    }
    let client = connect(&node);
    let contents = Arc::new(contents);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (client, contents) = (client.clone(), Arc::clone(&contents));
            scope.spawn(move || {
                for round in 0..100 {
                    let index = (thread * 7 + round) % contents.len();
                    let view = client
                        .get(&name(&format!("k{index}")), ItemRange::Whole, None)
                        .unwrap();
                    assert!(view[..] == contents[index][..]);
                }
            });
        }
    });
    client.ping().unwrap();
    until("all leases are given back", || node.books().holders() == 0);
    assert!(client.stats().requests >= 800);
}

#[test]
fn read_into_copies_once_and_stops_at_the_end() {
    let node = FakeNode::start();
    let content = pattern(9, 3 * MIB + 5);
    node.books().add_object("a", &content);
    let client = connect(&node);
    let mut target = vec![0; 4 * MIB];
    let read = client.read_into(&name("a"), 0, &mut target).unwrap();
    assert_eq!(read, content.len());
    assert!(target[..read] == content[..]);
    assert_eq!(
        client.read_into(&name("a"), 3 * MIB as u64, &mut target).unwrap(),
        5
    );
    assert_eq!(&target[..5], &content[3 * MIB..]);
    assert_eq!(
        client
            .read_into(&name("a"), content.len() as u64, &mut target)
            .unwrap(),
        0
    );
    assert_eq!(
        client.read_into(&name("no"), 0, &mut target).unwrap_err().kind(),
        Kind::NotFound
    );
}

#[test]
fn a_handle_shares_the_lease_with_another_client() {
    let node = FakeNode::start();
    let content = pattern(10, 50_000);
    node.books().add_object("a", &content);
    let (one, other) = (connect(&node), connect(&node));
    let view = one
        .get(
            &name("a"),
            ItemRange::Range {
                offset: 100,
                length: 1000,
            },
            None,
        )
        .unwrap();
    let handle = ViewHandle::decode(&view.handle().encode().unwrap()).unwrap();
    let shared = other.open_handle(&handle).unwrap();
    assert_eq!(node.books().holders(), 2);
    drop(view);
    until("one holder is left", || node.books().holders() == 1);
    assert_eq!(&shared[..], &content[100..1100]);
    assert_eq!(shared.version(), handle.version());
    drop(shared);
    until("nobody holds it", || node.books().holders() == 0);
}

#[test]
fn a_handle_within_one_client_needs_no_question() {
    let node = FakeNode::start();
    node.books().add_object("a", &pattern(11, 5000));
    let client = connect(&node);
    let view = client.get(&name("a"), ItemRange::Whole, None).unwrap();
    let copy = client.open_handle(&view.handle()).unwrap();
    assert!(
        !node
            .books()
            .log
            .iter()
            .any(|request| matches!(request, Request::Objects(objects::Request::Adopt { .. })))
    );
    drop(view);
    client.ping().unwrap();
    assert_eq!(node.books().holders(), 1, "the copy still looks at it");
    assert_eq!(&copy[..], pattern(11, 5000));
}

#[test]
fn a_handle_whose_lease_has_ended_reads_the_same_version_again_or_says_changed() {
    let node = FakeNode::start();
    let content = pattern(12, 5000);
    node.books().add_object("a", &content);
    let (one, other) = (connect(&node), connect(&node));
    let view = one.get(&name("a"), ItemRange::Whole, None).unwrap();
    let handle = view.handle();
    drop(view);
    until("nobody holds it", || node.books().holders() == 0);
    assert_eq!(&other.open_handle(&handle).unwrap()[..], content);
    node.books().add_object("a", b"another");
    assert_eq!(other.open_handle(&handle).unwrap_err().kind(), Kind::Changed);
}

#[test]
fn a_damaged_handle_is_refused() {
    let node = FakeNode::start();
    node.books().add_object("a", b"content");
    let client = connect(&node);
    let frame = client
        .get(&name("a"), ItemRange::Whole, None)
        .unwrap()
        .handle()
        .encode()
        .unwrap();
    for cut in 0..frame.len() {
        assert!(ViewHandle::decode(&frame[..cut]).is_err(), "{cut}");
    }
    let mut flipped = frame.clone();
    *flipped.last_mut().unwrap() ^= 1;
    assert_eq!(ViewHandle::decode(&flipped).unwrap_err().kind(), Kind::Corrupt);
}

#[test]
fn a_listing_goes_through_all_pages() {
    let node = FakeNode::start();
    for index in 0..5 {
        node.books().add_object(&format!("k{index}"), b"x");
    }
    let client = connect(&node);
    let entries: Result<Vec<Entry>, _> = client.list("bucket", ListOptions::default()).unwrap().collect();
    let keys: Vec<String> = entries
        .unwrap()
        .into_iter()
        .map(|entry| match entry {
            Entry::Object(object) => object.key,
            Entry::Prefix(prefix) => prefix,
        })
        .collect();
    assert_eq!(keys, ["k0", "k1", "k2", "k3", "k4"]);
    assert_eq!(client.stat(&name("k1")).unwrap().bytes, 1);
    client.delete(&name("k1")).unwrap();
    let gone = client.stat(&name("k1")).unwrap_err();
    assert_eq!(gone.kind(), Kind::NotFound);
    assert!(gone.to_string().contains("bucket/k1"), "{gone}");
    assert_eq!(client.buckets().unwrap(), ["bucket"]);
    let _: Name = "bucket/k1".parse().unwrap();
}
