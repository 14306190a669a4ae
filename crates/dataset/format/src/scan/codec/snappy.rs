//! Snappy without a frame, as python-snappy's `compress` writes it: the length of all, then literals and
//! copies of what came before.
//!
//! The crate `snap` wants such a stream in one piece. Writers look back 64 KiB at most, so here a window of
//! that size is all that is kept; a stream that reaches further back is refused. There is no checksum; only
//! the length is checked.

use forebay_core::{Error, Kind, Result};

use super::{OUT_BYTES, damaged};

/// Distance that a copy may reach back.
const WINDOW_BYTES: usize = 64 << 10;
/// The longest tag with what belongs to it, and the longest length in front.
const HEAD_BYTES_MAX: usize = 5;

/// A decoder of one stream.
pub(super) struct Snappy {
    /// Bytes that are still to come out; `None`: the length has not come.
    left: Option<u64>,
    /// Bytes of a length or tag that have come.
    head: [u8; HEAD_BYTES_MAX],
    head_bytes: usize,
    /// Bytes of a literal that are still to come in.
    literal: u64,
    /// The window, then what was not handed on.
    plain: Vec<u8>,
    handed_on: usize,
}

impl Snappy {
    pub(super) fn new() -> Self {
        Self {
            left: None,
            head: [0; HEAD_BYTES_MAX],
            head_bytes: 0,
            literal: 0,
            plain: Vec::with_capacity(WINDOW_BYTES + OUT_BYTES),
            handed_on: 0,
        }
    }

    pub(super) fn is_whole(&self) -> bool {
        self.left == Some(0) && self.head_bytes == 0 && self.literal == 0
    }

    pub(super) fn push(
        &mut self,
        mut bytes: &[u8],
        hand_on: &mut impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        while !bytes.is_empty() {
            if self.left.is_none() {
                self.take_length(&mut bytes)?;
            } else if self.literal > 0 {
                let room = self.room(hand_on)?;
                let take = usize::try_from(self.literal)
                    .unwrap_or(room)
                    .min(room)
                    .min(bytes.len());
                self.plain.extend_from_slice(&bytes[..take]);
                bytes = &bytes[take..];
                self.literal -= take as u64;
            } else if self.take_head(&mut bytes) {
                self.head_bytes = 0;
                self.element(hand_on)?;
            }
        }
        let plain = &self.plain[self.handed_on..];
        self.handed_on = self.plain.len();
        hand_on(plain)
    }

    /// A byte of the length of all: seven bits each, the lowest first.
    fn take_length(&mut self, bytes: &mut &[u8]) -> Result<()> {
        let Some((byte, rest)) = bytes.split_first() else {
            return Ok(());
        };
        if self.head_bytes == HEAD_BYTES_MAX {
            return Err(damaged("this is not Snappy"));
        }
        self.head[self.head_bytes] = *byte;
        self.head_bytes += 1;
        *bytes = rest;
        if byte & 0x80 == 0 {
            let head = self.head[..self.head_bytes].iter().rev();
            let length = head.fold(0_u64, |length, byte| length << 7 | u64::from(byte & 0x7f));
            if length > u64::from(u32::MAX) {
                return Err(damaged("this is not Snappy"));
            }
            self.left = Some(length);
            self.head_bytes = 0;
        }
        Ok(())
    }

    /// Collects a tag and what belongs to it; whether it is complete.
    fn take_head(&mut self, bytes: &mut &[u8]) -> bool {
        while let Some((byte, rest)) = bytes.split_first() {
            self.head[self.head_bytes] = *byte;
            self.head_bytes += 1;
            *bytes = rest;
            let tag = usize::from(self.head[0]);
            let behind = match tag & 3 {
                0 => (tag >> 2).saturating_sub(59),
                1 => 1,
                2 => 2,
                _ => 4,
            };
            if self.head_bytes == 1 + behind {
                return true;
            }
        }
        false
    }

    /// Does what a complete tag says.
    fn element(&mut self, hand_on: &mut impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let [tag, behind @ ..] = self.head;
        let number = |bytes: usize| {
            let mut padded = [0; 4];
            padded[..bytes].copy_from_slice(&behind[..bytes]);
            u32::from_le_bytes(padded)
        };
        let short = u64::from(tag >> 2) + 1;
        let (length, offset) = match tag & 3 {
            0 if short <= 60 => (short, None),
            0 => (u64::from(number(usize::from(tag >> 2) - 59)) + 1, None),
            1 => {
                let offset = u32::from(tag >> 5) << 8 | number(1);
                (u64::from(tag >> 2 & 7) + 4, Some(offset))
            }
            2 => (short, Some(number(2))),
            _ => (short, Some(number(4))),
        };
        let left = self.left.unwrap_or_default();
        self.left = Some(
            left.checked_sub(length)
                .ok_or_else(|| damaged("it unpacks to more than it says"))?,
        );
        match offset {
            None => {
                self.literal = length;
                Ok(())
            }
            Some(offset) => self.copy(length as usize, offset as usize, hand_on),
        }
    }

    /// Appends what lies so far back; it may reach into itself.
    fn copy(
        &mut self,
        mut length: usize,
        offset: usize,
        hand_on: &mut impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        if offset > WINDOW_BYTES {
            let message = "the Snappy stream reaches further back than 64 KiB, which no known writer does; compress it anew";
            return Err(Error::new(Kind::Unsupported, message));
        }
        if offset == 0 || offset > self.plain.len() {
            return Err(damaged("a copy of what is not there"));
        }
        while length > 0 {
            let take = length.min(offset).min(self.room(hand_on)?);
            let from = self.plain.len() - offset;
            self.plain.extend_from_within(from..from + take);
            length -= take;
        }
        Ok(())
    }

    /// Room behind the window, at least one byte; hands on what is full.
    fn room(&mut self, hand_on: &mut impl FnMut(&[u8]) -> Result<()>) -> Result<usize> {
        if self.plain.len() == WINDOW_BYTES + OUT_BYTES {
            hand_on(&self.plain[self.handed_on..])?;
            self.plain.drain(..OUT_BYTES);
            self.handed_on = self.plain.len();
        }
        Ok(WINDOW_BYTES + OUT_BYTES - self.plain.len())
    }
}
