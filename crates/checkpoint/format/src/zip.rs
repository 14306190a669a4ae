//! The directory of a zip file, read without trust: what lies where in a file of `torch.save`.
//!
//! Nothing is unpacked and no pickle is looked into; who wants to prove such a file needs only names, places
//! and the CRC-32 that the writer noted. Files past 4 GiB (ZIP64) are read too.
//!
//! Limits: [`DIRECTORY_BYTES_MAX`] of directory, [`ENTRIES_MAX`] entries.

use std::collections::BTreeSet;

use forebay_core::{Error, Kind, Result};

/// Bytes at the end of a file in which the end of the directory is looked for.
pub const TAIL_BYTES: u64 = (64 << 10) + 22 + LOCATOR_BYTES as u64;
/// Bytes of a record that [`Tail::Far`] points to.
pub const FAR_BYTES: u64 = 56;
/// Bytes of what comes before an entry's name and data.
pub const LOCAL_BYTES: u64 = 30;
/// The largest directory that is read.
pub const DIRECTORY_BYTES_MAX: u64 = 256 << 20;
/// Entries of one file.
pub const ENTRIES_MAX: usize = 1 << 20;
const END: [u8; 4] = *b"PK\x05\x06";
const LOCATOR: [u8; 4] = *b"PK\x06\x07";
const FAR: [u8; 4] = *b"PK\x06\x06";
const ENTRY: [u8; 4] = *b"PK\x01\x02";
const LOCAL: [u8; 4] = *b"PK\x03\x04";
const LOCATOR_BYTES: usize = 20;
const ZIP64_FIELD: u16 = 1;

/// Position of the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Directory {
    /// Its first byte.
    pub first: u64,
    /// Bytes.
    pub bytes: u64,
}

/// End of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// Position of the directory.
    Near(Directory),
    /// Position of the record that says so.
    Far(u64),
}

/// One file in a zip file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZipEntry {
    /// Its name.
    pub name: String,
    /// True if its bytes are not compressed.
    pub is_stored: bool,
    /// CRC-32 of its bytes as the writer noted it.
    pub crc32: u32,
    /// Bytes that lie in the file.
    pub bytes: u64,
    /// First byte of its own header.
    pub header_first: u64,
}

/// Reads the end of a file of `file_bytes`.
pub fn tail(tail: &[u8], file_bytes: u64) -> Result<Tail> {
    let no_end = || wrong("has no end of its directory: it is cut off, or not a zip file");
    let places = (0..tail.len().saturating_sub(21)).rev();
    let fits = |place: &usize| {
        let comment = u16_at(tail, place + 20).unwrap_or_default();
        tail[*place..].starts_with(&END) && place + 22 + usize::from(comment) == tail.len()
    };
    let place = places.into_iter().find(fits).ok_or_else(no_end)?;
    let entries = u16_at(tail, place + 10)?;
    let directory = Directory {
        bytes: u64::from(u32_at(tail, place + 12)?),
        first: u64::from(u32_at(tail, place + 16)?),
    };
    let is_far = entries == u16::MAX
        || directory.bytes == u64::from(u32::MAX)
        || directory.first == u64::from(u32::MAX);
    let locator = place.checked_sub(LOCATOR_BYTES).map(|first| &tail[first..place]);
    match locator {
        Some(locator) if locator.starts_with(&LOCATOR) => Ok(Tail::Far(u64_at(locator, 8)?)),
        _ if is_far => Err(no_end()),
        _ => Ok(Tail::Near(checked(directory, file_bytes)?)),
    }
}

/// Reads the record that [`Tail::Far`] points to.
pub fn far(record: &[u8], file_bytes: u64) -> Result<Directory> {
    if !record.starts_with(&FAR) {
        return Err(wrong("has a directory that cannot be found: it is damaged"));
    }
    let directory = Directory {
        bytes: u64_at(record, 40)?,
        first: u64_at(record, 48)?,
    };
    checked(directory, file_bytes)
}

fn checked(directory: Directory, file_bytes: u64) -> Result<Directory> {
    let fits = directory
        .first
        .checked_add(directory.bytes)
        .is_some_and(|end| end <= file_bytes);
    if fits && directory.bytes <= DIRECTORY_BYTES_MAX {
        return Ok(directory);
    }
    Err(wrong("has a directory outside of itself: it is damaged"))
}

/// Reads the directory, in its order.
pub fn entries(mut directory: &[u8]) -> Result<Vec<ZipEntry>> {
    let mut entries = Vec::new();
    let mut names = BTreeSet::new();
    while directory.starts_with(&ENTRY) {
        let field = |at| u16_at(directory, at).map(usize::from);
        let (name_bytes, extra_bytes, comment_bytes) = (field(28)?, field(30)?, field(32)?);
        let end = 46 + name_bytes + extra_bytes + comment_bytes;
        let cut = || wrong("has a directory that is cut off");
        let body = directory.get(46..end).ok_or_else(cut)?;
        let name = String::from_utf8_lossy(&body[..name_bytes]).into_owned();
        let extra = &body[name_bytes..name_bytes + extra_bytes];
        let [_, bytes, header_first] = sizes(directory, extra)?;
        if entries.len() == ENTRIES_MAX || !names.insert(name.clone()) {
            return Err(wrong("has too many entries, or one twice").with("entry", name));
        }
        entries.push(ZipEntry {
            name,
            is_stored: u16_at(directory, 10)? == 0,
            crc32: u32_at(directory, 16)?,
            bytes,
            header_first,
        });
        directory = &directory[end..];
    }
    if directory.is_empty() {
        return Ok(entries);
    }
    Err(wrong("has a directory that cannot be read: it is damaged"))
}

