//! Long work with an id: shown, waited for, stopped.
//!
//! A job is started by the admin API, runs in a task that the table owns, and moves once from `running` to
//! `done`, `failed` or `stopped`. The table is bounded: so many run at once (more is `Busy`), so many
//! finished ones are remembered (the oldest are forgotten). Jobs die with the node; none survives a restart.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use forebay_core::{Clock, Error, Kind, Result};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

#[cfg(test)]
mod tests;

/// Finished jobs that are remembered.
const FINISHED_MAX: usize = 256;

/// Kind of work of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobKind {
    /// Reads every object below a prefix into the cache.
    Warm,
    /// Drops what is cached below a prefix.
    Evict,
    /// Keeps what is cached below a prefix.
    Pin,
    /// Ends a pin.
    Unpin,
}

/// State of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// At work.
    Running,
    /// Finished.
    Done,
    /// Ended by an error, or some of its objects failed.
    Failed,
    /// Stopped on purpose.
    Stopped,
}

/// A job as people see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct JobInfo {
    /// Its id.
    pub id: String,
    /// Effect.
    pub kind: JobKind,
    /// Its target: `bucket/prefix`.
    pub target: String,
    /// Its state.
    pub state: JobState,
    /// Objects finished.
    pub objects_done: u64,
    /// Objects found so far.
    pub objects_found: u64,
    /// Objects that failed or vanished on the way.
    pub objects_failed: u64,
    /// Bytes finished.
    pub bytes_done: u64,
    /// Bytes found so far.
    pub bytes_found: u64,
    /// Start (RFC 3339).
    pub started: String,
    /// End (RFC 3339).
    pub ended: Option<String>,
    /// Why it failed, or the first failure of one of its objects.
    pub error: Option<String>,
    /// Why it makes no progress at present: its lake throttles or is away. It goes on by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
}

/// Progress of a job: its body reports here, and learns here that it shall stop.
#[derive(Debug, Default)]
pub struct Progress {
    /// Objects finished.
    pub objects_done: AtomicU64,
    /// Objects found so far.
    pub objects_found: AtomicU64,
    /// Objects that failed.
    pub objects_failed: AtomicU64,
    /// Bytes finished.
    pub bytes_done: AtomicU64,
    /// Bytes found so far.
    pub bytes_found: AtomicU64,
    first_failure: Mutex<Option<String>>,
    waiting: Mutex<Option<String>>,
    stop: CancellationToken,
}

impl Progress {
    /// Counts a failed object; the first one is kept for people to read.
    pub fn fail_object(&self, error: &Error) {
        self.objects_failed.fetch_add(1, Ordering::Relaxed);
        self.first_failure.lock().get_or_insert_with(|| error.to_string());
    }

    /// Says why the job makes no progress at present, or that it goes on.
    pub fn set_waiting(&self, why: Option<String>) {
        *self.waiting.lock() = why;
    }

    /// The end of a job whose body has finished: one with failed objects has failed.
    fn end(&self) -> (JobState, Option<String>) {
        let failed = self.objects_failed.load(Ordering::Relaxed);
        match &*self.first_failure.lock() {
            None => (JobState::Done, None),
            Some(first) => {
                let found = self.objects_found.load(Ordering::Relaxed);
                let error = format!("{failed} of {found} objects failed; the first: {first}");
                (JobState::Failed, Some(error))
            }
        }
    }

    /// Fires when the job shall stop.
    #[must_use]
    pub fn stop(&self) -> &CancellationToken {
        &self.stop
    }
}

#[derive(Debug)]
struct Job {
    id: String,
    kind: JobKind,
    target: String,
    started: SystemTime,
    progress: Arc<Progress>,
    outcome: watch::Sender<Option<Outcome>>,
}

#[derive(Debug, Clone)]
struct Outcome {
    state: JobState,
    ended: SystemTime,
    error: Option<String>,
}

/// The table of jobs. Clones share it.
#[derive(Debug, Clone)]
pub struct Jobs {
    table: Arc<Mutex<VecDeque<Arc<Job>>>>,
    running_max: usize,
    clock: Arc<dyn Clock>,
    tasks: TaskTracker,
}

impl Jobs {
    /// An empty table that lets so many run at once.
    #[must_use]
    pub fn new(running_max: usize, clock: Arc<dyn Clock>) -> Self {
        Self {
            table: Arc::default(),
            running_max,
            clock,
            tasks: TaskTracker::new(),
        }
    }

