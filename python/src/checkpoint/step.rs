//! `CheckpointStep`: one committed step, to be loaded, looked at and verified.

use std::sync::Arc;

use forebay_checkpoint_client::{Loaded, Step, TensorView, Verified, Want};
use forebay_client::TensorBox;
use forebay_core::{Error, Kind};
use forebay_loader::Memory;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use super::memory::{TensorMemory, apart};
use crate::error;
use crate::view::View;
use crate::waiting::wait;

/// A box that is wanted: tensor, where it begins, its shape, memory.
type WantRow<'py> = (String, Vec<u64>, Vec<u64>, Bound<'py, PyAny>);

/// A committed step.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct CheckpointStep {
    step: Step,
    address: Arc<str>,
}

impl CheckpointStep {
    pub(super) fn new(address: Arc<str>, step: Step) -> Self {
        Self { step, address }
    }
}

/// Bytes of a tensor view as memory that Python may hold.
struct TensorBytes(TensorView);

impl AsRef<[u8]> for TensorBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[pymethods]
impl CheckpointStep {
    #[getter]
    fn step(&self) -> u64 {
        self.step.manifest().step
    }

    #[getter]
    fn generation(&self) -> u32 {
        self.step.manifest().generation
    }

    #[getter]
    fn world_size(&self) -> u32 {
        self.step.manifest().world_size
    }

    /// The commit, as JSON.
    fn manifest(&self, py: Python<'_>) -> PyResult<String> {
        let text = py.detach(|| serde_json::to_string(self.step.manifest()));
        text.map_err(|why| {
            let error = Error::new(Kind::Internal, "a manifest is no JSON").caused_by(why);
            error::to_err(py, &error)
        })
    }

    /// Returns how names make up the state again, as JSON.
    fn tree(&self) -> String {
        self.step.manifest().content.tree.text().to_owned()
    }

    /// Returns what the user gave with the step, as JSON.
    fn metadata(&self, py: Python<'_>) -> PyResult<String> {
        let text = serde_json::to_string(&self.step.manifest().content.metadata);
        text.map_err(|why| error::invalid(py, why.to_string()))
    }

    /// Tensors by name: type and shape.
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = PyDict::new(py);
        for (name, tensor) in &self.step.manifest().content.tensors {
            let shape = pyo3::types::PyTuple::new(py, &tensor.shape)?;
            found.set_item(name, (tensor.dtype.as_str(), shape))?;
        }
        Ok(found)
    }

    /// The boxes that a tensor was saved in: where each begins, and its shape.
    fn parts(&self, py: Python<'_>, name: &str) -> PyResult<Vec<(Vec<u64>, Vec<u64>)>> {
        let tensor = self.step.tensor(name).map_err(|why| error::to_err(py, &why))?;
        let boxes = tensor.parts.iter().map(|part| &part.at);
        Ok(boxes.map(|at| (at.offset.clone(), at.shape.clone())).collect())
    }

    /// Names of what is not a tensor.
    fn objects(&self) -> Vec<&str> {
        let objects = self.step.manifest().content.objects.keys();
        objects.map(String::as_str).collect()
    }

    /// State that is not a tensor: its kind and bytes; of this rank, or of the first that has it.
    #[pyo3(signature = (name, rank=None))]
    fn object<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        rank: Option<u32>,
    ) -> PyResult<(&'static str, Bound<'py, PyBytes>)> {
        let (kind, bytes) = wait(py, || self.step.object(name, rank))?;
        let kind = match kind {
            forebay_client::ObjectKind::Json => "json",
            forebay_client::ObjectKind::Bytes => "bytes",
            forebay_client::ObjectKind::Pickle => "pickle",
        };
        Ok((kind, PyBytes::new(py, &bytes)))
    }

    /// Fills memory with boxes of tensors: bytes that were wanted, bytes that were read for it.
    ///
    /// Places that share bytes are filled one after the other.
    fn load(&self, py: Python<'_>, wants: &Bound<'_, PyList>, threads: usize) -> PyResult<(u64, u64)> {
        let (mut boxes, mut places) = (Vec::with_capacity(wants.len()), Vec::with_capacity(wants.len()));
        for want in wants {
            let (name, offset, shape, memory): WantRow<'_> = want.extract()?;
            boxes.push((name, TensorBox { offset, shape }));
            places.push(TensorMemory::of(&memory)?);
        }
        let (first, later) = apart(&places);
        let later: Vec<usize> = later
            .into_iter()
            .filter(|index| !is_again(*index, &boxes, &places))
            .collect();
        let mut loaded = Loaded::default();
        for round in std::iter::once(first).chain(later.into_iter().map(|index| vec![index])) {
            let mut targets = Vec::with_capacity(round.len());
            let chosen = pick(&mut places, &round);
            for (index, place) in chosen {
                let (name, at) = &boxes[index];
                targets.push(Want {
                    name,
                    at: at.clone(),
                    target: place.as_mut_slice(py)?,
                });
            }
            let done = wait(py, || self.step.load(&mut targets, threads))?;
            loaded.bytes += done.bytes;
            loaded.read_bytes += done.read_bytes;
        }
        Ok((loaded.bytes, loaded.read_bytes))
    }

    /// Tensors where the node keeps them, each proved now, in this order.
    fn views(&self, py: Python<'_>, names: Vec<String>, threads: usize) -> PyResult<Vec<View>> {
        let views = wait(py, move || {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            self.step.views(&names, threads)
        })?;
        let view = |found: TensorView| {
            let memory = match found.view() {
                Some(view) => Memory::View(view.clone()),
                None => Memory::Heap(Arc::new(TensorBytes(found.clone()))),
            };
            View::part(Arc::clone(&self.address), Some(memory), 0..found.len())
        };
        Ok(views.into_iter().map(view).collect())
    }

    /// Proves every byte, or looks only for files and sizes if `quick`.
    fn verify(&self, py: Python<'_>, quick: bool, threads: usize) -> PyResult<VerifyReport> {
        let verified = wait(py, || match quick {
            true => self.step.verify_quick(threads),
            false => self.step.verify(threads, &|_| {}),
        })?;
        Ok(VerifyReport::of(verified))
    }
}

/// Returns whether an earlier want is just the same: a tensor with two names in the state.
fn is_again(index: usize, boxes: &[(String, TensorBox)], places: &[TensorMemory]) -> bool {
    (0..index).any(|before| boxes[before] == boxes[index] && places[before].range() == places[index].range())
}

/// These places of all, to be written to.
fn pick<'a>(places: &'a mut [TensorMemory], chosen: &[usize]) -> Vec<(usize, &'a mut TensorMemory)> {
    let mut wanted = vec![false; places.len()];
    for index in chosen {
        wanted[*index] = true;
    }
    let all = places.iter_mut().enumerate();
    all.filter(|(index, _)| wanted[*index]).collect()
}

/// Result of a verification. Documented for people in `forebay/checkpoints.py`.
#[pyclass(frozen, get_all, module = "forebay._native")]
pub(crate) struct VerifyReport {
    files: u64,
    proved: u64,
    bytes: u64,
    /// File, tensor or object, message.
    findings: Vec<(String, Option<String>, String)>,
    has_more: bool,
}

impl VerifyReport {
    fn of(verified: Verified) -> Self {
        let findings = verified.findings.into_iter();
        Self {
            files: verified.files,
            proved: verified.proved,
            bytes: verified.bytes,
            findings: findings.map(|one| (one.file, one.name, one.message)).collect(),
            has_more: verified.has_more,
        }
    }
}
