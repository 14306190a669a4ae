//! `Batch`: some samples, handed to Python field by field.
//!
//! A field of all samples becomes one list or one block of memory, so the work per sample is done here and
//! not in Python. A sample whose field is missing or cannot be read has its exception in its place; what to
//! do about it is decided in `forebay/_batches.py`. The samples keep their memory until the batch and all
//! views made from it are gone.

use std::sync::Arc;

use forebay_core::{Error, Kind, Result};
use forebay_dataset::mds::MdsEncoding;
use forebay_dataset::parquet::{ValueKind, parse_encoding};
use forebay_dataset::tfrecord::{decode_example, decode_sequence_example};
use forebay_loader::{Column, FieldBytes, FieldDecoder, SampleBytes};
use parking_lot::Mutex;
use pyo3::exceptions::{PyException, PyImportError, PyIndexError, PyMemoryError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyList};

use super::{decoded, values};
use crate::error;
use crate::view::View;

/// From this size on, a copy is made without the interpreter.
const ALONE_BYTES_MIN: usize = 256 << 10;

/// Some samples.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Batch {
    address: Arc<str>,
    samples: Vec<SampleBytes>,
    /// Fields that were decoded and not yet handed over.
    columns: Mutex<Vec<(Arc<str>, Column)>>,
}

impl Batch {
    pub(crate) fn new(
        address: Arc<str>,
        samples: Vec<SampleBytes>,
        fields: &[FieldDecoder],
        columns: Vec<Column>,
    ) -> Self {
        let names = fields.iter().map(|field| Arc::clone(&field.field));
        Self {
            address,
            samples,
            columns: Mutex::new(names.zip(columns).collect()),
        }
    }

    /// One object per sample: what `read` makes of the field, or the exception.
    fn column<'py>(
        &self,
        py: Python<'py>,
        field: &str,
        mut read: impl FnMut(&FieldBytes) -> PyResult<Result<Bound<'py, PyAny>>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for sample in &self.samples {
            let value = match sample.field(field) {
                Some(bytes) if bytes.is_null() => Ok(py.None().into_bound(py)),
                Some(bytes) => read(bytes).or_else(|why| fault(py, why))?,
                None => Err(Error::new(Kind::Corrupt, "the sample has no such field")),
            };
            match value {
                Ok(value) => list.append(value)?,
                Err(why) => list.append(error::to_object(py, &about(why, sample, field))?)?,
            }
        }
        Ok(list)
    }

    fn view<'py>(&self, py: Python<'py>, bytes: &FieldBytes) -> PyResult<Bound<'py, View>> {
        let address = Arc::clone(&self.address);
        Bound::new(py, View::part(address, bytes.memory().cloned(), bytes.range()))
    }
}

/// Returns what Python's own libraries say about the bytes of a sample is its fault; that one is missing, or
/// memory or patience is at an end, is not.
fn fault<T>(py: Python<'_>, why: PyErr) -> PyResult<Result<T>> {
    let is_of_sample = why.is_instance_of::<PyException>(py)
        && !why.is_instance_of::<PyImportError>(py)
        && !why.is_instance_of::<PyMemoryError>(py);
    if !is_of_sample {
        return Err(why);
    }
    let message = "the field is not what its encoding says";
    Ok(Err(Error::new(Kind::Corrupt, message).caused_by(why.to_string())))
}

/// An error with the sample that it is about.
fn about(error: Error, sample: &SampleBytes, field: &str) -> Error {
    let error = error
        .with("field", field)
        .with("shard", &sample.shard)
        .with("sample", sample.number);
    match &sample.key {
        Some(key) => error.with("key", String::from_utf8_lossy(key)),
        None => error,
    }
}

#[pymethods]
impl Batch {
    fn __len__(&self) -> usize {
        self.samples.len()
    }

    /// The samples at these places as a batch of their own, without the fields that were decoded for all of
    /// them.
    fn part(&self, places: Vec<usize>) -> PyResult<Self> {
        let sample = |at: usize| self.samples.get(at).cloned();
        let samples: Option<Vec<SampleBytes>> = places.into_iter().map(sample).collect();
        let samples = samples.ok_or_else(|| PyIndexError::new_err("a batch has no sample at this place"))?;
        Ok(Self::new(Arc::clone(&self.address), samples, &[], Vec::new()))
    }

    /// Numbers of the samples in their dataset.
    fn numbers(&self) -> Vec<u64> {
        self.samples.iter().map(|sample| sample.number).collect()
    }

    /// Returns which dataset of a mix each sample is from.
    fn sources(&self) -> Vec<usize> {
        self.samples.iter().map(|sample| sample.source).collect()
    }

    /// Shards of the samples.
    fn shards(&self) -> Vec<&str> {
        self.samples.iter().map(|sample| &*sample.shard).collect()
    }

    /// Keys of the samples.
    fn keys(&self) -> Vec<Option<String>> {
        let key = |sample: &SampleBytes| {
            sample
                .key
                .as_ref()
                .map(|key| String::from_utf8_lossy(key).into_owned())
        };
        self.samples.iter().map(key).collect()
    }

