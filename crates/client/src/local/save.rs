//! Saves: tensors are copied once, by several threads, into buffers of the node's arena, and handed over file
//! by file.
//!
//! The copy is what a trainer waits for, so nothing else happens here: no checksum, and no fresh memory where
//! a save like it went before. The node lends the same buffers again, and their mappings are kept
//! (`staging.rs`). A full arena is waited for until the save's deadline; the node empties it file by file, so
//! a window smaller than the state works. A save belongs to the process that began it and to one incarnation
//! of the node: when either ends before it is staged, the node gives it up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_checkpoint::manifest::ObjectKind;
use forebay_checkpoint::pack::{Owned, PackedFile, pack};
use forebay_core::{Error, Kind, Result};
use forebay_wire::group::AllGather;
use forebay_wire::saves::{BeginSave, SaveFile, SaveObject, SavePart, SaveState};
use forebay_wire::writes::StagedBytes;
use forebay_wire::{group, saves};

use super::pool::{PooledConnection, Retry};
use super::session::Local;
use super::staging::StagingBuffer;
use crate::copy::copy_past_cache;
use crate::save::{SaveOptions, StagedSave, TensorPart};
use crate::stats::add;
use crate::wait::Wait;

/// Bytes that a thread copies before it takes the next piece.
const COPY_BYTES: usize = 4 << 20;
/// Time that one request about the end of a save waits in the node.
const WAIT_ONCE: Duration = Duration::from_secs(10);
/// First and longest pause before asking a full arena again.
const BUSY_PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// A save that is being filled. Dropping it gives it up.
pub(crate) struct LocalSave {
    local: Arc<Local>,
    id: String,
    attempt: String,
    file_bytes_max: u64,
    begun: Instant,
    deadline: Instant,
    copied_bytes: AtomicU64,
    copying_ns: AtomicU64,
    waiting_ns: AtomicU64,
    incarnation: u64,
    process: u32,
    /// The node knows how it ends.
    has_ended: bool,
}

impl Local {
    /// Opens a save.
    pub(crate) fn begin_save(self: &Arc<Self>, options: SaveOptions) -> Result<LocalSave> {
        let begun = Instant::now();
        let request = saves::Request::BeginSave(BeginSave {
            root: options.root_name()?,
            step: options.step,
            attempt: options.attempt,
            rank: options.rank,
            world_size: options.world_size,
            supersede: options.supersede,
            staged: options.staged,
            sha256: options.digest_sha256,
            alarms: options.alarms,
            reuse: options.reuse,
            differential: options.differential,
            deadline_ms: u64::try_from(options.deadline.as_millis()).unwrap_or(u64::MAX),
            metadata: options.metadata,
            tree: options.tree,
        });
        let wait = Wait::start(&self.options);
        self.with_connection(Retry::Never, &wait, |connection| {
            let saves::Answer::Saving {
                save,
                attempt,
                file_bytes_max,
            } = connection.ask(&request, &wait)?
            else {
                return Err(other_kind());
            };
            Ok(LocalSave {
                local: Arc::clone(self),
                id: save,
                attempt,
                file_bytes_max,
                begun,
                deadline: begun
                    .checked_add(options.deadline)
                    .unwrap_or(begun + Duration::from_secs(1 << 30)),
                copied_bytes: AtomicU64::new(0),
                copying_ns: AtomicU64::new(0),
                waiting_ns: AtomicU64::new(0),
                incarnation: connection.incarnation,
                process: connection.process(),
                has_ended: false,
            })
        })
    }

    /// Returns how far a save is.
    pub(crate) fn save_state(&self, id: &str) -> Result<SaveState> {
        let request = saves::Request::SaveStates {
            save: Some(id.to_owned()),
            wait_ms: 0,
        };
        one_state(self.call(&request, Retry::Idempotent)?)
    }

    /// Waits for the end of a save.
    pub(crate) fn wait_save(&self, id: &str, timeout: Duration) -> Result<SaveState> {
        let wait = Wait::at_most(timeout, self.options.interrupt.clone());
        loop {
            let once = Duration::from_millis(wait.left_ms().into()).min(WAIT_ONCE);
            let request = saves::Request::SaveStates {
                save: Some(id.to_owned()),
                wait_ms: u32::try_from(once.as_millis()).unwrap_or(u32::MAX),
            };
            let patience = wait.with_grace();
            let state = self.with_connection(Retry::Idempotent, &patience, |connection| {
                one_state(connection.ask(&request, &patience)?)
            })?;
            if state.phase.is_over() {
                return Ok(state);
            }
            wait.check().map_err(|error| match error.kind() {
                Kind::Timeout => still_on_its_way(&state),
                _ => error,
            })?;
        }
    }

    /// All saves that the node knows.
    pub(crate) fn saves(&self) -> Result<Vec<SaveState>> {
        let request = saves::Request::SaveStates {
            save: None,
            wait_ms: 0,
        };
        match self.call(&request, Retry::Idempotent)? {
            saves::Answer::Saves(states) => Ok(states),
            _ => Err(other_kind()),
        }
    }

