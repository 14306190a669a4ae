use forebay_core::{Kind, crc32c};
use proptest::prelude::*;

use super::*;

fn npy(version: u8, header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = b"\x93NUMPY".to_vec();
    file.extend([version, 0]);
    match version {
        1 => file.extend((header.len() as u16).to_le_bytes()),
        _ => file.extend((header.len() as u32).to_le_bytes()),
    }
    [file, header.as_bytes().to_vec(), data.to_vec()].concat()
}

/// Header that numpy 2 writes for `np.arange(5, dtype="<u2")`.
const HEADER: &str = "{'descr': '<u2', 'fortran_order': False, 'shape': (5,), }                                                            \n";

type Found = Vec<(u64, u64, u32)>;

fn scan(mut scanner: TokenScanner, file: &[u8], piece_bytes: usize) -> Result<Found> {
    let mut found = Vec::new();
    let mut sink = |sample: &SampleRecord<'_>| {
        let field = sample.fields[0];
        found.push((field.offset, field.bytes, field.crc32c.unwrap()));
        Ok(())
    };
    for piece in file.chunks(piece_bytes) {
        scanner.push(piece, &mut sink)?;
    }
    scanner.finish(&mut sink)?;
    Ok(found)
}

fn windows(length: u64, stride: u64, token: Option<TokenType>) -> TokenWindows {
    TokenWindows {
        length,
        stride,
        token,
    }
}

#[test]
fn a_flat_array_is_cut_into_windows() {
    let data: Vec<u8> = (0_u16..5).flat_map(u16::to_le_bytes).collect();
    for version in [1, 2, 3] {
        let file = npy(version, HEADER, &data);
        let start = (file.len() - data.len()) as u64;
        for piece_bytes in [1, 3, 11, 64, 1000] {
            let found = scan(
                TokenScanner::npy(windows(2, 2, None)).unwrap(),
                &file,
                piece_bytes,
            )
            .unwrap();
            let crc = |from: usize| crc32c::crc32c(&data[from..from + 4]);
            assert_eq!(found, [(start, 4, crc(0)), (start + 4, 4, crc(4))]);
        }
    }
    assert_eq!(npy(1, HEADER, &[]).len() % 64, 0);
}

#[test]
fn what_is_no_flat_array_of_integers_is_refused_with_advice() {
    for header in [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (5,), }",
        "{'descr': '>u2', 'fortran_order': False, 'shape': (5,), }",
        "{'descr': '<u2', 'fortran_order': True, 'shape': (5, 2), }",
        "{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (5,), }",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (99999999999999999999,), }",
        "{'descr': '<u8', 'fortran_order': False, 'shape': (4611686018427387904,), }",
        "{'descr': '<u2', 'fortran_order': False }",
        "",
    ] {
        let scanner = TokenScanner::npy(windows(1, 1, None)).unwrap();
        let error = scan(scanner, &npy(1, header, &[0; 20]), 7).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported, "{header}");
        assert!(error.message().contains("np.save"), "{error}");
    }
    let scanner = TokenScanner::npy(windows(1, 1, None)).unwrap();
    assert_eq!(scan(scanner, &[1; 50], 9).unwrap_err().kind(), Kind::InvalidInput);
    let scanner = TokenScanner::npy(windows(1, 1, Some(TokenType::U32))).unwrap();
    assert_eq!(
        scan(scanner, &npy(1, HEADER, &[0; 10]), 9).unwrap_err().kind(),
        Kind::InvalidInput
    );
}

#[test]
fn a_cut_file_is_damaged() {
    let file = npy(1, HEADER, &[0; 9]);
    for end in [9, 40, file.len()] {
        let scanner = TokenScanner::npy(windows(1, 1, None)).unwrap();
        assert_eq!(
            scan(scanner, &file[..end], 7).unwrap_err().kind(),
            Kind::Corrupt,
            "{end}"
        );
    }
}

#[test]
fn a_long_header_is_refused_before_it_is_read() {
    let mut file = npy(2, HEADER, &[]);
    file[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    let scanner = TokenScanner::npy(windows(1, 1, None)).unwrap();
    assert_eq!(scan(scanner, &file, 12).unwrap_err().kind(), Kind::Unsupported);
}

#[test]
fn numbers_without_a_header_need_a_type() {
    assert!(TokenScanner::bin(windows(4, 4, None)).is_err());
    assert!(TokenScanner::bin(windows(0, 4, Some(TokenType::U16))).is_err());
    assert!(TokenScanner::bin(windows(4, 0, Some(TokenType::U16))).is_err());
    let error = TokenScanner::bin(windows(1000, 1, Some(TokenType::U16)))
        .err()
        .unwrap();
    assert!(error.message().contains("stride"), "{error}");
    assert_eq!(TokenType::parse("uint16").unwrap(), TokenType::U16);
    assert!(TokenType::parse("float32").is_err());
}

proptest! {
    #[test]
    fn windows_are_the_slices_of_the_array(
        data in proptest::collection::vec(any::<u8>(), 0..300),
        length in 1_u64..20,
        stride in 1_u64..30,
        piece in 1_usize..100,
    ) {
        let cut = windows(length, stride, Some(TokenType::U16));
        let found = scan(TokenScanner::bin(cut.clone()).unwrap(), &data, piece).unwrap();
        let tokens = data.len() as u64 / 2;
        prop_assert_eq!(found.len() as u64, cut.count(tokens));
        for (number, (offset, bytes, crc)) in (0..).zip(found) {
            prop_assert_eq!((offset, bytes), (number * stride * 2, length * 2));
            let start = usize::try_from(offset).unwrap();
            prop_assert_eq!(crc, crc32c::crc32c(&data[start..start + usize::try_from(bytes).unwrap()]));
        }
    }
}
