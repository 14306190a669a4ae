use super::*;
use proptest::prelude::*;

/// Output of `plain`, compressed in Python by Brotli 1.2, bz2 and python-snappy 0.7, as mosaicml-streaming
/// calls them.
const BROTLI: &str = "1bd70300c4d24d5fa39a6a04377e6105c210e0ffdf1bd8b08fba9b0dad3309bf740a3ca1fdd15bb4a1a7db64c8e808cf30b509fd7ce7\
    3dcfbeaf7d3256bffe75022480c9501af84612b13190ae0894fb7eb4673118efca47b439e15e1d0aa348b329cbe9b4fc4ca2e30d4770\
    62184b3a4f6c7d122b8b3e29358b3b336936696ed282a4459159929a51115a7922b42a8b90ee6514b2a164de6b14ea9f749eeea851e5\
    43ca0b845c15d66a4f1d68c66555413461a55a3c94a5e60de25f";
const BZIP2: &str = "425a68393141592653595b7726f40001c45980001050047ff022013a0a3001190a1a9e21325047a4185068d1a0c80d02a6aa9341a1a0\
    d0da9c0ce633e433b7696aad54aa5a45696aca24594ad4a56e06798ce8f6efe3c79fafbeb7eaec5dd9bbdc65651ccccba58332f8b8d7\
    2909ad2554b400675a7b2b2c1aa99d71a0488b4268a1a9ae6dcc8d0440653578a0340c4069dd54ca4924036dbe3d437980a880668ced\
    4ca922edf2aaa084b7c40a8bf4001a1ec19dc67219c0cee3390ce067033dfe28e75dfa29c0929c494c4494e24a65329fc17724538509\
    05b7726f40";
const SNAPPY: &str = "d8073c7b226e223a20302c2022737175617265010d047d0a091600312e16000031111600322e16000034111600332e16000039111600\
    342e1600043136111700352e1700043235111700362e17000033152e00372e17000034155c00382e17000036158900392e1700003815\
    b6003132e30004313019e536e6000032193232e9000431341562003132ec000431361592003136ef00003915c2003136f10019f20031\
    32f300043235193232f500043238196432f700043332199632f90004333615c8003232fa00003419fa003232fa00043434193200322e\
    44010434381564003232fa000435321596003232fa0004353715c8003232fa00003619fa003232fa0000361d3232fa0000371d6432fa\
    0000371d9632fa00003819c8003332fa00003919fa003332fa000039392c003332fa00043130395f003332fb000831303815fc003332\
    fc0004313139c5003332fd0000313df8003332fe00043132592b003332ff00043133595e003332000104313459910033320101143135\
    32317d0a";

fn plain() -> Vec<u8> {
    let lines = (0..40).map(|n| format!("{{\"n\": {n}, \"square\": {}}}\n", n * n));
    lines.collect::<String>().into_bytes()
}

fn unpack(codec: Codec, bytes: &[u8], piece_bytes: usize) -> Result<Vec<u8>> {
    let mut decompressor = Decompressor::new(codec)?.expect("it is compressed");
    let mut plain = Vec::new();
    for piece in bytes.chunks(piece_bytes) {
        decompressor.push(piece, &mut |bytes| {
            assert!(bytes.len() <= OUT_BYTES + (64 << 10));
            plain.extend_from_slice(bytes);
            Ok(())
        })?;
    }
    decompressor.finish()?;
    assert_eq!(decompressor.stream_bytes(), plain.len() as u64);
    Ok(plain)
}

fn golden() -> [(Codec, Vec<u8>); 3] {
    [
        (Codec::Brotli, BROTLI),
        (Codec::Bzip2, BZIP2),
        (Codec::Snappy, SNAPPY),
    ]
    .map(|(codec, text)| (codec, hex::decode(text).unwrap()))
}

#[test]
fn what_python_compresses_is_unpacked_in_pieces_of_any_size() {
    for (codec, bytes) in golden() {
        for piece_bytes in [1, 3, 50, bytes.len()] {
            assert_eq!(unpack(codec, &bytes, piece_bytes).unwrap(), plain(), "{codec:?}");
        }
    }
}

