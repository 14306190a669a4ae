//! Messages between nodes about blocks.
//!
//! A request is `POST /v1/blocks` with a [`BlocksRequest`] as JSON, and three headers: the version of the
//! protocol, the name of the cluster, the id of the asker. The answer is a sequence of frames, little endian:
//!
//! | kind | rest | meaning |
//! |---|---|---|
//! | `F` | – | filling: the owner's own read of the lake runs; sent at once and every 50 ms |
//! | `B` | `u32` bytes, `u32` CRC32C, the bytes | the next block, with the checksum that it got when it entered the first node |
//! | `X` | `u32` bytes, text | the owner failed: the kind of the error, a line feed, the message |
//! | `E` | – | all blocks of the range were sent |
//!
//! Limits: a request of 16 KiB, a range of two stripes, a block of 64 KiB, a text of 4 KiB. A frame that keeps
//! to none of this is damage of the peer, and ends the answer.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use forebay_core::{BLOCK_BYTES, BucketName, ByteRange, Error, Kind, ObjectKey, Result, Version};
use forebay_reservoir::{ObjectVersion, TrustDomain};
use serde::{Deserialize, Serialize};

use crate::meaning::BucketMeaning;
use crate::placement::STRIPE_BYTES;

/// The path of requests for blocks.
pub(crate) const BLOCKS_PATH: &str = "/v1/blocks";
/// The path that says which node answers here.
pub(crate) const NODE_PATH: &str = "/v1/node";
/// The header with the version of the protocol.
pub(crate) const WIRE_HEADER: &str = "x-forebay-wire";
/// The header with the name of the cluster.
pub(crate) const CLUSTER_HEADER: &str = "x-forebay-cluster";
/// The header with the id of the node that asks.
pub(crate) const NODE_HEADER: &str = "x-forebay-node";

/// The largest request.
pub(crate) const REQUEST_BYTES_MAX: usize = 16 << 10;
/// The longest range of a request.
const RANGE_BYTES_MAX: u64 = 2 * STRIPE_BYTES;
/// The longest text of a failure.
const TEXT_BYTES_MAX: usize = 4 << 10;

const FILLING: u8 = b'F';
const BLOCK: u8 = b'B';
const FAILED: u8 = b'X';
const END: u8 = b'E';

/// A request for blocks of one version of one object.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BlocksRequest {
    pub(crate) bucket: String,
    pub(crate) key: String,
    pub(crate) version: String,
    /// Size of the object.
    pub(crate) bytes: u64,
    /// First byte; the border of a block.
    pub(crate) start: u64,
    /// Behind the last byte; the border of a block, or the end of the object.
    pub(crate) end: u64,
    pub(crate) meaning: BucketMeaning,
}

impl BlocksRequest {
    /// The request for a range of an object; it is widened to whole blocks.
    pub(crate) fn new(object: &ObjectVersion, range: ByteRange, meaning: &BucketMeaning) -> Self {
        Self {
            bucket: object.bucket.to_string(),
            key: object.key.to_string(),
            version: object.version.as_str().to_owned(),
            bytes: object.bytes,
            start: range.start() / BLOCK_BYTES * BLOCK_BYTES,
            end: range.end().next_multiple_of(BLOCK_BYTES).min(object.bytes),
            meaning: meaning.clone(),
        }
    }

    /// The bucket that is meant.
    pub(crate) fn bucket(&self) -> Result<BucketName> {
        BucketName::new(&self.bucket)
    }

    /// The object and the range, checked; the domain is the receiver's.
    pub(crate) fn object(
        &self,
        bucket: BucketName,
        domain: TrustDomain,
    ) -> Result<(ObjectVersion, ByteRange)> {
        let wrong = |message| Error::new(Kind::InvalidInput, message);
        let range = ByteRange::new(self.start, self.end)?;
        let ends_whole = self.end.is_multiple_of(BLOCK_BYTES) || self.end == self.bytes;
        if self.end > self.bytes || !self.start.is_multiple_of(BLOCK_BYTES) || !ends_whole {
            return Err(wrong(
                "a range between nodes has to be made of whole blocks of the object",
            ));
        }
        if range.len() > RANGE_BYTES_MAX {
            return Err(wrong("a range between nodes has at most two stripes"));
        }
        if self.version.is_empty() || !self.meaning.is_bounded() {
            return Err(wrong(
                "a request between nodes has no version, or words that are too long",
            ));
        }
        let object = ObjectVersion {
            bucket,
            key: ObjectKey::new(&self.key)?,
            version: Version::new(&self.version),
            bytes: self.bytes,
            domain,
        };
        Ok((object, range))
    }
}

/// A frame of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    Filling,
    Block { bytes: Bytes, crc32c: u32 },
    Failed { kind: String, message: String },
    End,
}

