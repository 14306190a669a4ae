//! `Batch`: some samples, handed to Python field by field.
//!
//! A field of all samples becomes one list or one block of memory, so the work per sample is done here and not in Python. A sample whose field
//! is missing or cannot be read has its exception in its place; what to do about it is decided in `forebay/_decode.py`. The samples
//! keep their memory until the batch and all views made from it are gone.

use std::sync::Arc;

use forebay_core::{Error, Kind, Result};
use forebay_dataset::mds::MdsEncoding;
use forebay_dataset::parquet::{ValueKind, parse_encoding};
use forebay_dataset::tfrecord::{decode_example, decode_sequence_example};
use forebay_loader::{FieldBytes, SampleBytes};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyList, PyString};

use super::values;
use crate::error;
use crate::view::View;

/// From this size on, a copy is made without the interpreter.
const ALONE_BYTES_MIN: usize = 256 << 10;

/// Some samples.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Batch {
    address: Arc<str>,
    samples: Vec<SampleBytes>,
}

impl Batch {
    pub(crate) fn new(address: Arc<str>, samples: Vec<SampleBytes>) -> Self {
        Self { address, samples }
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
                Some(bytes) => read(bytes)?,
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

    /// Numbers of the samples in their dataset.
    fn numbers(&self) -> Vec<u64> {
        self.samples.iter().map(|sample| sample.number).collect()
    }

    /// Which dataset of a mix each sample is from.
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

    /// The field of each sample as text.
    fn texts<'py>(&self, py: Python<'py>, field: &str) -> PyResult<Bound<'py, PyList>> {
        self.column(py, field, |bytes| {
            Ok(text(bytes).map(|text| PyString::new(py, text).into_any()))
        })
    }

    /// The field of each sample as a whole number, written in digits.
    fn integers<'py>(&self, py: Python<'py>, field: &str) -> PyResult<Bound<'py, PyList>> {
        self.column(py, field, |bytes| {
            let number = text(bytes).and_then(|text| text.trim().parse::<i64>().map_err(|_| no_number()));
            number
                .map(|number| Ok(number.into_pyobject(py)?.into_any()))
                .map_or_else(|why| Ok(Err(why)), |number: PyResult<_>| number.map(Ok))
        })
    }

    /// The field of each sample as a number, written in digits.
    fn floats<'py>(&self, py: Python<'py>, field: &str) -> PyResult<Bound<'py, PyList>> {
        self.column(py, field, |bytes| {
            let number = text(bytes).and_then(|text| text.trim().parse::<f64>().map_err(|_| no_number()));
            number
                .map(|number| Ok(number.into_pyobject(py)?.into_any()))
                .map_or_else(|why| Ok(Err(why)), |number: PyResult<_>| number.map(Ok))
        })
    }

    /// The bytes of the field of all samples side by side, and how many each has; `None` if they are not equally long everywhere.
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

fn text(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes)
        .map_err(|why| Error::new(Kind::Corrupt, "the field is no UTF-8 text").caused_by(why))
}

fn no_number() -> Error {
    Error::new(
        Kind::Corrupt,
        "the field is no number in digits, or one of more than 64 bits",
    )
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
            // SAFETY: the object has `width` bytes for each part, every part is that long, and nobody else has seen it yet.
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
