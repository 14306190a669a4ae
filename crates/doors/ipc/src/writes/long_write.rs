//! `BeginWrite`, `WritePart`, `FinishWrite`, `AbortWrite`: objects that are larger than staging memory, or
//! whose end is not known.
//!
//! An open write is a task of the node that takes parts in order and gives them to the lake. A part is copied
//! out of its staging buffer first: the lake's writer may gather more than the whole arena before it sends
//! anything, and an arena that waits for its own client never empties. So staging memory depends on the lake
//! alone, and a client that finds it full only has to wait.
//!
//! Life cycle: begin opens the writer and the task → parts pass through a queue of one, so that the client
//! fills the next while the lake takes the last → finish decides: from then on the task goes on whatever
//! becomes of the client. Abort, or the end of the session, drops the client's end ([`OpenWrite`]): the task
//! stops after the part under way and takes back what the lake has. Until the end nobody sees anything.
//!
//! Limits: open writes of one session and of all together, one part in the queue, the size of a part.

use std::sync::Arc;

use bytes::Bytes;
use forebay_core::{Error, Kind, Result, crc32c};
use forebay_engine::{Finish, ObjectWrite, WriteReceipt, WriteRequest};
use forebay_wire::writes::{Answer, BeginWrite, FinishWrite, StagedBytes, WritePart};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::put::{attributes, written};
use super::{Context, WRITES_MAX};

/// The largest part …
const PART_BYTES_MAX: u64 = 4 << 20;
/// … and how many of them the arena should hold: one that is filled, one that waits, one on its way, one for
/// somebody else.
const PARTS_IN_ARENA: u64 = 4;
/// Parts that wait for the lake.
const PARTS_WAITING_MAX: usize = 1;

/// The client's end of an open write. Dropping it gives the write up.
#[derive(Debug)]
pub(super) struct OpenWrite {
    parts: mpsc::Sender<StagedPart>,
    end: oneshot::Sender<FinishWrite>,
    done: oneshot::Receiver<Result<WriteReceipt>>,
}

/// Queue of the parts of an open write.
#[derive(Debug)]
pub(super) struct PartSender(mpsc::Sender<StagedPart>);

/// Bytes in staging memory.
#[derive(Debug)]
struct StagedPart {
    offset: u64,
    bytes: Bytes,
    crc32c: Option<u32>,
}

/// Returns how large parts may be in an arena of this size.
fn part_bytes_max(staging_bytes: u64) -> u64 {
    PART_BYTES_MAX.min(staging_bytes / PARTS_IN_ARENA).max(1)
}

pub(super) async fn begin(context: Context<'_>, begin: BeginWrite) -> Result<Answer> {
    let (bucket, key) = context.object(&begin.object)?;
    let writes = context.writes;
    let permit = Arc::clone(&writes.permits).try_acquire_owned().map_err(|_| {
        let message = "the node has too many writes under way; wait until some have ended and try again";
        Error::new(Kind::Busy, message).with("writes_max", WRITES_MAX)
    })?;
    let request = WriteRequest {
        attributes: attributes(begin.headers, begin.metadata)?,
        condition: begin.condition,
        bytes: begin.bytes,
        ..WriteRequest::default()
    };
    let write = context.engine()?.write(&bucket, &key, request).await?;
    let (parts, queue) = mpsc::channel(PARTS_WAITING_MAX);
    let (end, decision) = oneshot::channel();
    let (done, receipt) = oneshot::channel();
    let number = writes.next_number();
    let open = OpenWrite {
        parts,
        end,
        done: receipt,
    };
    writes.add(context.session, number, open)?;
    writes.spawn(async move {
        let result = run(write, queue, Decision::new(decision), permit).await;
        if let Err(Err(error)) = done.send(result)
            && error.kind() != Kind::Cancelled
        {
            tracing::warn!(%error, %bucket, %key, "a write failed whose client is gone");
        }
    })?;
    Ok(Answer::Writing {
        write: number,
        part_bytes_max: part_bytes_max(writes.services.staging.budget_bytes()),
    })
}

/// Takes a part; waits while one is waiting for the lake already.
pub(super) async fn part(context: Context<'_>, part: WritePart) -> Result<Answer> {
    let WritePart { write, offset, from } = part;
    let StagedBytes {
        buffer,
        bytes,
        crc32c,
    } = from;
    let bytes = context.session.take_bytes(buffer, bytes)?;
    let part = StagedPart {
        offset,
        bytes,
        crc32c,
    };
    let parts = context
        .writes
        .parts(context.session, write)
        .ok_or_else(|| unknown(write))?;
    if parts.0.send(part).await.is_ok() {
        return Ok(Answer::Done);
    }
    // The task has failed already; it knows why.
    let open = context
        .writes
        .take(context.session, write)
        .ok_or_else(|| unknown(write))?;
    open.outcome().await?;
    Err(Error::new(Kind::Internal, "a write ended before its last part"))
}

/// Decides at once, then waits for the lake.
pub(super) async fn finish(context: Context<'_>, finish: FinishWrite) -> Result<Answer> {
    let open = context.writes.take(context.session, finish.write);
    let OpenWrite { parts, end, done } = open.ok_or_else(|| unknown(finish.write))?;
    // If the task has failed, its outcome says so.
    let _ = end.send(finish);
    drop(parts);
    outcome(done).await.map(|receipt| written(&receipt))
}

