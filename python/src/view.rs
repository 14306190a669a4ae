//! `View`: read-only bytes of an object, as an object with the buffer protocol.
//!
//! The memory belongs to the view; `memoryview`, numpy, torch and pyarrow hold the view while they use it, so
//! the lease ends with the last of them. [`View::release`] ends it early. It refuses while somebody certainly
//! looks, and waits for the end of the object if somebody may (`exports.rs`), because a mapping that goes
//! away under a pointer would end the process.

use std::ffi::c_int;
use std::ops::{Deref, Range};
use std::sync::Arc;

use forebay_loader::Memory;
use parking_lot::Mutex;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::error;
use crate::exports::Exports;

/// From this size on, work on memory is done without the interpreter; below, letting it go and taking it back
/// costs more.
const ALONE_BYTES_MIN: usize = 256 << 10;

/// Recipe by which Python makes a view again: a function and its arguments, the node's address, the handle
/// and which bytes of it; or nothing.
type Pickled<'py> = (Bound<'py, PyAny>, Bound<'py, PyTuple>);

/// Bytes of a client's view or of this process, or a part of them.
#[derive(Clone)]
pub(crate) struct Part {
    /// `None`: there are no bytes.
    memory: Option<Memory>,
    range: Range<usize>,
}

impl Part {
    /// The client's view, if the bytes lie in one.
    fn view(&self) -> Option<&forebay_client::View> {
        match &self.memory {
            Some(Memory::View(view)) => Some(view),
            _ => None,
        }
    }
}

impl Deref for Part {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes = self.memory.as_deref().unwrap_or_default();
        bytes.get(self.range.clone()).unwrap_or_default()
    }
}

/// Read-only bytes of an object or a part of it.
#[pyclass(frozen, module = "forebay", name = "View", weakref)]
pub(crate) struct View {
    address: Arc<str>,
    view: Mutex<Option<Part>>,
    /// Released, but perhaps still looked at: goes with the object.
    kept: Mutex<Option<Part>>,
    exports: Exports,
}

impl View {
    pub(crate) fn new(address: Arc<str>, view: forebay_client::View) -> Self {
        let range = 0..view.len();
        Self::part(address, Some(Memory::View(view)), range)
    }

    /// A part of some memory; `None` has no bytes.
    pub(crate) fn part(address: Arc<str>, memory: Option<Memory>, range: Range<usize>) -> Self {
        Self {
            address,
            view: Mutex::new(Some(Part { memory, range })),
            kept: Mutex::new(None),
            exports: Exports::default(),
        }
    }

    /// A share in the bytes; an error after the release.
    pub(crate) fn share(&self) -> PyResult<Part> {
        let view = self.view.lock();
        view.clone()
            .ok_or_else(|| PyValueError::new_err("the view was released"))
    }
}

