//! Packing of tensors into files: boxes of tensors are cut to a size and laid into files, in order.
//!
//! Pure, and the same every time: the same tensors give the same parts and files in every step, so that a
//! part can be found again in the parent and a staging buffer is found again at its size. A file holds at
//! most one part of a tensor, because safetensors names each once. Within a file wide elements come first, so
//! that each tensor is aligned to its elements.

use std::collections::BTreeSet;

use forebay_core::{Error, Kind, Result};

use crate::shape::TensorBox;
use crate::{Dtype, shape};

/// Files that still take parts: who does not fit the last may fit one before.
const OPEN_FILES_MAX: usize = 8;
/// Parts in one file; a message that names them all stays short.
const FILE_PARTS_MAX: usize = 8192;

/// A box that somebody has in memory.
#[derive(Debug, Clone, Copy)]
pub struct Owned<'a> {
    /// Full name of its tensor.
    pub name: &'a str,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its box in the tensor.
    pub at: &'a TensorBox,
}

/// Bytes of an [`Owned`] box that lie together and are a box themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Index of the box in the list.
    pub owner: usize,
    /// The first byte in the memory of that box.
    pub first: u64,
    /// Bytes.
    pub bytes: u64,
    /// Their box in the tensor.
    pub at: TensorBox,
}

/// One data file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PackedFile {
    /// Content, one after the other.
    pub pieces: Vec<Piece>,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// Lays boxes into files of at most `file_bytes_max` bytes.
pub fn pack(boxes: &[Owned<'_>], file_bytes_max: u64) -> Result<Vec<PackedFile>> {
    let mut files: Vec<PackedFile> = Vec::new();
    let mut names: Vec<BTreeSet<&str>> = Vec::new();
    for (owner, owned) in boxes.iter().enumerate() {
        for slice in cut(owned.at, owned.dtype.bytes(), file_bytes_max)? {
            let window = files.len().saturating_sub(OPEN_FILES_MAX)..files.len();
            let found = window.into_iter().find(|file| {
                let file_bytes = files[*file].bytes;
                file_bytes + slice.bytes <= file_bytes_max
                    && files[*file].pieces.len() < FILE_PARTS_MAX
                    && !names[*file].contains(owned.name)
            });
            let place = found.unwrap_or_else(|| {
                files.push(PackedFile::default());
                names.push(BTreeSet::new());
                files.len() - 1
            });
            names[place].insert(owned.name);
            files[place].bytes += slice.bytes;
            files[place].pieces.push(Piece {
                owner,
                first: slice.first,
                bytes: slice.bytes,
                at: slice.at,
            });
        }
    }
    for file in &mut files {
        file.pieces
            .sort_by_key(|piece| std::cmp::Reverse(boxes[piece.owner].dtype.bytes()));
    }
    Ok(files)
}

/// Bytes of a box that lie together and are a box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// The first byte in the memory of the box.
    pub first: u64,
    /// Bytes.
    pub bytes: u64,
    /// Their box in the tensor.
    pub at: TensorBox,
}

/// Cuts a box into slices of at most `bytes_max`, along its outermost dimension, and only where a row is
/// larger along the next one.
pub fn cut(at: &TensorBox, element_bytes: u64, bytes_max: u64) -> Result<Vec<Slice>> {
    let bytes = shape::elements(&at.shape)?.checked_mul(element_bytes);
    let bytes = bytes.filter(|bytes| *bytes <= shape::NUMBER_MAX).ok_or_else(|| {
        Error::new(Kind::InvalidInput, "a tensor is too large").with("shape", format!("{:?}", at.shape))
    })?;
    let mut slices = Vec::new();
    let whole = Slice {
        first: 0,
        bytes,
        at: at.clone(),
    };
    cut_further(whole, bytes_max.max(element_bytes), &mut slices);
    Ok(slices)
}

