//! Errors of Forebay as Python exceptions.
//!
//! The classes live in `forebay/errors.py`, one for each [`forebay_core::Kind`]; this file only asks for the
//! right one. That all kinds have a class is a test (`every_kind_has_a_class`).

use forebay_core::Error;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

static FROM_FAILURE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// The exception for an error, as an object.
pub(crate) fn to_object<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    let make = FROM_FAILURE.get_or_try_init(py, || {
        let module = py.import("forebay.errors")?;
        Ok::<_, PyErr>(module.getattr("from_failure")?.unbind())
    })?;
    let context: Vec<(&str, &str)> = error.context().collect();
    let message = match std::error::Error::source(error) {
        // The cause belongs to the message: Python sees no Rust chain.
        Some(cause) if !error.message().contains(&cause.to_string()) => {
            format!("{}: {cause}", error.message())
        }
        _ => error.message().to_owned(),
    };
    make.bind(py).call1((error.kind().as_str(), message, context))
}

/// The exception for an error, to be raised.
pub(crate) fn to_err(py: Python<'_>, error: &Error) -> PyErr {
    match to_object(py, error) {
        Ok(object) => PyErr::from_value(object),
        Err(why) => why,
    }
}

/// An error of the caller's own making.
pub(crate) fn invalid(py: Python<'_>, message: impl Into<String>) -> PyErr {
    to_err(py, &Error::new(forebay_core::Kind::InvalidInput, message))
}
