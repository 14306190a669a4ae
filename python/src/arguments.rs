//! Arguments of Python that are more than text: one of some words, whole numbers, sizes, lengths of time.
//!
//! What does not fit is an `InvalidInputError` that names the argument and says what there is.

use std::time::Duration;

use forebay_node::value::Size;
use pyo3::prelude::*;
use pyo3::types::PyBool;

use crate::error;

/// Makes types that Python gives as one of some words: the type, what it holds, the argument, the words.
macro_rules! words {
    ($($name:ident($value:ty) = $argument:literal { $($word:literal => $choice:expr),+ $(,)? })+) => {$(
        #[doc = concat!("The argument `", $argument, "`.")]
        #[derive(Clone, Copy)]
        pub(crate) struct $name(pub(crate) $value);

        impl<'a, 'py> pyo3::FromPyObject<'a, 'py> for $name {
            type Error = pyo3::PyErr;

            fn extract(given: pyo3::Borrowed<'a, 'py, pyo3::PyAny>) -> pyo3::PyResult<Self> {
                let choices: &[(&str, $value)] = &[$(($word, $choice)),+];
                $crate::arguments::one_of($argument, &given, choices).map(Self)
            }
        }
    )+};
}

pub(crate) use words;

/// The choice behind a word.
pub(crate) fn one_of<T: Copy>(
    argument: &str,
    given: &Bound<'_, PyAny>,
    choices: &[(&str, T)],
) -> PyResult<T> {
    let word = given.extract::<String>().ok();
    let found = choices.iter().find(|(name, _)| word.as_deref() == Some(*name));
    match found {
        Some((_, choice)) => Ok(*choice),
        None => {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            let message = format!("{argument} is one of {}, not {}", names.join(", "), given.repr()?);
            Err(error::invalid(given.py(), message))
        }
    }
}

/// A whole number; of numpy as well, but no truth.
pub(crate) fn whole(argument: &str, given: &Bound<'_, PyAny>) -> PyResult<u64> {
    let number = given.extract::<u64>().ok();
    match number.filter(|_| !given.is_instance_of::<PyBool>()) {
        Some(number) => Ok(number),
        None => {
            let message = format!(
                "{argument} is a whole number between 0 and 2^64 - 1, not {}",
                given.repr()?
            );
            Err(error::invalid(given.py(), message))
        }
    }
}

/// The same as a count of things in memory.
pub(crate) fn count(argument: &str, given: &Bound<'_, PyAny>) -> PyResult<usize> {
    Ok(usize::try_from(whole(argument, given)?)?)
}

/// Bytes, as people write them: `512MiB`.
pub(crate) fn size(py: Python<'_>, text: &str) -> PyResult<u64> {
    let size = text.parse::<Size>().map(|size| size.0);
    size.map_err(|why| error::invalid(py, format!("{text:?} is no size: {why}")))
}

/// A length of time in seconds.
pub(crate) fn duration(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|why| error::invalid(py, format!("{seconds} is no length of time: {why}")))
}
