use forebay_core::{Kind, crc32c};
use proptest::prelude::*;

use super::*;

/// A shard with the columns `id` (int), `image` (jpeg) and `text` (str), written as the library does it.
fn shard(samples: &[(i64, &[u8], &str)]) -> Vec<u8> {
    let config = r#"{"column_encodings":["int","jpeg","str"],"column_names":["id","image","text"],"column_sizes":[8,null,null],"compression":null,"format":"mds","hashes":[],"size_limit":67108864,"version":2}"#;
    let bodies: Vec<Vec<u8>> = samples
        .iter()
        .map(|(id, image, text)| {
            let sizes = [image.len() as u32, text.len() as u32]
                .map(u32::to_le_bytes)
                .concat();
            [&sizes[..], &id.to_le_bytes(), image, text.as_bytes()].concat()
        })
        .collect();
    assemble(config, &bodies)
}

fn assemble(config: &str, bodies: &[Vec<u8>]) -> Vec<u8> {
    let mut offset = (4 * (bodies.len() + 2) + config.len()) as u32;
    let mut out = (bodies.len() as u32).to_le_bytes().to_vec();
    out.extend(offset.to_le_bytes());
    for body in bodies {
        offset += body.len() as u32;
        out.extend(offset.to_le_bytes());
    }
    [out, config.as_bytes().to_vec(), bodies.concat()].concat()
}

type Found = Vec<Vec<(String, u64, u64, u32)>>;

fn scan(shard: &[u8], piece_bytes: usize, size: Option<u64>) -> Result<Found> {
    let mut scanner = MdsScanner::new(size);
    let mut found = Vec::new();
    let mut sink = |sample: &SampleRecord<'_>| {
        let fields = sample.fields.iter();
        let fields = fields.map(|field| {
            (
                field.name.to_owned(),
                field.offset,
                field.bytes,
                field.crc32c.unwrap(),
            )
        });
        found.push(fields.collect());
        Ok(())
    };
    for piece in shard.chunks(piece_bytes) {
        scanner.push(piece, &mut sink)?;
    }
    scanner.finish(&mut sink)?;
    Ok(found)
}

#[test]
fn columns_of_every_sample_are_found() {
    let samples: [(i64, &[u8], &str); 3] = [(7, b"image", "text"), (-1, b"", ""), (0, &[9; 300], "x")];
    let bytes = shard(&samples);
    for piece_bytes in [1, 3, 100, bytes.len()] {
        let found = scan(&bytes, piece_bytes, Some(bytes.len() as u64)).unwrap();
        assert_eq!(found, scan(&bytes, piece_bytes, None).unwrap());
        for (fields, (id, image, text)) in found.iter().zip(samples) {
            let contents = [&id.to_le_bytes()[..], image, text.as_bytes()];
            for ((name, offset, length, crc), (column, content)) in fields
                .iter()
                .zip(["id", "image", "text"].into_iter().zip(contents))
            {
                let start = usize::try_from(*offset).unwrap();
                let end = start + usize::try_from(*length).unwrap();
                assert_eq!((name.as_str(), &bytes[start..end]), (column, content));
                assert_eq!(*crc, crc32c::crc32c(content));
            }
        }
        assert_eq!(found.len(), 3);
    }
}

#[test]
fn shards_without_samples_and_samples_without_bytes_are_read() {
    let empty = shard(&[]);
    assert!(scan(&empty, 9, Some(empty.len() as u64)).unwrap().is_empty());
    let config = r#"{"column_names":[],"column_encodings":[],"column_sizes":[]}"#;
    let hollow = assemble(config, &[vec![], vec![]]);
    assert_eq!(scan(&hollow, 9, None).unwrap(), [vec![], vec![]]);
}