fn cut_further(slice: Slice, bytes_max: u64, slices: &mut Vec<Slice>) {
    let outermost = slice.at.shape.iter().position(|size| *size > 1);
    let (Some(dimension), false) = (outermost, slice.bytes <= bytes_max) else {
        slices.push(slice);
        return;
    };
    let size = slice.at.shape[dimension];
    let row_bytes = slice.bytes / size;
    let rows_max = (bytes_max / row_bytes).max(1);
    let mut row = 0;
    while row < size {
        let rows = rows_max.min(size - row);
        let mut at = slice.at.clone();
        at.offset[dimension] += row;
        at.shape[dimension] = rows;
        let part = Slice {
            first: slice.first + row * row_bytes,
            bytes: rows * row_bytes,
            at,
        };
        cut_further(part, bytes_max, slices);
        row += rows;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn small_tensors_share_a_file_with_wide_elements_first() {
        let (a, b) = (TensorBox::whole(&[3]), TensorBox::whole(&[2]));
        let boxes = [
            Owned {
                name: "a",
                dtype: Dtype::U8,
                at: &a,
            },
            Owned {
                name: "b",
                dtype: Dtype::F64,
                at: &b,
            },
        ];
        let files = pack(&boxes, 100).unwrap();
        assert_eq!(files.len(), 1);
        assert_eq!(files[0].bytes, 19);
        let order: Vec<_> = files[0].pieces.iter().map(|piece| piece.owner).collect();
        assert_eq!(order, [1, 0]);
    }

    #[test]
    fn a_scalar_and_an_empty_tensor_are_parts_too() {
        let (scalar, empty) = (TensorBox::whole(&[]), TensorBox::whole(&[0, 4]));
        let boxes = [
            Owned {
                name: "s",
                dtype: Dtype::F32,
                at: &scalar,
            },
            Owned {
                name: "e",
                dtype: Dtype::F32,
                at: &empty,
            },
        ];
        let files = pack(&boxes, 1 << 20).unwrap();
        let bytes: Vec<_> = files[0].pieces.iter().map(|piece| piece.bytes).collect();
        assert_eq!(bytes, [4, 0]);
    }

    proptest! {
        #[test]
        fn every_byte_is_packed_once_and_no_file_names_a_tensor_twice(
            shapes in prop::collection::vec(prop::collection::vec(0u64..7, 0..4), 0..12),
            file_bytes_max in 8u64..200,
        ) {
            let ats: Vec<_> = shapes.iter().map(|shape| TensorBox::whole(shape)).collect();
            let names: Vec<_> = (0..ats.len()).map(|number| format!("t{}", number / 2)).collect();
            let boxes: Vec<_> = ats.iter().zip(&names)
                .map(|(at, name)| Owned { name, dtype: Dtype::I16, at }).collect();
            let files = pack(&boxes, file_bytes_max).unwrap();
            let mut seen: Vec<Vec<(u64, u64)>> = vec![Vec::new(); boxes.len()];
            for file in &files {
                prop_assert!(file.bytes <= file_bytes_max);
                prop_assert_eq!(file.bytes, file.pieces.iter().map(|piece| piece.bytes).sum::<u64>());
                let mut named = BTreeSet::new();
                for piece in &file.pieces {
                    prop_assert!(named.insert(boxes[piece.owner].name));
                    prop_assert_eq!(piece.at.elements().unwrap() * 2, piece.bytes);
                    piece.at.check_within(&boxes[piece.owner].at.shape).unwrap();
                    seen[piece.owner].push((piece.first, piece.bytes));
                }
            }
            for (owner, mut ranges) in seen.into_iter().enumerate() {
                ranges.sort_unstable();
                let mut end = 0;
                for (first, bytes) in ranges {
                    prop_assert_eq!(first, end);
                    end = first + bytes;
                }
                prop_assert_eq!(end, boxes[owner].at.elements().unwrap() * 2);
            }
        }
    }
}