    /// Starts a job; `Busy` when too many run already or the node is stopping.
    pub fn start<F>(
        &self,
        kind: JobKind,
        target: String,
        body: impl FnOnce(Arc<Progress>) -> F,
    ) -> Result<JobInfo>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let job = Arc::new(Job {
            id: format!("{:08x}", fastrand::u32(..)),
            kind,
            target,
            started: self.clock.wall(),
            progress: Arc::default(),
            outcome: watch::Sender::new(None),
        });
        self.admit(&job)?;
        let work = body(Arc::clone(&job.progress));
        let (owned, clock) = (Arc::clone(&job), Arc::clone(&self.clock));
        self.tasks.spawn(async move {
            let result = tokio::select! {
                biased;
                () = owned.progress.stop.cancelled() => Err(Error::new(Kind::Cancelled, "the job was stopped")),
                result = work => result,
            };
            let (state, error) = match result {
                Ok(()) => owned.progress.end(),
                Err(error) if error.kind() == Kind::Cancelled => (JobState::Stopped, None),
                Err(error) => (JobState::Failed, Some(error.to_string())),
            };
            tracing::info!(job = owned.id, kind = ?owned.kind, target = owned.target, ?state, error, "job ended");
            owned.outcome.send_replace(Some(Outcome { state, ended: clock.wall(), error }));
        });
        Ok(job.info())
    }

    fn admit(&self, job: &Arc<Job>) -> Result<()> {
        let mut table = self.table.lock();
        let running = table.iter().filter(|job| job.is_running()).count();
        if running >= self.running_max || self.tasks.is_closed() {
            let message = format!("{running} jobs run already; wait for one or stop one (forebay jobs)");
            return Err(Error::new(Kind::Busy, message));
        }
        while table.len() - running >= FINISHED_MAX {
            let Some(oldest) = table.iter().position(|job| !job.is_running()) else {
                break;
            };
            table.remove(oldest);
        }
        table.push_back(Arc::clone(job));
        Ok(())
    }

    /// All jobs, the newest first.
    #[must_use]
    pub fn list(&self) -> Vec<JobInfo> {
        self.table.lock().iter().rev().map(|job| job.info()).collect()
    }

    /// Returns how many run now.
    #[must_use]
    pub fn running(&self) -> usize {
        self.table.lock().iter().filter(|job| job.is_running()).count()
    }

    /// One job.
    pub fn show(&self, id: &str) -> Result<JobInfo> {
        self.find(id).map(|job| job.info())
    }

    /// One job when it has ended, or as it is after `timeout`. Cancel-safe.
    pub async fn wait(&self, id: &str, timeout: Duration) -> Result<JobInfo> {
        let job = self.find(id)?;
        let mut outcome = job.outcome.subscribe();
        // Neither a passed deadline nor a closed channel is an error: the caller sees the state.
        let _ = tokio::time::timeout(timeout, outcome.wait_for(Option::is_some)).await;
        Ok(job.info())
    }

    /// Tells a job to stop; one that has ended stays as it is.
    pub fn stop(&self, id: &str) -> Result<JobInfo> {
        let job = self.find(id)?;
        job.progress.stop.cancel();
        Ok(job.info())
    }

    /// Stops all jobs and waits for them, at most so long.
    pub async fn shutdown(&self, deadline: Duration) {
        self.tasks.close();
        for job in self.table.lock().iter() {
            job.progress.stop.cancel();
        }
        if tokio::time::timeout(deadline, self.tasks.wait()).await.is_err() {
            tracing::warn!("jobs did not stop in time");
        }
    }

    fn find(&self, id: &str) -> Result<Arc<Job>> {
        let table = self.table.lock();
        let found = table.iter().find(|job| job.id == id).cloned();
        found.ok_or_else(|| Error::new(Kind::NotFound, "no such job; see forebay jobs").with("job", id))
    }
}

impl Job {
    fn is_running(&self) -> bool {
        self.outcome.borrow().is_none()
    }

    fn info(&self) -> JobInfo {
        let outcome = self.outcome.borrow().clone();
        let progress = &self.progress;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        JobInfo {
            id: self.id.clone(),
            kind: self.kind,
            target: self.target.clone(),
            state: outcome
                .as_ref()
                .map_or(JobState::Running, |outcome| outcome.state),
            objects_done: count(&progress.objects_done),
            objects_found: count(&progress.objects_found),
            objects_failed: count(&progress.objects_failed),
            bytes_done: count(&progress.bytes_done),
            bytes_found: count(&progress.bytes_found),
            started: timestamp(self.started),
            ended: outcome.as_ref().map(|outcome| timestamp(outcome.ended)),
            waiting: progress.waiting.lock().clone().filter(|_| outcome.is_none()),
            error: outcome
                .and_then(|outcome| outcome.error)
                .or_else(|| progress.first_failure.lock().clone()),
        }
    }
}

/// RFC 3339, to the second.
pub(crate) fn timestamp(time: SystemTime) -> String {
    let text = jiff::Timestamp::try_from(time)
        .ok()
        .and_then(|t| t.round(jiff::Unit::Second).ok())
        .map(|t| t.to_string());
    text.unwrap_or_default()
}
