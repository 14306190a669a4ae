//! Tokens: one long array of numbers, cut into windows of equal length.
//!
//! A `.npy` file says its own type in a header (`npy.rs`); a `.bin` file is numbers and nothing else, so the
//! type must be given. Window `i` is the tokens from `i * stride` on, `length` of them, as field `tokens`;
//! tokens behind the last whole window are no sample. Windows may overlap (a stride below the length); each
//! then has a CRC of its own, which costs one pass per overlapping window.

mod npy;

use std::collections::VecDeque;

use forebay_core::{Error, Kind, Result, crc32c};

pub use npy::{NPY_HEADER_BYTES_MAX, NpyHeader};

use crate::index::{Field, SampleRecord};
use crate::scan::{Accumulator, SampleSink, ShardScanner};

/// The one field of a sample.
pub const FIELD: &str = "tokens";
/// Windows that may overlap at one place.
pub const OVERLAP_MAX: u64 = 64;

/// The type of a token, always little endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TokenType {
    /// One byte.
    U8,
    /// One byte, signed.
    I8,
    /// Two bytes: vocabularies below 65,536.
    U16,
    /// Two bytes, signed.
    I16,
    /// Four bytes.
    U32,
    /// Four bytes, signed.
    I32,
    /// Eight bytes.
    U64,
    /// Eight bytes, signed.
    I64,
}

impl TokenType {
    /// Every type.
    pub const ALL: [Self; 8] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::U64,
        Self::I64,
    ];

    /// The name that numpy has for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::U8 => "uint8",
            Self::I8 => "int8",
            Self::U16 => "uint16",
            Self::I16 => "int16",
            Self::U32 => "uint32",
            Self::I32 => "int32",
            Self::U64 => "uint64",
            Self::I64 => "int64",
        }
    }

    /// The type of this name.
    pub fn parse(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|kind| kind.as_str() == name);
        found.ok_or_else(|| {
            let message = "no such type of tokens; there are uint8 to uint64 and int8 to int64";
            Error::new(Kind::InvalidInput, message).with("type", name)
        })
    }

    /// Bytes of one token.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 => 4,
            Self::U64 | Self::I64 => 8,
        }
    }
}

/// Windows that tokens are cut into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenWindows {
    /// Tokens of a sample.
    pub length: u64,
    /// Tokens from the start of one sample to the start of the next; usually the length.
    pub stride: u64,
    /// The type of a token; `None`: as the `.npy` header says.
    pub token: Option<TokenType>,
}

impl TokenWindows {
    /// Returns how many windows so many tokens make.
    #[must_use]
    pub fn count(&self, tokens: u64) -> u64 {
        match tokens.checked_sub(self.length) {
            Some(rest) if self.stride > 0 => rest / self.stride + 1,
            _ => 0,
        }
    }

    fn check(&self) -> Result<()> {
        let invalid = |message: &str| Err(Error::new(Kind::InvalidInput, message));
        if self.length == 0 || self.stride == 0 || self.length.max(self.stride) > u64::MAX / 64 {
            return invalid("length and stride of token windows must be at least 1");
        }
        if self.length.div_ceil(self.stride) > OVERLAP_MAX {
            return invalid("token windows overlap too much; choose a larger stride")
                .map_err(|error| error.with("overlap_max", OVERLAP_MAX));
        }
        Ok(())
    }
}

/// Cuts a file into windows.
pub struct TokenScanner {
    windows: TokenWindows,
    accumulator: Accumulator,
    state: TokenState,
}

enum TokenState {
    Header,
    Data(WindowCutter),
}

/// Cuts data into windows; all in bytes.
struct WindowCutter {
    start: u64,
    /// Bytes of data, if that is known.
    bytes_max: u64,
    /// WindowCutter that has come.
    at: u64,
    length: u64,
    stride: u64,
    /// The next window to open starts there.
    next: u64,
    /// Open windows: start and CRC so far.
    open: VecDeque<(u64, u32)>,
}

impl TokenScanner {
    /// For a file with numpy's header.
    pub fn npy(windows: TokenWindows) -> Result<Self> {
        windows.check()?;
        Ok(Self {
            windows,
            accumulator: Accumulator::default(),
            state: TokenState::Header,
        })
    }