/// Gives a write up and waits until the lake has nothing of it.
pub(super) async fn abort(context: Context<'_>, write: u64) -> Answer {
    if let Some(open) = context.writes.take(context.session, write)
        && let Err(error) = open.outcome().await
    {
        tracing::trace!(%error, write, "a write was given up");
    }
    Answer::Done
}

impl OpenWrite {
    pub(super) fn parts(&self) -> PartSender {
        PartSender(self.parts.clone())
    }

    /// Returns how it ended; given up if nobody decided otherwise.
    async fn outcome(self) -> Result<WriteReceipt> {
        let Self { parts, end, done } = self;
        drop((parts, end));
        outcome(done).await
    }
}

async fn outcome(done: oneshot::Receiver<Result<WriteReceipt>>) -> Result<WriteReceipt> {
    let stopped = |_| Error::new(Kind::Cancelled, "the node stopped before the write was done");
    done.await.map_err(stopped)?
}

fn unknown(write: u64) -> Error {
    let message = "there is no such write (any more); begin it again";
    Error::new(Kind::NotFound, message).with("write", write)
}

/// Decision of the client about the end.
struct Decision {
    end: oneshot::Receiver<FinishWrite>,
    finish: Option<FinishWrite>,
}

impl Decision {
    fn new(end: oneshot::Receiver<FinishWrite>) -> Self {
        Self { end, finish: None }
    }

    /// The next part, unless the client gives up; `None` when there are no more.
    async fn next(&mut self, queue: &mut mpsc::Receiver<StagedPart>) -> Result<Option<StagedPart>> {
        if self.finish.is_none() {
            tokio::select! {
                biased;
                end = &mut self.end => self.finish = Some(end.map_err(|_| given_up())?),
                part = queue.recv() => return Ok(part),
            }
        }
        Ok(queue.recv().await)
    }

    /// Returns what was decided, when no more parts can come.
    async fn made(self) -> Result<FinishWrite> {
        match self.finish {
            Some(finish) => Ok(finish),
            None => self.end.await.map_err(|_| given_up()),
        }
    }
}

fn given_up() -> Error {
    Error::new(
        Kind::Cancelled,
        "the write was given up before it was finished; nothing was written",
    )
}

/// The task of an open write.
async fn run(
    mut write: ObjectWrite,
    queue: mpsc::Receiver<StagedPart>,
    decision: Decision,
    _permit: OwnedSemaphorePermit,
) -> Result<WriteReceipt> {
    match take_parts(&mut write, queue, decision).await {
        Ok(()) => write.finish(Finish::default()).await,
        Err(error) => {
            write.abort().await;
            Err(error)
        }
    }
}

/// Gives all parts to the lake; `Ok` when the client wants just this object.
async fn take_parts(
    write: &mut ObjectWrite,
    mut queue: mpsc::Receiver<StagedPart>,
    mut decision: Decision,
) -> Result<()> {
    let mut taken = Received::default();
    while let Some(part) = decision.next(&mut queue).await? {
        let bytes = taken.take(part).await?;
        // Not given up in the middle: only a write at rest can take back all that the lake has of it.
        write.push(bytes).await?;
    }
    taken.check(&decision.made().await?)
}

/// Bytes received so far.
#[derive(Default)]
struct Received {
    bytes: u64,
    crc32c: u32,
}

impl Received {
    /// Copies a part out of staging memory, so that its checksum is that of bytes that nobody can change any
    /// more.
    async fn take(&mut self, part: StagedPart) -> Result<Bytes> {
        if part.offset != self.bytes {
            let message = "a part does not follow the one before it; send the parts of a write in order";
            return Err(Error::new(Kind::InvalidInput, message)
                .with("offset", part.offset)
                .with("expected", self.bytes));
        }
        let staged = part.bytes;
        let copy = move || {
            let copy = Bytes::copy_from_slice(&staged);
            let crc32c = crc32c::crc32c(&copy);
            (copy, crc32c)
        };
        let (copy, found) = tokio::task::spawn_blocking(copy)
            .await
            .map_err(|why| Error::new(Kind::Internal, "a copy was stopped").caused_by(why))?;
        compare(part.crc32c, found)?;
        self.bytes += copy.len() as u64;
        self.crc32c = crc32c::crc32c_combine(self.crc32c, found, copy.len());
        Ok(copy)
    }

    /// Compares all that came with what the client says it sent.
    fn check(&self, finish: &FinishWrite) -> Result<()> {
        if finish.bytes != self.bytes {
            let message = "the parts do not have the announced length; nothing was written";
            return Err(Error::new(Kind::InvalidInput, message)
                .with("announced_bytes", finish.bytes)
                .with("received_bytes", self.bytes));
        }
        compare(finish.crc32c, self.crc32c)
    }
}

fn compare(expected: Option<u32>, found: u32) -> Result<()> {
    match expected {
        Some(expected) if expected != found => {
            let message = "the bytes do not match their checksum; nothing was written";
            Err(Error::new(Kind::Checksum, message)
                .with("found", found)
                .with("expected", expected))
        }
        _ => Ok(()),
    }
}
