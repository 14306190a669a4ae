//! `CheckpointRoot`: the steps of a run, and the saves of it that a node knows. Documented for people in `forebay/checkpoints.py`.
//!
//! `checkpoint/save.rs` is a save that is being filled, `checkpoint/step.rs` one committed step, `checkpoint/memory.rs` the memory that tensors
//! are copied from and to, `checkpoint/shares.rs` what each of several ranks writes.

mod memory;
mod save;
mod shares;
mod step;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use forebay_checkpoint::retention::Policy;
use forebay_steps::{PruneOptions, Pruned, Root, Victims};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

pub(crate) use save::CheckpointSave;
pub(crate) use shares::checkpoint_shares;
pub(crate) use step::CheckpointStep;

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

    /// Where it is, `forebay://bucket/folder`.
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
                Ok(forebay_steps::Step::new(self.root.clone(), manifest))
            }
            None => self.root.step(step),
        })?;
        Ok(CheckpointStep::new(Arc::clone(&self.address), found))
    }

    /// Removes steps, and what nobody needs any more. `options`: see `victims`; `age` in seconds, `now` in seconds since 1970, `dry_run`.
    fn prune<'py>(
        &self,
        py: Python<'py>,
        now: f64,
        age: f64,
        dry_run: bool,
        options: &Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let options = PruneOptions {
            victims: victims(py, options)?,
            age_ms_min: milliseconds(py, age)?,
            now_ms: milliseconds(py, now)?,
            is_dry_run: dry_run,
        };
        let pruned = wait(py, || self.root.prune(&options))?;
        to_dict(py, &pruned)
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

    /// How far a save is.
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
    fn gather<'py>(
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
            self.root.client().gather(key, rank, size, payload, timeout)
        })?;
        Ok(found.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }
}

/// A length of time in seconds.
fn duration(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|why| error::invalid(py, format!("{seconds} is no length of time: {why}")))
}

fn milliseconds(py: Python<'_>, seconds: f64) -> PyResult<u64> {
    Ok(u64::try_from(duration(py, seconds)?.as_millis())?)
}

/// `steps`, or `keep_last` and `keep_every`.
fn victims(py: Python<'_>, options: &Bound<'_, PyDict>) -> PyResult<Victims> {
    let mut policy = Policy {
        keep_last: u32::MAX,
        keep_every: None,
    };
    let mut steps: Option<BTreeSet<u64>> = None;
    for (name, value) in options {
        if value.is_none() {
            continue;
        }
        match name.extract::<String>()?.as_str() {
            "keep_last" => policy.keep_last = value.extract()?,
            "keep_every" => policy.keep_every = Some(value.extract()?),
            "steps" => steps = Some(value.extract::<Vec<u64>>()?.into_iter().collect()),
            other => return Err(error::invalid(py, format!("pruning has no option {other:?}"))),
        }
    }
    Ok(steps.map_or(Victims::ByPolicy(policy), Victims::Steps))
}

fn to_dict<'py>(py: Python<'py>, pruned: &Pruned) -> PyResult<Bound<'py, PyDict>> {
    let refs = |refs: &[forebay_checkpoint::manifest::StepRef]| -> Vec<(u64, u32)> {
        refs.iter().map(|one| (one.step, one.generation)).collect()
    };
    let found = PyDict::new(py);
    found.set_item("commits", refs(&pruned.commits))?;
    found.set_item("in_use", refs(&pruned.in_use))?;
    found.set_item("files", &pruned.files)?;
    found.set_item("bytes", pruned.bytes)?;
    found.set_item("kept", &pruned.kept)?;
    Ok(found)
}
