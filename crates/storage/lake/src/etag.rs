//! S3's ETags: the MD5 of the bytes in hex, or the MD5 of the parts' MD5s with the number of parts behind it.

use forebay_core::{Error, Kind, Result};
use md5::{Digest, Md5};

use crate::{PartNumber, PartReceipt};

/// The largest S3 part number.
pub(crate) const PART_NUMBER_MAX: PartNumber = 10_000;

/// The MD5 of some bytes.
pub(crate) fn md5_of(bytes: &[u8]) -> [u8; 16] {
    Md5::digest(bytes).into()
}

/// The 16 bytes that an ETag stands for, if it is a plain MD5.
pub(crate) fn parse_md5(etag: &str) -> Option<[u8; 16]> {
    let mut md5 = [0; 16];
    hex::decode_to_slice(etag, &mut md5).ok()?;
    Some(md5)
}

/// The ETag of an object that was joined from parts with these MD5s.
pub(crate) fn multipart_etag(parts: &[[u8; 16]]) -> String {
    format!("{}-{}", hex::encode(Md5::digest(parts.concat())), parts.len())
}

/// Refuses bytes that do not have the MD5 that the caller announced.
pub(crate) fn check_md5(announced: Option<[u8; 16]>, actual: [u8; 16]) -> Result<()> {
    match announced {
        Some(announced) if announced != actual => Err(Error::new(
            Kind::Checksum,
            "the bytes do not have the announced md5; nothing was written",
        )
        .with("announced", hex::encode(announced))
        .with("actual", hex::encode(actual))),
        _ => Ok(()),
    }
}

/// Refuses part numbers that S3 does not have.
pub(crate) fn check_part_number(number: PartNumber) -> Result<()> {
    if (1..=PART_NUMBER_MAX).contains(&number) {
        return Ok(());
    }
    Err(Error::new(
        Kind::InvalidInput,
        format!("part number must be 1 to {PART_NUMBER_MAX}"),
    )
    .with("part", number))
}

/// Refuses a list of parts that is empty or not in ascending order.
pub(crate) fn check_part_order(parts: &[PartReceipt]) -> Result<()> {
    if parts.is_empty() {
        return Err(Error::new(
            Kind::InvalidInput,
            "an upload needs at least one part to complete",
        ));
    }
    if parts.windows(2).any(|pair| pair[0].number >= pair[1].number) {
        return Err(Error::new(
            Kind::InvalidInput,
            "parts must be named in ascending order of their numbers",
        ));
    }
    Ok(())
}

/// The error for a part that the caller names but the lake does not have (or no longer has in that form).
pub(crate) fn missing_part(part: &PartReceipt) -> Error {
    Error::new(
        Kind::InvalidInput,
        "a named part is not there or has another etag; upload it again",
    )
    .with("part", part.number)
    .with("etag", &part.etag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multipart_etag_is_the_md5_of_the_parts_md5s() {
        let parts = [md5_of(b"a"), md5_of(b"b")];
        let joined = [parts[0], parts[1]].concat();
        assert_eq!(
            multipart_etag(&parts),
            format!("{}-2", hex::encode(md5_of(&joined)))
        );
    }

    #[test]
    fn plain_md5_etags_parse_and_others_do_not() {
        assert_eq!(parse_md5("d41d8cd98f00b204e9800998ecf8427e"), Some(md5_of(b"")));
        assert_eq!(parse_md5("d41d8cd98f00b204e9800998ecf8427e-2"), None);
        assert_eq!(parse_md5("f-00"), None);
    }
}
