//! Covers, against painting every element.

use proptest::prelude::*;

use super::*;
use crate::Dtype;
use crate::manifest::{Extent, Part};

fn tensor(shape: &[u64], boxes: Vec<TensorBox>) -> Tensor {
    let part = |at: TensorBox| Part {
        bytes: Extent {
            file: 0,
            range: [0, at.elements().unwrap()],
            blake3: String::new(),
            table: 0,
            first_block: 0,
            encoding: None,
        },
        at,
        sha256: None,
    };
    Tensor {
        dtype: Dtype::U8,
        shape: shape.to_vec(),
        parts: boxes.into_iter().map(part).collect(),
    }
}

fn at(offset: [u64; 2], shape: [u64; 2]) -> TensorBox {
    TensorBox {
        offset: offset.to_vec(),
        shape: shape.to_vec(),
    }
}

fn is_covered(tensor: &Tensor) -> bool {
    check_cover(tensor, &Weights::new("any")).is_ok()
}

/// Whether each element of a small tensor of two dimensions is in one box.
fn is_painted(tensor: &Tensor) -> bool {
    let inside = |at: &TensorBox, row: u64, column: u64| {
        let side = |place: u64, dimension: usize| {
            (at.offset[dimension]..at.offset[dimension] + at.shape[dimension]).contains(&place)
        };
        side(row, 0) && side(column, 1)
    };
    (0..tensor.shape[0]).all(|row| {
        (0..tensor.shape[1]).all(|column| {
            let boxes = tensor.parts.iter();
            boxes.filter(|part| inside(&part.at, row, column)).count() == 1
        })
    })
}

/// Cuts a box in two, again and again, then maybe spoils one part of it.
fn boxes() -> impl Strategy<Value = (u64, u64, Vec<TensorBox>)> {
    let cuts = prop::collection::vec((any::<prop::sample::Index>(), 0..2usize, 0..8u64), 0..12);
    (
        0..8u64,
        0..8u64,
        cuts,
        any::<Option<(prop::sample::Index, u64, u64)>>(),
    )
        .prop_map(|(rows, columns, cuts, spoil)| {
            let mut boxes = vec![at([0, 0], [rows, columns])];
            for (which, along, place) in cuts {
                let number = which.index(boxes.len());
                let first = place.min(boxes[number].shape[along]);
                let mut rest = boxes[number].clone();
                boxes[number].shape[along] = first;
                rest.offset[along] += first;
                rest.shape[along] -= first;
                boxes.push(rest);
            }
            if let Some((which, row, column)) = spoil {
                // Moved to some place where it still fits: as many elements, mostly a hole and an overlap.
                let number = which.index(boxes.len());
                let moved = &mut boxes[number];
                moved.offset = vec![
                    row % (rows - moved.shape[0] + 1),
                    column % (columns - moved.shape[1] + 1),
                ];
            }
            (rows, columns, boxes)
        })
}

proptest! {
    #[test]
    fn parts_cover_a_tensor_if_each_element_lies_in_one((rows, columns, boxes) in boxes()) {
        let tensor = tensor(&[rows, columns], boxes);
        prop_assert_eq!(is_covered(&tensor), is_painted(&tensor));
    }
}

#[test]
fn parts_that_meet_in_every_dimension_are_not_compared_one_by_one() {
    // Rows on the left, columns on the right: along either dimension half of them meet. In pairs these would be 10^10.
    let half = 100_000;
    let rows = (0..half).map(|row| at([row, 0], [1, half]));
    let columns = (0..half).map(|column| at([0, half + column], [half, 1]));
    let mut boxes: Vec<_> = rows.chain(columns).collect();
    assert!(is_covered(&tensor(&[half, 2 * half], boxes.clone())));
    boxes[7].offset[0] = 8;
    assert!(!is_covered(&tensor(&[half, 2 * half], boxes)));
}
