//! `EmbeddedNode`: a node inside this process, for `forebay.open`.
//!
//! It has threads, which a forked child does not get: there every use of this object fails with a message
//! that says so, while clients of its socket go on working.

use std::path::PathBuf;
use std::time::Duration;

use forebay_core::{Error, Kind};
use forebay_node::value::Size;
use forebay_node::{EmbeddedNode as Embedded, EmbeddedOptions};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::error;
use crate::waiting::{is_interrupted, wait};

/// Time that a shutdown gives to writes under way.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(10);

/// A node in this process.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct EmbeddedNode {
    node: Mutex<Option<Embedded>>,
    socket: String,
    /// The process that started it.
    #[pyo3(get)]
    pid: u32,
}

#[pymethods]
impl EmbeddedNode {
    #[new]
    #[pyo3(signature = (lake, ram, nvme, data))]
    fn new(
        py: Python<'_>,
        lake: String,
        ram: Option<&str>,
        nvme: Option<&str>,
        data: Option<PathBuf>,
    ) -> PyResult<Self> {
        let bytes = |text: Option<&str>, setting: &'static str| {
            let parsed = text
                .map(|text| text.parse::<Size>().map_err(|why| (text, why)))
                .transpose();
            parsed
                .map(|size| size.map(|size| size.0))
                .map_err(|(text, why)| error::invalid(py, format!("{setting}={text:?} is no size: {why}")))
        };
        let options = EmbeddedOptions {
            lake: Some(lake),
            ram_bytes: bytes(ram, "ram")?,
            nvme_bytes: bytes(nvme, "nvme")?,
            data_dir: data,
            ..EmbeddedOptions::default()
        };
        let node = wait(py, || Embedded::start_unless(options, is_interrupted))?;
        Ok(Self {
            socket: node.socket().display().to_string(),
            node: Mutex::new(Some(node)),
            pid: std::process::id(),
        })
    }

    /// Returns where clients connect.
    #[getter]
    fn socket(&self, py: Python<'_>) -> PyResult<&str> {
        self.check_process(py)?;
        Ok(&self.socket)
    }

    /// Stops the node; writes under way may finish for some seconds. Idempotent.
    fn shutdown(&self, py: Python<'_>) -> PyResult<()> {
        self.check_process(py)?;
        py.detach(|| {
            let node = self.node.lock().take();
            if let Some(mut node) = node {
                node.shutdown(SHUTDOWN_DEADLINE);
            }
        });
        Ok(())
    }
}

impl EmbeddedNode {
    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        if self.pid == std::process::id() {
            return Ok(());
        }
        let error = Error::new(
            Kind::Unsupported,
            "this embedded node runs in the parent process: read and write through the Node object, which works here, and let the \
             parent close it",
        );
        Err(error::to_err(py, &error.with("parent", self.pid)))
    }
}

impl Drop for EmbeddedNode {
    fn drop(&mut self) {
        // In a forked child this forgets it; see `forebay_node::embedded`.
        let node = self.node.get_mut().take();
        let _ = Python::try_attach(|py| py.detach(|| drop(node)));
    }
}
