//! One part of a read: asks the lake, hands on bytes in order, resumes where it stopped.
//!
//! A part loops over attempts. Each attempt is admitted to the lake (`admission/`), asks for what is still missing of
//! its range with the version pinned, and forwards every chunk as it arrives. A retryable failure keeps what
//! was forwarded and asks for the rest; any other failure ends the read. An answer that is not exactly what
//! was asked for (another version, another range, more bytes than promised) is never forwarded.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use forebay_core::{ByteRange, Error, Kind, ObjectKey, Result, Version};
use futures::StreamExt;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::{Instant, timeout};

use super::{FetchUrgency, Shared};
use crate::admission::{Attempts, Permit, Place, Repeat};
use crate::{ByteStream, GetOptions, GetRange};

/// The version of an object that is being read.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) key: ObjectKey,
    pub(crate) version: Version,
    pub(crate) object_bytes: u64,
}

/// Receiver of chunks; a closed channel means that the reader has gone.
pub(crate) type Chunks = mpsc::Sender<Result<Bytes>>;

/// End of an attempt that did not fail.
enum AttemptOutcome {
    Complete,
    ReaderGone,
}

/// Reads one part into the channel. The last message is the error, if there is one.
pub(crate) async fn run(
    shared: &Shared,
    target: &Target,
    range: ByteRange,
    urgency: &FetchUrgency,
    chunks: &Chunks,
) {
    let mut next = range.start();
    let mut attempts = shared.admission.attempts(target.key.as_str());
    while let Ok(rest) = ByteRange::new(next, range.end()) {
        let before = next;
        let error = match attempt(shared, target, rest, (&attempts, urgency), chunks, &mut next).await {
            Ok(AttemptOutcome::Complete) => return attempts.succeeded(),
            Ok(AttemptOutcome::ReaderGone) => return,
            Err(error) => error,
        };
        if next > before {
            attempts.progressed();
        }
        if error.kind() == Kind::Throttled {
            shared.counters.throttled.fetch_add(1, Ordering::Relaxed);
        }
        let shown = error.share();
        if let Err(error) = attempts.failed(error, Repeat::Yes) {
            // A closed channel means that nobody is left to tell.
            let _ = chunks.send(Err(error.with("range", range))).await;
            return;
        }
        shared.counters.retries.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(failures = attempts.failures(), error = ?shown, "lake read failed, asking for the rest");
        tokio::select! {
            () = attempts.backoff() => {}
            () = chunks.closed() => return,
        }
    }
}

/// One request: forwards chunks and moves `next` past each forwarded byte.
async fn attempt(
    shared: &Shared,
    target: &Target,
    rest: ByteRange,
    (attempts, urgency): (&Attempts, &FetchUrgency),
    chunks: &Chunks,
    next: &mut u64,
) -> Result<AttemptOutcome> {
    let Some(permit) = enter(attempts, urgency, chunks).await? else {
        return Ok(AttemptOutcome::ReaderGone);
    };
    let (first, mut body, permit) = tokio::select! {
        opened = open_hedged(shared, target, rest, (attempts, permit)) => opened?,
        () = chunks.closed() => return Ok(AttemptOutcome::ReaderGone),
    };
    attempts.answered();
    let (mut chunk, mut permit) = (first, Some(permit));
    loop {
        let bytes = chunk.len() as u64;
        if *next + bytes > rest.end() {
            return Err(Error::new(
                Kind::Unavailable,
                "the lake sent more bytes than it promised",
            ));
        }
        shared.counters.bytes.fetch_add(bytes, Ordering::Relaxed);
        shared.hedge.add_read(bytes);
        if bytes > 0 && !forward(chunk, chunks, &mut permit).await {
            return Ok(AttemptOutcome::ReaderGone);
        }
        *next += bytes;
        if *next == rest.end() {
            return Ok(AttemptOutcome::Complete);
        }
        if permit.is_none() {
            permit = return_to_lake(shared, urgency, chunks).await?;
        }
        chunk = next_chunk(&mut body, shared.options.stall_max).await?;
    }
}

/// Waits to be admitted; `None` if the reader has gone meanwhile.
async fn enter(attempts: &Attempts, urgency: &FetchUrgency, chunks: &Chunks) -> Result<Option<Permit>> {
    tokio::select! {
        permit = attempts.enter(urgency) => permit.map(Some),
        () = chunks.closed() => Ok(None),
    }
}

/// Waits for a permit to read on in an answer that has begun; `None` if the reader has gone meanwhile.
async fn return_to_lake(shared: &Shared, urgency: &FetchUrgency, chunks: &Chunks) -> Result<Option<Permit>> {
    tokio::select! {
        permit = shared.admission.gate().enter(urgency, Place::Back) => permit.map(Some),
        () = chunks.closed() => Ok(None),
    }
}

