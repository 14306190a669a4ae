//! Decoders by name, and what they give.
//!
//! A name is what people write beside a field: `int`, `json`, `tokens:uint16`, `rgb:short=256,crop=224`. A
//! value either owns its memory (pixels) or says which bytes of the field it is (text, tokens, arrays of
//! numpy), which then are not copied.

use std::borrow::Cow;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay_core::{Error, Kind, Result};
use smallvec::{SmallVec, smallvec};

use crate::image::ImageDecoder;
use crate::json::Json;
use crate::npy;

/// A decoder of the bytes of a field.
#[derive(Debug, Clone, PartialEq)]
pub enum Decoder {
    /// A whole number in digits.
    Int,
    /// A number in digits.
    Float,
    /// UTF-8.
    Text,
    /// JSON.
    Json,
    /// An array in numpy's file format.
    Npy,
    /// Numbers of one type, side by side.
    Tokens {
        /// As numpy writes it: `<u2`.
        dtype: &'static str,
        /// Bytes of one.
        item_bytes: usize,
    },
    /// Pixels of a JPEG, PNG or WebP.
    Image(ImageDecoder),
}

/// A decoded field.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// The bytes of the field are valid UTF-8.
    Text,
    /// A document.
    Json(Json),
    /// An array.
    Array(Array),
    /// Valid as far as it goes, but only Python can make a value of it: numbers of more than 64 bits, `NaN`
    /// in JSON, structured arrays.
    DeferToPython,
    /// The format says that there is no value.
    Null,
}

/// Dimensions: mostly few.
pub type Shape = SmallVec<[usize; 4]>;

/// Numbers of one type in some dimensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    /// As numpy writes it: `|u1`, `<f4`.
    pub dtype: Cow<'static, str>,
    /// The dimensions.
    pub shape: Shape,
    /// Marks that the first dimension runs fastest.
    pub is_fortran: bool,
    /// Its numbers.
    pub data: Data,
}

/// Memory that has the numbers of an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data {
    /// Here.
    Own(Vec<u8>),
    /// In these bytes of the field.
    Field(Range<usize>),
}

impl Array {
    /// Its numbers, of this field.
    #[must_use]
    pub fn bytes<'a>(&'a self, field: &'a [u8]) -> &'a [u8] {
        match &self.data {
            Data::Own(bytes) => bytes,
            Data::Field(range) => field.get(range.clone()).unwrap_or_default(),
        }
    }
}

impl Value {
    /// Returns whether the bytes of the field are needed to make something of it.
    #[must_use]
    pub fn needs_field(&self) -> bool {
        match self {
            Self::Text | Self::DeferToPython => true,
            Self::Array(array) => matches!(array.data, Data::Field(_)),
            _ => false,
        }
    }

    /// Memory that it holds besides itself.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        match self {
            Self::Json(json) => json.memory_bytes(),
            Self::Array(Array {
                data: Data::Own(bytes),
                ..
            }) => bytes.len(),
            _ => 0,
        }
    }
}

impl Decoder {
    /// The decoder of this name.
    ///
    /// Errors: `InvalidInput` if there is none, or what stands behind the colon makes no sense.
    pub fn parse(name: &str) -> Result<Self> {
        let (kind, rest) = name
            .split_once(':')
            .map_or((name, None), |(kind, rest)| (kind, Some(rest)));
        let plain = match kind {
            "int" => Some(Self::Int),
            "float" => Some(Self::Float),
            "str" => Some(Self::Text),
            "json" => Some(Self::Json),
            "npy" => Some(Self::Npy),
            _ => None,
        };
        match (plain, rest) {
            (Some(plain), None) => Ok(plain),
            (None, Some(token)) if kind == "tokens" => tokens(token),
            (None, transforms) if ImageDecoder::is_kind(kind) => {
                Ok(Self::Image(ImageDecoder::parse(kind, transforms)?))
            }
            _ => {
                let message =
                    "no such decoder; there are int, float, str, json, npy, tokens:TYPE, image, rgb and gray";
                Err(Error::new(Kind::InvalidInput, message).with("decoder", name))
            }
        }
    }

    /// Returns whether one value takes long enough to be worth a thread of its own.
    #[must_use]
    pub fn is_heavy(&self) -> bool {
        matches!(self, Self::Image(_) | Self::Json)
    }

    /// The value of a field, without a seed: random transforms take the middle.
    ///
    /// Errors: `Corrupt` if the bytes are not what the decoder is for. A fault of a library is one of these
    /// too, and no panic.
    pub fn decode(&self, field: &[u8]) -> Result<Value> {
        self.decode_seeded(field, None)
    }

