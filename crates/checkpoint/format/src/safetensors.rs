//! The header of a data file: ordinary safetensors, padded so that data starts at a multiple of 4096, with
//! the offsets of shards as PyTorch's DCP wants to find them.

use std::collections::BTreeMap;

use forebay_core::{Error, Kind, Result};
use serde::Serialize;
use serde_json::json;

use crate::Dtype;
use crate::shape::TensorBox;

/// Data starts at a multiple of this.
pub const DATA_ALIGNMENT: usize = 4096;
/// The longest header that stock readers take.
pub const HEADER_BYTES_MAX: usize = 100 << 20;
/// Name that no tensor may have.
pub const METADATA_NAME: &str = "__metadata__";

/// One tensor of a file.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// Full name.
    pub name: &'a str,
    /// Type of its elements.
    pub dtype: Dtype,
    /// The part that the file has.
    pub at: &'a TensorBox,
    /// Bytes of it.
    pub bytes: u64,
}

/// Position of a part in its tensor, in the words of DCP.
#[derive(Serialize)]
struct Saved<'a> {
    saved_offsets: &'a [u64],
}

/// The bytes before the data of a file whose tensors lie one after the other.
pub fn header(entries: &[Entry<'_>]) -> Result<Vec<u8>> {
    let unwritable =
        |why: serde_json::Error| Error::new(Kind::Internal, "a header could not be written").caused_by(why);
    let mut sharding = BTreeMap::new();
    for entry in entries {
        check_name(entry.name)?;
        let saved_offsets = &entry.at.offset;
        if sharding.insert(entry.name, Saved { saved_offsets }).is_some() {
            return Err(
                Error::new(Kind::Internal, "a file would name a tensor twice").with("tensor", entry.name)
            );
        }
    }
    let sharding = serde_json::to_string(&sharding).map_err(unwritable)?;
    let metadata = json!({ "format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": sharding });
    let mut bytes = vec![0; 8];
    bytes.extend_from_slice(b"{\"__metadata__\":");
    serde_json::to_writer(&mut bytes, &metadata).map_err(unwritable)?;
    let mut first = 0;
    for entry in entries {
        bytes.push(b',');
        serde_json::to_writer(&mut bytes, entry.name).map_err(unwritable)?;
        bytes.push(b':');
        let end = first + entry.bytes;
        let described =
            json!({ "dtype": entry.dtype, "shape": entry.at.shape, "data_offsets": [first, end] });
        serde_json::to_writer(&mut bytes, &described).map_err(unwritable)?;
        first = end;
    }
    bytes.push(b'}');
    bytes.resize(bytes.len().next_multiple_of(DATA_ALIGNMENT), b' ');
    let length = bytes.len() - 8;
    if length > HEADER_BYTES_MAX {
        let message = "the names of tensors in one file are too long together; save fewer or shorter ones";
        return Err(Error::new(Kind::InvalidInput, message).with("bytes", length));
    }
    bytes[..8].copy_from_slice(&(length as u64).to_le_bytes());
    Ok(bytes)
}

/// Returns whether a tensor may be called so.
pub fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name == METADATA_NAME || name.len() > 4096 {
        let message = "a tensor cannot have this name: give it 1 to 4096 bytes, and not __metadata__";
        return Err(Error::new(Kind::InvalidInput, message).with("tensor", name));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_header_is_json_that_ends_at_a_multiple_of_4096() {
        let at = TensorBox {
            offset: vec![2, 0],
            shape: vec![1, 3],
        };
        let entries = [
            Entry {
                name: "a\"b",
                dtype: Dtype::F32,
                at: &at,
                bytes: 12,
            },
            Entry {
                name: "c",
                dtype: Dtype::BF16,
                at: &at,
                bytes: 6,
            },
        ];
        let bytes = header(&entries).unwrap();
        assert_eq!(bytes.len() % DATA_ALIGNMENT, 0);
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert_eq!(length as usize, bytes.len() - 8);
        let document: Value = serde_json::from_slice(&bytes[8..]).unwrap();
        assert_eq!(
            document["c"],
            json!({"dtype": "BF16", "shape": [1, 3], "data_offsets": [12, 18]})
        );
        let sharding = document["__metadata__"]["DCP_SHARDING_INFO"].as_str().unwrap();
        let sharding: Value = serde_json::from_str(sharding).unwrap();
        assert_eq!(sharding["a\"b"]["saved_offsets"], json!([2, 0]));
    }

    #[test]
    fn a_name_that_safetensors_has_itself_is_refused() {
        let at = TensorBox::whole(&[]);
        let entry = Entry {
            name: METADATA_NAME,
            dtype: Dtype::U8,
            at: &at,
            bytes: 1,
        };
        assert_eq!(header(&[entry]).unwrap_err().kind(), Kind::InvalidInput);
    }
}
