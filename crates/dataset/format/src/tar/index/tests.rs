//! Limits, repeated names, links to nothing; the rest is in `tests/golden.rs`.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn file(name: &str, offset: u64) -> Member {
    Member {
        name: name.into(),
        kind: MemberKind::File,
        header_offset: offset,
        offset,
        bytes: 1,
    }
}

fn link(name: &str, target: &str) -> Member {
    let kind = MemberKind::HardLink {
        target: target.into(),
    };
    Member {
        kind,
        ..file(name, 0)
    }
}

fn index(members: &[Member]) -> TarIndex {
    let mut builder = TarIndex::builder(TarIndexLimits::default());
    for member in members {
        builder.add(member).unwrap();
    }
    builder.finish()
}

#[test]
fn an_index_does_not_outgrow_its_limits() {
    let limits = TarIndexLimits {
        members_max: 2,
        names_bytes_max: 10,
    };
    let mut builder = TarIndex::builder(limits);
    builder.add(&file("a", 0)).unwrap();
    assert_eq!(
        builder.add(&file("0123456789", 1)).unwrap_err().kind(),
        Kind::Unsupported
    );
    assert_eq!(
        builder.add(&link("b", "0123456789a")).unwrap_err().kind(),
        Kind::Unsupported
    );
    assert_eq!(builder.add(&file("c", 1)).unwrap_err().kind(), Kind::Unsupported);
}

#[test]
fn links_lead_to_what_came_before_them() {
    let members = [
        file("a", 1),
        link("to-a", "a"),
        file("a", 2),
        link("to-nothing", "b"),
        link("on", "to-nothing"),
        link("self", "self"),
        file("b", 3),
    ];
    let index = index(&members);
    assert_eq!(index.find("to-a").unwrap().offset, 1);
    assert_eq!(index.find("a").unwrap().offset, 2);
    for name in ["to-nothing", "on", "self"] {
        assert_eq!(index.find(name).unwrap_err().kind(), Kind::Unsupported, "{name}");
    }
    assert_eq!(index.iter().count(), 7);
}

#[test]
fn a_member_costs_its_name_and_a_few_bytes() {
    let members: Vec<Member> = (0..10_000)
        .map(|number| file(&format!("{number:08}.jpg"), number))
        .collect();
    let index = index(&members);
    assert!(
        index.memory_bytes() < 10_000 * (12 + 45),
        "{}",
        index.memory_bytes()
    );
}

proptest! {
    #[test]
    fn the_index_agrees_with_a_map(names in proptest::collection::vec("[ab./]{0,3}", 0..40)) {
        let members: Vec<Member> = (0..).zip(&names).map(|(offset, name)| file(name, offset)).collect();
        let index = index(&members);
        let map: HashMap<&str, u64> = names.iter().map(String::as_str).zip(0..).collect();
        for name in &names {
            prop_assert_eq!(index.find(name).unwrap().offset, map[name.as_str()]);
        }
    }
}
