//! Entry points for fuzzing: each takes any bytes and panics if a promise about them does not hold.
//!
//! Not part of the API. `fuzz/` drives them with libFuzzer, `fuzzing/tests.rs` with the committed corpus and
//! with mutations of it.

use std::fmt::Debug;

use forebay_core::crc32c;

use crate::batch::{BatchFrame, BatchRequest};
use crate::{
    FAMILIES, FRAME_BYTES_MAX, Failure, FamilyId, FrameHeader, HEADER_BYTES, Message, decode, encode, group,
    loaders, objects, saves, session, writes,
};

/// Bytes as a frame of the wire: first as they are, then with a header of every family that fits them, so that
/// the checksum does not hide the parser.
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
    in_every_role(&header, message);
    if header.check(message).is_ok() {
        let whole = &data[..HEADER_BYTES + header.length];
        for bit in 0..8 {
            let mut flipped = whole.to_vec();
            let last = flipped.len() - 1;
            flipped[last] ^= 1 << bit;
            let front = flipped.first_chunk().expect("a header is there");
            let refused = FrameHeader::parse(front).and_then(|header| header.check(&flipped[HEADER_BYTES..]));
            assert!(refused.is_err(), "a flipped bit was not noticed");
        }
    }
}

/// Parses a message as one of every family.
fn understand(message: &[u8]) {
    if message.len() > FRAME_BYTES_MAX {
        return;
    }
    for family in FAMILIES {
        let sealed = seal(family, message);
        let header = FrameHeader::parse(&sealed).expect("made just now");
        in_every_role(&header, message);
    }
}

/// Parses a message as a request and as an answer of every family; only its own may take it.
fn in_every_role(header: &FrameHeader, message: &[u8]) {
    comes_back::<Failure>(header, message);
    comes_back::<session::Request>(header, message);
    comes_back::<session::Answer>(header, message);
    comes_back::<objects::Request>(header, message);
    comes_back::<objects::Answer>(header, message);
    comes_back::<writes::Request>(header, message);
    comes_back::<writes::Answer>(header, message);
    comes_back::<saves::Request>(header, message);
    comes_back::<saves::Answer>(header, message);
    comes_back::<group::Request>(header, message);
    comes_back::<group::Answer>(header, message);
    comes_back::<loaders::Request>(header, message);
    comes_back::<loaders::Answer>(header, message);
    comes_back::<BatchRequest>(header, message);
    comes_back::<BatchFrame>(header, message);
}

/// A header for this message, as [`encode`] would write it.
fn seal(family: FamilyId, message: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(b"FBAY");
    header[4..6].copy_from_slice(&family.number.to_le_bytes());
    header[6..8].copy_from_slice(&family.version.to_le_bytes());
    let length = u32::try_from(message.len()).expect("checked by the caller");
    header[8..12].copy_from_slice(&length.to_le_bytes());
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&header[..12]), message);
    header[12..].copy_from_slice(&checksum.to_le_bytes());
    header
}

fn comes_back<M: Message + PartialEq + Debug>(header: &FrameHeader, message: &[u8]) {
    let Ok(message) = decode::<M>(header, message) else {
        return;
    };
    assert_eq!(
        (header.family, header.version),
        (M::FAMILY.number, M::FAMILY.version)
    );
    let mut frame = Vec::new();
    // A number may take more bytes than it needs, so the same message never becomes longer.
    encode(&message, &mut frame).expect("it came in a frame");
    let (header, body) = frame.split_first_chunk::<HEADER_BYTES>().expect("made just now");
    let header = FrameHeader::parse(header).expect("made just now");
    assert_eq!(decode::<M>(&header, body).expect("made just now"), message);
}

#[cfg(test)]
mod tests;
