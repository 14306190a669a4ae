//! Files that PyTorch wants to find in an export: pickles of a few known shapes, and the zip files that
//! `torch.load` opens.
//!
//! Only written, never read. A pickle is a program; ours has a handful of opcodes of protocol 2 and names
//! classes of torch alone. `.metadata` is what `torch.distributed.checkpoint` unpickles; an item of a data
//! file is a zip file with the pickle of one tensor or one value and, stored as they are, the bytes of the
//! tensor.

mod pickle;
mod zip;

use forebay_core::{Error, Kind, Result};
use serde_json::Value;

use crate::Dtype;
use crate::shape::TensorBox;
use pickle::Pickle;
pub use zip::{ItemHead, ItemTail, item};

const METADATA: &str = "torch.distributed.checkpoint.metadata";
const FILESYSTEM: &str = "torch.distributed.checkpoint.filesystem";

/// A tensor in `.metadata`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorFacts {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its whole shape.
    pub shape: Vec<u64>,
    /// Its chunks and where each lies.
    pub chunks: Vec<(TensorBox, Stored)>,
}

/// Position of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The file, in the folder of the checkpoint.
    pub file: String,
    /// Its first byte.
    pub first: u64,
    /// Bytes.
    pub bytes: u64,
}

/// The document `.metadata`: tensors in chunks, and other values.
#[must_use]
pub fn metadata(tensors: &[TensorFacts], values: &[(String, Stored)]) -> Vec<u8> {
    let mut pickle = Pickle::new(2);
    pickle.global(METADATA, "Metadata").tuple(|_| {}).new_object();
    pickle.dict(|state| {
        state.text("state_dict_metadata").dict(|all| {
            for tensor in tensors {
                tensor_metadata(all.text(&tensor.name), tensor);
            }
            for (name, _) in values {
                all.text(name)
                    .global(METADATA, "BytesStorageMetadata")
                    .tuple(|_| {})
                    .call();
            }
        });
        state.text("planner_data").dict(|all| {
            let names = tensors.iter().map(|tensor| &tensor.name);
            for name in names.chain(values.iter().map(|(name, _)| name)) {
                all.text(name).tuple(|path| {
                    path.text(name);
                });
            }
        });
        state.text("storage_data").dict(|all| {
            for tensor in tensors {
                for (index, (at, stored)) in (0u64..).zip(&tensor.chunks) {
                    place(all, &tensor.name, Some((&at.offset, index)), stored);
                }
            }
            for (name, stored) in values {
                place(all, name, None, stored);
            }
        });
        state.text("storage_meta").none();
    });
    pickle.build();
    pickle.end()
}

fn tensor_metadata(pickle: &mut Pickle, tensor: &TensorFacts) {
    pickle
        .global(METADATA, "TensorStorageMetadata")
        .tuple(|arguments| {
            arguments
                .global(METADATA, "TensorProperties")
                .tuple(|_| {})
                .new_object();
            arguments.tuple(|state| {
                state
                    .global("torch", dtype_name(tensor.dtype))
                    .global("torch", "strided")
                    .boolean(false);
                state.global(METADATA, "_MEM_FORMAT_ENCODING").tuple(|value| {
                    value.integer(0);
                });
                state.call().boolean(false);
            });
            arguments.build();
            size(arguments, &tensor.shape);
            arguments.list(|chunks| {
                for (at, _) in &tensor.chunks {
                    chunks
                        .global(METADATA, "ChunkStorageMetadata")
                        .tuple(|arguments| {
                            size(arguments, &at.offset);
                            size(arguments, &at.shape);
                        });
                    chunks.call();
                }
            });
        });
    pickle.call();
}

/// One pair of the map from an item to its place.
fn place(pickle: &mut Pickle, name: &str, chunk: Option<(&[u64], u64)>, stored: &Stored) {
    pickle.global(METADATA, "MetadataIndex").tuple(|arguments| {
        arguments.text(name);
        if let Some((offset, index)) = chunk {
            size(arguments, offset);
            arguments.integer(index);
        }
    });
    pickle.call();
    pickle.global(FILESYSTEM, "_StorageInfo").tuple(|arguments| {
        arguments
            .text(&stored.file)
            .integer(stored.first)
            .integer(stored.bytes);
    });
    pickle.call();
}

fn size(pickle: &mut Pickle, numbers: &[u64]) {
    pickle.global("torch", "Size").tuple(|arguments| {
        arguments.tuple(|all| {
            for number in numbers {
                all.integer(*number);
            }
        });
    });
    pickle.call();
}

/// The pickle of a tensor whose bytes are the storage `0` beside it.
#[must_use]
pub fn tensor(dtype: Dtype, shape: &[u64]) -> Vec<u8> {
    let elements: u64 = shape.iter().product();
    let mut pickle = Pickle::new(2);
    let storage = storage_name(dtype);
    let rebuild = if storage.is_some() {
        "_rebuild_tensor_v2"
    } else {
        "_rebuild_tensor_v3"
    };
    pickle.global("torch._utils", rebuild).tuple(|arguments| {
        arguments.tuple(|id| {
            id.text("storage");
            match storage {
                Some(name) => id.global("torch", name),
                None => id.global("torch.storage", "UntypedStorage"),
            };
            let count = if storage.is_some() {
                elements
            } else {
                elements * dtype.bytes()
            };
            id.text("0").text("cpu").integer(count);
        });
        arguments.persistent().integer(0);
        arguments.tuple(|sizes| {
            for size in shape {
                sizes.integer(*size);
            }
        });
        arguments.tuple(|strides| {
            for dimension in 0..shape.len() {
                strides.integer(shape[dimension + 1..].iter().map(|size| (*size).max(1)).product());
            }
        });
        arguments
            .boolean(false)
            .global("collections", "OrderedDict")
            .tuple(|_| {})
            .call();
        if storage.is_none() {
            arguments.global("torch", dtype_name(dtype));
        }
    });
    pickle.call();
    pickle.end()
}

