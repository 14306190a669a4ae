//! `CheckpointSave`: a save that is being filled, and what is known about saves.
//!
//! Tensors are copied on threads of the client while the interpreter runs on; the thread that called waits
//! for them and can be interrupted. An object that goes away without `stage` gives its save up.

use std::sync::Arc;

use forebay_client::{
    AlarmPolicy, Differential, Dtype, ObjectKind, Save, SaveOptions, SaveState, StagedIn, StagedSave,
    TensorBox, TensorPart,
};
use forebay_core::{Error, Kind};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::memory::TensorMemory;
use crate::arguments::{duration, words};
use crate::buffer::Memory;
use crate::error;
use crate::node::Client;
use crate::waiting::wait;

/// A tensor as Python gives it: name, type, shape of the whole, where the box begins, its shape, memory.
type TensorRow<'py> = (String, String, Vec<u64>, Vec<u64>, Vec<u64>, Bound<'py, PyAny>);

/// A save of one rank, to be filled.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct CheckpointSave {
    /// Until it is staged or given up; calls that fill it share it.
    save: Mutex<Option<Arc<Save>>>,
    #[pyo3(get)]
    id: String,
    #[pyo3(get)]
    attempt: String,
    #[pyo3(get)]
    file_bytes_max: u64,
}

impl CheckpointSave {
    fn share(&self, py: Python<'_>) -> PyResult<Arc<Save>> {
        let save = self.save.lock().clone();
        save.ok_or_else(|| error::to_err(py, &ended()))
    }

    /// Takes it out to end it; refused while a call fills it.
    fn take(&self, py: Python<'_>) -> PyResult<Save> {
        let mut guard = self.save.lock();
        let save = guard.take().ok_or_else(|| error::to_err(py, &ended()))?;
        Arc::try_unwrap(save).map_err(|save| {
            *guard = Some(save);
            error::invalid(py, "another thread is still filling the save; wait for it first")
        })
    }
}

#[pymethods]
impl CheckpointSave {
    /// Opens it. What is left out is as [`SaveOptions::new`] says.
    #[new]
    #[pyo3(signature = (
        client, root, step, *, attempt=None, rank=0, world_size=1, supersede=false, staged=None, digest=None,
        alarms=None, reuse=true, differential=None, deadline=None, metadata=None, tree=None,
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        py: Python<'_>,
        client: &Client,
        root: &str,
        step: u64,
        attempt: Option<String>,
        rank: u32,
        world_size: u32,
        supersede: bool,
        staged: Option<StagedWord>,
        digest: Option<DigestWord>,
        alarms: Option<AlarmsWord>,
        reuse: bool,
        differential: Option<DifferentialWord>,
        deadline: Option<f64>,
        metadata: Option<String>,
        tree: Option<String>,
    ) -> PyResult<Self> {
        let usual = SaveOptions::new(root, step);
        let options = SaveOptions {
            attempt,
            rank,
            world_size,
            supersede,
            staged: staged.map_or(usual.staged, |word| word.0),
            digest_sha256: digest.map_or(usual.digest_sha256, |word| word.0),
            alarms: alarms.map_or(usual.alarms, |word| word.0),
            reuse,
            differential: differential.map_or(usual.differential, |word| word.0),
            deadline: match deadline {
                Some(seconds) => duration(py, seconds)?,
                None => usual.deadline,
            },
            metadata: metadata.unwrap_or(usual.metadata),
            tree: tree.unwrap_or(usual.tree),
            ..SaveOptions::new(root, step)
        };
        let client = client.client(py)?;
        let save = wait(py, || client.begin_save(options))?;
        Ok(Self {
            id: save.id().to_owned(),
            attempt: save.attempt().to_owned(),
            file_bytes_max: save.file_bytes_max(),
            save: Mutex::new(Some(Arc::new(save))),
        })
    }

    /// Copies tensors, so many threads at a time. Their memory is not needed any more when it returns.
    fn write(&self, py: Python<'_>, parts: &Bound<'_, PyList>, threads: usize) -> PyResult<()> {
        let save = self.share(py)?;
        let mut given = Vec::with_capacity(parts.len());
        for part in parts {
            let (name, dtype, global_shape, offset, shape, memory): TensorRow<'_> = part.extract()?;
            let dtype = Dtype::parse(&dtype).map_err(|why| error::to_err(py, &why.with("tensor", &name)))?;
            let at = TensorBox { offset, shape };
            given.push((name, dtype, global_shape, at, TensorMemory::of(&memory)?));
        }
        let parts: Vec<TensorPart<'_>> = given
            .iter()
            .map(|(name, dtype, global_shape, at, place)| TensorPart {
                name,
                dtype: *dtype,
                global_shape,
                at: at.clone(),
                bytes: place.as_slice(),
            })
            .collect();
        wait(py, move || save.write(&parts, threads))
    }

    /// Adds state that is not a tensor; kind `json`, `bytes` or `pickle`.
    fn object(&self, py: Python<'_>, name: &str, kind: KindWord, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let save = self.share(py)?;
        let memory = Memory::of(data)?;
        let bytes = memory.as_slice();
        wait(py, move || save.object(name, kind.0, bytes))
    }

    /// Hands it over: from here on the node goes on alone.
    fn stage<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let save = self.take(py)?;
        let staged = wait(py, || save.stage())?;
        report(py, &staged)
    }

    /// Gives it up; fine if it has ended already.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        if self.save.lock().is_none() {
            return Ok(());
        }
        let save = self.take(py)?;
        wait(py, || save.abort())
    }
}

