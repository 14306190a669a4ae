//! Decoded values of shards as Python objects: MDS columns, TensorFlow's examples.
//!
//! Arrays become numpy arrays with memory of their own, so numpy must be there; nothing else imports it.

use forebay_core::{Error, Kind, Result};
use forebay_dataset::mds::{MdsArray, MdsValue};
use forebay_dataset::parquet::{Nested, ValueKind};
use forebay_dataset::tfrecord::{Feature, Features, SequenceExample};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyList, PyString};

/// A value of an MDS column.
pub(super) fn mds<'py>(py: Python<'py>, value: &MdsValue<'_>) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        MdsValue::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
        MdsValue::Text(text) => PyString::new(py, text).into_any(),
        MdsValue::Json(text) => py.import("json")?.getattr("loads")?.call1((*text,))?,
        MdsValue::Int(number) => number.into_pyobject(py)?.into_any(),
        MdsValue::Uint(number) => number.into_pyobject(py)?.into_any(),
        MdsValue::Float(number) => number.into_pyobject(py)?.into_any(),
        MdsValue::Number(text) => py.import("builtins")?.getattr("int")?.call1((*text,))?,
        MdsValue::Decimal(text) => py.import("decimal")?.getattr("Decimal")?.call1((*text,))?,
        MdsValue::Array(array) => ndarray(py, array)?,
        MdsValue::Image {
            width,
            height,
            mode,
            pixels,
        } => {
            let make = py.import("PIL.Image")?.getattr("frombytes")?;
            make.call1((*mode, (*width, *height), PyBytes::new(py, pixels)))?
        }
        MdsValue::List(values) => {
            let list = PyList::empty(py);
            for value in values {
                list.append(mds(py, value)?)?;
            }
            list.into_any()
        }
    })
}

fn ndarray<'py>(py: Python<'py>, array: &MdsArray<'_>) -> PyResult<Bound<'py, PyAny>> {
    let flat = numbers(py, PyByteArray::new(py, array.values), array.dtype)?;
    flat.call_method1("reshape", (array.shape.clone(),))
}

fn numbers<'py>(
    py: Python<'py>,
    memory: Bound<'py, PyByteArray>,
    dtype: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let dtype = py.import("numpy")?.getattr("dtype")?.call1((dtype,))?;
    let little = dtype.call_method1("newbyteorder", ("<",))?;
    py.import("numpy")?.getattr("frombuffer")?.call1((memory, little))
}

/// The features of an `Example`: name to array, or to a list of `bytes`.
pub(super) fn features<'py>(py: Python<'py>, features: &Features<'_>) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    for (name, one) in features {
        found.set_item(name, feature(py, one)?)?;
    }
    Ok(found)
}

/// `context` and `feature_lists` of a `SequenceExample`.
pub(super) fn sequence_example<'py>(
    py: Python<'py>,
    example: &SequenceExample<'_>,
) -> PyResult<Bound<'py, PyDict>> {
    let lists = PyDict::new(py);
    for (name, steps) in &example.feature_lists {
        let list = PyList::empty(py);
        for step in steps {
            list.append(feature(py, step)?)?;
        }
        lists.set_item(name, list)?;
    }
    let found = PyDict::new(py);
    found.set_item("context", features(py, &example.context)?)?;
    found.set_item("feature_lists", lists)?;
    Ok(found)
}

fn feature<'py>(py: Python<'py>, feature: &Feature<'_>) -> PyResult<Bound<'py, PyAny>> {
    match feature {
        Feature::Empty => Ok(PyList::empty(py).into_any()),
        Feature::Bytes(all) => {
            let all = all.iter().map(|bytes| PyBytes::new(py, bytes));
            Ok(PyList::new(py, all.collect::<Vec<_>>())?.into_any())
        }
        Feature::Floats(all) => {
            let bytes: Vec<u8> = all.iter().flat_map(|number| number.to_le_bytes()).collect();
            numbers(py, PyByteArray::new(py, &bytes), "float32")
        }
        Feature::Ints(all) => {
            let bytes: Vec<u8> = all.iter().flat_map(|number| number.to_le_bytes()).collect();
            numbers(py, PyByteArray::new(py, &bytes), "int64")
        }
    }
}

/// A value of a column of Parquet, or a list of them.
pub(super) fn row<'py>(
    py: Python<'py>,
    kind: ValueKind,
    is_list: bool,
    bytes: &[u8],
) -> PyResult<Result<Bound<'py, PyAny>>> {
    if !is_list {
        return value(py, kind, bytes);
    }
    match Nested::read(bytes) {
        Ok(nested) => list(py, kind, &nested),
        Err(why) => Ok(Err(why)),
    }
}

fn list<'py>(py: Python<'py>, kind: ValueKind, nested: &Nested<'_>) -> PyResult<Result<Bound<'py, PyAny>>> {
    match nested {
        Nested::Null => Ok(Ok(py.None().into_bound(py))),
        Nested::Value(bytes) => value(py, kind, bytes),
        Nested::Packed(bytes) => numbers_of(py, kind, bytes).map(Ok),
        Nested::List(elements) => {
            let found = PyList::empty(py);
            for element in elements {
                match list(py, kind, element)? {
                    Ok(element) => found.append(element)?,
                    Err(why) => return Ok(Err(why)),
                }
            }
            Ok(Ok(found.into_any()))
        }
    }
}

/// One value as Python's own; a date or time as numpy's.
fn value<'py>(py: Python<'py>, kind: ValueKind, bytes: &[u8]) -> PyResult<Result<Bound<'py, PyAny>>> {
    Ok(Ok(match kind {
        ValueKind::Text => match std::str::from_utf8(bytes) {
            Ok(text) => PyString::new(py, text).into_any(),
            Err(why) => {
                let error = Error::new(Kind::Corrupt, "the column is no UTF-8 text");
                return Ok(Err(error.caused_by(why)));
            }
        },
        ValueKind::Bytes => PyBytes::new(py, bytes).into_any(),
        ValueKind::Decimal(_) => {
            let text = String::from_utf8_lossy(bytes);
            py.import("decimal")?.getattr("Decimal")?.call1((text,))?
        }
        kind => {
            let one = numbers_of(py, kind, bytes)?.get_item(0)?;
            match kind {
                ValueKind::Date
                | ValueKind::TimestampMs
                | ValueKind::TimestampUs
                | ValueKind::TimestampNs => one,
                _ => one.call_method0("item")?,
            }
        }
    }))
}

/// Values of one width as an array.
fn numbers_of<'py>(py: Python<'py>, kind: ValueKind, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let memory = PyByteArray::new(py, bytes);
    match kind {
        ValueKind::Date => {
            let days = numbers(py, memory, "int32")?;
            days.call_method1("astype", ("datetime64[D]",))
        }
        ValueKind::TimestampMs => numbers(py, memory, "datetime64[ms]"),
        ValueKind::TimestampUs => numbers(py, memory, "datetime64[us]"),
        ValueKind::TimestampNs => numbers(py, memory, "datetime64[ns]"),
        kind => numbers(py, memory, &kind.to_string()),
    }
}