#[test]
fn a_cut_or_lengthened_shard_is_damaged() {
    let bytes = shard(&[(1, b"image", "text"), (2, b"", "x")]);
    for end in 0..bytes.len() {
        assert_eq!(
            scan(&bytes[..end], 50, None).unwrap_err().kind(),
            Kind::Corrupt,
            "{end}"
        );
        assert!(scan(&bytes[..end], 50, Some(end as u64)).is_err(), "{end}");
    }
    let longer = [bytes.as_slice(), &[0]].concat();
    assert_eq!(scan(&longer, 50, None).unwrap_err().kind(), Kind::Corrupt);
}

#[test]
fn hostile_tables_are_refused_before_memory_is_taken() {
    let refused = |bytes: &[u8]| scan(bytes, 1000, Some(bytes.len() as u64)).unwrap_err().kind();
    assert_eq!(refused(&[0xff; 64]), Kind::InvalidInput);
    assert_eq!(
        scan(&[0xff; 64], 1000, None).unwrap_err().kind(),
        Kind::InvalidInput
    );
    let good = shard(&[(1, b"image", "text"), (2, b"", "x")]);
    // Offsets that go back, start inside of the table, or end elsewhere.
    for (at, value) in [(8, 0_u32), (4, 5), (12, 1 << 30)] {
        let mut bytes = good.clone();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        assert_eq!(refused(&bytes), Kind::Corrupt, "{at}");
    }
    // A column that is longer than its sample.
    let mut bytes = good.clone();
    let first = u32_at(&bytes, 4) as usize;
    bytes[first] = 200;
    assert_eq!(refused(&bytes), Kind::Corrupt);
}

fn document(shard: &str) -> String {
    format!("{{\"version\":2,\"shards\":[{shard}]}}")
}

const SHARD: &str = r#"{"column_encodings":["int","str"],"column_names":["a","b"],"column_sizes":[8,null],
    "compression":"zstd:3","format":"mds","hashes":["sha1","xxh64","blake2s"],
    "raw_data":{"basename":"shard.00000.mds","bytes":1000,"hashes":{}},
    "samples":7,"size_limit":67108864,"version":2,
    "zip_data":{"basename":"sub/shard.00000.mds.zstd","bytes":5,"hashes":{
        "sha1":"aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d","xxh64":"26c7827d889f6da3","blake2s":"?"}}}"#;

#[test]
fn an_index_json_lists_shards() {
    let index = MdsIndex::parse(document(SHARD).as_bytes()).unwrap();
    let record = index.shards[0].record().unwrap();
    assert_eq!(
        (record.name.as_str(), record.bytes, record.stream_bytes),
        ("sub/shard.00000.mds.zstd", 5, 1000)
    );
    assert_eq!(record.codec, crate::shard::Codec::Zstd);
    assert_eq!(
        index.shards[0].columns.iter().collect::<Vec<_>>(),
        [("a", "int"), ("b", "str")]
    );
    assert_eq!(index.shards[0].samples, 7);
}

#[test]
fn every_compression_of_the_library_is_known() {
    use crate::shard::Codec;
    for (name, codec) in [
        ("zstd", Codec::Zstd),
        ("gz:9", Codec::Gzip),
        ("br:11", Codec::Brotli),
        ("bz2:9", Codec::Bzip2),
        ("snappy", Codec::Snappy),
    ] {
        let index = MdsIndex::parse(document(&SHARD.replace("zstd:3", name)).as_bytes()).unwrap();
        assert_eq!(index.shards[0].codec().unwrap(), codec, "{name}");
    }
}

#[test]
fn hashes_are_checked_and_unknown_ones_are_named() {
    let index = MdsIndex::parse(document(SHARD).as_bytes()).unwrap();
    let check = |bytes: &[u8]| {
        let mut hasher = MdsHasher::new(index.shards[0].stored());
        bytes.chunks(2).for_each(|piece| hasher.push(piece));
        hasher.finish()
    };
    // sha1 and xxh64 of "hello", as Python computes them.
    let checked = check(b"hello").unwrap();
    assert_eq!(checked.right, ["sha1", "xxh64"]);
    assert_eq!(checked.unchecked, ["blake2s"]);
    assert_eq!(check(b"hellO").unwrap_err().kind(), Kind::Checksum);
    assert_eq!(check(b"hell").unwrap_err().kind(), Kind::Checksum);
}

