use proptest::prelude::*;

use super::*;

/// A member in ustar's form.
pub(crate) fn member(name: &str, kind: u8, content: &[u8]) -> Vec<u8> {
    let mut block = [0_u8; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[124..136].copy_from_slice(format!("{:011o}\0", content.len()).as_bytes());
    block[156] = kind;
    block[257..263].copy_from_slice(b"ustar\0");
    block[148..156].fill(b' ');
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut out = [&block[..], content].concat();
    out.resize(out.len().next_multiple_of(512), 0);
    out
}

fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let members = members.iter().map(|(name, content)| member(name, b'0', content));
    [members.collect::<Vec<_>>().concat(), vec![0; 1024]].concat()
}

type Found = Vec<(String, Vec<(String, Vec<u8>)>)>;

/// Keys, names and contents, with every checksum compared.
fn scan(archive: &[u8], piece_bytes: usize, size: Option<u64>) -> Result<Found> {
    let mut scanner = TarSamples::new(size);
    let mut found = Vec::new();
    let mut sink = |sample: &SampleRecord<'_>| {
        let fields = sample.fields.iter().map(|field| {
            let start = usize::try_from(field.offset).unwrap();
            let content = &archive[start..start + usize::try_from(field.bytes).unwrap()];
            assert_eq!(field.crc32c, Some(crc32c::crc32c(content)), "{}", field.name);
            (field.name.to_owned(), content.to_vec())
        });
        found.push((
            String::from_utf8(sample.key.unwrap().to_vec()).unwrap(),
            fields.collect(),
        ));
        Ok(())
    };
    for piece in archive.chunks(piece_bytes) {
        scanner.push(piece, &mut sink)?;
    }
    scanner.finish(&mut sink)?;
    Ok(found)
}

fn keys(names: &[&str]) -> Vec<(String, Vec<String>)> {
    let members: Vec<(&str, &[u8])> = names.iter().map(|name| (*name, b"x".as_slice())).collect();
    let found = scan(&archive(&members), 700, None).unwrap();
    found
        .into_iter()
        .map(|(key, fields)| (key, fields.into_iter().map(|(name, _)| name).collect()))
        .collect()
}

#[test]
fn consecutive_members_with_one_key_are_a_sample() {
    let bytes = archive(&[
        ("a/0.jpg", b"image"),
        ("a/0.cls", b"7"),
        ("a/1.jpg", &[1; 3000]),
        ("a/1.seg.PNG", b""),
        ("b/1.jpg", b"other"),
    ]);
    let whole = scan(&bytes, bytes.len(), Some(bytes.len() as u64)).unwrap();
    assert_eq!(whole.len(), 3);
    assert_eq!(
        whole[0],
        (
            "a/0".into(),
            vec![("jpg".into(), b"image".to_vec()), ("cls".into(), b"7".to_vec())]
        )
    );
    assert_eq!(whole[1].1[1], ("seg.png".into(), vec![]));
    assert_eq!(whole[2].0, "b/1");
    for piece_bytes in [1, 511, 513, 1000] {
        assert_eq!(scan(&bytes, piece_bytes, None).unwrap(), whole);
    }
}

#[test]
fn keys_and_fields_are_cut_as_webdataset_cuts_them() {
    let sample = |key: &str, fields: &[&str]| {
        (
            key.to_owned(),
            fields.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(),
        )
    };
    assert_eq!(
        keys(&[
            "./a.b.jpg",
            "x.y/c.json",
            "nodot",
            "__meta__",
            "__a.jpg",
            "d/__e__",
            "a/.jpg",
            "x.y/.jpg",
            ".hidden",
            "f."
        ]),
        [
            sample("./a", &["b.jpg"]),
            sample("x.y/c", &["json"]),
            sample("__a", &["jpg"]),
            sample("a/", &["jpg"]),
            sample("f", &[""]),
        ]
    );
    // Something between two members of one key does not part them, another sample does.
    assert_eq!(keys(&["a.x", "nodot", "a.y"]), [sample("a", &["x", "y"])]);
    assert_eq!(keys(&["a.x", "b.x", "a.y"]).len(), 3);
    // Metadata is named by two underscores at both ends, dots or not.
    assert_eq!(keys(&["__a.b__"]), []);
}

#[test]
fn one_field_twice_in_a_sample_is_an_error() {
    let error = scan(&archive(&[("a.jpg", b"1"), ("a.JPG", b"2")]), 99, None).unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidInput);
    assert!(error.to_string().contains("key: a"), "{error}");
}

#[test]
fn links_and_folders_are_no_fields_and_sparse_files_are_refused() {
    let with = |kind| {
        [
            member("a.jpg", b'0', b"1"),
            member("a.cls", kind, b""),
            vec![0; 1024],
        ]
        .concat()
    };
    for kind in [b'1', b'2', b'5'] {
        assert_eq!(scan(&with(kind), 100, None).unwrap()[0].1.len(), 1);
    }
    assert_eq!(
        scan(&with(b'S'), 100, None).unwrap_err().kind(),
        Kind::Unsupported
    );
}

#[test]
fn an_archive_that_stops_in_a_member_is_damaged_whether_its_size_is_known_or_not() {
    let bytes = archive(&[("a.jpg", &[1; 700]), ("b.jpg", &[2; 700])]);
    // Whole is what has a block of zeros behind its last member.
    for end in (0..bytes.len()).filter(|end| *end < 3072 || *end % 512 == 0) {
        let (known, unknown) = (
            scan(&bytes[..end], 999, Some(end as u64)),
            scan(&bytes[..end], 999, None),
        );
        assert_eq!(known.is_ok(), unknown.is_ok(), "{end}");
        assert_eq!(known.is_ok(), end >= 3072 + 512, "{end}");
    }
}

#[test]
fn notes_of_whoever_packed_the_shard_are_no_samples() {
    let bytes = archive(&[
        ("__meta__.json", b"{}"),
        ("__meta__/a.json", b"{}"),
        ("__index__/deep/b.json", b"{}"),
        ("a__/c.jpg", b"1"),
        ("__d/e.jpg", b"2"),
    ]);
    let keys: Vec<String> = scan(&bytes, 100, None)
        .unwrap()
        .into_iter()
        .map(|(key, _)| key)
        .collect();
    // A name that only begins like a note is one of a sample, as for webdataset.
    assert_eq!(keys, ["__meta__", "a__/c", "__d/e"]);
}

#[test]
fn a_member_that_claims_ten_gigabytes_takes_no_memory() {
    let mut bytes = member("a.jpg", b'0', b"");
    bytes[124..136].copy_from_slice(b"112402762000");
    bytes[148..156].fill(b' ');
    let sum: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
    bytes[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    for size in [None, Some(512)] {
        assert_eq!(scan(&bytes, 512, size).unwrap_err().kind(), Kind::Corrupt);
    }
}

proptest! {
    #[test]
    fn pieces_of_any_size_find_the_same(
        members in proptest::collection::vec(("[ab]{1,2}\\.[xyz]{1,2}", proptest::collection::vec(any::<u8>(), 0..1200)), 0..8),
        piece in 1_usize..3000,
    ) {
        let members: Vec<(&str, &[u8])> = members.iter().map(|(name, content)| (name.as_str(), content.as_slice())).collect();
        let bytes = archive(&members);
        let whole = scan(&bytes, bytes.len(), Some(bytes.len() as u64));
        let pieces = scan(&bytes, piece, None);
        prop_assert_eq!(whole.is_ok(), pieces.is_ok());
        if let (Ok(whole), Ok(pieces)) = (whole, pieces) {
            prop_assert_eq!(whole, pieces);
        }
    }
}
