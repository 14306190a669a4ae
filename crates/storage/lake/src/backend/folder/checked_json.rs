//! The form of our small private files: one line of JSON, one line with the CRC32C of the first.
//!
//! A person can read them, and a torn or damaged one is never taken for a whole one.

use forebay_core::{Error, Kind, Result, crc32c};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The file's content.
pub(super) fn encode(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut text = serde_json::to_vec(value)
        .map_err(|error| Error::new(Kind::Internal, "cannot encode a private file").caused_by(error))?;
    let checksum = crc32c::crc32c(&text);
    text.extend_from_slice(format!("\n{checksum:08x}\n").as_bytes());
    Ok(text)
}

/// `None` for anything but what [`encode`] has made.
pub(super) fn decode<T: DeserializeOwned>(file: &[u8]) -> Option<T> {
    let text = str::from_utf8(file).ok()?;
    let (json, checksum) = text.strip_suffix('\n')?.rsplit_once('\n')?;
    if u32::from_str_radix(checksum, 16).ok()? != crc32c::crc32c(json.as_bytes()) {
        return None;
    }
    serde_json::from_str(json).ok()
}
