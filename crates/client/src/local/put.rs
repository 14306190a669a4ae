//! Writes: memory of the node's staging arena, filled by one copy or in place, then handed over.
//!
//! A full arena is a reason to wait, not to fail: the call tries again until its time is up and then says
//! `Busy`. What is larger than the whole arena goes in parts (`long_put.rs`). A put whose connection broke is
//! not repeated, because it may have been done.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, Kind, Result};
use forebay_wire::writes::{Buffer, Put, StagedBytes};
use forebay_wire::{session, writes};

use super::pool::{PooledConnection, Retry};
use super::session::Local;
use super::staging::{StagingBuffer, Ticket};
use crate::Name;
use crate::client::{PutOptions, PutReceipt};
use crate::stats::add;
use crate::wait::Wait;

/// First and longest pause before asking a full arena again.
const BUSY_PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// Bytes that one `pwrite` copies, so that a call can be interrupted.
const COPY_BYTES_MAX: usize = 64 << 20;

/// Memory of the arena for one client.
pub(super) struct Reserved {
    memfd: OwnedFd,
    place: Buffer,
    ticket: Ticket,
}

impl Local {
    /// A buffer of the arena, mapped for writing; `None` if it is larger than the whole arena.
    pub(crate) fn allocate(self: &Arc<Self>, bytes: u64) -> Result<Option<StagingBuffer>> {
        match self.reserve(bytes)? {
            Some(reserved) => StagingBuffer::map(&reserved.memfd, &reserved.place, reserved.ticket).map(Some),
            None => Ok(None),
        }
    }

    /// Copies once, into the arena, then hands it over.
    pub(crate) fn put_slice(
        self: &Arc<Self>,
        name: &Name,
        bytes: &[u8],
        options: &PutOptions,
    ) -> Result<PutReceipt> {
        match self.reserve(bytes.len() as u64)? {
            Some(reserved) => {
                let ticket = self.copy_to(reserved, bytes)?;
                self.put(name, ticket, bytes.len() as u64, options.clone())
            }
            None => {
                let mut write = self.begin_write(name, options, Some(bytes.len() as u64))?;
                write.push(bytes)?;
                write.finish(options.crc32c)
            }
        }
    }

    /// Hands over a buffer that was written in place.
    pub(crate) fn put_buffer(
        &self,
        name: &Name,
        buffer: StagingBuffer,
        options: PutOptions,
    ) -> Result<PutReceipt> {
        if !buffer.is_of(self) {
            return Err(Error::new(
                Kind::InvalidInput,
                "this buffer was allocated by another client; put it by the one that allocated it",
            ));
        }
        let (ticket, bytes) = buffer.into_ticket();
        self.put(name, ticket, bytes, options)
    }

    fn put(&self, name: &Name, mut ticket: Ticket, bytes: u64, options: PutOptions) -> Result<PutReceipt> {
        let request = writes::Request::Put(Put {
            object: name.to_wire(),
            from: StagedBytes {
                buffer: ticket.buffer,
                bytes,
                crc32c: options.crc32c,
            },
            condition: options.condition,
            headers: options.headers,
            metadata: options.metadata,
        });
        let wait = Wait::start(&self.options);
        let answer = self.with_connection(Retry::Never, &wait, |connection| {
            if (connection.incarnation, connection.process()) != (ticket.incarnation, ticket.process) {
                return Err(Error::new(
                    Kind::Unavailable,
                    "the buffer belongs to a node or process that is gone; allocate and write it again",
                ));
            }
            ticket.spent = true;
            connection.ask(&request, &wait)
        });
        self.receipt(name, answer)
    }

    /// The answer to the end of a write.
    pub(super) fn receipt(&self, name: &Name, answer: Result<writes::Answer>) -> Result<PutReceipt> {
        let unsure = |error: Error| match error.kind() {
            Kind::Unavailable | Kind::Timeout | Kind::Cancelled => error.with(
                "hint",
                "the write may still be done; look at the object before writing it again",
            ),
            _ => error,
        };
        match answer
            .map_err(unsure)
            .map_err(|error| error.with("object", name))?
        {
            writes::Answer::Written { version, bytes } => {
                add(&self.counters.written_bytes, bytes);
                Ok(PutReceipt { version, bytes })
            }
            _ => Err(Error::new(
                Kind::Corrupt,
                "the node gave an answer of another kind",
            )),
        }
    }