#[test]
fn a_stream_that_is_cut_or_goes_on_is_corrupt() {
    for (codec, bytes) in golden() {
        for end in 0..bytes.len() {
            let error = unpack(codec, &bytes[..end], 20).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "{codec:?} {end}");
        }
        let longer = [bytes.as_slice(), b"xx"].concat();
        for piece_bytes in [1, 3, longer.len()] {
            let error = unpack(codec, &longer, piece_bytes).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "{codec:?}");
        }
    }
}

#[test]
fn several_streams_of_bzip2_are_one() {
    let bytes = hex::decode(BZIP2).unwrap();
    let twice = unpack(Codec::Bzip2, &[bytes.as_slice(), &bytes].concat(), 7).unwrap();
    assert_eq!(twice, [plain(), plain()].concat());
}

#[test]
fn a_snappy_stream_says_no_more_than_it_has() {
    for (bytes, kind) in [
        // Nothing but a length; a length that never ends; more than the length; a copy before the first byte,
        // of offset 0, from too far back.
        (&[5][..], Kind::Corrupt),
        (&[0xff; 6], Kind::Corrupt),
        (&[1, 4, b'a', b'b'], Kind::Corrupt),
        (&[9, 0, b'a', 0x0e, 2, 0], Kind::Corrupt),
        (&[9, 0, b'a', 0x0e, 0, 0], Kind::Corrupt),
        (&[9, 0, b'a', 0x0f, 0, 0, 1, 1], Kind::Unsupported),
    ] {
        for piece_bytes in [1, 100] {
            let error = unpack(Codec::Snappy, bytes, piece_bytes).unwrap_err();
            assert_eq!(error.kind(), kind, "{bytes:?}");
        }
    }
    assert_eq!(unpack(Codec::Snappy, &[0], 1).unwrap(), b"");
    // A copy that reaches into itself.
    assert_eq!(
        unpack(Codec::Snappy, &[5, 0, b'a', 0x0e, 1, 0], 1).unwrap(),
        b"aaaaa"
    );
}

/// Empty gzip members whose headers have everything that a header can have.
fn full_headers(members: usize, name_bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..members {
        bytes.extend([0x1f, 0x8b, 8, 4 | 8 | 16 | 2, 0, 0, 0, 0, 0, 3, 2, 0, b'e', b'e']);
        bytes.extend(vec![b'n'; name_bytes]);
        bytes.extend(*b"\0comment\0\x12\x34");
        // No bytes, their CRC and their number.
        bytes.extend([3, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
    bytes
}

#[test]
fn every_part_of_a_gzip_header_is_passed_over() {
    for (members, name_bytes) in [(1, 0), (3, 5)] {
        let bytes = full_headers(members, name_bytes);
        for piece_bytes in [1, 7, bytes.len()] {
            assert_eq!(unpack(Codec::Gzip, &bytes, piece_bytes).unwrap(), b"");
        }
    }
    // An extra field without bytes.
    let empty = [
        0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 3, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(unpack(Codec::Gzip, &empty, 1).unwrap(), b"");
    let error = unpack(Codec::Gzip, &full_headers(1, 1 << 20), 1 << 20).unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
}

#[test]
fn long_names_in_gzip_headers_are_looked_at_once() {
    // Minutes, if each byte meant a look at all before it.
    let bytes = full_headers(20, 120 << 10);
    assert_eq!(unpack(Codec::Gzip, &bytes, 64 << 10).unwrap(), b"");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn snappy_longer_than_its_window_is_unpacked(
        words in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 1..30),
        picks in proptest::collection::vec(any::<u8>(), 1000..30_000),
        piece in 1_usize..100_000,
    ) {
        let plain: Vec<u8> = picks.iter().flat_map(|pick| words[usize::from(*pick) % words.len()].clone()).collect();
        let bytes = snap::raw::Encoder::new().compress_vec(&plain).unwrap();
        prop_assert_eq!(unpack(Codec::Snappy, &bytes, piece).unwrap(), plain);
    }
}
