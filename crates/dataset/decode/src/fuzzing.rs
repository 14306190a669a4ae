//! Entry points for fuzzing: arbitrary bytes into every decoder. They panic only if a promise is broken.

use crate::{Decoder, Value};

/// Decoders that are tried.
const NAMES: [&str; 10] = [
    "json",
    "npy",
    "str",
    "int",
    "float",
    "image:max_pixels=65536",
    "rgb:short=16,crop=16,max_pixels=65536",
    "gray:7x5,max_pixels=65536",
    "image:random_resized_crop=6x5,ratio=1/9..9,max_pixels=65536",
    "image:exif,short=9,random_crop=8,random_flip,max_pixels=65536",
];

/// Any bytes as any field.
///
/// # Panics
/// If a value has other bytes than it says.
pub fn decode(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        name(text);
    }
    for name in NAMES {
        let Ok(decoder) = Decoder::parse(name) else {
            continue;
        };
        if let Ok(Value::Array(array)) = decoder.decode_seeded(bytes, sample_seed(bytes)) {
            let count: usize = array.shape.iter().product();
            let found = array.bytes(bytes).len();
            assert!(
                count == 0 || found.is_multiple_of(count),
                "{name}: {found} bytes for {count} values"
            );
        }
    }
}

/// A number by which random transforms are done, from the last bytes.
fn sample_seed(bytes: &[u8]) -> Option<u64> {
    bytes.last_chunk().map(|last| u64::from_le_bytes(*last))
}

/// Any text as the name of a decoder.
pub fn name(text: &str) {
    let _ = Decoder::parse(text);
}

#[cfg(test)]
mod tests;
