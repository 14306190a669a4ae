//! `WritableBuffer`: memory of the node to build an object in, and memory of the caller to read into or write
//! from.

use std::ffi::c_int;
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::exports::Exports;
use crate::{error, view};

/// Writable memory of the node; a `put` of it copies nothing and uses it up.
#[pyclass(frozen, module = "forebay", name = "WritableBuffer", weakref)]
pub(crate) struct WritableBuffer {
    buffer: Mutex<Option<forebay_client::WritableBuffer>>,
    /// Put or released, but perhaps still in use: goes with the object.
    kept: Mutex<Option<Arc<forebay_client::WritableBuffer>>>,
    exports: Exports,
}

/// Memory on its way to a put.
pub(crate) enum PutMemory {
    /// Nobody else has it: handed over as it is.
    Alone(forebay_client::WritableBuffer),
    /// Somebody may still have a pointer to it: copied.
    Shared(Arc<forebay_client::WritableBuffer>),
}

impl WritableBuffer {
    pub(crate) fn new(buffer: forebay_client::WritableBuffer) -> Self {
        Self {
            buffer: Mutex::new(Some(buffer)),
            kept: Mutex::new(None),
            exports: Exports::default(),
        }
    }

    /// Takes the memory for a put; refused while somebody certainly can write to it.
    pub(crate) fn take(&self) -> PyResult<PutMemory> {
        let mut guard = self.buffer.lock();
        if self.exports.is_held() {
            return Err(PyBufferError::new_err(
                "the buffer is in use: release the memoryviews and delete the arrays made from it first",
            ));
        }
        let buffer = guard.take().ok_or_else(used_up)?;
        if !self.exports.is_lent() {
            return Ok(PutMemory::Alone(buffer));
        }
        let buffer = Arc::new(buffer);
        *self.kept.lock() = Some(Arc::clone(&buffer));
        Ok(PutMemory::Shared(buffer))
    }
}

fn used_up() -> PyErr {
    PyValueError::new_err("the buffer was put or released; allocate another one")
}

#[pymethods]
impl WritableBuffer {
    fn __len__(&self) -> PyResult<usize> {
        self.buffer
            .lock()
            .as_ref()
            .map(|buffer| buffer.len())
            .ok_or_else(used_up)
    }

    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        buffer: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let mut guard = this.buffer.lock();
        let Some(memory) = &mut *guard else {
            return Err(PyBufferError::new_err(
                "the buffer was put or released; allocate another one",
            ));
        };
        let (start, bytes) = (memory.as_mut_ptr(), memory.len());
        // SAFETY: Python gave the buffer to fill. The memory stays mapped while `slf` lives, which the buffer
        // holds, and `take` refuses while `exports` counts it; Rust makes no reference to it meanwhile.
        unsafe { view::fill(buffer, slf.as_any(), start, bytes, 0, flags)? };
        this.exports.take(flags);
        Ok(())
    }

    unsafe fn __releasebuffer__(&self, _buffer: *mut ffi::Py_buffer) {
        self.exports.give_back();
    }

    /// Makes it shorter: a `put` writes what is left.
    fn truncate(&self, bytes: usize) -> PyResult<()> {
        let mut guard = self.buffer.lock();
        let buffer = guard.as_mut().ok_or_else(used_up)?;
        if self.exports.is_held() {
            return Err(PyBufferError::new_err(
                "the buffer is in use: release what was made from it first",
            ));
        }
        buffer.truncate(bytes);
        Ok(())
    }

    /// Gives the memory back unused; fine if it was put or released before.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let taken = match self.take() {
            Ok(taken) => taken,
            Err(why) if why.is_instance_of::<PyValueError>(py) => return Ok(()),
            Err(why) => return Err(why),
        };
        py.detach(|| drop(taken));
        Ok(())
    }

    /// A flat tensor over the same memory. Delete it before the `put`. Needs torch.
    #[pyo3(signature = (dtype=None))]
    fn torch<'py>(slf: &Bound<'py, Self>, dtype: Option<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let module = slf.py().import("forebay._torch")?;
        module.getattr("frombuffer")?.call1((slf, dtype))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(&self, py: Python<'_>, _args: &Bound<'_, PyTuple>) {
        // Refused only while in use; then the last user ends it.
        let _ = self.release(py);
    }

    fn __repr__(&self) -> String {
        match &*self.buffer.lock() {
            Some(buffer) => format!("<forebay.WritableBuffer of {} bytes>", buffer.len()),
            None => "<forebay.WritableBuffer, used up>".to_owned(),
        }
    }
}

impl Drop for WritableBuffer {
    fn drop(&mut self) {
        let (buffer, kept) = (self.buffer.get_mut().take(), self.kept.get_mut().take());
        let _ = Python::try_attach(|py| py.detach(|| drop((buffer, kept))));
    }
}

/// Contiguous memory of a Python object, held while it is used.
pub(crate) struct Memory(PyUntypedBuffer);

impl Memory {
    /// The memory of an object with the buffer protocol.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(error::invalid(
                object.py(),
                "the memory is not contiguous; copy it first",
            ));
        }
        Ok(Self(buffer))
    }

    /// To read from. Others may write to it meanwhile: what is then read is neither the one nor the other, as
    /// everywhere in Python.
    pub(crate) fn as_slice(&self) -> &[u8] {
        if self.0.len_bytes() == 0 {
            return &[];
        }
        // SAFETY: the buffer is contiguous (checked above) and Python keeps it in place until `self` is
        // dropped.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }

    /// To write to.
    pub(crate) fn as_mut_slice(&mut self, py: Python<'_>) -> PyResult<&mut [u8]> {
        if self.0.readonly() {
            return Err(error::invalid(
                py,
                "the memory is read-only; give a bytearray, an array or a tensor",
            ));
        }
        if self.0.len_bytes() == 0 {
            return Ok(&mut []);
        }
        // SAFETY: as in `as_slice`, and the object allows writing. Who uses it from another thread meanwhile
        // sees bytes change.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast(), self.0.len_bytes()) })
    }
}
