//! Memory of tensors: an address with a size, or an object with the buffer protocol.
//!
//! Tensors of torch have no buffer protocol for all of their types, so the package gives their address; it
//! keeps the tensor, and thereby the memory, until the call has returned. An address comes from
//! `forebay/_tensors.py` alone.

use std::ops::Range;

use pyo3::prelude::*;

use crate::buffer::Memory;
use crate::error;

/// Memory that a tensor's bytes lie in.
pub(super) enum TensorMemory {
    /// So many bytes from this address on; the caller keeps them there.
    Address(usize, usize),
    /// Memory of an object, which is held.
    Buffer(Memory),
}

impl TensorMemory {
    /// `(address, bytes)` or an object.
    pub(super) fn of(given: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok((address, bytes)) = given.extract::<(usize, usize)>() {
            if address == 0 && bytes > 0 {
                return Err(error::invalid(
                    given.py(),
                    "the memory of a tensor has no address",
                ));
            }
            return Ok(Self::Address(address, bytes));
        }
        Memory::of(given).map(Self::Buffer)
    }

    /// The addresses of its bytes.
    pub(super) fn range(&self) -> Range<usize> {
        let (start, bytes) = match self {
            Self::Address(address, bytes) => (*address, *bytes),
            Self::Buffer(memory) => (memory.as_slice().as_ptr() as usize, memory.as_slice().len()),
        };
        start..start.saturating_add(bytes)
    }

    /// To read from.
    pub(super) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Address(_, 0) => &[],
            // SAFETY: the package gives the address and size of a tensor's own memory and holds the tensor
            // during the call. Others may write to it meanwhile, as everywhere in Python: what is read then
            // is neither the one nor the other.
            Self::Address(address, bytes) => unsafe {
                std::slice::from_raw_parts(*address as *const u8, *bytes)
            },
            Self::Buffer(memory) => memory.as_slice(),
        }
    }

    /// To write to.
    pub(super) fn as_mut_slice(&mut self, py: Python<'_>) -> PyResult<&mut [u8]> {
        match self {
            Self::Address(_, 0) => Ok(&mut []),
            Self::Address(address, bytes) => {
                // SAFETY: as in `as_slice`; that no two places of one call overlap is seen to by [`apart`].
                Ok(unsafe { std::slice::from_raw_parts_mut(*address as *mut u8, *bytes) })
            }
            Self::Buffer(memory) => memory.as_mut_slice(py),
        }
    }
}

/// Returns which of these places may be written to at the same time, and which have to wait because they
/// share bytes with one of those.
pub(super) fn apart(places: &[TensorMemory]) -> (Vec<usize>, Vec<usize>) {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by_key(|index| places[*index].range().start);
    let (mut first, mut later) = (Vec::with_capacity(order.len()), Vec::new());
    let mut end = 0;
    for index in order {
        let range = places[index].range();
        if range.is_empty() || range.start >= end {
            end = end.max(range.end);
            first.push(index);
        } else {
            later.push(index);
        }
    }
    later.sort_unstable();
    (first, later)
}