/// Hands a chunk to the reader and says whether it is still there. A part that waits for its reader returns
/// its permit: the reader may be waiting for an earlier part, and that one for a permit.
async fn forward(chunk: Bytes, chunks: &Chunks, permit: &mut Option<Permit>) -> bool {
    match chunks.try_send(Ok(chunk)) {
        Ok(()) => true,
        Err(TrySendError::Closed(_)) => false,
        Err(TrySendError::Full(chunk)) => {
            *permit = None;
            chunks.send(chunk).await.is_ok()
        }
    }
}

async fn next_chunk(body: &mut ByteStream, stall_max: Duration) -> Result<Bytes> {
    match timeout(stall_max, body.next()).await {
        Ok(Some(chunk)) => chunk,
        Ok(None) => Err(Error::new(
            Kind::Unavailable,
            "the lake's answer ended before the bytes it promised",
        )),
        Err(_) => Err(Error::new(Kind::Timeout, "the lake sent no byte for too long")
            .with("stall_ms", stall_max.as_millis())),
    }
}

/// Opens a request and, if it is late, a second one; whichever has its first byte first goes on.
async fn open_hedged(
    shared: &Shared,
    target: &Target,
    rest: ByteRange,
    (attempts, permit): (&Attempts, Permit),
) -> Result<(Bytes, ByteStream, Permit)> {
    let begun = Instant::now();
    let first = open(shared, target, rest);
    tokio::pin!(first);
    let may_hedge = shared.options.hedging && !attempts.is_paced();
    let late_after = shared.hedge.late_after().filter(|_| may_hedge);
    let opened = match late_after {
        None => first.await,
        Some(late_after) => match timeout(late_after, &mut first).await {
            Ok(opened) => opened,
            Err(_) => match spare_permit(shared, rest) {
                None => first.await,
                Some(spare) => {
                    let (opened, from_hedge) = race(first, open(shared, target, rest)).await;
                    let opened =
                        opened.map(|(chunk, body)| (chunk, body, if from_hedge { spare } else { permit }));
                    if opened.is_ok() && from_hedge {
                        shared.counters.hedges_won.fetch_add(1, Ordering::Relaxed);
                    }
                    return opened;
                }
            },
        },
    };
    if opened.is_ok() {
        shared.hedge.observe(begun.elapsed());
    }
    opened.map(|(chunk, body)| (chunk, body, permit))
}

fn spare_permit(shared: &Shared, rest: ByteRange) -> Option<Permit> {
    let spare = shared.admission.gate().enter_spare()?;
    if !shared.hedge.reserve(rest.len()) {
        return None;
    }
    shared.counters.hedges.fetch_add(1, Ordering::Relaxed);
    Some(spare)
}

type Opened = Result<(Bytes, ByteStream)>;

/// The first good answer, or the last bad one. `true` says that it is the second request's.
async fn race(
    first: impl Future<Output = Opened> + Unpin,
    second: impl Future<Output = Opened>,
) -> (Opened, bool) {
    tokio::pin!(second);
    let mut first = first;
    tokio::select! {
        opened = &mut first => match opened {
            Ok(opened) => (Ok(opened), false),
            // Changed and the like are answers too; only a passing failure leaves it to the other request.
            Err(error) if !error.is_retryable() => (Err(error), false),
            Err(_) => (second.await, true),
        },
        opened = &mut second => match opened {
            Ok(opened) => (Ok(opened), true),
            Err(error) if !error.is_retryable() => (Err(error), true),
            Err(_) => (first.await, false),
        },
    }
}

/// Asks the lake and waits for the first chunk.
async fn open(shared: &Shared, target: &Target, rest: ByteRange) -> Opened {
    let stall_max = shared.options.stall_max;
    shared.counters.requests.fetch_add(1, Ordering::Relaxed);
    let options = GetOptions {
        range: Some(GetRange::Bounded(rest)),
        if_match: Some(target.version.clone()),
    };
    let answer = timeout(stall_max, shared.lake.get(&target.key, options))
        .await
        .map_err(|_| {
            Error::new(Kind::Timeout, "the lake did not answer in time")
                .with("lake", shared.lake.url())
                .with("key", &target.key)
                .with("stall_ms", stall_max.as_millis())
        })??;
    if answer.meta.version != target.version || answer.meta.bytes != target.object_bytes {
        return Err(
            Error::new(Kind::Changed, "the object was replaced while it was being read")
                .with("lake", shared.lake.url())
                .with("key", &target.key)
                .with("expected", &target.version)
                .with("found", &answer.meta.version),
        );
    }
    if answer.start != rest.start() || answer.bytes != rest.len() {
        return Err(Error::new(
            Kind::Unavailable,
            "the lake answered with other bytes than it was asked for",
        )
        .with("lake", shared.lake.url())
        .with("key", &target.key)
        .with("asked", rest)
        .with("start", answer.start)
        .with("bytes", answer.bytes));
    }
    let mut body = answer.body;
    let chunk = next_chunk(&mut body, stall_max).await?;
    Ok((chunk, body))
}
