//! The records that a replay believes.

use forebay_core::{BucketName, ObjectKey, PageIndex, Version};

use super::*;
use crate::eviction::S3Fifo;

/// An object of sixteen blocks, 16 units each.
fn object(key: &str) -> Arc<ObjectVersion> {
    Arc::new(ObjectVersion {
        bucket: BucketName::new("bucket").unwrap(),
        key: ObjectKey::new(key).unwrap(),
        version: Version::new("v"),
        bytes: 1 << 20,
        domain: crate::TrustDomain::DEFAULT,
    })
}

fn page(object: &ObjectVersion, generation: u64, blocks: u16, starts: &[u64]) -> PageRecord {
    let blocks = BlockMask(blocks);
    let units = u64::from(blocks.count()) * 16 / starts.len() as u64;
    PageRecord {
        key: PageKey {
            object: ObjectId::of(object),
            page: PageIndex(0),
        },
        generation,
        stored: blocks,
        live: blocks,
        runs: starts.iter().map(|&start| Run { start, units }).collect(),
        checksums: [1; 16],
    }
}

fn replayed(records: impl IntoIterator<Item = Record>) -> Index {
    let returned = Arc::new(Returned::default());
    let mut replay = Replay::new(Box::new(S3Fifo::new()), &returned, 1000, BTreeSet::from([0]));
    for name in ["a", "b"] {
        let object = object(name);
        replay.apply(Record::Object(ObjectId::of(&object), object));
    }
    records.into_iter().for_each(|record| replay.apply(record));
    replay.finish()
}

fn live(index: &Index, name: &str) -> u16 {
    let key = PageKey {
        object: ObjectId::of(&object(name)),
        page: PageIndex(0),
    };
    index.page(&key).map_or(0, |page| page.live().0)
}

#[test]
fn of_two_pages_on_the_same_units_the_newer_is_right() {
    let (a, b) = (object("a"), object("b"));
    let first = Record::Page(page(&a, 1, 0b11, &[10]));
    let second = Record::Page(page(&b, 2, 0b11, &[41]));
    let newer_last = replayed([first.clone(), second.clone()]);
    assert_eq!((live(&newer_last, "a"), live(&newer_last, "b")), (0, 0b11));
    assert_eq!(newer_last.space.taken_units(), 32);
    let newer_first = replayed([second, first]);
    assert_eq!((live(&newer_first, "a"), live(&newer_first, "b")), (0, 0b11));
}

#[test]
fn neighbours_do_not_overlap() {
    let index = replayed([
        Record::Page(page(&object("a"), 1, 0b11, &[10])),
        Record::Page(page(&object("b"), 2, 0b11, &[42])),
    ]);
    assert_eq!((live(&index, "a"), live(&index, "b")), (0b11, 0b11));
    assert_eq!(index.space.taken_units(), 64);
}

#[test]
fn one_overlapping_run_of_many_costs_the_whole_part_and_frees_the_rest() {
    let index = replayed([
        Record::Page(page(&object("a"), 1, 0b11, &[10, 100])),
        Record::Page(page(&object("a"), 2, 0b100, &[200])),
        Record::Page(page(&object("b"), 3, 0b1, &[105])),
    ]);
    assert_eq!((live(&index, "a"), live(&index, "b")), (0b100, 0b1));
    assert_eq!(index.space.taken_units(), 32);
}

#[test]
fn a_record_applied_twice_changes_nothing() {
    let record = Record::Page(page(&object("a"), 1, 0b11, &[10]));
    let index = replayed([record.clone(), record]);
    assert_eq!(live(&index, "a"), 0b11);
    assert_eq!(index.space.taken_units(), 32);
    assert_eq!(index.totals().used_bytes, 2 * (64 << 10));
}

#[test]
fn removals_take_blocks_pages_and_objects() {
    let (a, b) = (object("a"), object("b"));
    let (page_a, page_b) = (page(&a, 1, 0b11, &[10]), page(&b, 2, 0b1, &[100]));
    let key = page_a.key;
    let index = replayed([
        Record::Page(page_a),
        Record::Page(page_b),
        Record::RemoveBlocks(key, BlockMask(0b10)),
        Record::RemoveObject(ObjectId::of(&b)),
    ]);
    assert_eq!((live(&index, "a"), live(&index, "b")), (0b1, 0));
    assert_eq!(index.objects().count(), 1);
    assert_eq!(
        index.space.taken_units(),
        32,
        "half a part holds all of its units"
    );
}

#[test]
fn records_that_make_no_sense_are_passed_over() {
    let a = object("a");
    let mut wrong_units = page(&a, 1, 0b11, &[10]);
    wrong_units.runs[0].units = 31;
    let no_such_page = PageRecord {
        key: PageKey {
            object: ObjectId::of(&a),
            page: PageIndex(1),
        },
        ..page(&a, 1, 0b1, &[10])
    };
    let index = replayed([
        Record::Page(wrong_units),
        Record::Page(no_such_page),
        Record::Page(page(&object("unknown"), 1, 0b1, &[10])),
        Record::Page(page(&a, 1, 0b1, &[990])),
        Record::Page(page(&a, 1, 0b1, &[0])),
        Record::Page(page(&a, 1, 0b1, &[65536 + 1])),
        Record::Page(page(&a, 1, 0b1, &[u64::MAX - 3])),
        Record::Page(page(&a, 1, 0b11, &[20, 30])),
    ]);
    assert_eq!(index.page_count(), 0);
    assert_eq!(index.space.taken_units(), 0);
}