    /// For a file of numbers.
    pub fn bin(windows: TokenWindows) -> Result<Self> {
        windows.check()?;
        let Some(token) = windows.token else {
            let message = "the file does not say the type of its tokens; give it, for example uint16";
            return Err(Error::new(Kind::InvalidInput, message));
        };
        let state = TokenState::Data(WindowCutter::new(&windows, token, 0, u64::MAX));
        Ok(Self {
            windows,
            accumulator: Accumulator::default(),
            state,
        })
    }

    /// Reads the header of numpy; `None` while it is not complete.
    fn header(&mut self, bytes: &mut &[u8]) -> Result<Option<WindowCutter>> {
        let Some(first) = self.accumulator.fill(bytes, npy::PREFIX_BYTES) else {
            return Ok(None);
        };
        let header_bytes = NpyHeader::bytes_needed(first)?;
        let Some(header) = self.accumulator.fill(bytes, header_bytes) else {
            return Ok(None);
        };
        let header = NpyHeader::parse(header)?;
        if self.windows.token.is_some_and(|token| token != header.token) {
            let message = "the file has another type of tokens than was asked for";
            let error = Error::new(Kind::InvalidInput, message).with("type", header.token.as_str());
            return Err(error);
        }
        self.accumulator.clear();
        let data_bytes = header.tokens.saturating_mul(header.token.bytes());
        Ok(Some(WindowCutter::new(
            &self.windows,
            header.token,
            header_bytes as u64,
            data_bytes,
        )))
    }
}

impl WindowCutter {
    fn new(windows: &TokenWindows, token: TokenType, start: u64, bytes_max: u64) -> Self {
        Self {
            start,
            bytes_max,
            at: 0,
            length: windows.length.saturating_mul(token.bytes()),
            stride: windows.stride.saturating_mul(token.bytes()),
            next: 0,
            open: VecDeque::new(),
        }
    }

    fn push(&mut self, bytes: &[u8], sink: &mut dyn SampleSink) -> Result<()> {
        let left = usize::try_from(self.bytes_max - self.at).unwrap_or(usize::MAX);
        let bytes = &bytes[..bytes.len().min(left)];
        let end = self.at + bytes.len() as u64;
        while self.next < end {
            self.open.push_back((self.next, 0));
            self.next = self.next.saturating_add(self.stride);
            self.feed(bytes, end, sink)?;
        }
        self.feed(bytes, end, sink)?;
        for window in &mut self.open {
            let from = window.0.max(self.at);
            window.1 = crc32c::crc32c_append(window.1, &bytes[place(from - self.at)..]);
        }
        self.at = end;
        Ok(())
    }

    /// Closes the windows that end in these bytes.
    fn feed(&mut self, bytes: &[u8], end: u64, sink: &mut dyn SampleSink) -> Result<()> {
        while let Some((start, crc)) = self.open.front().copied() {
            let window_end = start.saturating_add(self.length);
            if window_end > end {
                return Ok(());
            }
            let part = &bytes[place(start.max(self.at) - self.at)..place(window_end - self.at)];
            let field = Field {
                name: FIELD,
                offset: self.start + start,
                bytes: self.length,
                crc32c: Some(crc32c::crc32c_append(crc, part)),
            };
            self.open.pop_front();
            sink.sample(&SampleRecord::new(None, &[field]))?;
        }
        Ok(())
    }
}

/// A place inside of bytes that are in memory.
fn place(offset: u64) -> usize {
    usize::try_from(offset).expect("not more than was pushed")
}

impl ShardScanner for TokenScanner {
    fn push(&mut self, mut bytes: &[u8], sink: &mut dyn SampleSink) -> Result<()> {
        if matches!(self.state, TokenState::Header) {
            let Some(data) = self.header(&mut bytes)? else {
                return Ok(());
            };
            self.state = TokenState::Data(data);
        }
        match &mut self.state {
            TokenState::Data(data) => data.push(bytes, sink),
            TokenState::Header => Ok(()),
        }
    }

    fn finish(&mut self, _sink: &mut dyn SampleSink) -> Result<()> {
        match &self.state {
            TokenState::Data(data) if data.bytes_max == u64::MAX || data.at == data.bytes_max => Ok(()),
            TokenState::Data(data) => {
                let message = "the file has fewer tokens than its header says; it was not uploaded whole";
                let error = Error::new(Kind::Corrupt, message).with("bytes", data.at);
                Err(error.with("expected", data.bytes_max))
            }
            TokenState::Header => {
                let message = "this is not a .npy file: it is too short";
                Err(Error::new(Kind::Corrupt, message))
            }
        }
    }
}

#[cfg(test)]
mod tests;
