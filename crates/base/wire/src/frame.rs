//! A frame: sixteen bytes of header, then one message.
//!
//! ```text
//! 0   magic     "FBAY"
//! 4   family    u16, little endian
//! 6   version   u16: of the family
//! 8   length    u32: bytes of the message
//! 12  crc32c    u32 over bytes 0..12 and the message
//! ```
//!
//! The length is checked against [`FRAME_BYTES_MAX`] before anything is allocated, the checksum before
//! anything is parsed. Protocols 1 to 4, which had no families, wrote their number at 4 and zero at 6: no
//! family has version 0.

use forebay_core::{Error, Kind, Result, crc32c};
use serde::de::DeserializeOwned;

use crate::{Failure, Message};

const MAGIC: [u8; 4] = *b"FBAY";

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 16;

/// The longest message: a batch of 8192 items with long names fits, a hostile length does not.
pub const FRAME_BYTES_MAX: usize = 16 << 20;

/// A header whose magic and length were checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes of the message that follows.
    pub length: usize,
    /// Number of the message's family.
    pub family: u16,
    /// Version of the family that the sender speaks.
    pub version: u16,
    front: [u8; 12],
    checksum: u32,
}

impl FrameHeader {
    /// Checks the magic and the length. Family and version are checked when the message is decoded, so that
    /// a node can answer a client of another version.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self> {
        let mut front = [0; 12];
        front.copy_from_slice(&bytes[..12]);
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[..4] != MAGIC {
            return Err(Error::new(
                Kind::Corrupt,
                "this is not a Forebay message; check that FOREBAY_NODE names the socket of a node",
            ));
        }
        let length = word(8) as usize;
        if length > FRAME_BYTES_MAX {
            let error = Error::new(Kind::Corrupt, "the message is longer than a message may be");
            return Err(error.with("bytes", length).with("bytes_max", FRAME_BYTES_MAX));
        }
        Ok(Self {
            length,
            family: half(4),
            version: half(6),
            front,
            checksum: word(12),
        })
    }

    /// Checks that the message is the one that was sent; `Corrupt` if it is not.
    pub fn check(&self, message: &[u8]) -> Result<()> {
        if crc32c::crc32c_append(crc32c::crc32c(&self.front), message) == self.checksum {
            return Ok(());
        }
        Err(Error::new(Kind::Corrupt, "a message does not match its checksum"))
    }
}

/// Appends a frame with this message to `out`.
pub fn encode<M: Message>(message: &M, out: &mut Vec<u8>) -> Result<()> {
    let start = out.len();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&M::FAMILY.number.to_le_bytes());
    out.extend_from_slice(&M::FAMILY.version.to_le_bytes());
    out.extend_from_slice(&[0; HEADER_BYTES - 8]);
    let taken = std::mem::take(out);
    *out = postcard::to_extend(message, taken)
        .map_err(|why| Error::new(Kind::Internal, "a message cannot be written").caused_by(why))?;
    let length = out.len() - start - HEADER_BYTES;
    if length > FRAME_BYTES_MAX {
        out.truncate(start);
        let error = Error::new(
            Kind::InvalidInput,
            "the request is too long; ask for fewer items at once",
        );
        return Err(error.with("bytes", length).with("bytes_max", FRAME_BYTES_MAX));
    }
    let length = u32::try_from(length).expect("a frame is shorter than 4 GiB");
    out[start + 8..start + 12].copy_from_slice(&length.to_le_bytes());
    let front = crc32c::crc32c(&out[start..start + 12]);
    let checksum = crc32c::crc32c_append(front, &out[start + HEADER_BYTES..]);
    out[start + 12..start + HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
    Ok(())
}

/// Reads the message of a frame: checksum, family, version, then the message itself.
pub fn decode<M: Message>(header: &FrameHeader, message: &[u8]) -> Result<M> {
    header.check(message)?;
    M::FAMILY.expect(header.family, header.version)?;
    decode_message(message)
}

/// Reads an answer: the message that is due, or the failure that was sent in its place.
pub fn decode_answer<A: Message>(header: &FrameHeader, message: &[u8]) -> Result<Result<A, Failure>> {
    if header.family == Failure::FAMILY.number {
        return decode(header, message).map(Err);
    }
    decode(header, message).map(Ok)
}

/// Reads a message whose frame was checked; it must use all the bytes.
pub fn decode_message<M: DeserializeOwned>(message: &[u8]) -> Result<M> {
    let (message, rest) = postcard::take_from_bytes(message)
        .map_err(|why| Error::new(Kind::Corrupt, "a message cannot be understood").caused_by(why))?;
    if !rest.is_empty() {
        return Err(Error::new(Kind::Corrupt, "a message has bytes behind its end"));
    }
    Ok(message)
}