    /// Gives a save up.
    pub(crate) fn abort_save(&self, id: &str) -> Result<()> {
        let request = saves::Request::AbortSave { save: id.to_owned() };
        match self.call(&request, Retry::Idempotent)? {
            saves::Answer::Done => Ok(()),
            _ => Err(other_kind()),
        }
    }

    /// Exchanges something with the other ranks.
    pub(crate) fn all_gather(
        &self,
        key: &str,
        rank: u32,
        size: u32,
        payload: Vec<u8>,
        timeout: Duration,
    ) -> Result<Vec<Vec<u8>>> {
        let wait = Wait::at_most(timeout, self.options.interrupt.clone());
        let patience = wait.with_grace();
        let request = group::Request::AllGather(AllGather {
            key: key.to_owned(),
            rank,
            size,
            payload,
            timeout_ms: wait.left_ms(),
        });
        self.with_connection(Retry::Idempotent, &patience, |connection| {
            let group::Answer::AllGathered(payloads) = connection.ask(&request, &patience)?;
            Ok(payloads)
        })
    }
}

impl LocalSave {
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn attempt(&self) -> &str {
        &self.attempt
    }

    pub(crate) fn file_bytes_max(&self) -> u64 {
        self.file_bytes_max
    }

    /// Copies tensors and hands them over, file by file.
    pub(crate) fn write(&self, parts: &[TensorPart<'_>], threads: usize) -> Result<()> {
        parts.iter().try_for_each(TensorPart::check)?;
        let boxes: Vec<_> = parts
            .iter()
            .map(|part| Owned {
                name: part.name,
                dtype: part.dtype,
                at: &part.at,
            })
            .collect();
        for file in pack(&boxes, self.file_bytes_max)? {
            self.write_file(parts, &file, threads)?;
        }
        Ok(())
    }

    fn write_file(&self, parts: &[TensorPart<'_>], file: &PackedFile, threads: usize) -> Result<()> {
        let sources = file.pieces.iter().map(|piece| {
            let first = usize::try_from(piece.first).expect("it lies in memory");
            let bytes = usize::try_from(piece.bytes).expect("it lies in memory");
            &parts[piece.owner].bytes[first..first + bytes]
        });
        let described = file.pieces.iter().map(|piece| SavePart {
            name: parts[piece.owner].name.to_owned(),
            dtype: parts[piece.owner].dtype.as_str().to_owned(),
            tensor_shape: parts[piece.owner].global_shape.to_vec(),
            offset: piece.at.offset.clone(),
            shape: piece.at.shape.clone(),
        });
        let described = described.collect();
        self.hand_over(file.bytes, &sources.collect::<Vec<_>>(), threads, |from| {
            saves::Request::SaveFile(SaveFile {
                save: self.id.clone(),
                from,
                parts: described,
            })
        })
    }

    /// Copies an object and hands it over.
    pub(crate) fn object(&self, name: &str, kind: ObjectKind, bytes: &[u8]) -> Result<()> {
        let kind = match kind {
            ObjectKind::Json => "json",
            ObjectKind::Bytes => "bytes",
            ObjectKind::Pickle => "pickle",
        };
        if bytes.len() as u64 > self.file_bytes_max {
            let message = "this object is too large to be saved beside tensors; save it as a tensor of bytes, or raise the node's staging memory";
            return Err(Error::new(Kind::InvalidInput, message)
                .with("object", name)
                .with("bytes", bytes.len())
                .with("bytes_max", self.file_bytes_max));
        }
        self.hand_over(bytes.len() as u64, &[bytes], 1, |from| {
            saves::Request::SaveObject(SaveObject {
                save: self.id.clone(),
                name: name.to_owned(),
                kind: kind.to_owned(),
                from,
            })
        })
    }

    /// One buffer of the arena: waited for, copied to, given to the node.
    fn hand_over(
        &self,
        bytes: u64,
        sources: &[&[u8]],
        threads: usize,
        request: impl FnOnce(StagedBytes) -> saves::Request,
    ) -> Result<()> {
        let since = Instant::now();
        let mut buffer = self.buffer(bytes.max(1))?;
        let copying = Instant::now();
        copy(&mut buffer, sources, threads);
        add(&self.waiting_ns, nanoseconds(copying - since));
        add(&self.copying_ns, nanoseconds(copying.elapsed()));
        add(&self.copied_bytes, bytes);
        add(&self.local.counters.copied_bytes, bytes);
        let (mapping, mut ticket) = buffer.into_mapping();
        let request = request(StagedBytes {
            buffer: ticket.buffer,
            bytes,
            crc32c: None,
        });
        let answer = self.ask(&request, || ticket.spent = true);
        self.local
            .keep_mapping(ticket.buffer, mapping, ticket.incarnation);
        match answer? {
            saves::Answer::Done => Ok(()),
            _ => Err(other_kind()),
        }
    }

    /// A buffer of the arena, waited for until the deadline of the save.
    fn buffer(&self, bytes: u64) -> Result<StagingBuffer> {
        let wait = self.wait();
        let (mut pause, pause_max) = BUSY_PAUSE;
        loop {
            let lent = self
                .local
                .with_connection(Retry::Idempotent, &wait, |connection| {
                    self.check_is_of(connection)?;
                    self.local.try_lend(connection, bytes, &wait)
                });
            let busy = match lent {
                Err(error) if error.kind() == Kind::Busy => error,
                other => return other,
            };
            // While nothing leaves the arena, the save itself may have failed.
            let state = self.local.save_state(&self.id)?;
            if state.phase.is_over() {
                return Err(failure_of(state));
            }
            wait.pause(pause).map_err(|stop| match stop.kind() {
                Kind::Cancelled => stop,
                _ => busy,
            })?;
            pause = (pause * 2).min(pause_max);
        }
    }

    /// Hands the save over.
    pub(crate) fn stage(mut self) -> Result<StagedSave> {
        let request = saves::Request::StageSave {
            save: self.id.clone(),
        };
        let mut is_sent = false;
        let answer = self.ask(&request, || is_sent = true);
        let state = answer.and_then(one_state);
        // An answer that was lost leaves it to the node: it may have been staged.
        self.has_ended = is_sent;
        Ok(StagedSave {
            id: self.id.clone(),
            attempt: self.attempt.clone(),
            stall: self.begun.elapsed(),
            copying: Duration::from_nanos(self.copying_ns.load(Ordering::Relaxed)),
            waiting: Duration::from_nanos(self.waiting_ns.load(Ordering::Relaxed)),
            copied_bytes: self.copied_bytes.load(Ordering::Relaxed),
            state: state?,
        })
    }

    /// Gives it up.
    pub(crate) fn abort(mut self) -> Result<()> {
        self.has_ended = true;
        let request = saves::Request::AbortSave {
            save: self.id.clone(),
        };
        match self.ask(&request, || {})? {
            saves::Answer::Done => Ok(()),
            _ => Err(other_kind()),
        }
    }

    /// Patience until the deadline, and a little more, so that the node says itself that time is up.
    fn wait(&self) -> Wait {
        let left = self.deadline.saturating_duration_since(Instant::now());
        Wait::at_most(left, self.local.options.interrupt.clone()).with_grace()
    }

    /// Asks about this save, once. `before` is called when it is sure to be sent.
    fn ask(&self, request: &saves::Request, mut before: impl FnMut()) -> Result<saves::Answer> {
        let wait = self.wait();
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
            "the save belongs to a node or process that is gone and was given up; save the step again",
        )
        .with("save", &self.id))
    }
}

