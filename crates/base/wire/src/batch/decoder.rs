//! Reads the answer to a batch from pieces of any size, without I/O of its own.
//!
//! The caller hands in what has come from the connection and takes events until there are none. Only frames
//! are buffered (a few dozen bytes each); the bytes of items are passed on where they lie. A chunk's checksum
//! is known at its end, so bytes count only once [`BatchEvent::End`] has come for their item. Any error means
//! that the rest of the answer is worthless.

use forebay_core::{Error, Kind, Result, crc32c};

use super::{BATCH_CHUNK_BYTES_MAX, BATCH_FRAME_BYTES_MAX, BatchFrame, BatchItem};
use crate::{Failure, FrameHeader, HEADER_BYTES, TierBytes, decode};

/// Next piece of the answer.
#[derive(Debug, PartialEq, Eq)]
pub enum BatchEvent<'a> {
    /// The next item; its bytes follow. `bytes` is a claim until `End`: do not allocate by it without a
    /// limit.
    Found(BatchItem),
    /// Bytes of the current item, not yet checked.
    Bytes(&'a [u8]),
    /// The current item is complete and its bytes were right.
    End(TierBytes),
    /// The next item failed, or the current one broke off.
    Failed(Failure),
    /// The answer is complete. Nothing comes after it.
    Done,
}

/// The state of one answer.
#[derive(Debug)]
pub struct BatchDecoder {
    /// A frame that has come in part.
    frame: Vec<u8>,
    items_expected: usize,
    items_seen: usize,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Between two items.
    Between,
    /// In an item, between two chunks.
    Item { missing_bytes: u64 },
    /// In the bytes of a chunk.
    Chunk {
        missing_bytes: u64,
        left_bytes: usize,
        expected: u32,
        so_far: u32,
    },
    /// After `Done`.
    Over,
    /// After an error.
    Spoilt,
}

impl BatchDecoder {
    /// For the answer to a batch of so many items.
    #[must_use]
    pub fn new(items: usize) -> Self {
        Self {
            frame: Vec::new(),
            items_expected: items,
            items_seen: 0,
            state: State::Between,
        }
    }

    /// Takes the next event from the front of `input` and moves `input` past what it used; `None` if more has
    /// to come.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<BatchEvent<'a>>> {
        let event = self.advance(input);
        if event.is_err() {
            self.state = State::Spoilt;
        }
        event
    }

    /// Returns whether the answer has come to its end; a connection that closes earlier has lost something.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Over)
    }

    fn advance<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<BatchEvent<'a>>> {
        loop {
            match self.state {
                State::Chunk { .. } => return self.take_bytes(input),
                State::Spoilt => return Err(broken("the answer was broken before")),
                State::Over if input.is_empty() => return Ok(None),
                State::Over => return Err(broken("the answer has bytes behind its end")),
                State::Between | State::Item { .. } => {}
            }
            let Some(frame) = self.take_frame(input)? else {
                return Ok(None);
            };
            if let Some(event) = self.step(frame)? {
                return Ok(Some(event));
            }
        }
    }

    fn take_frame(&mut self, input: &mut &[u8]) -> Result<Option<BatchFrame>> {
        if !self.collect(input, HEADER_BYTES) {
            return Ok(None);
        }
        let mut head = [0; HEADER_BYTES];
        head.copy_from_slice(&self.frame[..HEADER_BYTES]);
        let header = FrameHeader::parse(&head)?;
        if header.length > BATCH_FRAME_BYTES_MAX {
            return Err(broken("a frame of the answer is too long"));
        }
        if !self.collect(input, HEADER_BYTES + header.length) {
            return Ok(None);
        }
        let frame = decode(&header, &self.frame[HEADER_BYTES..])?;
        self.frame.clear();
        Ok(Some(frame))
    }

    /// Moves bytes into the buffer until it has so many; `false` if there were too few.
    fn collect(&mut self, input: &mut &[u8], bytes: usize) -> bool {
        let (front, rest) = input.split_at(bytes.saturating_sub(self.frame.len()).min(input.len()));
        self.frame.extend_from_slice(front);
        *input = rest;
        self.frame.len() >= bytes
    }

    /// Returns what a frame means where we are. A chunk is no event by itself.
    fn step(&mut self, frame: BatchFrame) -> Result<Option<BatchEvent<'static>>> {
        let event = match (&self.state, frame) {
            (State::Between, BatchFrame::Found(item)) => {
                self.count_item()?;
                self.state = State::Item {
                    missing_bytes: item.bytes,
                };
                BatchEvent::Found(item)
            }
            (State::Between, BatchFrame::Failed(failure)) => {
                self.count_item()?;
                BatchEvent::Failed(failure)
            }
            (State::Between, BatchFrame::Done { items }) => {
                if items as usize != self.items_seen || self.items_seen != self.items_expected {
                    return Err(broken(
                        "the answer has another number of items than were asked for",
                    ));
                }
                self.state = State::Over;
                BatchEvent::Done
            }
            (State::Item { missing_bytes }, BatchFrame::Chunk { bytes, crc32c }) => {
                let fits = u64::from(bytes) <= *missing_bytes && bytes as usize <= BATCH_CHUNK_BYTES_MAX;
                if bytes == 0 || !fits {
                    return Err(broken("a chunk of the answer does not fit into its item"));
                }
                self.state = State::Chunk {
                    missing_bytes: missing_bytes - u64::from(bytes),
                    left_bytes: bytes as usize,
                    expected: crc32c,
                    so_far: 0,
                };
                return Ok(None);
            }
            (State::Item { missing_bytes: 0 }, BatchFrame::End(sources)) => {
                self.state = State::Between;
                BatchEvent::End(sources)
            }
            (State::Item { .. }, BatchFrame::Broken(failure)) => {
                self.state = State::Between;
                BatchEvent::Failed(failure)
            }
            _ => return Err(broken("the frames of the answer are in a wrong order")),
        };
        Ok(Some(event))
    }

    fn count_item(&mut self) -> Result<()> {
        self.items_seen += 1;
        if self.items_seen > self.items_expected {
            return Err(broken("the answer has more items than were asked for"));
        }
        Ok(())
    }

    fn take_bytes<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<BatchEvent<'a>>> {
        let State::Chunk {
            missing_bytes,
            left_bytes,
            expected,
            so_far,
        } = &mut self.state
        else {
            return Ok(None);
        };
        if input.is_empty() {
            return Ok(None);
        }
        let (bytes, rest) = input.split_at((*left_bytes).min(input.len()));
        *input = rest;
        *so_far = crc32c::crc32c_append(*so_far, bytes);
        *left_bytes -= bytes.len();
        if *left_bytes == 0 {
            if so_far != expected {
                return Err(Error::new(
                    Kind::Checksum,
                    "bytes of a batch do not match their checksum; ask again",
                ));
            }
            self.state = State::Item {
                missing_bytes: *missing_bytes,
            };
        }
        Ok(Some(BatchEvent::Bytes(bytes)))
    }
}

fn broken(message: &'static str) -> Error {
    Error::new(Kind::Corrupt, message)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
