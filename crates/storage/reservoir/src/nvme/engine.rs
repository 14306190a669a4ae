//! The executor of transfers: one trait, and a pool of threads behind it.
//!
//! A transfer owns its buffer and its hold on the extent, so a caller that goes away in the middle neither
//! frees memory that the kernel writes to nor lets the units be reused before the last byte has moved. The
//! number of transfers under way is bounded by permits that the callers take first, apart for reads and
//! writes; reads go first, but every fourth pick takes a write if there is one. An io_uring engine can take
//! the place of the threads behind the same trait.
//!
//! Life cycle: threads start with the engine; `shutdown` (or drop) lets them finish what is queued and joins
//! them.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;

use forebay_core::{Error, Result};
use parking_lot::{Condvar, Mutex};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::buffer::AlignedBuffer;
use super::extent::Extent;
use super::segments::{Segments, read_fully, write_fully};
use super::space::{Run, UNIT_BYTES};

/// The direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the disk into the buffer.
    Read,
    /// From the buffer to the disk.
    Write,
}

/// A part of the buffer and where it lies on disk; both are multiples of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IoSegment {
    /// On disk.
    pub(crate) run: Run,
    /// In the buffer.
    pub(crate) range: Range<usize>,
}

/// One transfer between a buffer and an extent.
#[derive(Debug)]
pub(crate) struct Transfer {
    /// The direction.
    pub(crate) direction: Direction,
    /// The segments, in order.
    pub(crate) io_segments: Vec<IoSegment>,
    /// The memory.
    pub(crate) buffer: AlignedBuffer,
    /// Keeps the units from being reused.
    pub(crate) hold: Arc<Extent>,
    /// Its place in the bounded number of transfers.
    pub(crate) permit: OwnedSemaphorePermit,
    /// Gets the buffer back, or the error.
    pub(crate) done: oneshot::Sender<io::Result<AlignedBuffer>>,
}

/// Takes transfers and answers each through its `done`.
pub(crate) trait IoEngine: Send + Sync + fmt::Debug {
    /// Queues a transfer; never blocks. After `shutdown` it is dropped, which its caller sees as an error.
    fn submit(&self, transfer: Transfer);

    /// Finishes what is queued and ends the threads; blocks. Idempotent.
    fn shutdown(&self);
}

#[derive(Debug, Default)]
struct Queue {
    reads: VecDeque<Transfer>,
    writes: VecDeque<Transfer>,
    picks: u64,
    is_closed: bool,
}

impl Queue {
    fn pick(&mut self) -> Option<Transfer> {
        self.picks += 1;
        if self.picks.is_multiple_of(4) {
            self.writes.pop_front().or_else(|| self.reads.pop_front())
        } else {
            self.reads.pop_front().or_else(|| self.writes.pop_front())
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
}

/// The engine of blocking transfers on threads of its own.
#[derive(Debug)]
pub(crate) struct ThreadEngine {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl ThreadEngine {
    /// Starts the threads.
    pub(crate) fn start(segments: &Arc<Segments>, threads: usize) -> Result<Self> {
        let engine = Self {
            shared: Arc::default(),
            threads: Mutex::default(),
        };
        for number in 0..threads {
            let (shared, segments) = (Arc::clone(&engine.shared), Arc::clone(segments));
            let thread = std::thread::Builder::new()
                .name(format!("nvme-io-{number}"))
                .spawn(move || run_transfers(&shared, &segments))
                .map_err(|error| Error::io("cannot start an i/o thread for the nvme tier", error))?;
            engine.threads.lock().push(thread);
        }
        Ok(engine)
    }
}

impl IoEngine for ThreadEngine {
    fn submit(&self, transfer: Transfer) {
        let mut queue = self.shared.queue.lock();
        if queue.is_closed {
            return;
        }
        match transfer.direction {
            Direction::Read => queue.reads.push_back(transfer),
            Direction::Write => queue.writes.push_back(transfer),
        }
        drop(queue);
        self.shared.work.notify_one();
    }

    fn shutdown(&self) {
        self.shared.queue.lock().is_closed = true;
        self.shared.work.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("an i/o thread of the nvme tier panicked");
            }
        }
    }
}

impl Drop for ThreadEngine {
    fn drop(&mut self) {
        self.shutdown();
    }
}

fn run_transfers(shared: &Shared, segments: &Segments) {
    let mut queue = shared.queue.lock();
    loop {
        if let Some(transfer) = queue.pick() {
            drop(queue);
            run_transfer(transfer, segments);
            queue = shared.queue.lock();
        } else if queue.is_closed {
            return;
        } else {
            shared.work.wait(&mut queue);
        }
    }
}

fn run_transfer(transfer: Transfer, segments: &Segments) {
    let Transfer {
        direction,
        io_segments,
        mut buffer,
        hold,
        permit,
        done,
    } = transfer;
    let moved = io_segments
        .iter()
        .try_for_each(|io_segment| move_segment(segments, direction, io_segment, &mut buffer));
    // The caller may be gone; then buffer, hold and permit just go back.
    let _ = done.send(moved.map(|()| buffer));
    drop(hold);
    drop(permit);
}

fn move_segment(
    segments: &Segments,
    direction: Direction,
    io_segment: &IoSegment,
    buffer: &mut AlignedBuffer,
) -> io::Result<()> {
    let (segment, offset) = (io_segment.run.segment(), io_segment.run.offset_bytes());
    let memory = &mut buffer.as_mut_slice()[io_segment.range.clone()];
    match direction {
        Direction::Read => read_fully(segments.raw(), &*segments.existing(segment)?, memory, offset),
        Direction::Write => write_fully(segments.raw(), &*segments.for_write(segment)?, memory, offset),
    }
}

/// Cuts the bytes `range` of an extent's content into I/O segments of a buffer that starts at `buffer_start`.
///
/// The extent's content lies over `runs` in order; `range` is a multiple of units.
pub(crate) fn io_segments(runs: &[Run], range: Range<u64>, buffer_start: usize, out: &mut Vec<IoSegment>) {
    let mut run_start = 0;
    let mut at = buffer_start;
    for run in runs {
        let run_end = run_start + run.units * UNIT_BYTES;
        let (start, end) = (range.start.max(run_start), range.end.min(run_end));
        if start < end {
            let bytes = (end - start) as usize;
            let units = Run {
                start: run.start + (start - run_start) / UNIT_BYTES,
                units: (end - start) / UNIT_BYTES,
            };
            out.push(IoSegment {
                run: units,
                range: at..at + bytes,
            });
            at += bytes;
        }
        run_start = run_end;
    }
}
