//! `checkpoint_shares`: who writes which part of what several ranks have (`forebay_checkpoint::assign`).

use forebay_checkpoint::assign::{Have, assign};
use forebay_checkpoint::{Dtype, TensorBox};
use forebay_core::{Error, Kind, Result};
use pyo3::prelude::*;

use crate::waiting::wait;

/// A box that a rank has: name, type, where it begins, its shape.
type HaveRow = (String, String, Vec<u64>, Vec<u64>);
/// Share of a rank: which of its boxes, where the part begins, its shape, its first byte in the memory of
/// the box.
type Part = (usize, Vec<u64>, Vec<u64>, u64);

/// Returns what this rank writes, given what each has, by rank.
#[pyfunction]
pub(crate) fn checkpoint_shares(
    py: Python<'_>,
    haves: Vec<Vec<HaveRow>>,
    rank: usize,
) -> PyResult<Vec<Part>> {
    wait(py, move || shares(haves, rank))
}

fn shares(haves: Vec<Vec<HaveRow>>, rank: usize) -> Result<Vec<Part>> {
    let haves: Vec<Vec<Have>> = haves
        .into_iter()
        .map(|list| list.into_iter().map(have).collect())
        .collect::<Result<_>>()?;
    let mine = assign(&haves)?.into_iter().nth(rank);
    let mine =
        mine.ok_or_else(|| Error::new(Kind::InvalidInput, "there is no such rank").with("rank", rank))?;
    Ok(mine
        .into_iter()
        .map(|share| {
            (
                share.have,
                share.slice.at.offset,
                share.slice.at.shape,
                share.slice.first,
            )
        })
        .collect())
}

fn have((name, dtype, offset, shape): HaveRow) -> Result<Have> {
    Ok(Have {
        dtype: Dtype::parse(&dtype).map_err(|error| error.with("tensor", &name))?,
        at: TensorBox { offset, shape },
        name,
    })
}
