//! The header of a safetensors file, read without trust.
//!
//! A file begins with the length of the header (8 bytes, little endian), the header (JSON, maybe padded with
//! spaces), then data. Taken is what `safetensors` itself takes: tensors that lie one after the other and
//! fill the file to its end.
//!
//! Limits: a header of 100 MiB, tensors of 8 dimensions.

use std::collections::BTreeMap;
use std::fmt;

use forebay_core::{Error, Kind, Result};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use crate::Dtype;
use crate::shape::{DIMENSIONS_MAX, elements};

/// Bytes of the length before the header.
pub const LENGTH_BYTES: usize = 8;
/// The largest header that is read.
pub const HEADER_BYTES_MAX: u64 = 100 << 20;
const METADATA: &str = "__metadata__";

/// Header of a safetensors file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// First byte of data in the file.
    pub data_start: u64,
    /// Tensors by name.
    pub tensors: BTreeMap<String, Entry>,
    /// Metadata of the writer.
    pub metadata: BTreeMap<String, String>,
}

/// A tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<u64>,
    /// First byte and end, in the file.
    pub range: [u64; 2],
}

/// Returns where data begins, from the first bytes of a file.
pub fn data_start(length: [u8; LENGTH_BYTES]) -> Result<u64> {
    let length = u64::from_le_bytes(length);
    if length > HEADER_BYTES_MAX {
        let error = wrong("says that its header is larger than any is: it is damaged, or not safetensors");
        return Err(error.with("header_bytes", length));
    }
    Ok(length + LENGTH_BYTES as u64)
}

impl Header {
    /// Reads what comes before the data of a file of `file_bytes`.
    pub fn decode(front: &[u8], file_bytes: u64) -> Result<Self> {
        let (length, rest) = front
            .split_first_chunk::<LENGTH_BYTES>()
            .ok_or_else(|| wrong("is cut off in its header"))?;
        let data_start = data_start(*length)?;
        let json = usize::try_from(data_start)
            .ok()
            .and_then(|end| rest.get(..end - LENGTH_BYTES))
            .ok_or_else(|| wrong("is cut off in its header"))?;
        let document: Document = serde_json::from_slice(json)
            .map_err(|why| wrong("has a header that cannot be read").caused_by(why))?;
        let mut tensors = BTreeMap::new();
        for (name, raw) in document.tensors {
            let entry = raw
                .checked(data_start)
                .map_err(|error| error.with("tensor", &name))?;
            tensors.insert(name, entry);
        }
        let header = Self {
            data_start,
            tensors,
            metadata: document.metadata,
        };
        header.check_cover(file_bytes)?;
        Ok(header)
    }

    /// Tensors fill the data area: nothing between them, nothing behind.
    fn check_cover(&self, file_bytes: u64) -> Result<()> {
        let mut ranges: Vec<_> = self
            .tensors
            .iter()
            .map(|(name, entry)| (entry.range, name))
            .collect();
        ranges.sort_unstable();
        let mut end = self.data_start;
        for (range, name) in ranges {
            if range[0] != end {
                return Err(wrong("has a hole between tensors, or they overlap").with("tensor", name));
            }
            end = range[1];
        }
        if end != file_bytes {
            let error = wrong("does not end with its last tensor: it is cut off, or has more than it says");
            return Err(error.with("bytes", file_bytes).with("expected", end));
        }
        Ok(())
    }
}

fn wrong(what: &str) -> Error {
    Error::new(Kind::Corrupt, format!("a safetensors file {what}"))
}

#[derive(Debug, serde::Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl RawEntry {
    fn checked(self, data_start: u64) -> Result<Entry> {
        let dtype = Dtype::parse(&self.dtype)?;
        if self.shape.len() > DIMENSIONS_MAX {
            return Err(wrong("has a tensor with more dimensions than this version takes"));
        }
        let bytes = elements(&self.shape)?.checked_mul(dtype.bytes());
        let [first, end] = self.data_offsets;
        if bytes.is_none() || end.checked_sub(first) != bytes {
            return Err(wrong("has a tensor of another size than its shape says"));
        }
        let place = |byte: u64| data_start.checked_add(byte);
        let (Some(first), Some(end)) = (place(first), place(end)) else {
            return Err(wrong("has a tensor outside of itself"));
        };
        Ok(Entry {
            dtype,
            shape: self.shape,
            range: [first, end],
        })
    }
}

/// The JSON of a header; a name that comes twice is refused.
#[derive(Debug, Default)]
struct Document {
    tensors: BTreeMap<String, RawEntry>,
    metadata: BTreeMap<String, String>,
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(DocumentVisitor)
    }
}

struct DocumentVisitor;

impl<'de> Visitor<'de> for DocumentVisitor {
    type Value = Document;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the header of a safetensors file")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Document, A::Error> {
        let mut document = Document::default();
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA {
                document.metadata = map.next_value()?;
            } else if document.tensors.insert(name.clone(), map.next_value()?).is_some() {
                return Err(A::Error::custom(format!("the tensor {name} comes twice")));
            }
        }
        Ok(document)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(json: &str, data: usize) -> Vec<u8> {
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(json.as_bytes());
        bytes.resize(bytes.len() + data, 7);
        bytes
    }

    fn decode(json: &str, data: usize) -> Result<Header> {
        let bytes = file(json, data);
        Header::decode(&bytes, bytes.len() as u64)
    }

    const TWO: &str = r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},"a":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]}}"#;

    #[test]
    fn a_header_says_where_tensors_lie_in_the_file() {
        let header = decode(TWO, 12).unwrap();
        assert_eq!(header.data_start, 8 + TWO.len() as u64);
        assert_eq!(
            header.tensors["b"].range,
            [header.data_start + 4, header.data_start + 12]
        );
        assert_eq!(header.tensors["a"].dtype, Dtype::BF16);
        assert_eq!(header.metadata["format"], "pt");
        assert_eq!(decode(&format!("{TWO}   "), 12).unwrap().tensors, {
            let mut moved = header.tensors.clone();
            for entry in moved.values_mut() {
                entry.range = entry.range.map(|byte| byte + 3);
            }
            moved
        });
        assert!(decode("{}", 0).unwrap().tensors.is_empty());
    }

    #[test]
    fn hostile_headers_are_refused() {
        for (json, data) in [
            (TWO, 11),
            (TWO, 13),
            ("", 0),
            ("[]", 0),
            (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#, 8),
            (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,5]}}"#, 5),
            (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#, 4),
            (r#"{"a":{"dtype":"X32","shape":[1],"data_offsets":[0,4]}}"#, 4),
            (
                r#"{"a":{"dtype":"U8","shape":[9007199254740993,9007199254740993],"data_offsets":[0,4]}}"#,
                4,
            ),
            (
                r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[18446744073709551614,18446744073709551615]}}"#,
                1,
            ),
            (
                r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#,
                1,
            ),
            (
                r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#,
                1,
            ),
            (
                r#"{"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}}"#,
                1,
            ),
        ] {
            assert!(decode(json, data).is_err(), "{json} {data}");
        }
        let mut long = u64::MAX.to_le_bytes().to_vec();
        long.extend_from_slice(b"{}");
        assert!(Header::decode(&long, 10).is_err());
        let good = file(TWO, 12);
        for length in 0..8 + TWO.len() {
            assert!(
                Header::decode(&good[..length], good.len() as u64).is_err(),
                "{length}"
            );
        }
    }
}