impl Frame {
    /// The frame as it travels: its head, and the bytes of a block without a copy.
    pub(crate) fn encode(self) -> (Bytes, Option<Bytes>) {
        match self {
            Self::Filling => (Bytes::from_static(&[FILLING]), None),
            Self::End => (Bytes::from_static(&[END]), None),
            Self::Block { bytes, crc32c } => {
                let mut head = BytesMut::with_capacity(9);
                head.put_u8(BLOCK);
                head.put_u32_le(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
                head.put_u32_le(crc32c);
                (head.freeze(), Some(bytes))
            }
            Self::Failed { kind, message } => {
                let mut text = format!("{kind}\n{message}");
                while text.len() > TEXT_BYTES_MAX {
                    text.pop();
                }
                let mut frame = BytesMut::with_capacity(5 + text.len());
                frame.put_u8(FAILED);
                frame.put_u32_le(u32::try_from(text.len()).unwrap_or(u32::MAX));
                frame.put_slice(text.as_bytes());
                (frame.freeze(), None)
            }
        }
    }

    /// Takes the first frame of `buffer`; `None` if it is not all there. `Corrupt` if it is none.
    pub(crate) fn decode(buffer: &mut BytesMut) -> Result<Option<Self>> {
        let Some(kind) = buffer.first() else {
            return Ok(None);
        };
        let head_bytes = match *kind {
            FILLING | END => 1,
            FAILED => 5,
            BLOCK => 9,
            _ => return Err(Error::new(Kind::Corrupt, "a peer sent a frame of no known kind")),
        };
        if buffer.len() < head_bytes {
            return Ok(None);
        }
        let mut head = &buffer[..head_bytes];
        let kind = head.get_u8();
        let bytes = if head_bytes > 1 {
            head.get_u32_le() as usize
        } else {
            0
        };
        let bytes_max = if kind == BLOCK {
            BLOCK_BYTES as usize
        } else {
            TEXT_BYTES_MAX
        };
        if bytes > bytes_max || (kind == BLOCK && bytes == 0) {
            let error = Error::new(Kind::Corrupt, "a peer sent a frame of a size that none has");
            return Err(error.with("bytes", bytes));
        }
        if buffer.len() < head_bytes + bytes {
            return Ok(None);
        }
        let crc32c = if kind == BLOCK { head.get_u32_le() } else { 0 };
        buffer.advance(head_bytes);
        let body = buffer.split_to(bytes).freeze();
        Ok(Some(match kind {
            FILLING => Self::Filling,
            END => Self::End,
            BLOCK => Self::Block { bytes: body, crc32c },
            _ => {
                let text = String::from_utf8_lossy(&body);
                let (kind, message) = text.split_once('\n').unwrap_or(("internal", &text));
                Self::Failed {
                    kind: kind.to_owned(),
                    message: message.to_owned(),
                }
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(frame: Frame) -> Vec<u8> {
        let (head, body) = frame.encode();
        [&head[..], &body.unwrap_or_default()[..]].concat()
    }

    fn frames() -> Vec<(Frame, Vec<u8>)> {
        let block = Frame::Block {
            bytes: Bytes::from_static(b"abc"),
            crc32c: 0x0403_0201,
        };
        let failed = Frame::Failed {
            kind: "changed".into(),
            message: "no".into(),
        };
        vec![
            (Frame::Filling, b"F".to_vec()),
            (block, b"B\x03\0\0\0\x01\x02\x03\x04abc".to_vec()),
            (failed, b"X\x0a\0\0\0changed\nno".to_vec()),
            (Frame::End, b"E".to_vec()),
        ]
    }

    #[test]
    fn frames_match_their_golden_bytes_and_come_back() {
        for (frame, golden) in frames() {
            assert_eq!(bytes_of(frame.clone()), golden);
            for cut in 0..golden.len() {
                let mut buffer = BytesMut::from(&golden[..cut]);
                assert_eq!(Frame::decode(&mut buffer).unwrap(), None, "cut at {cut}");
            }
            let mut buffer = BytesMut::from(&golden[..]);
            assert_eq!(Frame::decode(&mut buffer).unwrap(), Some(frame));
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn frames_that_are_none_or_too_large_are_refused_before_they_are_read() {
        for hostile in [
            &b"Z"[..],
            b"B\x01\0\x01\0\0\0\0\0",
            b"B\0\0\0\0\0\0\0\0",
            b"X\xff\xff\xff\xff",
        ] {
            let error = Frame::decode(&mut BytesMut::from(hostile)).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt);
        }
    }

    #[test]
    fn requests_that_are_not_whole_blocks_of_the_object_are_refused() {
        let meaning = BucketMeaning {
            lake: "l".into(),
            prefix: String::new(),
            consistency: "5s".into(),
            domain: String::new(),
        };
        let request = |start, end, bytes| BlocksRequest {
            bucket: "bucket".into(),
            key: "key".into(),
            version: "v".into(),
            bytes,
            start,
            end,
            meaning: meaning.clone(),
        };
        let check = |request: BlocksRequest| request.object(request.bucket().unwrap(), TrustDomain::DEFAULT);
        assert!(check(request(0, 100, 100)).is_ok());
        assert!(check(request(BLOCK_BYTES, 2 * BLOCK_BYTES, 1 << 40)).is_ok());
        for (start, end, bytes) in [
            (1, 100, 100),
            (0, 99, 100),
            (0, 101, 100),
            (100, 100, 100),
            (0, 3 * STRIPE_BYTES, 1 << 40),
            (u64::MAX, 0, u64::MAX),
        ] {
            assert!(
                check(request(start, end, bytes)).is_err(),
                "{start}..{end} of {bytes}"
            );
        }
    }
}
