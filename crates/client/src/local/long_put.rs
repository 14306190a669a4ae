//! Writes in parts: an object larger than the node's staging memory, or one whose end nobody knows yet.
//!
//! Each part is a staging buffer of its own, copied to once and handed over; the node gives it to the lake
//! while the next one is filled. A full arena is waited for. The write belongs to the process that began it
//! and to one incarnation of the node: when either ends, the node gives it up, and nothing was written. Only
//! when the end was sent does it go on by itself.

use std::sync::Arc;

use forebay_core::{Error, Kind, Result};
use forebay_wire::writes;
use forebay_wire::writes::{BeginWrite, FinishWrite, StagedBytes, WritePart};

use super::pool::{PooledConnection, Retry};
use super::session::Local;
use crate::Name;
use crate::client::{PutOptions, PutReceipt};
use crate::wait::Wait;

/// An open write. Dropping it gives it up.
pub(crate) struct LocalWrite {
    local: Arc<Local>,
    name: Name,
    write: u64,
    part_bytes_max: usize,
    sent_bytes: u64,
    incarnation: u64,
    process: u32,
    /// The node knows how it ends.
    has_ended: bool,
}

impl Local {
    /// Opens a write; waits while the node has too many.
    pub(crate) fn begin_write(
        self: &Arc<Self>,
        name: &Name,
        options: &PutOptions,
        bytes: Option<u64>,
    ) -> Result<LocalWrite> {
        let request = writes::Request::BeginWrite(BeginWrite {
            object: name.to_wire(),
            bytes,
            condition: options.condition.clone(),
            headers: options.headers.clone(),
            metadata: options.metadata.clone(),
        });
        self.while_busy(|wait| {
            self.with_connection(Retry::Idempotent, wait, |connection| {
                let (write, part_bytes_max) = match connection.ask(&request, wait)? {
                    writes::Answer::Writing {
                        write,
                        part_bytes_max,
                    } => (write, part_bytes_max),
                    other => return Err(connection.inner().misunderstood(&other)),
                };
                Ok(LocalWrite {
                    local: Arc::clone(self),
                    name: name.clone(),
                    write,
                    part_bytes_max: usize::try_from(part_bytes_max).unwrap_or(usize::MAX).max(1),
                    sent_bytes: 0,
                    incarnation: connection.incarnation,
                    process: connection.process(),
                    has_ended: false,
                })
            })
        })
    }
}

impl LocalWrite {
    /// Adds bytes, in as many parts as it takes.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<()> {
        bytes
            .chunks(self.part_bytes_max)
            .try_for_each(|part| self.push_part(part))
    }

    fn push_part(&mut self, part: &[u8]) -> Result<()> {
        let reserved = self.local.reserve(part.len() as u64)?.ok_or_else(|| {
            let message = "the node has no staging memory for a part of its own size";
            Error::new(Kind::Corrupt, message).with("bytes", part.len())
        })?;
        let mut ticket = self.local.copy_to(reserved, part)?;
        let request = writes::Request::WritePart(WritePart {
            write: self.write,
            offset: self.sent_bytes,
            from: StagedBytes {
                buffer: ticket.buffer,
                bytes: part.len() as u64,
                crc32c: None,
            },
        });
        match self.ask(&request, || ticket.spent = true)? {
            writes::Answer::Done => {
                self.sent_bytes += part.len() as u64;
                Ok(())
            }
            _ => Err(other_kind()),
        }
    }

    /// Makes the object visible.
    pub(crate) fn finish(mut self, crc32c: Option<u32>) -> Result<PutReceipt> {
        let request = writes::Request::FinishWrite(FinishWrite {
            write: self.write,
            bytes: self.sent_bytes,
            crc32c,
        });
        let mut is_sent = false;
        let answer = self.ask(&request, || is_sent = true);
        self.has_ended = is_sent;
        self.local.receipt(&self.name, answer)
    }

    /// Gives it up and waits until nothing is left of it.
    pub(crate) fn abort(mut self) -> Result<()> {
        self.has_ended = true;
        match self.ask(&writes::Request::AbortWrite { write: self.write }, || {})? {
            writes::Answer::Done => Ok(()),
            _ => Err(other_kind()),
        }
    }

    /// Asks about this write, once: a broken connection may have been understood. `before` is called when it
    /// is sure to be sent.
    fn ask(&self, request: &writes::Request, mut before: impl FnMut()) -> Result<writes::Answer> {
        let wait = Wait::start(&self.local.options);
        self.local.with_connection(Retry::Never, &wait, |connection| {
            self.check_is_of(connection)?;
            before();
            connection.ask(request, &wait)
        })
    }

    fn check_is_of(&self, connection: &PooledConnection<'_>) -> Result<()> {
        if (connection.incarnation, connection.process()) == (self.incarnation, self.process) {
            return Ok(());
        }
        Err(Error::new(
            Kind::Unavailable,
            "the write belongs to a node or process that is gone and was given up; write the object again",
        ))
    }
}

impl Drop for LocalWrite {
    fn drop(&mut self) {
        if !self.has_ended {
            let abort = writes::Request::AbortWrite { write: self.write };
            self.local
                .send_oneway_later(abort, self.incarnation, self.process);
        }
    }
}

fn other_kind() -> Error {
    Error::new(Kind::Corrupt, "the node gave an answer of another kind")
}