impl Drop for LocalSave {
    fn drop(&mut self) {
        if !self.has_ended {
            let abort = saves::Request::AbortSave {
                save: self.id.clone(),
            };
            self.local
                .send_oneway_later(abort, self.incarnation, self.process);
        }
    }
}

/// Copies sources, one after the other, with so many threads.
fn copy(target: &mut [u8], sources: &[&[u8]], threads: usize) {
    let mut rest = target;
    let mut jobs = Vec::new();
    for source in sources {
        let (mut mine, behind) = rest.split_at_mut(source.len());
        rest = behind;
        for some in source.chunks(COPY_BYTES) {
            let (first, later) = mine.split_at_mut(some.len());
            jobs.push((first, some));
            mine = later;
        }
    }
    let threads = threads.clamp(1, jobs.len().max(1));
    if threads == 1 {
        return jobs
            .into_iter()
            .for_each(|(target, source)| copy_past_cache(target, source));
    }
    let jobs = Mutex::new(jobs.into_iter());
    let work = || {
        while let Some((target, source)) = {
            let mut jobs = jobs.lock().unwrap_or_else(PoisonError::into_inner);
            jobs.next()
        } {
            copy_past_cache(target, source);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn one_state(answer: saves::Answer) -> Result<SaveState> {
    match answer {
        saves::Answer::Saves(mut states) => states.pop().ok_or_else(other_kind),
        _ => Err(other_kind()),
    }
}

/// Why a save failed.
fn failure_of(state: SaveState) -> Error {
    match state.last_error {
        Some(failure) => Error::from(failure),
        None => Error::new(Kind::Cancelled, "the save was given up"),
    }
    .with("save", state.id)
}

fn still_on_its_way(state: &SaveState) -> Error {
    let message = "the save is not durable yet; wait longer, or look at its state";
    let error = Error::new(Kind::Timeout, message)
        .with("save", &state.id)
        .with("phase", state.phase.as_str())
        .with("age_ms", state.age_ms);
    match &state.last_error {
        Some(last_error) => error.with("last_error", &last_error.message),
        None => error,
    }
}

fn other_kind() -> Error {
    Error::new(Kind::Corrupt, "the node gave an answer of another kind")
}
