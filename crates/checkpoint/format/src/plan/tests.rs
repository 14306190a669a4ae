//! Plans against a naive copy, element by element.

use proptest::prelude::*;

use super::*;
use crate::Dtype;
use crate::manifest::Extent;

fn boxed(offset: &[u64], shape: &[u64]) -> TensorBox {
    TensorBox {
        offset: offset.to_vec(),
        shape: shape.to_vec(),
    }
}

fn tensor(dtype: Dtype, shape: &[u64], parts: Vec<TensorBox>) -> Tensor {
    let part = |at: TensorBox| Part {
        bytes: Extent {
            file: 0,
            range: [0, at.elements().unwrap() * dtype.bytes()],
            blake3: String::new(),
            table: 0,
            first_block: 0,
            encoding: None,
        },
        at,
        sha256: None,
    };
    Tensor {
        dtype,
        shape: shape.to_vec(),
        parts: parts.into_iter().map(part).collect(),
    }
}

/// The element at each place of a box, as four bytes of its index in the whole tensor.
fn naive(shape: &[u64], at: &TensorBox) -> Vec<u8> {
    let mut bytes = Vec::new();
    for index in 0..at.elements().unwrap() {
        let mut rest = index;
        let mut whole = 0;
        let mut stride = 1;
        for dimension in (0..shape.len()).rev() {
            let place = at.offset[dimension] + rest % at.shape[dimension];
            rest /= at.shape[dimension];
            whole += place * stride;
            stride *= shape[dimension];
        }
        bytes.extend_from_slice(&(whole as u32).to_le_bytes());
    }
    bytes
}

/// Does what a reader does, and says how many bytes of blocks it read.
fn filled(tensor: &Tensor, at: &TensorBox) -> (Vec<u8>, u64) {
    let parts: Vec<_> = tensor
        .parts
        .iter()
        .map(|part| naive(&tensor.shape, &part.at))
        .collect();
    let bytes = at.elements().unwrap() * tensor.dtype.bytes();
    let mut target = vec![0xEE; bytes as usize];
    let mut read = 0;
    let mut end = 0;
    for job in jobs(tensor, at).unwrap() {
        assert_eq!(job.target.start, end, "jobs cover the target in order");
        assert!(job.target.end - job.target.start <= JOB_BYTES + BLOCK_BYTES);
        end = job.target.end;
        let target = &mut target[job.target.start as usize..job.target.end as usize];
        match job.source {
            Source::Contiguous { part, part_byte } => {
                let blocks = blocks_of(&(part_byte..part_byte + target.len() as u64));
                let range = bytes_of(&blocks, parts[part].len() as u64);
                read += range.end - range.start;
                target.copy_from_slice(&parts[part][part_byte as usize..][..target.len()]);
            }
            Source::Strided { at, parts: from } => {
                for part in from {
                    for piece in pieces(&tensor.parts[part], &at, tensor.dtype.bytes()) {
                        let range = bytes_of(&piece.blocks, parts[part].len() as u64);
                        read += range.end - range.start;
                        for run in piece.runs {
                            assert!(range.start <= run.part_byte && run.part_byte + run.bytes <= range.end);
                            let from = &parts[part][run.part_byte as usize..][..run.bytes as usize];
                            target[run.wanted_byte as usize..][..run.bytes as usize].copy_from_slice(from);
                        }
                    }
                }
            }
        }
    }
    assert_eq!(end, bytes);
    (target, read)
}

#[test]
fn whole_tensors_are_straight_in_jobs_that_end_with_blocks() {
    let at = TensorBox::whole(&[3 << 20]);
    let tensor = tensor(Dtype::F32, &[3 << 20], vec![at.clone()]);
    let jobs = jobs(&tensor, &at).unwrap();
    assert_eq!(jobs.len(), 3);
    for job in &jobs {
        let Source::Contiguous { part_byte, .. } = job.source else {
            panic!("{job:?}")
        };
        assert_eq!(part_byte, job.target.start);
        assert_eq!(part_byte % BLOCK_BYTES, 0);
    }
}

#[test]
fn row_shards_are_straight_and_column_shards_are_woven() {
    let rows = tensor(
        Dtype::F32,
        &[8, 6],
        vec![boxed(&[0, 0], &[4, 6]), boxed(&[4, 0], &[4, 6])],
    );
    let all = jobs(&rows, &TensorBox::whole(&[8, 6])).unwrap();
    assert!(
        all.iter()
            .all(|job| matches!(job.source, Source::Contiguous { .. }))
    );
    assert_eq!(all.len(), 2);
    let columns = tensor(
        Dtype::F32,
        &[8, 6],
        vec![boxed(&[0, 0], &[8, 3]), boxed(&[0, 3], &[8, 3])],
    );
    let all = jobs(&columns, &TensorBox::whole(&[8, 6])).unwrap();
    assert_eq!(all.len(), 1);
    assert!(matches!(&all[0].source, Source::Strided { parts, .. } if *parts == [0, 1]));
}