/// Size, stored size and place of an entry; those that do not fit their field lie in an extra one.
fn sizes(entry: &[u8], mut extra: &[u8]) -> Result<[u64; 3]> {
    let mut wide: &[u8] = &[];
    while extra.len() >= 4 {
        let length = usize::from(u16_at(extra, 2)?);
        let field = extra.get(4..4 + length).unwrap_or_default();
        if u16_at(extra, 0)? == ZIP64_FIELD {
            wide = field;
        }
        extra = extra.get(4 + length..).unwrap_or_default();
    }
    let mut sizes = [0; 3];
    for (size, at) in sizes.iter_mut().zip([24, 20, 42]) {
        *size = u64::from(u32_at(entry, at)?);
        if *size == u64::from(u32::MAX) {
            *size = u64_at(wide, 0)?;
            wide = &wide[8..];
        }
    }
    Ok(sizes)
}

/// Returns where the data of an entry begins, from its own header.
pub fn data_first(local: &[u8], header_first: u64) -> Result<u64> {
    if !local.starts_with(&LOCAL) {
        return Err(wrong("has an entry without its header: it is damaged"));
    }
    let behind = u64::from(u16_at(local, 26)?) + u64::from(u16_at(local, 28)?);
    header_first
        .checked_add(LOCAL_BYTES + behind)
        .ok_or_else(|| wrong("has an entry outside of itself: it is damaged"))
}

fn wrong(what: &str) -> Error {
    Error::new(Kind::Corrupt, format!("a zip file {what}"))
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N]> {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
    found
        .copied()
        .ok_or_else(|| wrong("has a record that is cut off"))
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16> {
    bytes_at(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32> {
    bytes_at(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64> {
    bytes_at(bytes, at).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A zip file of one stored entry, `data/0` with `hello`, as Python's `zipfile` writes it.
    fn small() -> Vec<u8> {
        let mut file = Vec::new();
        file.extend_from_slice(
            b"PK\x03\x04\x14\0\0\0\0\0\0\0\x21\0\x86\xa6\x10\x36\x05\0\0\0\x05\0\0\0\x06\0\0\0data/0hello",
        );
        file.extend_from_slice(
            b"PK\x01\x02\x14\x03\x14\0\0\0\0\0\0\0\x21\0\x86\xa6\x10\x36\x05\0\0\0\x05\0\0\0\x06\0",
        );
        file.extend_from_slice(b"\0\0\0\0\0\0\0\0\0\0\x80\x01\0\0\0\0data/0");
        file.extend_from_slice(b"PK\x05\x06\0\0\0\0\x01\0\x01\0\x34\0\0\0\x29\0\0\0\0\0");
        file
    }

    fn read(file: &[u8]) -> Result<Vec<ZipEntry>> {
        let first = file.len().saturating_sub(TAIL_BYTES as usize);
        let directory = match tail(&file[first..], file.len() as u64)? {
            Tail::Near(directory) => directory,
            Tail::Far(place) => far(file.get(place as usize..).unwrap_or_default(), file.len() as u64)?,
        };
        let end = directory.first + directory.bytes;
        entries(&file[directory.first as usize..end as usize])
    }

    #[test]
    fn an_entry_is_found_with_its_place_and_checksum() {
        let file = small();
        let found = read(&file).unwrap();
        assert_eq!(found.len(), 1);
        let entry = &found[0];
        assert_eq!(
            (entry.name.as_str(), entry.bytes, entry.crc32),
            ("data/0", 5, 0x3610_a686)
        );
        let first = data_first(&file, entry.header_first).unwrap() as usize;
        assert_eq!(&file[first..first + 5], b"hello");
    }

    #[test]
    fn sizes_past_4_gib_come_from_the_wide_fields() {
        let mut entry = vec![0; 46];
        entry[..4].copy_from_slice(&ENTRY);
        for at in [20, 24, 42] {
            entry[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        }
        entry[30] = 28;
        entry.extend_from_slice(&[1, 0, 24, 0]);
        for wide in [7u64 << 32, 5 << 32, 3 << 32] {
            entry.extend_from_slice(&wide.to_le_bytes());
        }
        let found = entries(&entry).unwrap();
        assert_eq!((found[0].bytes, found[0].header_first), (5 << 32, 3 << 32));
    }

    #[test]
    fn damage_anywhere_is_an_error_or_another_entry_and_never_a_panic() {
        let good = small();
        let expected = read(&good).unwrap();
        for length in 0..good.len() {
            assert!(read(&good[..length]).is_err(), "{length}");
        }
        for byte in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[byte] ^= 1 << bit;
                if let Ok(found) = read(&bad)
                    && let Some(entry) = found.first()
                {
                    let local = bad.get(entry.header_first as usize..).unwrap_or_default();
                    // Only that nothing panics: what it says is compared with the noted checksum elsewhere.
                    let _ = data_first(local, entry.header_first);
                }
            }
        }
        assert_eq!(expected.len(), 1);
    }
}
