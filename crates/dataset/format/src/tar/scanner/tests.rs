//! Hostile headers: never a panic, never memory by a claim.

use proptest::prelude::*;

use super::*;

/// A header with a right checksum.
fn header(name: &str, flag: u8, size: &[u8]) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[124..124 + size.len()].copy_from_slice(size);
    block[156] = flag;
    block[257..265].copy_from_slice(b"ustar\x0000");
    seal(&mut block);
    block
}

fn seal(block: &mut [u8]) {
    block[148..156].fill(b' ');
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

fn scan(bytes: &[u8]) -> Result<Vec<Member>> {
    let mut scanner = TarScanner::new(bytes.len() as u64);
    let mut members = Vec::new();
    scanner.push(0, bytes, |member| {
        members.push(member);
        Ok(())
    })?;
    Ok(members)
}

#[test]
fn ten_gigabytes_in_a_small_file_are_refused() {
    let octal = header("big.bin", b'0', b"120000000000");
    let base_256 = header("big.bin", b'0', b"\x80\0\0\0\0\0\0\x02\x80\0\0\0");
    for mut bytes in [octal, base_256] {
        bytes.resize(4096, 1);
        let error = scan(&bytes).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.to_string().contains("big.bin"), "{error}");
    }
}

/// Three members of these contents, padded; without the end mark.
fn three_members() -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, size, content) in [("a.cls", b"1\0", 1), ("a.bin", b"7\0", 7), ("b.bin", b"0\0", 0)] {
        bytes.extend(header(name, b'0', size));
        bytes.resize(bytes.len() + content, b'x');
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes
}

/// Members of an archive that says it is whole.
fn scan_whole(bytes: &[u8]) -> Result<usize> {
    let mut scanner = TarScanner::new(bytes.len() as u64);
    let mut members = 0;
    scanner.push(0, bytes, |_| {
        members += 1;
        Ok(())
    })?;
    scanner.finish()?;
    let mut streamed = TarScanner::new(u64::MAX);
    for (start, chunk) in bytes.chunks(100).enumerate() {
        streamed.push(start as u64 * 100, chunk, |_| Ok(()))?;
    }
    streamed.end_at(bytes.len() as u64)?;
    streamed.finish()?;
    Ok(members)
}

#[test]
fn an_archive_that_is_cut_before_its_end_mark_is_damaged() {
    let mut bytes = three_members();
    let members_end = bytes.len();
    bytes.resize(members_end + 10240, 0);
    for cut in (1..members_end + 512).chain([0]) {
        let error = scan_whole(&bytes[..cut]).unwrap_err();
        let kind = if (1..512).contains(&cut) {
            Kind::InvalidInput
        } else {
            Kind::Corrupt
        };
        assert_eq!(error.kind(), kind, "{cut}");
    }
    for whole in [512, 1024, 10240] {
        assert_eq!(scan_whole(&bytes[..members_end + whole]).unwrap(), 3);
    }
}

#[test]
fn a_hole_is_damage_wherever_it_covers_a_header() {
    let mut bytes = three_members();
    let members_end = bytes.len();
    bytes.resize(members_end + 1024, 0);
    // The last header alone cannot be told from padding, and neither can what nobody wrote.
    for hole in (0..members_end - 512).step_by(512) {
        let mut holed = bytes.clone();
        holed[hole..hole + 512].fill(0);
        let covers_content = hole == 512 || hole == 3 * 512;
        match scan_whole(&holed) {
            Ok(members) => assert!(covers_content && members == 3, "{hole}"),
            Err(error) => assert_eq!(error.kind(), Kind::Corrupt, "{hole}"),
        }
    }
}

#[test]
fn data_behind_the_end_mark_is_damage_with_its_offset() {
    let mut bytes = three_members();
    let members_end = bytes.len();
    bytes.resize(members_end + 1024, 0);
    bytes.extend(three_members());
    bytes.resize(bytes.len() + 1024, 0);
    let error = scan_whole(&bytes).unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(
        error.to_string().contains(&(members_end + 1024).to_string()),
        "{error}"
    );
}

#[test]
fn more_zeros_than_padding_are_a_hole() {
    let mut bytes = three_members();
    bytes.resize(bytes.len() + TRAILER_BYTES_MAX as usize, 0);
    assert_eq!(scan_whole(&bytes).unwrap(), 3);
    bytes.resize(bytes.len() + 512, 0);
    assert_eq!(scan_whole(&bytes).unwrap_err().kind(), Kind::Corrupt);
}

