//! gzip (RFC 1952, several members one after the other) and zlib, from flate2's raw decoder and a little framing.
//!
//! flate2's own gzip writer takes a header that is cut for the end of the stream, and lets output grow with its input; both are
//! reasons to have the framing here.

use flate2::{Crc, Decompress, FlushDecompress, Status};
use forebay_core::{Error, Kind, Result};

use super::damaged;

/// The longest gzip header that is read: ten bytes, an extra field, a file name and a comment.
const HEADER_BYTES_MAX: usize = 128 << 10;
/// CRC and size behind a gzip member.
const TRAILER_BYTES: usize = 8;

/// A decoder of one stream.
pub(super) struct Deflate {
    inflate: Decompress,
    is_gzip: bool,
    state: State,
    /// Bytes of a header or trailer that have come.
    carry: Vec<u8>,
    crc: Crc,
    members: u64,
}

enum State {
    Header,
    Body,
    Trailer,
    /// Zeros behind the last member, as tape writers leave them; or the end of a zlib stream.
    Padding,
}

impl Deflate {
    pub(super) fn gzip() -> Self {
        Self {
            inflate: Decompress::new(false),
            is_gzip: true,
            state: State::Header,
            carry: Vec::new(),
            crc: Crc::new(),
            members: 0,
        }
    }

    pub(super) fn zlib() -> Self {
        Self {
            inflate: Decompress::new(true),
            is_gzip: false,
            state: State::Body,
            ..Self::gzip()
        }
    }

    pub(super) fn is_whole(&self) -> bool {
        match self.state {
            State::Header => self.carry.is_empty() && self.members > 0,
            State::Padding => true,
            _ => false,
        }
    }

    pub(super) fn push(
        &mut self,
        mut bytes: &[u8],
        out: &mut [u8],
        hand_on: &mut impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        loop {
            match self.state {
                State::Header if bytes.is_empty() => return Ok(()),
                State::Header if self.members > 0 && self.carry.is_empty() && bytes[0] == 0 => {
                    self.state = State::Padding;
                }
                State::Header => {
                    if !self.take_header(&mut bytes)? {
                        return Ok(());
                    }
                }
                State::Body => {
                    let is_hungry = self.take_body(&mut bytes, out, hand_on)?;
                    if is_hungry && bytes.is_empty() {
                        return Ok(());
                    }
                }
                State::Trailer => {
                    let missing = (TRAILER_BYTES - self.carry.len()).min(bytes.len());
                    self.carry.extend_from_slice(&bytes[..missing]);
                    bytes = &bytes[missing..];
                    if self.carry.len() < TRAILER_BYTES {
                        return Ok(());
                    }
                    self.take_trailer()?;
                }
                State::Padding if bytes.iter().all(|byte| *byte == 0) => return Ok(()),
                State::Padding => return Err(damaged("there are bytes behind the end of the stream")),
            }
        }
    }

    /// Reads a header byte by byte, because only its last one says that it is complete.
    fn take_header(&mut self, bytes: &mut &[u8]) -> Result<bool> {
        while let Some((byte, rest)) = bytes.split_first() {
            self.carry.push(*byte);
            *bytes = rest;
            if is_header_complete(&self.carry)? {
                self.carry.clear();
                self.crc.reset();
                self.inflate.reset(false);
                self.state = State::Body;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// One step of the decoder; the answer is whether it waits for more input.
    fn take_body(
        &mut self,
        bytes: &mut &[u8],
        out: &mut [u8],
        hand_on: &mut impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<bool> {
        let (read, written) = (self.inflate.total_in(), self.inflate.total_out());
        let status = self.inflate.decompress(bytes, out, FlushDecompress::None);
        let status = status.map_err(damaged)?;
        let read = usize::try_from(self.inflate.total_in() - read).expect("not more than was given");
        let written =
            usize::try_from(self.inflate.total_out() - written).expect("not more than there was room");
        *bytes = &bytes[read..];
        let plain = &out[..written];
        if self.is_gzip {
            self.crc.update(plain);
        }
        hand_on(plain)?;
        match status {
            Status::StreamEnd if self.is_gzip => self.state = State::Trailer,
            Status::StreamEnd => self.state = State::Padding,
            Status::BufError if read == 0 && written == 0 && !bytes.is_empty() => {
                return Err(damaged("the decoder is stuck"));
            }
            Status::Ok | Status::BufError => {}
        }
        Ok(written < out.len())
    }

    fn take_trailer(&mut self) -> Result<()> {
        let number = |at: usize| u32::from_le_bytes(self.carry[at..at + 4].try_into().expect("four bytes"));
        if (number(0), number(4)) != (self.crc.sum(), self.crc.amount()) {
            return Err(damaged("the checksum of a gzip member is wrong"));
        }
        self.carry.clear();
        self.members += 1;
        self.state = State::Header;
        Ok(())
    }
}

/// Whether these are all bytes of a gzip header.
fn is_header_complete(header: &[u8]) -> Result<bool> {
    let expected = [0x1f, 0x8b, 8];
    if !expected.iter().zip(header).all(|(one, other)| one == other) {
        return Err(damaged("this is not a gzip member"));
    }
    if header.len() > HEADER_BYTES_MAX {
        return Err(Error::new(Kind::Unsupported, "a gzip header is too long"));
    }
    let rest = || {
        let flags = *header.get(3)?;
        let mut rest = header.get(10..)?;
        if flags & 4 != 0 {
            let (length, behind) = rest.split_first_chunk::<2>()?;
            rest = behind.get(usize::from(u16::from_le_bytes(*length))..)?;
        }
        for flag in [8, 16] {
            if flags & flag != 0 {
                let end = rest.iter().position(|byte| *byte == 0)?;
                rest = &rest[end + 1..];
            }
        }
        if flags & 2 != 0 {
            rest = rest.get(2..)?;
        }
        Some(rest)
    };
    Ok(rest().is_some())
}
