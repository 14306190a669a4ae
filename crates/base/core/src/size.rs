//! Byte sizes as people type and read them.

use crate::{Error, Kind, Result};

/// Reads `4GiB`, `512 MB`, `1048576`.
pub fn parse_bytes(text: &str) -> Result<u64> {
    text.trim()
        .parse::<bytesize::ByteSize>()
        .map(|size| size.as_u64())
        .map_err(|why| {
            Error::new(
                Kind::InvalidInput,
                format!("'{text}' is not a size; write for example 4GiB, 512MiB or 1000000"),
            )
            .caused_by(why)
        })
}

/// Writes a size in binary units: `1.5 GiB`.
#[must_use]
pub fn format_bytes(bytes: u64) -> String {
    bytesize::ByteSize(bytes).display().iec().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_binary_and_decimal_units() {
        assert_eq!(parse_bytes("4GiB").unwrap(), 4 << 30);
        assert_eq!(parse_bytes("1 MB").unwrap(), 1_000_000);
        assert_eq!(parse_bytes("17").unwrap(), 17);
        assert!(parse_bytes("lots").is_err());
        assert!(parse_bytes("-1GiB").is_err());
    }
}