    /// Names of the fields of each sample.
    fn field_names(&self) -> Vec<Vec<&str>> {
        self.samples
            .iter()
            .map(|sample| sample.fields.iter().map(|field| &**field.name()).collect())
            .collect()
    }

    /// The field of each sample as a view, without a copy.
    fn views<'py>(&self, py: Python<'py>, field: &str) -> PyResult<Bound<'py, PyList>> {
        self.column(py, field, |bytes| Ok(Ok(self.view(py, bytes)?.into_any())))
    }

    /// A field that was decoded before it came here; once. `None` if it was not. See `decoded.rs` for what it
    /// is.
    fn decoded<'py>(&self, py: Python<'py>, field: &str) -> PyResult<Option<(bool, Bound<'py, PyAny>)>> {
        let column = {
            let mut columns = self.columns.lock();
            let at = columns.iter().position(|(name, _)| **name == *field);
            at.map(|at| columns.swap_remove(at).1)
        };
        let Some(column) = column else { return Ok(None) };
        let field_of = |at: usize| self.samples.get(at)?.field(field).cloned();
        decoded::column(py, column, field_of, |bytes| self.view(py, bytes)).map(Some)
    }

    /// The bytes of the field of all samples side by side, and how many each has; `None` if they are not
    /// equally long everywhere.
    fn packed<'py>(
        &self,
        py: Python<'py>,
        field: &str,
    ) -> PyResult<Option<(Bound<'py, PyByteArray>, usize)>> {
        let parts: Option<Vec<&[u8]>> = self
            .samples
            .iter()
            .map(|sample| {
                sample
                    .field(field)
                    .filter(|bytes| !bytes.is_null())
                    .map(|bytes| &**bytes)
            })
            .collect();
        let Some(parts) = parts else { return Ok(None) };
        let width = parts.first().map_or(0, |part| part.len());
        if parts.iter().any(|part| part.len() != width) {
            return Ok(None);
        }
        joined(py, &parts, width).map(|memory| Some((memory, width)))
    }

    /// The field of each sample, decoded as this encoding of MDS says.
    fn mds<'py>(&self, py: Python<'py>, field: &str, encoding: &str) -> PyResult<Bound<'py, PyList>> {
        let encoding = MdsEncoding::parse(encoding).map_err(|why| error::to_err(py, &why))?;
        self.column(py, field, |bytes| match encoding.decode(bytes) {
            Ok(forebay_dataset::mds::MdsValue::Bytes(_)) => Ok(Ok(self.view(py, bytes)?.into_any())),
            Ok(value) => values::mds(py, &value).map(Ok),
            Err(why) => Ok(Err(why)),
        })
    }

    /// The column of Parquet of each sample, decoded as its encoding says; nulls are `None`.
    fn rows<'py>(&self, py: Python<'py>, field: &str, encoding: &str) -> PyResult<Bound<'py, PyList>> {
        let Some((kind, lists)) = parse_encoding(encoding) else {
            return Err(error::invalid(
                py,
                format!("no encoding of a column: {encoding:?}"),
            ));
        };
        self.column(py, field, |bytes| {
            if kind == ValueKind::Bytes && lists == 0 {
                return Ok(Ok(self.view(py, bytes)?.into_any()));
            }
            values::row(py, kind, lists > 0, bytes)
        })
    }

    /// The field of each sample, decoded as a `tf.train.Example`.
    fn examples<'py>(&self, py: Python<'py>, field: &str) -> PyResult<Bound<'py, PyList>> {
        self.column(py, field, |bytes| match decode_example(bytes) {
            Ok(features) => values::features(py, &features).map(|value| Ok(value.into_any())),
            Err(why) => Ok(Err(why)),
        })
    }

    /// The field of each sample, decoded as a `tf.train.SequenceExample`.
    fn sequence_examples<'py>(&self, py: Python<'py>, field: &str) -> PyResult<Bound<'py, PyList>> {
        self.column(py, field, |bytes| match decode_sequence_example(bytes) {
            Ok(example) => values::sequence_example(py, &example).map(|value| Ok(value.into_any())),
            Err(why) => Ok(Err(why)),
        })
    }
}

/// Parts of equal length in one piece of memory, which Python may write to.
fn joined<'py>(py: Python<'py>, parts: &[&[u8]], width: usize) -> PyResult<Bound<'py, PyByteArray>> {
    let total = width * parts.len();
    let size = ffi::Py_ssize_t::try_from(total)?;
    // SAFETY: a null pointer asks for an object without content; the result is checked.
    let memory = unsafe {
        let object = ffi::PyByteArray_FromStringAndSize(std::ptr::null(), size);
        Bound::from_owned_ptr_or_err(py, object)?.cast_into_unchecked::<PyByteArray>()
    };
    let start = memory.data() as usize;
    let copy = || {
        for (number, part) in parts.iter().enumerate() {
            // SAFETY: the object has `width` bytes for each part, every part is that long, and nobody else
            // has seen it yet.
            unsafe {
                let target = (start as *mut u8).add(number * width);
                std::ptr::copy_nonoverlapping(part.as_ptr(), target, width);
            }
        }
    };
    if total < ALONE_BYTES_MIN {
        copy();
    } else {
        py.detach(copy);
    }
    Ok(memory)
}
