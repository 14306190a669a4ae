//! Encodings of MDS columns: every encoding of the library but pickle, which can run code and is
//! refused.
//!
//! Pure functions from bytes to borrowed values. Images stay compressed as they are; decoding pixels is the
//! loader's work.

use forebay_core::{Error, Kind, Result};

mod array;

pub use array::{MdsArray, MdsEncoding};

/// A value of a column.
#[derive(Debug, Clone, PartialEq)]
pub enum MdsValue<'a> {
    /// Bytes as they are: `bytes`, `jpeg`, `png`.
    Bytes(&'a [u8]),
    /// `str`.
    Text(&'a str),
    /// A document: `json`.
    Json(&'a str),
    /// `int`, `int8` to `int64`, `str_int`.
    Int(i64),
    /// `uint8` to `uint64`.
    Uint(u64),
    /// `float16` to `float64`, `str_float`.
    Float(f64),
    /// A `str_int` that no 64-bit number can hold: the number as text.
    Number(&'a str),
    /// `str_decimal`: the number as text.
    Decimal(&'a str),
    /// `ndarray`.
    Array(MdsArray<'a>),
    /// `pil`: pixels as Pillow has them.
    Image {
        /// Pixels of a row.
        width: u32,
        /// Rows.
        height: u32,
        /// Pillow's name of the pixel format, for example `RGB`.
        mode: &'a str,
        /// The pixels.
        pixels: &'a [u8],
    },
    /// `jpeg_array`, `list[…]`: several images.
    List(Vec<MdsValue<'a>>),
}

impl MdsEncoding {
    /// Decodes the bytes of a column. Errors: `Corrupt` if they are none of this encoding.
    pub fn decode<'a>(&self, bytes: &'a [u8]) -> Result<MdsValue<'a>> {
        self.read(bytes).ok_or_else(|| {
            let message = "the bytes of an MDS column do not fit its encoding; the sample is damaged";
            Error::new(Kind::Corrupt, message)
                .with("encoding", self)
                .with("bytes", bytes.len())
        })
    }

    fn read<'a>(&self, bytes: &'a [u8]) -> Option<MdsValue<'a>> {
        let text = || std::str::from_utf8(bytes).ok();
        Some(match self {
            Self::Bytes | Self::Jpeg | Self::Png => MdsValue::Bytes(bytes),
            Self::Text => MdsValue::Text(text()?),
            Self::Json => MdsValue::Json(text()?),
            Self::Int(width) => MdsValue::Int(signed(bytes, *width)?),
            Self::Uint(width) => MdsValue::Uint(unsigned(bytes, *width)?),
            Self::Float(width) => MdsValue::Float(float(bytes, *width)?),
            Self::TextInt => {
                let text = text()?;
                match text.parse() {
                    Ok(number) => MdsValue::Int(number),
                    Err(_) => MdsValue::Number(whole_number(text)?),
                }
            }
            Self::TextFloat => MdsValue::Float(text()?.trim().parse().ok()?),
            Self::TextDecimal => MdsValue::Decimal(text()?),
            Self::Pil => pil(bytes)?,
            Self::JpegArray => MdsValue::List(bodies(bytes)?.into_iter().map(MdsValue::Bytes).collect()),
            Self::ListPil => {
                let images = bodies(bytes.strip_prefix(&[0; 4])?)?;
                MdsValue::List(images.into_iter().map(pil).collect::<Option<_>>()?)
            }
            Self::ListJpeg | Self::ListPng => {
                let images = bodies(bytes.strip_prefix(&[0; 4])?)?;
                MdsValue::List(images.into_iter().map(MdsValue::Bytes).collect())
            }
            Self::Array { .. } => MdsValue::Array(self.read_array(bytes)?),
        })
    }
}

/// Digits with a sign, as Python writes them.
fn whole_number(text: &str) -> Option<&str> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    (!digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())).then_some(text)
}

fn unsigned(bytes: &[u8], width: u8) -> Option<u64> {
    (bytes.len() == usize::from(width)).then(|| {
        let mut number = [0; 8];
        number[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(number)
    })
}

fn signed(bytes: &[u8], width: u8) -> Option<i64> {
    let shift = 64 - 8 * u32::from(width);
    unsigned(bytes, width).map(|number| (number << shift).cast_signed() >> shift)
}

fn float(bytes: &[u8], width: u8) -> Option<f64> {
    let bits = unsigned(bytes, width)?;
    Some(match width {
        2 => half(u16::try_from(bits).ok()?),
        4 => f64::from(f32::from_bits(u32::try_from(bits).ok()?)),
        _ => f64::from_bits(bits),
    })
}

/// A 16-bit float: 1 bit sign, 5 bits exponent, 10 bits fraction.
fn half(bits: u16) -> f64 {
    let (sign, exponent, fraction) = (bits >> 15, i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let size = match exponent {
        0 => fraction * 2_f64.powi(-24),
        31 if fraction > 0.0 => f64::NAN,
        31 => f64::INFINITY,
        _ => (1.0 + fraction / 1024.0) * 2_f64.powi(exponent - 15),
    };
    if sign == 1 { -size } else { size }
}

fn u32_from(bytes: &mut &[u8]) -> Option<u32> {
    let (number, rest) = bytes.split_first_chunk::<4>()?;
    *bytes = rest;
    Some(u32::from_le_bytes(*number))
}

/// Width, height, length of the mode, mode, pixels.
fn pil(mut bytes: &[u8]) -> Option<MdsValue<'_>> {
    let (width, height) = (u32_from(&mut bytes)?, u32_from(&mut bytes)?);
    let mode_bytes = u32_from(&mut bytes)?;
    let (mode, pixels) = bytes.split_at_checked(mode_bytes as usize)?;
    Some(MdsValue::Image {
        width,
        height,
        mode: std::str::from_utf8(mode).ok()?,
        pixels,
    })
}

/// A count, as many sizes, then the bodies.
fn bodies(mut bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let count = u32_from(&mut bytes)?;
    let (mut sizes, mut rest) = bytes.split_at_checked(4_usize.checked_mul(count as usize)?)?;
    let mut found = Vec::new();
    while !sizes.is_empty() {
        let (body, behind) = rest.split_at_checked(u32_from(&mut sizes)? as usize)?;
        found.push(body);
        rest = behind;
    }
    rest.is_empty().then_some(found)
}

#[cfg(test)]
mod tests;
