use proptest::prelude::*;

use super::*;
use crate::header::Header;
use crate::manifest::{Content, Tensor};

fn manifest(tensors: &[(&str, Dtype, &[u64])]) -> Manifest {
    let mut content = Content::default();
    for (name, dtype, shape) in tensors {
        let tensor = Tensor {
            dtype: *dtype,
            shape: shape.to_vec(),
            parts: Vec::new(),
        };
        content.tensors.insert((*name).to_owned(), tensor);
    }
    Manifest::new(1, 1, "a-0000000000000001", 1, content)
}

fn options(prefix: &str, file_bytes_max: u64) -> Options {
    Options {
        prefix: prefix.into(),
        file_bytes_max,
    }
}

#[test]
fn files_are_named_as_stock_readers_expect_and_their_headers_say_where_tensors_lie() {
    let manifest = manifest(&[
        ("model.a", Dtype::BF16, &[4]),
        ("model.b", Dtype::F32, &[2, 3]),
        ("model.c", Dtype::F32, &[100]),
        ("optim.a", Dtype::F32, &[4]),
    ]);
    let files = files(&manifest, &options("model.", 64)).unwrap();
    let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors"
        ]
    );
    for file in &files {
        let header = Header::decode(&file.header, file.bytes).unwrap();
        for tensor in &file.tensors {
            assert_eq!(
                header.tensors[&tensor.called].range,
                [tensor.first, tensor.first + tensor.bytes]
            );
        }
    }
    assert_eq!(files[0].tensors[0].called, "b", "wide types come first");
    let index: serde_json::Value = serde_json::from_str(&index(&files).unwrap()).unwrap();
    assert_eq!(index["metadata"]["total_size"], 432);
    assert_eq!(index["weight_map"]["c"], "model-00002-of-00002.safetensors");
}

#[test]
fn one_file_has_no_index_and_no_tensor_is_an_error() {
    let manifest = manifest(&[("a", Dtype::U8, &[3]), ("b", Dtype::U8, &[0])]);
    let all = files(&manifest, &options("", FILE_BYTES_MAX)).unwrap();
    assert_eq!((all.len(), all[0].name.as_str()), (1, "model.safetensors"));
    assert_eq!(index(&all), None);
    assert_eq!(
        files(&manifest, &options("x", 1)).unwrap_err().kind(),
        Kind::NotFound
    );
}

#[test]
fn tensors_of_a_range_are_those_that_have_bytes_in_it() {
    let manifest = manifest(&[
        ("a", Dtype::U8, &[10]),
        ("b", Dtype::U8, &[10]),
        ("c", Dtype::U8, &[10]),
    ]);
    let files = files(&manifest, &options("", FILE_BYTES_MAX)).unwrap();
    let start = files[0].header.len() as u64;
    let names = |range: Range<u64>| -> String {
        let tensors = files[0].tensors_in(&(start + range.start..start + range.end));
        tensors.iter().map(|tensor| tensor.name.as_str()).collect()
    };
    assert_eq!(names(0..10), "a");
    assert_eq!(names(9..11), "ab");
    assert_eq!(names(10..30), "bc");
    assert!(files[0].tensors_in(&(0..start)).is_empty());
}

proptest! {
    /// Against one element at a time.
    #[test]
    fn any_range_of_a_tensor_is_put_together_from_its_parts(
        dims in prop::collection::vec((1u64..5, 0u64..5), 0..4),
        element_bytes in prop::sample::select(vec![1u64, 2, 4]),
        ends in (0u64..600, 0u64..600),
    ) {
        // Cut once in every dimension: up to eight boxes.
        let shape: Vec<u64> = dims.iter().map(|(size, _)| *size).collect();
        let mut parts = vec![TensorBox::whole(&shape)];
        for (dimension, (size, cut)) in dims.iter().enumerate() {
            let cut = cut % (size + 1);
            parts = parts.into_iter().flat_map(|part| {
                let mut low = part.clone();
                low.shape[dimension] = cut;
                let mut high = part;
                high.offset[dimension] = cut;
                high.shape[dimension] = size - cut;
                [low, high]
            }).collect();
        }
        let total = shape.iter().product::<u64>() * element_bytes;
        let whole: Vec<u8> = (0..total).map(|byte| (byte % 251) as u8).collect();
        let range = {
            let (a, b) = (ends.0 % (total + 1), ends.1 % (total + 1));
            a.min(b)..a.max(b)
        };
        let mut target = vec![0xEE; (range.end - range.start) as usize];
        for part in &parts {
            let all = TensorBox::whole(&shape);
            let mut bytes = vec![0; (part.elements().unwrap() * element_bytes) as usize];
            if !part.shape.contains(&0) {
                for run in part.runs(&all, part, element_bytes) {
                    let (to, from, length) = (run.part_byte as usize, run.wanted_byte as usize, run.bytes as usize);
                    bytes[to..to + length].copy_from_slice(&whole[from..from + length]);
                }
            }
            let strided = StridedPart { shape: &shape, part, element_bytes };
            let needed = strided.part_bytes(&range);
            strided.scatter(&bytes[needed.start as usize..needed.end as usize], needed.start, &range, &mut target);
        }
        prop_assert_eq!(&target[..], &whole[range.start as usize..range.end as usize]);
    }
}
