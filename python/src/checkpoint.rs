//! `CheckpointRoot`: the steps of a run, and the saves of it that a node knows. Documented for people in
//! `forebay/checkpoints.py`.
//!
//! `checkpoint/save.rs` is a save that is being filled, `checkpoint/step.rs` one committed step,
//! `checkpoint/memory.rs` the memory that tensors are copied from and to, `checkpoint/shares.rs` what each of
//! several ranks writes.

mod memory;
mod save;
mod shares;
mod step;

use std::sync::Arc;

use forebay_checkpoint::manifest::StepRef;
use forebay_checkpoint::retention::Policy;
use forebay_checkpoint_client::{PruneOptions, PruneSelection, Pruned, Root};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

pub(crate) use save::CheckpointSave;
pub(crate) use shares::checkpoint_shares;
pub(crate) use step::{CheckpointStep, VerifyReport};

use crate::arguments::duration;
use crate::error;
use crate::node::Client;
use crate::waiting::wait;

/// A run: the folder that its steps lie in.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct CheckpointRoot {
    root: Root,
    address: Arc<str>,
}

#[pymethods]
impl CheckpointRoot {
    #[new]
    fn new(py: Python<'_>, client: &Client, url: &str) -> PyResult<Self> {
        let root = Root::open(client.client(py)?, url).map_err(|why| error::to_err(py, &why))?;
        Ok(Self {
            root,
            address: client.shared_address(),
        })
    }

    /// Returns where it is, `forebay://bucket/folder`.
    #[getter]
    fn url(&self) -> String {
        self.root.to_string()
    }

    /// Committed steps and the generation that holds, in order.
    fn steps(&self, py: Python<'_>) -> PyResult<Vec<(u64, u32)>> {
        wait(py, || Ok(self.root.steps()?.into_iter().collect()))
    }

    /// The newest committed step.
    fn latest(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        wait(py, || self.root.latest())
    }

    /// A committed step, ready to be read; of this generation, or of the highest.
    #[pyo3(signature = (step, generation=None))]
    fn step(&self, py: Python<'_>, step: u64, generation: Option<u32>) -> PyResult<CheckpointStep> {
        let found = wait(py, || match generation {
            Some(generation) => {
                let manifest = self.root.manifest_of(step, generation)?;
                Ok(forebay_checkpoint_client::Step::new(self.root.clone(), manifest))
            }
            None => self.root.step(step),
        })?;
        Ok(CheckpointStep::new(Arc::clone(&self.address), found))
    }

    /// Removes steps, and what nobody needs any more: just `steps`, or what `keep_last` and `keep_every`
    /// leave. `age` is in seconds, `now` in seconds since 1970.
    #[pyo3(signature = (*, now, age, dry_run, keep_last, keep_every, steps))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn prune(
        &self,
        py: Python<'_>,
        now: f64,
        age: f64,
        dry_run: bool,
        keep_last: Option<u32>,
        keep_every: Option<u64>,
        steps: Option<Vec<u64>>,
    ) -> PyResult<PruneReport> {
        let policy = Policy {
            keep_last: keep_last.unwrap_or(u32::MAX),
            keep_every,
        };
        let options = PruneOptions {
            selection: steps.map_or(PruneSelection::ByPolicy(policy), |steps| {
                PruneSelection::Steps(steps.into_iter().collect())
            }),
            age_ms_min: milliseconds(py, age)?,
            now_ms: milliseconds(py, now)?,
            is_dry_run: dry_run,
        };
        Ok(PruneReport::of(wait(py, || self.root.prune(&options))?))
    }

    /// The saves of this run that the node knows, oldest first.
    fn saves<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let root = self.root.to_string();
        let states = wait(py, || self.root.client().saves(&root))?;
        let found = PyList::empty(py);
        for state in &states {
            found.append(save::state(py, state)?)?;
        }
        Ok(found)
    }

    /// Returns how far a save is.
    fn save_state<'py>(&self, py: Python<'py>, id: &str) -> PyResult<Bound<'py, PyDict>> {
        let state = wait(py, || self.root.client().save_state(id))?;
        save::state(py, &state)
    }

    /// Waits until a save is over; an error if it is not by then.
    fn wait_save<'py>(&self, py: Python<'py>, id: &str, timeout: f64) -> PyResult<Bound<'py, PyDict>> {
        let timeout = duration(py, timeout)?;
        let state = wait(py, || self.root.client().wait_save(id, timeout))?;
        save::state(py, &state)
    }

    /// Gives a save up.
    fn abort_save(&self, py: Python<'_>, id: &str) -> PyResult<()> {
        wait(py, || self.root.client().abort_save(id))
    }

    /// Exchanges bytes between all ranks on this host.
    fn all_gather<'py>(
        &self,
        py: Python<'py>,
        key: &str,
        rank: u32,
        size: u32,
        payload: Vec<u8>,
        timeout: f64,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let timeout = duration(py, timeout)?;
        let found = wait(py, || {
            self.root.client().all_gather(key, rank, size, payload, timeout)
        })?;
        Ok(found.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }
}

fn milliseconds(py: Python<'_>, seconds: f64) -> PyResult<u64> {
    Ok(u64::try_from(duration(py, seconds)?.as_millis())?)
}

/// Steps and files that a prune removed, or would remove. Steps come with their generation.
#[pyclass(frozen, get_all, module = "forebay._native")]
pub(crate) struct PruneReport {
    commits: Vec<(u64, u32)>,
    in_use: Vec<(u64, u32)>,
    files: Vec<String>,
    bytes: u64,
    kept: Vec<u64>,
}

impl PruneReport {
    fn of(pruned: Pruned) -> Self {
        let refs = |refs: &[StepRef]| refs.iter().map(|one| (one.step, one.generation)).collect();
        Self {
            commits: refs(&pruned.commits),
            in_use: refs(&pruned.in_use),
            files: pruned.files,
            bytes: pruned.bytes,
            kept: pruned.kept,
        }
    }
}
