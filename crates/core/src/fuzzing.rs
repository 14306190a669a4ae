//! Entry points for fuzzing: each takes any bytes and panics if a promise about them does not hold.
//!
//! Not part of the API. `fuzz/` drives them with libFuzzer, `crates/s3/tests/fuzz_corpus.rs` with the committed corpus and with
//! mutations of it.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::wire::{Answer, BatchFrame, FRAME_BYTES_MAX, FrameHeader, HEADER_BYTES, Request, decode, encode};

use crate::crc32c;

/// Bytes as a frame of the wire: first as they are, then with a header that fits them, so that the checksum does not hide the parser.
///
/// # Panics
/// If a message that is understood does not come back as it was, or a frame is taken whose checksum is wrong.
pub fn wire_frame(data: &[u8]) {
    let Some((header, message)) = data.split_first_chunk::<HEADER_BYTES>() else {
        understand(data);
        return;
    };
    understand(message);
    let Ok(header) = FrameHeader::parse(header) else {
        return;
    };
    assert!(header.length <= FRAME_BYTES_MAX);
    let Some(message) = message.get(..header.length) else {
        return;
    };
    if let Ok(request) = decode::<Request>(&header, message) {
        let whole = &data[..HEADER_BYTES + header.length];
        comes_back(&request);
        for bit in 0..8 {
            let mut flipped = whole.to_vec();
            let last = flipped.len() - 1;
            flipped[last] ^= 1 << bit;
            let front = flipped.first_chunk().expect("a header is there");
            let refused = FrameHeader::parse(front)
                .and_then(|header| decode::<Request>(&header, &flipped[HEADER_BYTES..]));
            assert!(refused.is_err(), "a flipped bit was not noticed");
        }
    }
}

/// Parses a message in every role that it can have.
fn understand(message: &[u8]) {
    if message.len() > FRAME_BYTES_MAX {
        return;
    }
    let sealed = seal(message);
    let header = FrameHeader::parse(&sealed).expect("made just now");
    if let Ok(request) = decode::<Request>(&header, message) {
        comes_back(&request);
    }
    if let Ok(answer) = decode::<Answer>(&header, message) {
        comes_back(&answer);
    }
    if let Ok(frame) = decode::<BatchFrame>(&header, message) {
        comes_back(&frame);
    }
}

/// A header for this message, as [`encode`] would write it.
fn seal(message: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(b"FBAY\x01\0\0\0");
    let length = u32::try_from(message.len()).expect("checked by the caller");
    header[8..12].copy_from_slice(&length.to_le_bytes());
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&header[..12]), message);
    header[12..].copy_from_slice(&checksum.to_le_bytes());
    header
}

fn comes_back<M: Serialize + DeserializeOwned + PartialEq + Debug>(message: &M) {
    let mut frame = Vec::new();
    // A number may take more bytes than it needs, so the same message never becomes longer.
    encode(message, &mut frame).expect("it came in a frame");
    let (header, body) = frame.split_first_chunk().expect("a frame has a header");
    let header = FrameHeader::parse(header).expect("made just now");
    assert_eq!(&decode::<M>(&header, body).expect("made just now"), message);
}
