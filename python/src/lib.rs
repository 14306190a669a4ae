//! `forebay._native`: the part of the Python package that is Rust.
//!
//! It turns Python's arguments into calls of `forebay-client`, lets the interpreter go while they wait, and
//! turns results into objects with Python's buffer protocol. Everything that people read and type (names,
//! defaults, documentation) is in the Python files beside it; this module is private to them. Nothing starts
//! when it is loaded: no thread, no connection.
//!
//! Memory is shared with Python here, so this crate has `unsafe`; each block says why it holds.
#![allow(unsafe_code, reason = "the buffer protocol hands out raw memory")]

mod arguments;
mod buffer;
mod checkpoint;
mod dataset;
mod embedded;
mod error;
mod exports;
mod item;
mod listing;
mod loader;
mod node;
mod view;
mod waiting;
mod writer;

/// The native part of the package `forebay`.
#[pyo3::pymodule]
mod _native {
    use std::ffi::OsString;

    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::buffer::WritableBuffer;
    #[pymodule_export]
    use crate::checkpoint::{
        CheckpointRoot, CheckpointSave, CheckpointStep, PruneReport, VerifyReport, checkpoint_shares,
    };
    #[pymodule_export]
    use crate::dataset::{Batch, Dataset, PackedMemory};
    #[pymodule_export]
    use crate::embedded::EmbeddedNode;
    #[pymodule_export]
    use crate::listing::Listing;
    #[pymodule_export]
    use crate::loader::{Loader, LoaderCounts};
    #[pymodule_export]
    use crate::node::Client;
    #[pymodule_export]
    use crate::view::View;
    #[pymodule_export]
    use crate::waiting::Cancellation;
    #[pymodule_export]
    use crate::writer::ObjectWriter;

    /// The version of the package, which is the version of the node inside it.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    /// Runs the `forebay` command with these arguments, the first being its name, and returns the exit code.
    #[pyfunction]
    fn run_command(py: Python<'_>, args: Vec<OsString>) -> u8 {
        py.detach(|| forebay_cli::run(args))
    }

    /// Refuses the name of a decoder that does not exist or makes no sense.
    #[pyfunction]
    fn check_decoder(py: Python<'_>, name: &str) -> PyResult<()> {
        let found = forebay_decode::Decoder::parse(name);
        found.map(drop).map_err(|why| crate::error::to_err(py, &why))
    }

    /// Every kind of error that the native module can raise, as `ForebayError.kind`.
    #[pyfunction]
    fn error_kinds() -> Vec<&'static str> {
        forebay_core::Kind::ALL.map(forebay_core::Kind::as_str).to_vec()
    }
}