/// The pickle of a JSON value.
pub fn value(value: &Value) -> Result<Vec<u8>> {
    let mut pickle = Pickle::new(2);
    add(&mut pickle, value, 0)?;
    Ok(pickle.end())
}

/// The pickle of bytes.
#[must_use]
pub fn bytes(bytes: &[u8]) -> Vec<u8> {
    let mut pickle = Pickle::new(3);
    pickle.bytes(bytes);
    pickle.end()
}

fn add(pickle: &mut Pickle, value: &Value, depth: usize) -> Result<()> {
    if depth > 200 {
        return Err(Error::new(Kind::InvalidInput, "a value is nested too deeply"));
    }
    let mut result = Ok(());
    match value {
        Value::Null => {
            pickle.none();
        }
        Value::Bool(value) => {
            pickle.boolean(*value);
        }
        Value::Number(number) => {
            match (number.as_u64(), number.as_i64()) {
                (Some(value), _) => pickle.integer(value),
                (None, Some(value)) => pickle.negative(value),
                _ => pickle.float(number.as_f64().unwrap_or(f64::NAN)),
            };
        }
        Value::String(text) => {
            pickle.text(text);
        }
        Value::Array(items) => {
            pickle.list(|list| {
                result = items.iter().try_for_each(|item| add(list, item, depth + 1));
            });
        }
        Value::Object(pairs) => {
            pickle.dict(|dict| {
                result = pairs
                    .iter()
                    .try_for_each(|(key, item)| add(dict.text(key), item, depth + 1));
            });
        }
    }
    result
}

/// torch's name of a type.
const fn dtype_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::BOOL => "bool",
        Dtype::U8 => "uint8",
        Dtype::I8 => "int8",
        Dtype::F8_E4M3 => "float8_e4m3fn",
        Dtype::F8_E5M2 => "float8_e5m2",
        Dtype::F8_E8M0 => "float8_e8m0fnu",
        Dtype::I16 => "int16",
        Dtype::U16 => "uint16",
        Dtype::F16 => "float16",
        Dtype::BF16 => "bfloat16",
        Dtype::I32 => "int32",
        Dtype::U32 => "uint32",
        Dtype::F32 => "float32",
        Dtype::C64 => "complex64",
        Dtype::F64 => "float64",
        Dtype::I64 => "int64",
        Dtype::U64 => "uint64",
    }
}

/// The class of a storage of this type; newer types have none.
const fn storage_name(dtype: Dtype) -> Option<&'static str> {
    Some(match dtype {
        Dtype::BOOL => "BoolStorage",
        Dtype::U8 => "ByteStorage",
        Dtype::I8 => "CharStorage",
        Dtype::I16 => "ShortStorage",
        Dtype::F16 => "HalfStorage",
        Dtype::BF16 => "BFloat16Storage",
        Dtype::I32 => "IntStorage",
        Dtype::F32 => "FloatStorage",
        Dtype::C64 => "ComplexFloatStorage",
        Dtype::F64 => "DoubleStorage",
        Dtype::I64 => "LongStorage",
        Dtype::F8_E4M3 | Dtype::F8_E5M2 | Dtype::F8_E8M0 | Dtype::U16 | Dtype::U32 | Dtype::U64 => {
            return None;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pickle_of_a_small_value_is_these_bytes() {
        let made = value(&serde_json::json!({"a": [1, -2, null, true]})).unwrap();
        assert_eq!(
            made,
            b"\x80\x02}(X\x01\0\0\0a](J\x01\0\0\0\x8a\x08\xfe\xff\xff\xff\xff\xff\xff\xffN\x88eu."
        );
        assert_eq!(bytes(b"xy"), b"\x80\x03B\x02\0\0\0xy.");
    }

    #[test]
    fn a_tensor_names_its_storage_shape_and_strides() {
        let made = tensor(Dtype::BF16, &[2, 3]);
        let text = String::from_utf8_lossy(&made);
        assert!(text.contains("ctorch\nBFloat16Storage\n"), "{text}");
        assert!(made.ends_with(b"ccollections\nOrderedDict\n(tRtR."), "{text}");
        let newer = tensor(Dtype::F8_E4M3, &[4]);
        assert!(String::from_utf8_lossy(&newer).contains("_rebuild_tensor_v3"));
    }

    #[test]
    fn metadata_names_only_classes_of_torch() {
        let stored = Stored {
            file: "__0_0.distcp".into(),
            first: 0,
            bytes: 7,
        };
        let facts = TensorFacts {
            name: "w".into(),
            dtype: Dtype::F32,
            shape: vec![2],
            chunks: vec![(TensorBox::whole(&[2]), stored.clone())],
        };
        let made = metadata(&[facts], &[("step".into(), stored)]);
        let text = String::from_utf8_lossy(&made);
        for line in text
            .split('\n')
            .filter(|line| line.ends_with("ctorch.distributed.checkpoint.metadata"))
        {
            assert!(!line.contains("os"), "{line}");
        }
        assert!(made.starts_with(b"\x80\x02c") && made.ends_with(b"b."));
    }
}
