//! `ObjectWriter`: an object that is written piece by piece. Documented for people in `forebay/_writer.py`.

use forebay_core::{Error, Kind};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::buffer::Memory;
use crate::error;
use crate::waiting::wait;

/// An object on its way; dropping it gives it up.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct ObjectWriter {
    /// Taken out while a call uses it, and for ever by the end.
    writer: Mutex<Option<forebay_client::ObjectWriter>>,
}

impl ObjectWriter {
    pub(crate) fn new(writer: forebay_client::ObjectWriter) -> Self {
        Self {
            writer: Mutex::new(Some(writer)),
        }
    }

    fn take(&self, py: Python<'_>) -> PyResult<forebay_client::ObjectWriter> {
        self.writer.lock().take().ok_or_else(|| {
            let message = "the write has ended, or another thread is in the middle of it";
            error::to_err(py, &Error::new(Kind::InvalidInput, message))
        })
    }
}

#[pymethods]
impl ObjectWriter {
    /// Adds bytes; waits while the node or the lake is slower.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let memory = Memory::of(data)?;
        let bytes = memory.as_slice();
        let mut writer = self.take(py)?;
        let written = wait(py, || writer.write(bytes));
        *self.writer.lock() = Some(writer);
        written.map(|()| bytes.len())
    }

    /// Makes the object visible: its version and size.
    fn finish(&self, py: Python<'_>) -> PyResult<(String, u64)> {
        let writer = self.take(py)?;
        let receipt = wait(py, || writer.finish())?;
        Ok((receipt.version, receipt.bytes))
    }

    /// Gives it up; fine if it has ended already.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let writer = self.writer.lock().take();
        wait(py, || writer.map_or(Ok(()), forebay_client::ObjectWriter::abort))
    }
}

impl Drop for ObjectWriter {
    fn drop(&mut self) {
        let writer = self.writer.get_mut().take();
        let _ = Python::try_attach(|py| py.detach(|| drop(writer)));
    }
}