    /// The value of a field, with random transforms (of images) as `sample_seed` decides: the same number,
    /// the same value.
    ///
    /// Errors: as [`Decoder::decode`].
    pub fn decode_seeded(&self, field: &[u8], sample_seed: Option<u64>) -> Result<Value> {
        match self {
            Self::Int => number(field).map(Value::Int),
            Self::Float => number(field).map(Value::Float),
            Self::Text => text(field).map(|_| Value::Text),
            Self::Json => Json::parse(field).map(|json| json.map_or(Value::DeferToPython, Value::Json)),
            Self::Npy => npy::decode(field),
            Self::Tokens { dtype, item_bytes } => {
                if !field.len().is_multiple_of(*item_bytes) {
                    let message =
                        "the field is no whole number of tokens; choose the type that they were written with";
                    return Err(Error::new(Kind::Corrupt, message).with("bytes", field.len()));
                }
                Ok(Value::Array(Array {
                    dtype: Cow::Borrowed(dtype),
                    shape: smallvec![field.len() / item_bytes],
                    is_fortran: false,
                    data: Data::Field(0..field.len()),
                }))
            }
            Self::Image(decoder) => {
                // Hostile images have made image libraries panic before; that is their sample's fault, not
                // the end of a job.
                let pixels = catch_unwind(AssertUnwindSafe(|| decoder.decode(field, sample_seed)))
                    .unwrap_or_else(|_| {
                        Err(Error::new(
                            Kind::Corrupt,
                            "the image is broken in a way that its decoder does not expect",
                        ))
                    });
                pixels.map(|pixels| Value::Array(pixels.into_array()))
            }
        }
    }
}

fn tokens(name: &str) -> Result<Decoder> {
    let (code, item_bytes) = match name {
        "uint8" => ("|u1", 1),
        "int8" => ("|i1", 1),
        "uint16" => ("<u2", 2),
        "int16" => ("<i2", 2),
        "uint32" => ("<u4", 4),
        "int32" => ("<i4", 4),
        "uint64" => ("<u8", 8),
        "int64" => ("<i8", 8),
        _ => {
            let message = "tokens are whole numbers: uint8, uint16, uint32, uint64, or int8 and so on";
            return Err(Error::new(Kind::InvalidInput, message).with("type", name));
        }
    };
    Ok(Decoder::Tokens {
        dtype: code,
        item_bytes,
    })
}

fn text(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes)
        .map_err(|why| Error::new(Kind::Corrupt, "the field is no UTF-8 text").caused_by(why))
}

fn number<T: std::str::FromStr>(bytes: &[u8]) -> Result<T> {
    text(bytes)?.trim().parse().map_err(|_| {
        Error::new(
            Kind::Corrupt,
            "the field is no number in digits, or one of more than 64 bits",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_text_are_read_and_bad_ones_refused() {
        assert_eq!(
            Decoder::parse("int").unwrap().decode(b" -7\n").unwrap(),
            Value::Int(-7)
        );
        assert_eq!(
            Decoder::parse("float").unwrap().decode(b"2.5").unwrap(),
            Value::Float(2.5)
        );
        assert_eq!(
            Decoder::parse("str").unwrap().decode("größe".as_bytes()).unwrap(),
            Value::Text
        );
        for (name, bytes) in [
            ("int", b"1.5".as_slice()),
            ("int", b"99999999999999999999"),
            ("float", b""),
            ("str", b"\xff"),
        ] {
            let error = Decoder::parse(name).unwrap().decode(bytes).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "{name}");
        }
    }

    #[test]
    fn tokens_must_be_whole() {
        let decoder = Decoder::parse("tokens:uint16").unwrap();
        let Value::Array(array) = decoder.decode(&[1, 0, 2, 0]).unwrap() else {
            unreachable!("tokens are arrays")
        };
        assert_eq!((&*array.dtype, &*array.shape), ("<u2", [2].as_slice()));
        assert_eq!(decoder.decode(&[1]).unwrap_err().kind(), Kind::Corrupt);
    }

    #[test]
    fn names_that_mean_nothing_are_refused() {
        for name in [
            "",
            "pickle",
            "int:8",
            "tokens",
            "tokens:float32",
            "rgb:",
            "rgb:0x4",
            "rgb:turn",
        ] {
            assert_eq!(
                Decoder::parse(name).unwrap_err().kind(),
                Kind::InvalidInput,
                "{name}"
            );
        }
    }
}