#[test]
fn a_huge_extension_header_is_refused_before_it_is_read() {
    for flag in [b'x', b'g', b'L', b'K'] {
        let bytes = header("x", flag, b"77777777777\0");
        let mut scanner = TarScanner::new(u64::MAX);
        let error = scanner.push(0, &bytes, |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
    }
}

#[test]
fn a_long_name_for_all_members_is_refused() {
    // One header of a megabyte would name thousands of members of 512 bytes each.
    let path = "n".repeat(NAME_BYTES_MAX + 1);
    for flag in [b'g', b'x'] {
        let mut records = format!(" path={path}\n");
        records.insert_str(0, &(records.len() + 5).to_string());
        let mut bytes = header("x", flag, format!("{:o}\0", records.len()).as_bytes());
        bytes.extend_from_slice(records.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes.extend(header("y", b'0', b"0\0"));
        assert_eq!(scan(&bytes).unwrap_err().kind(), Kind::Unsupported);
    }
}

#[test]
fn an_extension_header_that_announces_nothing_is_damage() {
    let mut bytes = header("x", b'L', b"5\0");
    bytes.extend_from_slice(b"name\0");
    bytes.resize(1024, 0);
    assert_eq!(scan(&bytes).unwrap_err().kind(), Kind::Corrupt);
    bytes.resize(2048, 0);
    assert_eq!(scan(&bytes).unwrap_err().kind(), Kind::Corrupt);
}

#[test]
fn sums_of_signed_bytes_are_accepted() {
    let mut block = header("gr\u{f6}sse", b'0', b"0");
    block[148..156].fill(b' ');
    let sum: i64 = block.iter().map(|byte| i64::from(byte.cast_signed())).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    assert_eq!(scan(&block).unwrap().len(), 1);
}

#[test]
fn a_wrong_checksum_is_damage_and_at_the_start_no_archive() {
    let mut bytes = header("a", b'0', b"0");
    bytes.extend(header("b", b'0', b"0"));
    bytes[512 + 3] ^= 1;
    assert_eq!(scan(&bytes).unwrap_err().kind(), Kind::Corrupt);
    bytes[3] ^= 1;
    assert_eq!(scan(&bytes).unwrap_err().kind(), Kind::InvalidInput);
    assert_eq!(scan(&bytes[..100]).unwrap_err().kind(), Kind::InvalidInput);
}

#[test]
fn no_bytes_are_an_empty_archive() {
    assert_eq!(scan(&[]).unwrap(), []);
    assert_eq!(scan(&[0; 1024]).unwrap(), []);
}

#[test]
fn a_gap_before_pushed_bytes_is_the_callers_fault() {
    let mut scanner = TarScanner::new(4096);
    assert_eq!(
        scanner.push(512, &[0; 512], |_| Ok(())).unwrap_err().kind(),
        Kind::Internal
    );
}

#[test]
fn memory_grows_with_what_came_and_not_with_claims() {
    let mut bytes = header("x", b'x', b"3777777\0");
    bytes.push(b'1');
    let mut scanner = TarScanner::new(u64::MAX);
    scanner.push(0, &bytes, |_| Ok(())).unwrap();
    assert!(scanner.carry.capacity() < 4096);
    assert_eq!(scanner.want(), Want::From(513));
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
        let _ = scan(&bytes);
    }

    /// Headers whose checksums are right and whose fields are anything, so that the parser behind them is
    /// reached.
    #[test]
    fn garbage_under_right_checksums_never_panics(
        blocks in proptest::collection::vec(
            (proptest::collection::vec(any::<u8>(), 512), 0_usize..12, proptest::collection::vec(any::<u8>(), 12)),
            1..8,
        ),
        archive_bytes in prop_oneof![Just(u64::MAX), 0_u64..8192],
        piece_bytes in 1_usize..2000,
    ) {
        let mut bytes = Vec::new();
        for (mut block, flag, size) in blocks {
            block[156] = b"0gxXLKS15M7\0"[flag];
            if flag < 8 {
                block[124..136].copy_from_slice(format!("{:011o}\0", size[0]).as_bytes());
            } else {
                block[124..136].copy_from_slice(&size);
            }
            seal(&mut block);
            bytes.extend(block);
        }
        let mut scanner = TarScanner::new(archive_bytes);
        for (number, piece) in bytes.chunks(piece_bytes).enumerate() {
            let mut last = 0;
            let result = scanner.push((number * piece_bytes) as u64, piece, |member| {
                assert!(member.offset >= last && member.offset + member.bytes <= archive_bytes);
                last = member.offset;
                Ok(())
            });
            if result.is_err() || scanner.want() == Want::End {
                break;
            }
        }
    }
}