impl Drop for CheckpointSave {
    fn drop(&mut self) {
        let save = self.save.get_mut().take();
        let _ = Python::try_attach(|py| py.detach(|| drop(save)));
    }
}

fn ended() -> Error {
    Error::new(Kind::InvalidInput, "the save was staged or given up already")
}

words! {
    StagedWord(StagedIn) = "staged" { "ram" => StagedIn::Ram, "nvme" => StagedIn::Nvme }
    DigestWord(bool) = "digest" { "blake3" => false, "sha256" => true }
    AlarmsWord(AlarmPolicy) = "alarms" {
        "warn" => AlarmPolicy::Warn,
        "refuse" => AlarmPolicy::Refuse,
        "off" => AlarmPolicy::Off,
    }
    DifferentialWord(Differential) = "differential" { "off" => Differential::Off, "auto" => Differential::Auto }
    KindWord(ObjectKind) = "kind" {
        "json" => ObjectKind::Json,
        "bytes" => ObjectKind::Bytes,
        "pickle" => ObjectKind::Pickle,
    }
}

/// Returns what a staged save cost, and how far it is.
fn report<'py>(py: Python<'py>, staged: &StagedSave) -> PyResult<Bound<'py, PyDict>> {
    let found = state(py, &staged.state)?;
    found.set_item("stall_seconds", staged.stall.as_secs_f64())?;
    found.set_item("copy_seconds", staged.copying.as_secs_f64())?;
    found.set_item("wait_seconds", staged.waiting.as_secs_f64())?;
    found.set_item("bytes_copied", staged.copied_bytes)?;
    Ok(found)
}

/// Returns what the node knows about a save. `error` is an exception: why it failed, or the last error of
/// the lake.
pub(super) fn state<'py>(py: Python<'py>, state: &SaveState) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    let root = match state.root.key.as_str() {
        "" => format!("forebay://{}", state.root.bucket),
        key => format!("forebay://{}/{key}", state.root.bucket),
    };
    found.set_item("id", &state.id)?;
    found.set_item("root", root)?;
    found.set_item("step", state.step)?;
    found.set_item("attempt", &state.attempt)?;
    found.set_item("rank", state.rank)?;
    found.set_item("world_size", state.world_size)?;
    found.set_item("phase", state.phase.as_str())?;
    found.set_item(
        "staged",
        match state.staged {
            StagedIn::Ram => "ram",
            StagedIn::Nvme => "nvme",
        },
    )?;
    found.set_item("survives", state.survives.as_str())?;
    found.set_item("generation", state.generation)?;
    found.set_item("parent", state.parent)?;
    found.set_item("bytes", state.bytes)?;
    found.set_item("bytes_written", state.written_bytes)?;
    found.set_item("bytes_reused", state.reused_bytes)?;
    found.set_item("bytes_encoded", state.encoded_bytes)?;
    found.set_item("bytes_encoded_stored", state.encoded_stored_bytes)?;
    found.set_item("files", state.files)?;
    let seconds = |ms: u64| ms as f64 / 1e3;
    found.set_item("age_seconds", seconds(state.age_ms))?;
    found.set_item("staged_seconds", state.staged_ms.map(seconds))?;
    found.set_item("ended_seconds", state.ended_ms.map(seconds))?;
    found.set_item("alarms", &state.alarms)?;
    let last_error = state.last_error.clone().map(Error::from);
    found.set_item(
        "error",
        last_error.map(|why| error::to_object(py, &why)).transpose()?,
    )?;
    Ok(found)
}
