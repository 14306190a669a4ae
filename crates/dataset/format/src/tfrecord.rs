//! TFRecord: framed records, each with checksums of its length and of its payload.
//!
//! A record is: u64 length, u32 masked CRC of those eight bytes, payload, u32 masked CRC of the payload. The
//! scanner checks both and gives every record as a sample with one field, `record`. What is in a record is
//! usually a protobuf `Example`; `example.rs` decodes it. A file may be compressed as a whole (gzip or zlib);
//! then its index is good for reading in order only.

mod example;

use forebay_core::{Error, Kind, Result, crc32c};

pub use example::{Feature, Features, SequenceExample, decode_example, decode_sequence_example};

use crate::index::{Field, SampleRecord};
use crate::scan::{Accumulator, SampleSink, ShardScanner, StreamingCrc};

/// Bytes before the payload.
pub(crate) const HEADER_BYTES: usize = 12;
/// Bytes behind it.
const FOOTER_BYTES: usize = 4;
/// The one field of a sample.
pub const FIELD: &str = "record";

/// The checksum as TFRecord stores it: rotated and moved, so that a CRC over data that contains CRCs is none.
#[must_use]
pub fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Returns whether these first bytes of a file are a record's, and not compressed.
pub(crate) fn is_plain(first: &[u8]) -> bool {
    first
        .get(..HEADER_BYTES)
        .is_some_and(|header| length(header).is_some())
}

/// The length of a record, if its checksum is right.
pub(crate) fn length(header: &[u8]) -> Option<u64> {
    let (length, crc) = header.split_first_chunk::<8>()?;
    let crc = u32::from_le_bytes(*crc.first_chunk()?);
    (masked(crc32c::crc32c(length)) == crc).then_some(u64::from_le_bytes(*length))
}

/// Finds the records of a file.
pub struct TfRecordScanner {
    file_bytes: Option<u64>,
    /// Start of the record that is read now.
    at: u64,
    accumulator: Accumulator,
    state: RecordState,
}

enum RecordState {
    Header,
    Payload { bytes: u64, crc: StreamingCrc },
    Footer { bytes: u64, crc: u32 },
}

impl TfRecordScanner {
    /// For a file of this size; `None`: not known, because it is being decompressed.
    #[must_use]
    pub fn new(file_bytes: Option<u64>) -> Self {
        Self {
            file_bytes,
            at: 0,
            accumulator: Accumulator::default(),
            state: RecordState::Header,
        }
    }

    fn begin(&self, header: &[u8]) -> Result<RecordState> {
        let Some(bytes) = length(header) else {
            let message = match self.at {
                0 => "this is not a TFRecord file: the checksum of its first length is wrong",
                _ => "the checksum of a record's length is wrong; the file is damaged",
            };
            return Err(Error::new(Kind::Checksum, message).with("offset", self.at));
        };
        let framing = (HEADER_BYTES + FOOTER_BYTES) as u64;
        let end = self
            .at
            .checked_add(framing)
            .and_then(|end| end.checked_add(bytes));
        let end_max = self.file_bytes.unwrap_or(u64::MAX);
        if end.is_none_or(|end| end > end_max) {
            return Err(self.stops().with("record_bytes", bytes));
        }
        Ok(RecordState::Payload {
            bytes,
            crc: StreamingCrc::new(bytes),
        })
    }

    fn end(&mut self, bytes: u64, crc: u32, stored: u32, sink: &mut dyn SampleSink) -> Result<()> {
        if masked(crc) != stored {
            let message = "the checksum of a record is wrong; the file is damaged";
            let error = Error::new(Kind::Checksum, message).with("offset", self.at);
            return Err(error.with("record_bytes", bytes));
        }
        let field = Field {
            name: FIELD,
            offset: self.at + HEADER_BYTES as u64,
            bytes,
            crc32c: Some(crc),
        };
        self.at += (HEADER_BYTES + FOOTER_BYTES) as u64 + bytes;
        sink.sample(&SampleRecord::new(None, &[field]))
    }

    fn stops(&self) -> Error {
        let message = "the file stops in the middle of a record; it is damaged or was not uploaded whole";
        Error::new(Kind::Corrupt, message).with("offset", self.at)
    }
}

impl ShardScanner for TfRecordScanner {
    fn push(&mut self, mut bytes: &[u8], sink: &mut dyn SampleSink) -> Result<()> {
        loop {
            match &mut self.state {
                RecordState::Header => {
                    let Some(header) = self.accumulator.fill(&mut bytes, HEADER_BYTES) else {
                        return Ok(());
                    };
                    let header: [u8; HEADER_BYTES] = header.try_into().expect("as many as were asked for");
                    self.accumulator.clear();
                    self.state = self.begin(&header)?;
                }
                RecordState::Payload { bytes: length, crc } => {
                    let Some(crc) = crc.take(&mut bytes) else {
                        return Ok(());
                    };
                    self.state = RecordState::Footer { bytes: *length, crc };
                }
                RecordState::Footer { bytes: length, crc } => {
                    let Some(footer) = self.accumulator.fill(&mut bytes, FOOTER_BYTES) else {
                        return Ok(());
                    };
                    let stored = u32::from_le_bytes(footer.try_into().expect("as many as were asked for"));
                    self.accumulator.clear();
                    let (length, crc) = (*length, *crc);
                    self.state = RecordState::Header;
                    self.end(length, crc, stored, sink)?;
                }
            }
        }
    }

    fn finish(&mut self, _sink: &mut dyn SampleSink) -> Result<()> {
        match self.state {
            RecordState::Header if self.accumulator.is_empty() => Ok(()),
            _ => Err(self.stops()),
        }
    }
}

#[cfg(test)]
mod tests;
