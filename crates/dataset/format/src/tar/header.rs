//! One header block of 512 bytes: checksum, numbers, names. Pure; nothing is allocated by what a header
//! claims.

use forebay_core::{Error, Kind, Result};

/// A header block, not yet understood.
pub(super) type Block = [u8; 512];

/// Fields of a header, before extension headers are applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) name: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) kind: HeaderKind,
    /// The size field; what it means depends on the kind.
    pub(super) size: u64,
}

/// Kind by the type flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeaderKind {
    File,
    HardLink,
    Folder,
    /// A link, device or pipe: whatever the size field says, nothing follows.
    Bare,
    /// Something that is followed by as many bytes as it says, but is not a file.
    Unknown,
    /// PAX records for the next member.
    Pax,
    /// PAX records for all members that follow.
    PaxGlobal,
    /// The next member's name.
    LongName,
    /// The next member's link target.
    LongLink,
    /// A file with holes, old GNU style; `true`: blocks with more of its map follow.
    Sparse {
        more: bool,
    },
}

/// A parsed block.
#[derive(Debug)]
pub(super) enum ParsedBlock {
    /// All zero: the archive ends.
    Zero,
    /// A header.
    Header(Header),
}

/// Reads a block. `offset` is for the message only.
pub(super) fn parse(block: &Block, offset: u64) -> Result<ParsedBlock> {
    if block.iter().all(|byte| *byte == 0) {
        return Ok(ParsedBlock::Zero);
    }
    check_sum(block, offset)?;
    let kind = kind(block);
    let size = number(&block[124..136]).ok_or_else(|| {
        let message = "a tar header has a size that cannot be read; the archive is damaged";
        Error::new(Kind::Corrupt, message).with("offset", offset)
    })?;
    Ok(ParsedBlock::Header(Header {
        name: name(block, kind),
        link: text(&block[157..257]).to_vec(),
        kind,
        size,
    }))
}

/// Returns whether the next block belongs to a sparse map that goes on after this one.
pub(super) fn sparse_map_goes_on(block: &Block) -> bool {
    block[504] != 0
}

fn kind(block: &Block) -> HeaderKind {
    match block[156] {
        b'0' | 0 | b'7' if !is_v7_folder(block) => HeaderKind::File,
        b'0' | 0 | b'7' | b'5' => HeaderKind::Folder,
        b'1' => HeaderKind::HardLink,
        b'2' | b'3' | b'4' | b'6' => HeaderKind::Bare,
        b'x' | b'X' => HeaderKind::Pax,
        b'g' => HeaderKind::PaxGlobal,
        b'L' => HeaderKind::LongName,
        b'K' => HeaderKind::LongLink,
        b'S' => HeaderKind::Sparse {
            more: block[482] != 0,
        },
        _ => HeaderKind::Unknown,
    }
}

/// Before ustar, a folder was a file of no bytes whose name ends with a slash.
fn is_v7_folder(block: &Block) -> bool {
    block[156] == 0 && text(&block[..100]).ends_with(b"/")
}

/// In ustar the path may go on in front, in the prefix field; GNU has other things there.
fn name(block: &Block, kind: HeaderKind) -> Vec<u8> {
    let name = text(&block[..100]);
    let is_ustar = &block[257..263] == b"ustar\0";
    // `star` marks its headers and keeps times in the last 24 bytes of the prefix.
    let prefix_end = if &block[508..512] == b"tar\0" { 476 } else { 500 };
    let prefix = text(&block[345..prefix_end]);
    if !is_ustar || prefix.is_empty() || matches!(kind, HeaderKind::LongName | HeaderKind::LongLink) {
        return name.to_vec();
    }
    [prefix, b"/", name].concat()
}

/// Up to the first NUL, or all of it.
fn text(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    &field[..end]
}

/// The sum of all bytes with the checksum's own field as spaces. Some old writers summed signed bytes.
fn check_sum(block: &Block, offset: u64) -> Result<()> {
    let counted = |at: usize, byte: u8| if (148..156).contains(&at) { b' ' } else { byte };
    let bytes = || block.iter().enumerate().map(|(at, byte)| counted(at, *byte));
    let unsigned: u64 = bytes().map(u64::from).sum();
    let signed: i64 = bytes().map(|byte| i64::from(byte.cast_signed())).sum();
    let written = number(&block[148..156]);
    if written.is_some_and(|sum| sum == unsigned || i64::try_from(sum) == Ok(signed)) {
        return Ok(());
    }
    Err(not_a_header(block, offset))
}

fn not_a_header(block: &Block, offset: u64) -> Error {
    if offset > 0 {
        let message = "a tar header does not match its checksum; the archive is damaged";
        return Error::new(Kind::Corrupt, message).with("offset", offset);
    }
    let packed = [
        (b"\x1f\x8b".as_slice(), "gzip"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"BZh", "bzip2"),
        (b"\xfd7zXZ", "xz"),
        (b"PK\x03\x04", "zip"),
    ];
    let message = match packed.iter().find(|(magic, _)| block.starts_with(magic)) {
        Some((_, name)) => format!(
            "this is a {name} file; members can only be read from a plain tar archive, so store it uncompressed"
        ),
        None => "this is not a tar archive; members can only be read from plain tar archives".into(),
    };
    Error::new(Kind::InvalidInput, message)
}

/// A number in octal digits, maybe with spaces around, or in base 256 when the first bit is set. `None` for
/// anything else, for negative numbers and for what does not fit in 63 bits.
pub(super) fn number(field: &[u8]) -> Option<u64> {
    let (first, rest) = field.split_first()?;
    if first & 0x80 != 0 {
        // Bit 6 is the sign.
        if first & 0x40 != 0 {
            return None;
        }
        let digits = std::iter::once(first & 0x3f).chain(rest.iter().copied());
        return accumulate(digits, 256);
    }
    let field = text(field).trim_ascii();
    if !field.iter().all(|byte| (b'0'..=b'7').contains(byte)) {
        return None;
    }
    accumulate(field.iter().map(|byte| byte - b'0'), 8)
}

fn accumulate(mut digits: impl Iterator<Item = u8>, base: u64) -> Option<u64> {
    let sum = digits.try_fold(0_u64, |sum, digit| {
        sum.checked_mul(base)?.checked_add(u64::from(digit))
    })?;
    i64::try_from(sum).is_ok().then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_in_octal_and_base_256() {
        assert_eq!(number(b"00000000644\0"), Some(0o644));
        assert_eq!(number(b"     644 \0\0\0"), Some(0o644));
        assert_eq!(number(b"777777777777"), Some(0o777_777_777_777));
        assert_eq!(number(b"\0\0\0\0\0\0\0\0\0\0\0\0"), Some(0));
        assert_eq!(number(b"\x80\0\0\0\0\0\0\x02\x80\0\0\0"), Some(10 << 30));
    }

    #[test]
    fn impossible_numbers_are_refused() {
        for field in [
            b"00000000648\0".as_slice(),
            b"-0000000644\0",
            b"64 4\0\0\0\0\0\0\0\0",
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\x80\0\0\0\x80\0\0\0\0\0\0\0",
            b"\xbf\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
            b"",
        ] {
            assert_eq!(number(field), None, "{field:?}");
        }
    }

    #[test]
    fn a_compressed_archive_is_refused_by_name() {
        let mut block = [7; 512];
        block[..4].copy_from_slice(b"\x1f\x8b\x08\0");
        let error = parse(&block, 0).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidInput);
        assert!(error.message().contains("gzip"), "{error}");
    }
}
