//! The zip file of one item, as `torch.load` opens it: entries stored as they are, the bytes of a tensor last
//! and at a multiple of 64.
//!
//! The CRC-32 of the tensor comes before its bytes, so who writes a file goes back to [`ItemHead::crc_place`]
//! when it is known. Items stay below 4 GiB.

use forebay_core::{Error, Kind, Result};

/// Bytes of one item, at most: no ZIP64 is needed.
const DATA_BYTES_MAX: u64 = 2 << 30;
const ALIGNMENT: usize = 64;
const LOCAL_BYTES: usize = 30;

/// Head of an item: everything before the bytes of a tensor.
#[derive(Debug, Clone)]
pub struct ItemHead {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Position of the CRC-32 of the tensor's bytes, if there is a tensor.
    pub crc_place: Option<u64>,
    entries: Vec<DirectoryEntry>,
}

/// Tail of an item: everything after them.
pub type ItemTail = Vec<u8>;

#[derive(Debug, Clone)]
struct DirectoryEntry {
    name: &'static str,
    crc32: u32,
    bytes: u32,
    first: u32,
}

/// The head of an item: a pickle, and a tensor of so many bytes if there is one. `crc32` is the function of
/// that name.
pub fn item(pickle: &[u8], tensor_bytes: Option<u64>, crc32: impl Fn(&[u8]) -> u32) -> Result<ItemHead> {
    if pickle.len() as u64 + tensor_bytes.unwrap_or_default() > DATA_BYTES_MAX {
        return Err(Error::new(Kind::InvalidInput, "an item would be too large"));
    }
    let mut head = ItemHead {
        bytes: Vec::new(),
        crc_place: None,
        entries: Vec::new(),
    };
    for (name, body) in [
        ("archive/data.pkl", pickle),
        ("archive/byteorder", b"little"),
        ("archive/version", b"3\n"),
    ] {
        head.begin(name, crc32(body), body.len() as u64);
        head.bytes.extend_from_slice(body);
    }
    if let Some(bytes) = tensor_bytes {
        head.crc_place = Some(head.bytes.len() as u64 + 14);
        head.begin("archive/data/0", 0, bytes);
    }
    Ok(head)
}

impl ItemHead {
    /// A header, padded so that the data behind it is aligned. Everything is below 4 GiB, as was checked.
    fn begin(&mut self, name: &'static str, crc32: u32, bytes: u64) {
        let first = self.bytes.len();
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        // An extra field of its own length, as torch writes it.
        let front = first + LOCAL_BYTES + name.len() + 4;
        let padding = front.next_multiple_of(ALIGNMENT) - front;
        self.bytes.extend_from_slice(b"PK\x03\x04\0\0\0\0\0\0\0\0\0\0");
        for number in [crc32, bytes, bytes] {
            self.bytes.extend_from_slice(&number.to_le_bytes());
        }
        self.bytes.extend_from_slice(&(name.len() as u16).to_le_bytes());
        self.bytes.extend_from_slice(&(padding as u16 + 4).to_le_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.extend_from_slice(b"FB");
        self.bytes.extend_from_slice(&(padding as u16).to_le_bytes());
        self.bytes.resize(self.bytes.len() + padding, b'Z');
        self.entries.push(DirectoryEntry {
            name,
            crc32,
            bytes,
            first: first as u32,
        });
    }

    /// The directory; `crc32` is that of the tensor's bytes.
    #[must_use]
    pub fn tail(mut self, crc32: u32) -> ItemTail {
        if self.crc_place.is_some()
            && let Some(tensor) = self.entries.last_mut()
        {
            tensor.crc32 = crc32;
        }
        let tensor_bytes = match self.crc_place {
            Some(_) => self.entries.last().map_or(0, |entry| entry.bytes),
            None => 0,
        };
        let directory_first = self.bytes.len() as u32 + tensor_bytes;
        let mut tail = Vec::new();
        for entry in &self.entries {
            tail.extend_from_slice(b"PK\x01\x02\0\0\0\0\0\0\0\0\0\0\0\0");
            for number in [entry.crc32, entry.bytes, entry.bytes] {
                tail.extend_from_slice(&number.to_le_bytes());
            }
            tail.extend_from_slice(&(entry.name.len() as u16).to_le_bytes());
            tail.extend_from_slice(&[0; 12]);
            tail.extend_from_slice(&entry.first.to_le_bytes());
            tail.extend_from_slice(entry.name.as_bytes());
        }
        let directory_bytes = tail.len() as u32;
        let count = self.entries.len() as u16;
        tail.extend_from_slice(b"PK\x05\x06\0\0\0\0");
        for number in [count, count] {
            tail.extend_from_slice(&number.to_le_bytes());
        }
        for number in [directory_bytes, directory_first] {
            tail.extend_from_slice(&number.to_le_bytes());
        }
        tail.extend_from_slice(&[0; 2]);
        tail
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zip::{Tail, data_first, entries, tail};

    #[test]
    fn an_item_reads_back_and_its_tensor_is_aligned() {
        let head = item(b"a pickle", Some(5), |bytes| bytes.len() as u32).unwrap();
        let mut file = head.bytes.clone();
        let tensor_first = file.len();
        assert_eq!(tensor_first % ALIGNMENT, 0);
        file.extend_from_slice(b"hello");
        file.extend_from_slice(&head.tail(77));
        let Tail::Near(directory) = tail(&file, file.len() as u64).unwrap() else {
            panic!("a small file")
        };
        let end = (directory.first + directory.bytes) as usize;
        let found = entries(&file[directory.first as usize..end]).unwrap();
        let names: Vec<&str> = found.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "archive/data.pkl",
                "archive/byteorder",
                "archive/version",
                "archive/data/0"
            ]
        );
        let tensor = &found[3];
        assert_eq!((tensor.bytes, tensor.crc32, tensor.is_stored), (5, 77, true));
        let local = &file[tensor.header_first as usize..];
        assert_eq!(
            data_first(local, tensor.header_first).unwrap(),
            tensor_first as u64
        );
    }
}