    /// A buffer of the arena; `None` if it is larger than the whole arena.
    pub(super) fn reserve(self: &Arc<Self>, bytes: u64) -> Result<Option<Reserved>> {
        let reserved = self.while_busy(|wait| {
            self.with_connection(Retry::Idempotent, wait, |connection| {
                self.try_reserve(connection, bytes, wait)
            })
        });
        match reserved {
            Err(error) if error.kind() == Kind::InvalidInput => Ok(None),
            other => other.map(Some),
        }
    }

    /// Tries again as long as the node is busy and there is time.
    pub(super) fn while_busy<T>(&self, mut work: impl FnMut(&Wait) -> Result<T>) -> Result<T> {
        let wait = Wait::start(&self.options);
        let (mut pause, pause_max) = BUSY_PAUSE;
        loop {
            match work(&wait) {
                Err(busy) if busy.kind() == Kind::Busy => {
                    wait.pause(pause).map_err(|stop| match stop.kind() {
                        Kind::Cancelled => stop,
                        _ => busy,
                    })?;
                    pause = (pause * 2).min(pause_max);
                }
                other => return other,
            }
        }
    }

    fn try_reserve(
        self: &Arc<Self>,
        connection: &mut PooledConnection<'_>,
        bytes: u64,
        wait: &Wait,
    ) -> Result<Reserved> {
        let (place, ticket) = self.try_allocate(connection, bytes, wait)?;
        let memfd = Self::descriptor_of(connection, &place, wait)?;
        Ok(Reserved { memfd, place, ticket })
    }

    /// The right to a buffer of the arena.
    pub(super) fn try_allocate(
        self: &Arc<Self>,
        connection: &mut PooledConnection<'_>,
        bytes: u64,
        wait: &Wait,
    ) -> Result<(Buffer, Ticket)> {
        let place = match connection.ask(&writes::Request::Allocate { bytes }, wait)? {
            writes::Answer::Buffer(place) => place,
            other => return Err(connection.inner().misunderstood(&other)),
        };
        let ticket = Ticket {
            local: Arc::clone(self),
            buffer: place.buffer,
            incarnation: connection.incarnation,
            process: connection.process(),
            spent: false,
        };
        Ok((place, ticket))
    }

    /// The memfd of a buffer.
    pub(super) fn descriptor_of(
        connection: &mut PooledConnection<'_>,
        place: &Buffer,
        wait: &Wait,
    ) -> Result<OwnedFd> {
        let inner = connection.inner();
        let map = session::Request::MapSegment {
            segment: place.buffer,
        };
        match inner.ask(&map, wait)? {
            session::Answer::Segment { .. } => {}
            other => return Err(inner.misunderstood(&other)),
        }
        let memfd = inner.take_descriptor();
        memfd.ok_or_else(|| Error::new(Kind::Corrupt, "the node sent no descriptor beside its answer"))
    }

    /// One copy by the kernel: no mapping, no page faults. What remains is the right to put it.
    pub(super) fn copy_to(&self, reserved: Reserved, bytes: &[u8]) -> Result<Ticket> {
        let Reserved { memfd, place, ticket } = reserved;
        if place.bytes < bytes.len() as u64 {
            let error = Error::new(Kind::Corrupt, "the node gave a buffer that is too short");
            return Err(error.with("bytes", place.bytes));
        }
        super::segments::check_memfd(&memfd, place.mapped_bytes.max(1))?;
        let wait = Wait::start(&self.options);
        let mut done = 0;
        while done < bytes.len() {
            let piece = &bytes[done..(done + COPY_BYTES_MAX).min(bytes.len())];
            match rustix::io::pwrite(&memfd, piece, done as u64) {
                Ok(0) => {
                    return Err(Error::io(
                        "cannot write to staging memory",
                        io::ErrorKind::WriteZero.into(),
                    ));
                }
                Ok(written) => done += written,
                Err(rustix::io::Errno::INTR) => {}
                Err(why) => return Err(Error::io("cannot write to staging memory", why.into())),
            }
            if done < bytes.len() {
                wait.check()?;
            }
        }
        add(&self.counters.copied_bytes, bytes.len() as u64);
        Ok(ticket)
    }
}
