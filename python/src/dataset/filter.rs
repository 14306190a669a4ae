//! Filters as Python writes them: a list of lists of `(column, operator, value)`, made so by
//! `forebay/dataset.py`.

use forebay_dataset::filter::{Condition, Decimal, Filter, Operator, Scalar};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyFloat, PyString};

use crate::error;

type ConditionRows<'py> = Vec<Vec<(String, String, Vec<Bound<'py, PyAny>>)>>;

pub(super) fn parse(py: Python<'_>, given: &Bound<'_, PyAny>) -> PyResult<Filter> {
    let given: ConditionRows<'_> = given.extract()?;
    let mut groups = Vec::with_capacity(given.len());
    for group in given {
        let mut conditions = Vec::with_capacity(group.len());
        for (column, operator, values) in group {
            let operator = Operator::parse(&operator).map_err(|why| error::to_err(py, &why))?;
            let values = values.iter().map(|value| scalar(py, value));
            conditions.push(Condition {
                column,
                operator,
                values: values.collect::<PyResult<_>>()?,
            });
        }
        groups.push(conditions);
    }
    Filter::new(groups).map_err(|why| error::to_err(py, &why))
}

fn scalar(py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Scalar> {
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(Scalar::Text(text.extract()?));
    }
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(Scalar::Bytes(bytes.as_bytes().to_vec()));
    }
    if let Ok(number) = value.cast::<PyFloat>() {
        return Ok(Scalar::Float(number.extract()?));
    }
    if value.is_instance(&py.import("decimal")?.getattr("Decimal")?)?
        && let Some(digits) = Decimal::parse(value.str()?.to_str()?)
    {
        return Ok(Scalar::Decimal(digits));
    }
    // Truths are whole numbers too, and so are numpy's.
    let whole = value.extract::<i128>();
    whole
        .map(Scalar::Int)
        .or_else(|_| value.extract::<f64>().map(Scalar::Float))
        .map_err(|_| {
            error::invalid(
                py,
                format!("a filter compares with numbers, texts, bytes, dates and times, not with {value}"),
            )
        })
}
