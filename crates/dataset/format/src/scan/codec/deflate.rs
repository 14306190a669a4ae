//! gzip (RFC 1952, several members one after the other) and zlib, from flate2's raw decoder and a little
//! framing.
//!
//! flate2's own gzip writer takes a header that is cut for the end of the stream, and lets output grow with
//! its input; both are reasons to have the framing here.

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
    state: DeflateState,
    header: Header,
    /// Bytes of a trailer that have come.
    carry: Vec<u8>,
    crc: Crc,
    members: u64,
}

enum DeflateState {
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
            state: DeflateState::Header,
            header: Header::default(),
            carry: Vec::new(),
            crc: Crc::new(),
            members: 0,
        }
    }

    pub(super) fn zlib() -> Self {
        Self {
            inflate: Decompress::new(true),
            is_gzip: false,
            state: DeflateState::Body,
            ..Self::gzip()
        }
    }

    pub(super) fn is_whole(&self) -> bool {
        match self.state {
            DeflateState::Header => self.header.bytes == 0 && self.members > 0,
            DeflateState::Padding => true,
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
                DeflateState::Header if bytes.is_empty() => return Ok(()),
                DeflateState::Header if self.members > 0 && self.header.bytes == 0 && bytes[0] == 0 => {
                    self.state = DeflateState::Padding;
                }
                DeflateState::Header => {
                    if !self.take_header(&mut bytes)? {
                        return Ok(());
                    }
                }
                DeflateState::Body => {
                    let is_hungry = self.take_body(&mut bytes, out, hand_on)?;
                    if is_hungry && bytes.is_empty() {
                        return Ok(());
                    }
                }
                DeflateState::Trailer => {
                    let missing = (TRAILER_BYTES - self.carry.len()).min(bytes.len());
                    self.carry.extend_from_slice(&bytes[..missing]);
                    bytes = &bytes[missing..];
                    if self.carry.len() < TRAILER_BYTES {
                        return Ok(());
                    }
                    self.take_trailer()?;
                }
                DeflateState::Padding if bytes.iter().all(|byte| *byte == 0) => return Ok(()),
                DeflateState::Padding => return Err(damaged("there are bytes behind the end of the stream")),
            }
        }
    }

    /// Reads a header byte by byte, because only its last one says that it is complete.
    fn take_header(&mut self, bytes: &mut &[u8]) -> Result<bool> {
        while let Some((byte, rest)) = bytes.split_first() {
            *bytes = rest;
            if self.header.push(*byte)? {
                self.header = Header::default();
                self.crc.reset();
                self.inflate.reset(false);
                self.state = DeflateState::Body;
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
            Status::StreamEnd if self.is_gzip => self.state = DeflateState::Trailer,
            Status::StreamEnd => self.state = DeflateState::Padding,
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
        self.state = DeflateState::Header;
        Ok(())
    }
}

/// A gzip header of which some bytes have come. None are kept: each is looked at once, however long a name
/// is.
#[derive(Default)]
struct Header {
    bytes: usize,
    flags: u8,
    part: HeaderField,
}

/// Field that the next byte of a header belongs to; those that the flags do not name are passed over.
#[derive(Clone, Copy, Default)]
enum HeaderField {
    /// Magic, method, flags, time, kind of machine: ten bytes.
    #[default]
    Fixed,
    ExtraLow,
    ExtraHigh(u8),
    Extra(u16),
    Name,
    Comment,
    Crc(u8),
    Complete,
}

impl Header {
    /// Takes the next byte; whether it was the last one.
    fn push(&mut self, byte: u8) -> Result<bool> {
        let expected = [0x1f, 0x8b, 8];
        if expected.get(self.bytes).is_some_and(|expected| *expected != byte) {
            return Err(damaged("this is not a gzip member"));
        }
        if self.bytes == HEADER_BYTES_MAX {
            return Err(Error::new(Kind::Unsupported, "a gzip header is too long"));
        }
        if self.bytes == 3 {
            self.flags = byte;
        }
        self.bytes += 1;
        let next = match self.part {
            HeaderField::Fixed if self.bytes < 10 => HeaderField::Fixed,
            HeaderField::Fixed => HeaderField::ExtraLow,
            HeaderField::ExtraLow => HeaderField::ExtraHigh(byte),
            HeaderField::ExtraHigh(low) => HeaderField::Extra(u16::from_le_bytes([low, byte])),
            HeaderField::Extra(left) => HeaderField::Extra(left.saturating_sub(1)),
            HeaderField::Name if byte != 0 => HeaderField::Name,
            HeaderField::Name => HeaderField::Comment,
            HeaderField::Comment if byte != 0 => HeaderField::Comment,
            HeaderField::Comment => HeaderField::Crc(2),
            HeaderField::Crc(left) => HeaderField::Crc(left.saturating_sub(1)),
            HeaderField::Complete => HeaderField::Complete,
        };
        self.part = self.present(next);
        Ok(matches!(self.part, HeaderField::Complete))
    }

    /// This part or the first one behind it that is there.
    fn present(&self, part: HeaderField) -> HeaderField {
        let has = |flag: u8| self.flags & flag != 0;
        match part {
            HeaderField::ExtraLow if !has(4) => self.present(HeaderField::Name),
            HeaderField::Extra(0) => self.present(HeaderField::Name),
            HeaderField::Name if !has(8) => self.present(HeaderField::Comment),
            HeaderField::Comment if !has(16) => self.present(HeaderField::Crc(2)),
            HeaderField::Crc(left) if !has(2) || left == 0 => HeaderField::Complete,
            other => other,
        }
    }
}
