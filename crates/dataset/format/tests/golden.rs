//! Archives of Python's `tarfile` and GNU tar, in every format: what we find is what Python finds (`testdata/make.py`).
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::{Path, PathBuf};

use forebay_core::{Kind, Result};
use forebay_dataset::tar::{Member, MemberKind, TarIndex, TarIndexLimits, TarScanner, Want};

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

fn archive(name: &str) -> Vec<u8> {
    std::fs::read(testdata().join(name)).unwrap()
}

fn archives() -> Vec<String> {
    let files = std::fs::read_dir(testdata()).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let found: Vec<_> = names.filter(|name| name.ends_with(".tar")).collect();
    assert!(found.len() >= 9, "{found:?}");
    found
}

/// The archive in pieces of one size, one after the other.
fn scan_streaming(bytes: &[u8], piece_bytes: usize) -> Result<Vec<Member>> {
    let mut scanner = TarScanner::new(bytes.len() as u64);
    let mut members = Vec::new();
    for (number, piece) in bytes.chunks(piece_bytes).enumerate() {
        scanner.push((number * piece_bytes) as u64, piece, |member| {
            members.push(member);
            Ok(())
        })?;
    }
    assert_eq!(scanner.want(), Want::End);
    Ok(members)
}

/// Only what the scanner asks for, in windows of one size.
fn scan_hopping(bytes: &[u8], window_bytes: usize) -> Result<(Vec<Member>, usize)> {
    let mut scanner = TarScanner::new(bytes.len() as u64);
    let (mut members, mut read_bytes) = (Vec::new(), 0);
    while let Want::From(offset) = scanner.want() {
        let start = usize::try_from(offset).unwrap();
        let window = &bytes[start..bytes.len().min(start + window_bytes)];
        read_bytes += window.len();
        scanner.push(offset, window, |member| {
            members.push(member);
            Ok(())
        })?;
    }
    Ok((members, read_bytes))
}

/// A member as the lists have it.
fn line(member: &Member) -> String {
    let (kind, bytes) = match &member.kind {
        MemberKind::File => ("file", member.bytes.to_string()),
        MemberKind::Sparse => ("sparse", "-".into()),
        MemberKind::HardLink { .. } => ("link", "0".into()),
        MemberKind::Folder => ("folder", "0".into()),
        MemberKind::Other => ("other", "0".into()),
    };
    let name = match member.kind {
        MemberKind::Folder => member.name.strip_suffix(b"/").unwrap_or(&member.name),
        _ => &member.name,
    };
    let hex: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    // Python moves the start of a sparse file past its map.
    let offset = if kind == "sparse" {
        "-".into()
    } else {
        member.offset.to_string()
    };
    format!("{kind} {} {offset} {bytes} {hex}", member.header_offset)
}

fn expected(name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(testdata().join(name.replace(".tar", ".list"))).unwrap();
    let without_offset = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        if fields[0] == "sparse" {
            return format!("sparse {} - - {}", fields[1], fields[4]);
        }
        line.to_owned()
    };
    text.lines().map(without_offset).collect()
}

#[test]
fn every_format_is_read_as_python_reads_it() {
    for name in archives() {
        let bytes = archive(&name);
        let found: Vec<String> = scan_streaming(&bytes, bytes.len())
            .unwrap()
            .iter()
            .map(line)
            .collect();
        assert_eq!(found, expected(&name), "{name}");
    }
}

#[test]
fn pieces_of_any_size_find_the_same() {
    for name in archives() {
        let bytes = archive(&name);
        let whole = scan_streaming(&bytes, bytes.len()).unwrap();
        for piece_bytes in [1, 7, 511, 512, 513, 5000] {
            assert_eq!(
                scan_streaming(&bytes, piece_bytes).unwrap(),
                whole,
                "{name} {piece_bytes}"
            );
            assert_eq!(
                scan_hopping(&bytes, piece_bytes).unwrap().0,
                whole,
                "{name} {piece_bytes}"
            );
        }
    }
}

