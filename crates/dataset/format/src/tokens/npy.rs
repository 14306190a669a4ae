//! The header of numpy's file format, versions 1 to 3: a Python dictionary with three keys, read by hand.

use forebay_core::{Error, Kind, Result};

use super::TokenType;

/// The longest header that is read; numpy's own limit is the same.
pub const NPY_HEADER_BYTES_MAX: usize = 10_000;
/// Magic, version and the length, in its longer form.
pub(super) const PREFIX_BYTES: usize = 12;
const MAGIC: &[u8] = b"\x93NUMPY";

/// Header of a flat array of integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NpyHeader {
    /// The type of a number.
    pub token: TokenType,
    /// Number of tokens.
    pub tokens: u64,
    /// Offset of the first one.
    pub data_offset: usize,
}

impl NpyHeader {
    /// Returns how many bytes the header has, from its first twelve.
    pub fn bytes_needed(first: &[u8]) -> Result<usize> {
        let (length, before) = match first {
            [0x93, b'N', b'U', b'M', b'P', b'Y', 1, _, low, high, ..] => {
                (usize::from(u16::from_le_bytes([*low, *high])), 10)
            }
            [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, _, a, b, c, d, ..] => {
                (u32::from_le_bytes([*a, *b, *c, *d]) as usize, 12)
            }
            _ if first.starts_with(MAGIC) => return Err(unsupported("its version")),
            _ => {
                let message = "this is not a .npy file; for numbers without a header use the format bin";
                return Err(Error::new(Kind::InvalidInput, message));
            }
        };
        if length > NPY_HEADER_BYTES_MAX || before + length < PREFIX_BYTES {
            return Err(unsupported("the length of its header"));
        }
        Ok(before + length)
    }

    /// Reads a whole header. Errors: `Unsupported` for anything but a flat array of integers in little
    /// endian.
    pub fn parse(header: &[u8]) -> Result<Self> {
        let data_offset = Self::bytes_needed(header)?;
        let before = if header[6] == 1 { 10 } else { 12 };
        let text = header
            .get(before..data_offset)
            .and_then(|text| std::str::from_utf8(text).ok());
        let text = text.ok_or_else(|| unsupported("its header"))?;
        let descr = value(text, "descr").ok_or_else(|| unsupported("its header"))?;
        let order = value(text, "fortran_order").ok_or_else(|| unsupported("its header"))?;
        let shape = value(text, "shape").ok_or_else(|| unsupported("its header"))?;
        let token = token_type(descr).ok_or_else(|| unsupported("its type").with("type", descr))?;
        let (tokens, dimensions) =
            size(shape).ok_or_else(|| unsupported("its shape").with("shape", shape))?;
        if dimensions != 1 && order.starts_with("True") {
            return Err(unsupported("its order").with("order", "fortran"));
        }
        Ok(Self {
            token,
            tokens,
            data_offset,
        })
    }
}

fn unsupported(what: &str) -> Error {
    let message = format!(
        "the .npy file cannot be used as tokens because of {what}; save a flat array of integers: np.save(path, tokens.astype('<u2'))"
    );
    Error::new(Kind::Unsupported, message)
}

/// Returns what stands behind a key, to the end of the text.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let quoted = [format!("'{key}'"), format!("\"{key}\"")];
    let behind = quoted
        .iter()
        .find_map(|quoted| text.split_once(quoted.as_str()).map(|(_, behind)| behind));
    Some(behind?.trim_start().strip_prefix(':')?.trim_start())
}

fn token_type(descr: &str) -> Option<TokenType> {
    let quote = descr.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    let name = descr[1..].split(quote).next()?;
    Some(match name {
        "|u1" | "<u1" | "u1" => TokenType::U8,
        "|i1" | "<i1" | "i1" => TokenType::I8,
        "<u2" => TokenType::U16,
        "<i2" => TokenType::I16,
        "<u4" => TokenType::U32,
        "<i4" => TokenType::I32,
        "<u8" => TokenType::U64,
        "<i8" => TokenType::I64,
        _ => return None,
    })
}

/// Returns how many numbers a shape has, and how many dimensions.
fn size(shape: &str) -> Option<(u64, usize)> {
    let inner = shape.strip_prefix('(')?.split_once(')')?.0;
    let mut total = 1_u64;
    let mut dimensions = 0;
    for dimension in inner
        .split(',')
        .map(str::trim)
        .filter(|dimension| !dimension.is_empty())
    {
        total = total.checked_mul(dimension.trim_end_matches('L').parse().ok()?)?;
        dimensions += 1;
    }
    total.checked_mul(8)?;
    Some((total, dimensions))
}