#[pymethods]
impl View {
    fn __len__(&self) -> PyResult<usize> {
        Ok(self.share()?.len())
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        copied(py, &self.share()?)
    }

    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        buffer: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let guard = this.view.lock();
        let Some(view) = &*guard else {
            return Err(PyBufferError::new_err("the view was released"));
        };
        // SAFETY: Python gave the buffer to fill. The bytes live as long as `slf`, which the buffer holds,
        // and `release` refuses while `exports` counts it.
        unsafe {
            fill(
                buffer,
                slf.as_any(),
                view.as_ptr().cast_mut(),
                view.len(),
                1,
                flags,
            )?;
        };
        this.exports.take(flags);
        Ok(())
    }

    unsafe fn __releasebuffer__(&self, _buffer: *mut ffi::Py_buffer) {
        self.exports.give_back();
    }

    /// Gives the memory back. Refused with `BufferError` while buffers made from it live; fine if it was
    /// released before.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let mut guard = self.view.lock();
        if self.exports.is_held() {
            return Err(PyBufferError::new_err(
                "the view is in use: release the memoryviews and arrays made from it first",
            ));
        }
        let view = guard.take();
        drop(guard);
        if self.exports.is_lent() {
            if view.is_some() {
                *self.kept.lock() = view;
            }
            return Ok(());
        }
        if view.as_ref().is_some_and(|view| view.len() >= ALONE_BYTES_MIN) {
            py.detach(|| drop(view));
        }
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Releases it; what still uses its memory keeps it, as without the `with`.
    #[pyo3(signature = (*_args))]
    fn __exit__(&self, py: Python<'_>, _args: &Bound<'_, PyTuple>) {
        // Refused only while in use; then the last user ends it.
        let _ = self.release(py);
    }

    /// The object, as `bucket/key`.
    #[getter]
    fn name(&self) -> PyResult<String> {
        let part = self.share()?;
        Ok(part.view().map_or_else(String::new, |view| {
            format!("{}/{}", view.object().bucket, view.object().key)
        }))
    }

    /// The version that the bytes belong to.
    #[getter]
    fn version(&self) -> PyResult<String> {
        let part = self.share()?;
        Ok(part
            .view()
            .map_or_else(String::new, |view| view.version().to_owned()))
    }

    /// Size of the whole object.
    #[getter]
    fn object_bytes(&self) -> PyResult<u64> {
        Ok(self.share()?.view().map_or(0, forebay_client::View::object_bytes))
    }

    /// Returns where in the object the bytes start.
    #[getter]
    fn offset(&self) -> PyResult<u64> {
        let part = self.share()?;
        let start = part.range.start as u64;
        Ok(part.view().map_or(0, |view| view.offset() + start))
    }

    /// Returns whether the bytes lie in the node's own memory; `False` if they were copied.
    #[getter]
    fn is_mapped(&self) -> PyResult<bool> {
        Ok(self.share()?.view().is_some_and(forebay_client::View::is_mapped))
    }

    /// Returns whether it was released.
    #[getter]
    fn released(&self) -> bool {
        self.view.lock().is_none()
    }

    /// Returns where the bytes came from, as `forebay.Sources`; of a part those of the whole range that was
    /// read with it.
    #[getter]
    fn sources<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let part = self.share()?;
        let sources = part.view().map(forebay_client::View::sources).unwrap_or_default();
        let class = py.import("forebay.objects")?.getattr("Sources")?;
        class.call1((sources.ram, sources.nvme, sources.lake, sources.copied))
    }

    /// A flat tensor over the same memory, without a copy; it must not be written to. Needs torch.
    #[pyo3(signature = (dtype=None))]
    fn torch<'py>(slf: &Bound<'py, Self>, dtype: Option<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let module = slf.py().import("forebay._torch")?;
        module.getattr("frombuffer")?.call1((slf, dtype))
    }

    /// Pickles as a handle: whoever unpickles it looks at the same memory, or reads the same version again.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Pickled<'py>> {
        let part = self.share()?;
        let Some(view) = part.view() else {
            // Bytes of no object: they are all there is to say.
            let bytes = (copied(py, &part)?,).into_pyobject(py)?;
            return Ok((py.import("builtins")?.getattr("bytes")?, bytes));
        };
        let handle = view.handle().encode().map_err(|why| error::to_err(py, &why))?;
        let handle = PyBytes::new(py, &handle);
        let open = py.import("forebay._views")?.getattr("open_handle")?;
        let range = part.range.clone();
        let args = if range == (0..view.len()) {
            (&*self.address, handle).into_pyobject(py)?
        } else {
            (&*self.address, handle, range.start, range.len()).into_pyobject(py)?
        };
        Ok((open, args))
    }

    /// A view of some bytes of this one, which holds the same memory.
    #[pyo3(name = "part")]
    pub(crate) fn part_of(&self, py: Python<'_>, start: usize, length: usize) -> PyResult<Self> {
        let part = self.share()?;
        let end = start
            .checked_add(length)
            .filter(|end| *end <= part.range.len())
            .ok_or_else(|| error::invalid(py, "the part lies behind the end of the view"))?;
        let range = part.range.start + start..part.range.start + end;
        Ok(Self::part(Arc::clone(&self.address), part.memory, range))
    }

    fn __repr__(&self) -> String {
        match &*self.view.lock() {
            Some(part) => match part.view() {
                Some(view) => format!(
                    "<forebay.View of {} bytes of {}/{}>",
                    part.len(),
                    view.object().bucket,
                    view.object().key
                ),
                None => format!("<forebay.View of {} bytes>", part.len()),
            },
            None => "<forebay.View, released>".to_owned(),
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let Some(view) = self.view.get_mut().take().or_else(|| self.kept.get_mut().take()) else {
            return;
        };
        if view.len() < ALONE_BYTES_MIN {
            return;
        }
        // Unmapping takes its time, and the others need not wait for it.
        let _ = Python::try_attach(|py| py.detach(|| drop(view)));
    }
}

/// The bytes in a `bytes`, copied once without the interpreter.
pub(crate) fn copied<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    if bytes.len() < ALONE_BYTES_MIN {
        return Ok(PyBytes::new(py, bytes));
    }
    let (object, start) = uninitialised(py, bytes.len())?;
    let target = start as usize;
    py.detach(|| {
        // SAFETY: `start` has room for all of them, and nobody else has seen the object yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target as *mut u8, bytes.len()) };
    });
    Ok(object)
}

/// A `bytes` of this size that has to be written before anybody sees it, and where it starts.
pub(crate) fn uninitialised(py: Python<'_>, bytes: usize) -> PyResult<(Bound<'_, PyBytes>, *mut u8)> {
    let size = ffi::Py_ssize_t::try_from(bytes)?;
    // SAFETY: a null pointer asks for an object without content; the result is checked.
    unsafe {
        let object = ffi::PyBytes_FromStringAndSize(std::ptr::null(), size);
        let object = Bound::from_owned_ptr_or_err(py, object)?.cast_into_unchecked::<PyBytes>();
        let start = ffi::PyBytes_AsString(object.as_ptr()).cast::<u8>();
        Ok((object, start))
    }
}

/// Fills in what Python asked for.
///
/// # Safety
///
/// `buffer` is one that Python wants filled; `start` and `bytes` are valid as long as `owner` lives and
/// counts the export.
pub(crate) unsafe fn fill(
    buffer: *mut ffi::Py_buffer,
    owner: &Bound<'_, PyAny>,
    start: *mut u8,
    bytes: usize,
    readonly: c_int,
    flags: c_int,
) -> PyResult<()> {
    let size = ffi::Py_ssize_t::try_from(bytes)?;
    // SAFETY: as promised by the caller; it takes a reference to the owner itself.
    let result =
        unsafe { ffi::PyBuffer_FillInfo(buffer, owner.as_ptr(), start.cast(), size, readonly, flags) };
    if result == 0 {
        Ok(())
    } else {
        Err(PyErr::fetch(owner.py()))
    }
}
