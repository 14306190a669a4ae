//! A frame: sixteen bytes of header, then one message.
//!
//! ```text
//! 0   magic     "FBAY"
//! 4   protocol  u16, little endian
//! 6   reserved  u16, zero
//! 8   length    u32: bytes of the message
//! 12  crc32c    u32 over bytes 0..12 and the message
//! ```
//!
//! The length is checked against [`FRAME_BYTES_MAX`] before anything is allocated, the checksum before anything is parsed.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, Kind, Result, crc32c};

use super::PROTOCOL;

const MAGIC: [u8; 4] = *b"FBAY";

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 16;

/// The longest message: a batch of 8192 items with long names fits, a hostile length does not.
pub const FRAME_BYTES_MAX: usize = 16 << 20;

/// A header that was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes of the message that follows.
    pub length: usize,
    /// The protocol that the sender speaks.
    pub protocol: u16,
    front: [u8; 12],
    checksum: u32,
}

impl FrameHeader {
    /// Checks the magic and the length. The protocol is checked when the message is decoded, so that a node can answer
    /// a client of another version.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self> {
        let mut front = [0; 12];
        front.copy_from_slice(&bytes[..12]);
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
            protocol: u16::from_le_bytes([bytes[4], bytes[5]]),
            front,
            checksum: word(12),
        })
    }

    fn expected(&self, message: &[u8]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&self.front), message)
    }
}

/// Appends a frame with this message to `out`.
pub fn encode(message: &impl Serialize, out: &mut Vec<u8>) -> Result<()> {
    let start = out.len();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&PROTOCOL.to_le_bytes());
    out.extend_from_slice(&[0; HEADER_BYTES - 6]);
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

/// Reads the message of a frame: checksum, protocol, then the message itself, which must use all its bytes.
pub fn decode<M: DeserializeOwned>(header: &FrameHeader, message: &[u8]) -> Result<M> {
    if header.expected(message) != header.checksum {
        return Err(Error::new(Kind::Corrupt, "a message does not match its checksum"));
    }
    if header.protocol != PROTOCOL {
        let error = Error::new(
            Kind::Unsupported,
            "client and node speak different protocols; install the same version of Forebay on both sides",
        );
        return Err(error.with("theirs", header.protocol).with("ours", PROTOCOL));
    }
    let (message, rest) = postcard::take_from_bytes(message)
        .map_err(|why| Error::new(Kind::Corrupt, "a message cannot be understood").caused_by(why))?;
    if !rest.is_empty() {
        return Err(Error::new(Kind::Corrupt, "a message has bytes behind its end"));
    }
    Ok(message)
}