#[test]
fn a_row_reads_only_the_blocks_that_have_it() {
    let shape = [1 << 10, 1 << 10];
    let tensor = tensor(Dtype::F32, &shape, vec![TensorBox::whole(&shape)]);
    let (bytes, read) = filled(&tensor, &boxed(&[100, 0], &[1, 1 << 10]));
    assert_eq!(bytes, naive(&shape, &boxed(&[100, 0], &[1, 1 << 10])));
    assert_eq!(read, BLOCK_BYTES);
}

#[test]
fn a_thin_column_reads_each_block_once_in_pieces_of_bounded_size() {
    let shape = [1 << 11, 1 << 10];
    let tensor = tensor(Dtype::F32, &shape, vec![TensorBox::whole(&shape)]);
    let at = boxed(&[0, 7], &[1 << 11, 1]);
    let (bytes, read) = filled(&tensor, &at);
    assert_eq!(bytes, naive(&shape, &at));
    assert_eq!(read, 8 << 20, "rows of 4 KiB: every block has some of it");
    for piece in pieces(&tensor.parts[0], &at, 4) {
        assert!((piece.blocks.end - piece.blocks.start) * BLOCK_BYTES <= PIECE_BYTES);
    }
}

#[test]
fn blocks_between_far_rows_are_not_read() {
    let shape = [8, 1 << 16];
    let tensor = tensor(Dtype::F32, &shape, vec![TensorBox::whole(&shape)]);
    let (_, read) = filled(&tensor, &boxed(&[0, 0], &[8, 16]));
    assert_eq!(read, 8 * BLOCK_BYTES, "rows of 256 KiB: one block of each");
}

#[test]
fn nothing_and_scalars_are_wanted_too() {
    let scalar = tensor(Dtype::F32, &[], vec![TensorBox::whole(&[])]);
    assert_eq!(filled(&scalar, &TensorBox::whole(&[])).0, [0; 4]);
    let empty = tensor(Dtype::F32, &[0, 4], vec![]);
    assert_eq!(jobs(&empty, &TensorBox::whole(&[0, 4])).unwrap(), []);
    assert!(jobs(&scalar, &TensorBox::whole(&[1])).is_err());
}

#[test]
fn stretches_joined_are_the_whole() {
    let shape = [3, 5, 7];
    let at = boxed(&[1, 0, 2], &[2, 5, 4]);
    for bytes_max in [1, 4, 12, 16, 40, 80, 1000] {
        let boxes = stretches(&at, 4, bytes_max);
        let joined: Vec<u8> = boxes.iter().flat_map(|part| naive(&shape, part)).collect();
        assert_eq!(joined, naive(&shape, &at), "{bytes_max}");
        let largest = boxes.iter().map(|part| part.elements().unwrap() * 4).max();
        assert!(largest.unwrap() <= bytes_max.max(4));
    }
    assert!(stretches(&TensorBox::whole(&[0, 3]), 4, 100).is_empty());
    assert_eq!(stretches(&TensorBox::whole(&[]), 4, 100).len(), 1);
}

/// Cuts of a dimension of this size, from fractions.
fn cuts(size: u64, fractions: &[f64]) -> Vec<(u64, u64)> {
    let mut edges: Vec<u64> = fractions.iter().map(|f| (f * size as f64) as u64).collect();
    edges.extend([0, size]);
    edges.sort_unstable();
    edges.dedup();
    edges
        .windows(2)
        .map(|pair| (pair[0], pair[1] - pair[0]))
        .collect()
}

/// Every box of a grid.
fn grid(dimensions: &[Vec<(u64, u64)>]) -> Vec<TensorBox> {
    let mut boxes = vec![boxed(&[], &[])];
    for dimension in dimensions {
        let longer = boxes.iter().flat_map(|at| {
            dimension.iter().map(|(offset, size)| {
                let mut at = at.clone();
                at.offset.push(*offset);
                at.shape.push(*size);
                at
            })
        });
        boxes = longer.collect();
    }
    boxes
}

proptest! {
    #[test]
    fn any_box_of_any_grid_is_what_a_naive_copy_gives(
        dims in prop::collection::vec(
            (1u64..9, prop::collection::vec(0.0..1.0, 0..3), 0.0..1.0, 0.0..1.0),
            0..5,
        ),
        inner in prop::sample::select(vec![1u64, 3, 2_500, 20_000]),
    ) {
        let mut dims = dims;
        if let Some(last) = dims.last_mut() {
            last.0 *= inner;
        }
        let shape: Vec<u64> = dims.iter().map(|d| d.0).collect();
        prop_assume!(shape.iter().product::<u64>() < 2_000_000);
        let parts = grid(&dims.iter().map(|d| cuts(d.0, &d.1)).collect::<Vec<_>>());
        let tensor = tensor(Dtype::F32, &shape, parts);
        let mut at = boxed(&[], &[]);
        for (size, _, a, b) in &dims {
            let (low, high) = if a < b { (a, b) } else { (b, a) };
            let first = (low * *size as f64) as u64;
            let end = (high * *size as f64).ceil() as u64;
            at.offset.push(first);
            at.shape.push(end - first);
        }
        let (bytes, _) = filled(&tensor, &at);
        prop_assert_eq!(bytes, naive(&shape, &at));
    }
}
