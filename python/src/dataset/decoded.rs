//! Fields that the loader has decoded, as Python objects: packed arrays as memory that numpy takes as it is,
//! other values one by one.

use std::ffi::c_int;

use forebay_decode::{Array, Data, Json, Packed, Value};
use forebay_loader::{Column, FieldBytes, PooledBuffer};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::view::{self, View};

/// Memory of an array: writable, nobody else's, given back for the next batches when the last array over it
/// is gone.
#[pyclass(frozen, module = "forebay._native", name = "PackedMemory", weakref)]
pub(crate) struct PackedMemory {
    /// Only held: from here on the memory belongs to whoever has a buffer of it.
    _owner: Owner,
    start: usize,
    bytes: usize,
}

enum Owner {
    #[allow(dead_code, reason = "held until the object ends")]
    PooledBuffer(PooledBuffer),
    #[allow(dead_code, reason = "held until the object ends")]
    Vector(Vec<u8>),
}

impl PackedMemory {
    fn block(mut block: PooledBuffer) -> Self {
        let (start, bytes) = (block.as_mut_ptr() as usize, block.len());
        Self {
            _owner: Owner::PooledBuffer(block),
            start,
            bytes,
        }
    }

    fn vector(mut vector: Vec<u8>) -> Self {
        let (start, bytes) = (vector.as_mut_ptr() as usize, vector.len());
        Self {
            _owner: Owner::Vector(vector),
            start,
            bytes,
        }
    }
}

#[pymethods]
impl PackedMemory {
    fn __len__(&self) -> usize {
        self.bytes
    }

    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        buffer: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        // SAFETY: Python gave the buffer to fill. The memory stays where it is until `slf` ends, which the
        // buffer holds, and Rust makes no reference to it meanwhile.
        unsafe { view::fill(buffer, slf.as_any(), this.start as *mut u8, this.bytes, 0, flags) }
    }
}

/// Returns whether it is one array for all samples, and it: `(memory, dtype, shape)`, or a list of values.
/// Arrays in the list are `(memory, dtype, shape, is_fortran)`; what only Python can read is a view of its
/// field, marked by `(view,)`.
pub(super) fn column<'py>(
    py: Python<'py>,
    column: Column,
    field_of: impl Fn(usize) -> Option<FieldBytes>,
    view_of: impl Fn(&FieldBytes) -> PyResult<Bound<'py, View>>,
) -> PyResult<(bool, Bound<'py, PyAny>)> {
    let values = match column {
        Column::Packed(Packed { dtype, shape, memory }) => {
            let memory = Bound::new(py, PackedMemory::block(memory))?;
            let shape = PyTuple::new(py, shape)?;
            return Ok((true, (memory, dtype, shape).into_pyobject(py)?.into_any()));
        }
        Column::Values(values) => values,
    };
    let list = PyList::empty(py);
    for (at, value) in values.into_iter().enumerate() {
        let field =
            || field_of(at).ok_or_else(|| crate::error::invalid(py, "the field was given away already"));
        list.append(match value {
            Value::Int(number) => PyInt::new(py, number).into_any(),
            Value::Float(number) => PyFloat::new(py, number).into_any(),
            // It was checked when it was decoded.
            Value::Text => PyString::new(py, &String::from_utf8_lossy(&field()?)).into_any(),
            Value::Json(document) => json(py, &document)?,
            Value::Null => py.None().into_bound(py),
            Value::DeferToPython => (view_of(&field()?)?,).into_pyobject(py)?.into_any(),
            Value::Array(Array {
                dtype,
                shape,
                is_fortran,
                data,
            }) => {
                let memory = match data {
                    Data::Own(bytes) => Bound::new(py, PackedMemory::vector(bytes))?.into_any(),
                    Data::Field(range) => {
                        let whole = view_of(&field()?)?;
                        let part = whole.get().part_of(py, range.start, range.len())?;
                        Bound::new(py, part)?.into_any()
                    }
                };
                let shape = PyTuple::new(py, shape)?;
                (memory, dtype, shape, is_fortran).into_pyobject(py)?.into_any()
            }
        })?;
    }
    Ok((false, list.into_any()))
}

/// A document as `json.loads` makes it.
fn json<'py>(py: Python<'py>, document: &Json) -> PyResult<Bound<'py, PyAny>> {
    Ok(match document {
        Json::Null => py.None().into_bound(py),
        Json::Bool(value) => PyBool::new(py, *value).to_owned().into_any(),
        Json::Int(number) => PyInt::new(py, *number).into_any(),
        Json::Uint(number) => PyInt::new(py, *number).into_any(),
        Json::Float(number) => PyFloat::new(py, *number).into_any(),
        Json::Text(text) => PyString::new(py, text).into_any(),
        Json::List(elements) => {
            let list = PyList::empty(py);
            for element in elements {
                list.append(json(py, element)?)?;
            }
            list.into_any()
        }
        Json::Object(members) => {
            let found = PyDict::new(py);
            for (name, value) in members {
                found.set_item(name, json(py, value)?)?;
            }
            found.into_any()
        }
    })
}