#[test]
fn every_known_hash_is_pythons() {
    for (algorithm, hash) in [
        ("md5", "5d41402abc4b2a76b9719d911017c592"),
        ("sha1", "aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d"),
        (
            "sha224",
            "ea09ae9cc6768c50fcee903ed054556e5bfc8347907f12598aa24193",
        ),
        (
            "sha256",
            "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
        ),
        ("xxh32", "fb0077f9"),
        ("xxh64", "26c7827d889f6da3"),
    ] {
        let file = MdsFile {
            name: "x".into(),
            bytes: 5,
            hashes: [(algorithm.to_owned(), hash.to_owned())].into(),
        };
        let mut hasher = MdsHasher::new(&file);
        hasher.push(b"hello");
        assert_eq!(hasher.finish().unwrap().right, [algorithm]);
    }
}

#[test]
fn what_an_index_json_must_not_say_is_refused() {
    for (from, to, kind) in [
        ("\"version\":2,\n", "\"version\":3,\n", Kind::Unsupported),
        ("\"mds\"", "\"json\"", Kind::Unsupported),
        ("zstd:3", "lzma:3", Kind::Unsupported),
        ("\"zstd:3\"", "null", Kind::Unsupported),
        ("\"bytes\":1000", "\"bytes\":5000000000", Kind::Unsupported),
        ("[8,null]", "[8]", Kind::Corrupt),
        ("sub/shard", "../shard", Kind::InvalidInput),
        ("sub/shard", "/shard", Kind::InvalidInput),
        ("\"bytes\":1000", "\"bytes\":-1", Kind::Corrupt),
    ] {
        let changed = SHARD.replace(from, to);
        assert_ne!(changed, SHARD, "{from}");
        let error = MdsIndex::parse(document(&changed).as_bytes()).unwrap_err();
        assert_eq!(error.kind(), kind, "{from}: {error}");
    }
    assert_eq!(MdsIndex::parse(b"{}").unwrap_err().kind(), Kind::Corrupt);
}

proptest! {
    #[test]
    fn pieces_of_any_size_find_the_same(
        samples in proptest::collection::vec((any::<i64>(), proptest::collection::vec(any::<u8>(), 0..40), "[a-z]{0,9}"), 0..6),
        piece in 1_usize..200,
    ) {
        let samples: Vec<_> = samples.iter().map(|(id, image, text)| (*id, image.as_slice(), text.as_str())).collect();
        let bytes = shard(&samples);
        let whole = scan(&bytes, bytes.len(), Some(bytes.len() as u64)).unwrap();
        prop_assert_eq!(whole.len(), samples.len());
        prop_assert_eq!(scan(&bytes, piece, None).unwrap(), whole);
    }
}

#[test]
fn a_compressed_shard_cannot_unpack_to_any_table() {
    let few = (PACKED_SAMPLES_MAX + 1).to_le_bytes();
    let error = MdsScanner::packed(None).push(&few, &mut |_: &SampleRecord<'_>| Ok(()));
    assert_eq!(error.unwrap_err().kind(), Kind::Unsupported);
    let most = PACKED_SAMPLES_MAX.to_le_bytes();
    MdsScanner::packed(None)
        .push(&most, &mut |_: &SampleRecord<'_>| Ok(()))
        .unwrap();
}

#[test]
fn a_column_that_comes_twice_is_damage() {
    let config = r#"{"column_encodings":["int","int"],"column_names":["id","id"],"column_sizes":[8,8]}"#;
    let bytes = assemble(config, &[vec![0; 16]]);
    let error = scan(&bytes, 100, Some(bytes.len() as u64)).unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
}
