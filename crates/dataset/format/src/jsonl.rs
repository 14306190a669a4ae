//! JSON lines: one line is one sample, with the byte range of the line without its newline as field `json`.
//!
//! Lines are not parsed, so any length passes through without being held. Lines of nothing but white space
//! are no samples. A last line without a newline counts.

use forebay_core::{Result, crc32c};

use crate::index::{Field, SampleRecord};
use crate::scan::{SampleSink, ShardScanner};

/// The one field of a sample.
pub const FIELD: &str = "json";

/// Finds the lines of a file.
#[derive(Debug, Default)]
pub struct JsonlScanner {
    /// Start of the line that is read now.
    start: u64,
    bytes: u64,
    crc: u32,
    is_blank: bool,
}

impl JsonlScanner {
    /// At the start of a file.
    #[must_use]
    pub fn new() -> Self {
        Self {
            is_blank: true,
            ..Self::default()
        }
    }

    fn take(&mut self, part: &[u8]) {
        self.bytes += part.len() as u64;
        self.crc = crc32c::crc32c_append(self.crc, part);
        self.is_blank = self.is_blank && part.iter().all(u8::is_ascii_whitespace);
    }

    fn close(&mut self, sink: &mut dyn SampleSink) -> Result<()> {
        let field = Field {
            name: FIELD,
            offset: self.start,
            bytes: self.bytes,
            crc32c: Some(self.crc),
        };
        let is_blank = self.is_blank;
        *self = Self {
            start: self.start + self.bytes + 1,
            ..Self::new()
        };
        if is_blank {
            return Ok(());
        }
        sink.sample(&SampleRecord::new(None, &[field]))
    }
}

impl ShardScanner for JsonlScanner {
    fn push(&mut self, mut bytes: &[u8], sink: &mut dyn SampleSink) -> Result<()> {
        while let Some(newline) = memchr::memchr(b'\n', bytes) {
            self.take(&bytes[..newline]);
            self.close(sink)?;
            bytes = &bytes[newline + 1..];
        }
        self.take(bytes);
        Ok(())
    }

    fn finish(&mut self, sink: &mut dyn SampleSink) -> Result<()> {
        self.close(sink)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8], piece_bytes: usize) -> Vec<String> {
        let mut scanner = JsonlScanner::new();
        let mut found = Vec::new();
        let mut sink = |sample: &SampleRecord<'_>| {
            let field = sample.fields[0];
            let start = usize::try_from(field.offset).unwrap();
            let line = &text[start..start + usize::try_from(field.bytes).unwrap()];
            assert_eq!(field.crc32c, Some(crc32c::crc32c(line)));
            found.push(String::from_utf8(line.to_vec()).unwrap());
            Ok(())
        };
        for piece in text.chunks(piece_bytes) {
            scanner.push(piece, &mut sink).unwrap();
        }
        scanner.finish(&mut sink).unwrap();
        found
    }

    #[test]
    fn every_line_that_says_something_is_a_sample() {
        let text = b"{\"a\":1}\n\n  \r\n[2]\r\n\"last\"";
        for piece_bytes in 1..text.len() + 1 {
            assert_eq!(lines(text, piece_bytes), ["{\"a\":1}", "[2]\r", "\"last\""]);
        }
        assert!(lines(b"", 1).is_empty());
        assert_eq!(lines(b"1\n", 9), ["1"]);
    }
}
