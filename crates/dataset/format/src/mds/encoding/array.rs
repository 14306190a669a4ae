//! Names of encodings, and arrays: `ndarray`, `ndarray:dtype`, `ndarray:dtype:shape`.
//!
//! A header in front of the values says what an array's name does not: a byte for the type, then a byte with
//! the number of dimensions and the width of each, then the dimensions.

use std::fmt;

use forebay_core::{Error, Kind, Result};

/// An encoding, parsed from its name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MdsEncoding {
    /// `bytes`
    Bytes,
    /// `str`
    Text,
    /// `json`
    Json,
    /// `int` and `int8` to `int64`: bytes of one.
    Int(u8),
    /// `uint8` to `uint64`: bytes of one.
    Uint(u8),
    /// `float16` to `float64`: bytes of one.
    Float(u8),
    /// `str_int`
    TextInt,
    /// `str_float`
    TextFloat,
    /// `str_decimal`
    TextDecimal,
    /// `pil`
    Pil,
    /// `jpeg`
    Jpeg,
    /// `png`
    Png,
    /// `jpeg_array`
    JpegArray,
    /// `list[pil]`
    ListPil,
    /// `list[jpeg]`
    ListJpeg,
    /// `list[png]`
    ListPng,
    /// `ndarray`, with what its name fixes.
    Array {
        /// The type, if it is fixed.
        dtype: Option<Dtype>,
        /// The shape, if it is fixed.
        shape: Option<Vec<u64>>,
    },
}

/// Type of an array's values: numpy's name, MDS's code, bytes of one.
type Dtype = (&'static str, u8, u8);

const DTYPES: [Dtype; 11] = [
    ("uint8", 8, 1),
    ("int8", 9, 1),
    ("uint16", 16, 2),
    ("int16", 17, 2),
    ("float16", 18, 2),
    ("uint32", 32, 4),
    ("int32", 33, 4),
    ("float32", 34, 4),
    ("uint64", 64, 8),
    ("int64", 65, 8),
    ("float64", 66, 8),
];

/// An array: type, shape, and values in C order, little endian.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MdsArray<'a> {
    /// numpy's name of the type.
    pub dtype: &'static str,
    /// Its dimensions.
    pub shape: Vec<u64>,
    /// Its values.
    pub values: &'a [u8],
}

impl MdsEncoding {
    /// The encoding of this name. Errors: `Unsupported` for pickle and for names that are not known.
    pub fn parse(name: &str) -> Result<Self> {
        let unsupported = |message: &str| Error::new(Kind::Unsupported, message).with("encoding", name);
        Ok(match name {
            "bytes" => Self::Bytes,
            "str" => Self::Text,
            "json" => Self::Json,
            "int" | "int64" => Self::Int(8),
            "int32" => Self::Int(4),
            "int16" => Self::Int(2),
            "int8" => Self::Int(1),
            "uint64" => Self::Uint(8),
            "uint32" => Self::Uint(4),
            "uint16" => Self::Uint(2),
            "uint8" => Self::Uint(1),
            "float64" => Self::Float(8),
            "float32" => Self::Float(4),
            "float16" => Self::Float(2),
            "str_int" => Self::TextInt,
            "str_float" => Self::TextFloat,
            "str_decimal" => Self::TextDecimal,
            "pil" => Self::Pil,
            "jpeg" => Self::Jpeg,
            // With the quality that it was written with.
            _ if name
                .strip_prefix("jpeg:")
                .is_some_and(|quality| quality.parse::<u8>().is_ok()) =>
            {
                Self::Jpeg
            }
            "png" => Self::Png,
            "jpeg_array" | "jpegarray" => Self::JpegArray,
            "list[pil]" => Self::ListPil,
            "list[jpeg]" => Self::ListJpeg,
            "list[png]" => Self::ListPng,
            "pkl" => {
                let message = "columns in pickle are not read, because loading them can run any code; \
                               write the column as json, bytes or ndarray";
                return Err(unsupported(message));
            }
            _ => {
                return parse_array(name).ok_or_else(|| {
                    unsupported("this encoding of an MDS column is not known; read the column as bytes")
                });
            }
        })
    }

    pub(super) fn read_array<'a>(&self, mut bytes: &'a [u8]) -> Option<MdsArray<'a>> {
        let Self::Array { dtype, shape } = self else {
            return None;
        };
        let dtype = match dtype {
            Some(dtype) => *dtype,
            None => {
                let (code, rest) = bytes.split_first()?;
                bytes = rest;
                *DTYPES.iter().find(|dtype| dtype.1 == *code)?
            }
        };
        let shape = match shape {
            Some(shape) => shape.clone(),
            None => read_shape(&mut bytes)?,
        };
        let count = shape
            .iter()
            .try_fold(1_u64, |total, size| total.checked_mul(*size))?;
        let fits = count.checked_mul(dtype.2.into())? == bytes.len() as u64;
        fits.then_some(MdsArray {
            dtype: dtype.0,
            shape,
            values: bytes,
        })
    }
}

/// `ndarray[:dtype[:d0,d1..]]`
fn parse_array(name: &str) -> Option<MdsEncoding> {
    let mut parts = name.split(':');
    if parts.next() != Some("ndarray") {
        return None;
    }
    let dtype = match parts.next() {
        None => None,
        Some(name) => Some(*DTYPES.iter().find(|dtype| dtype.0 == name)?),
    };
    let shape = match parts.next() {
        None => None,
        Some(text) => Some(
            text.split(',')
                .map(|size| size.parse().ok())
                .collect::<Option<_>>()?,
        ),
    };
    parts
        .next()
        .is_none()
        .then_some(MdsEncoding::Array { dtype, shape })
}

fn read_shape(bytes: &mut &[u8]) -> Option<Vec<u64>> {
    let (first, rest) = bytes.split_first()?;
    let (dimensions, width) = (usize::from(first >> 2), 1_usize << (first & 3));
    let (sizes, rest) = rest.split_at_checked(dimensions * width)?;
    *bytes = rest;
    let size = |bytes: &[u8]| {
        let mut number = [0; 8];
        number[..width].copy_from_slice(bytes);
        u64::from_le_bytes(number)
    };
    Some(sizes.chunks_exact(width).map(size).collect())
}

impl fmt::Display for MdsEncoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Bytes => "bytes",
            Self::Text => "str",
            Self::Json => "json",
            Self::Int(width) => return write!(f, "int{}", u32::from(*width) * 8),
            Self::Uint(width) => return write!(f, "uint{}", u32::from(*width) * 8),
            Self::Float(width) => return write!(f, "float{}", u32::from(*width) * 8),
            Self::TextInt => "str_int",
            Self::TextFloat => "str_float",
            Self::TextDecimal => "str_decimal",
            Self::Pil => "pil",
            Self::Jpeg => "jpeg",
            Self::Png => "png",
            Self::JpegArray => "jpeg_array",
            Self::ListPil => "list[pil]",
            Self::ListJpeg => "list[jpeg]",
            Self::ListPng => "list[png]",
            Self::Array { dtype, shape } => {
                f.write_str("ndarray")?;
                if let Some(dtype) = dtype {
                    write!(f, ":{}", dtype.0)?;
                }
                let sizes = shape.iter().flatten().map(u64::to_string);
                let sizes = sizes.collect::<Vec<_>>().join(",");
                return if sizes.is_empty() {
                    Ok(())
                } else {
                    write!(f, ":{sizes}")
                };
            }
        };
        f.write_str(name)
    }
}