#[test]
fn hopping_reads_headers_and_not_contents() {
    let bytes = archive("ustar.tar");
    let (members, read_bytes) = scan_hopping(&bytes, 512).unwrap();
    // One block for each member, and what follows the last one: the end mark and padding, which must be zeros.
    let last = members.last().unwrap();
    let contents_end = (last.offset + last.bytes).next_multiple_of(512);
    let trailer_bytes = bytes.len() - usize::try_from(contents_end).unwrap();
    assert_eq!(read_bytes, members.len() * 512 + trailer_bytes);
}

#[test]
fn every_truncation_is_noticed_or_ends_between_members() {
    for name in archives() {
        let bytes = archive(&name);
        let whole = scan_streaming(&bytes, bytes.len()).unwrap();
        for end in (0..bytes.len()).step_by(61).chain((0..bytes.len()).step_by(512)) {
            let mut scanner = TarScanner::new(end as u64);
            let mut found = Vec::new();
            let result = scanner.push(0, &bytes[..end], |member| {
                found.push(member);
                Ok(())
            });
            assert_eq!(found, whole[..found.len()], "{name} {end}");
            let next_starts = whole
                .get(found.len())
                .map_or(end as u64, |next| next.header_offset);
            let is_between = next_starts >= end as u64 || found.len() == whole.len();
            match result {
                Ok(()) => assert!(is_between && scanner.want() == Want::End, "{name} {end}"),
                Err(error) => assert!(
                    matches!(error.kind(), Kind::Corrupt | Kind::InvalidInput),
                    "{name} {end} {error}"
                ),
            }
        }
    }
}

fn index(name: &str) -> (Vec<u8>, TarIndex) {
    let bytes = archive(name);
    let mut builder = TarIndex::builder(TarIndexLimits::default());
    for member in scan_streaming(&bytes, bytes.len()).unwrap() {
        builder.add(&member).unwrap();
    }
    (bytes, builder.finish())
}

fn content(name: &str, member: &str) -> Vec<u8> {
    let (bytes, index) = index(name);
    let place = index.find(member).unwrap();
    let start = usize::try_from(place.offset).unwrap();
    bytes[start..start + usize::try_from(place.bytes).unwrap()].to_vec()
}

#[test]
fn members_are_found_by_name() {
    for name in ["gnu.tar", "pax.tar", "pax-global.tar", "ustar.tar"] {
        assert_eq!(content(name, "0001.jpg"), b"first ".repeat(200), "{name}");
        assert_eq!(content(name, "link.hard"), b"first ".repeat(200), "{name}");
        assert_eq!(content(name, "empty.bin"), b"", "{name}");
        assert_eq!(content(name, "dotted.txt"), b"with a dot in front", "{name}");
    }
    let long = format!("{}file.txt", "deep/".repeat(40));
    for name in ["gnu.tar", "pax.tar"] {
        assert_eq!(content(name, &long), b"deep", "{name}");
        assert_eq!(content(name, "long.hard"), b"deep", "{name}");
        assert_eq!(content(name, "größe.txt"), "Größe".as_bytes(), "{name}");
    }
    let split = format!("{}/{}.bin", "a".repeat(90), "b".repeat(60));
    assert_eq!(content("ustar.tar", &split), b"split into prefix and name");
    assert_eq!(content("base256.tar", "after.bin"), b"z");
    assert_eq!(content("pax-size.tar", "big.bin"), b"y".repeat(700));
}

#[test]
fn of_two_members_with_one_name_the_last_counts() {
    assert_eq!(content("pax.tar", "0001.cls"), b"8 and last");
}

#[test]
fn a_sparse_member_is_refused_and_its_neighbour_is_not() {
    for name in ["sparse-gnu.tar", "sparse-pax.tar"] {
        let (_, index) = index(name);
        assert_eq!(
            index.find("holes.bin").unwrap_err().kind(),
            Kind::Unsupported,
            "{name}"
        );
        assert_eq!(content(name, "after.bin"), b"after");
    }
}

#[test]
fn what_is_not_a_file_is_not_found() {
    let (_, index) = index("gnu.tar");
    for name in ["folder", "link.sym", "0001", ""] {
        let error = index.find(name).unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(error.to_string().contains("first_member: 0001.jpg"), "{error}");
    }
}
