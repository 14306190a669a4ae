//! Values of columns as people and other formats write them: digits, dates, JSON for lists.
//!
//! Numbers are digits that read back to the same number, dates and times ISO 8601, raw bytes inside of lists
//! base64. JSON has no word for what is not a number and for infinity; lists have those of Python's `json`
//! (`NaN`, `Infinity`, `-Infinity`), because that is what MosaicML and WebDataset write and read fields of
//! JSON with.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forebay_core::{Error, Kind, Result};

use super::nested::Nested;
use super::schema::ValueKind;

/// A value that is a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// A whole one; truths are 0 and 1.
    Int(i64),
    /// A whole one above those.
    Uint(u64),
    /// Another one.
    Float(f64),
}

/// A row of a column as text; lists as JSON.
///
/// Errors: `Corrupt` if the bytes are not those of such a value.
pub fn to_text(kind: ValueKind, is_list: bool, bytes: &[u8]) -> Result<String> {
    let mut text = String::new();
    if is_list {
        list(kind, &Nested::read(bytes)?, &mut text)?;
    } else {
        text = match value(kind, bytes).ok_or_else(wrong)? {
            Value::Float(number) if !number.is_finite() => number.to_string(),
            Value::Word(word) => word,
            other => other.to_json(),
        };
    }
    Ok(text)
}

/// The numbers of a row, or of its list; `None` for a null in it.
///
/// Errors: `Corrupt` as above; `Internal` if the values of the column are no numbers or lists are in the
/// list.
pub fn to_numbers(kind: ValueKind, is_list: bool, bytes: &[u8]) -> Result<Vec<Option<Number>>> {
    let number = |bytes: &[u8]| match value(kind, bytes).ok_or_else(wrong)? {
        Value::Bool(truth) => Ok(Number::Int(truth.into())),
        Value::Int(number) => Ok(Number::Int(number)),
        Value::Uint(number) => Ok(i64::try_from(number).map_or(Number::Uint(number), Number::Int)),
        Value::Float(number) => Ok(Number::Float(number)),
        Value::Word(_) => Err(no_numbers()),
    };
    if !is_list {
        return Ok(vec![Some(number(bytes)?)]);
    }
    match Nested::read(bytes)? {
        Nested::Packed(bytes) => packed(kind, bytes)?.map(|one| number(one).map(Some)).collect(),
        Nested::List(elements) => {
            let each = elements.iter().map(|element| match element {
                Nested::Null => Ok(None),
                Nested::Value(bytes) => number(bytes).map(Some),
                Nested::Packed(_) | Nested::List(_) => Err(no_numbers()),
            });
            each.collect()
        }
        Nested::Null | Nested::Value(_) => Err(no_numbers()),
    }
}

fn wrong() -> Error {
    let message = "a value of the column does not have the size of its type; write the file again";
    Error::new(Kind::Corrupt, message)
}

fn no_numbers() -> Error {
    Error::new(Kind::Internal, "the column has no plain list of numbers")
}

/// The values of a list that lie side by side.
fn packed(kind: ValueKind, bytes: &[u8]) -> Result<std::slice::Chunks<'_, u8>> {
    let width = kind.width().filter(|width| *width > 0).ok_or_else(wrong)?;
    Ok(bytes.chunks(width))
}

/// A list as JSON.
fn list(kind: ValueKind, of: &Nested<'_>, text: &mut String) -> Result<()> {
    match of {
        Nested::Null => text.push_str("null"),
        Nested::Value(bytes) => text.push_str(&value(kind, bytes).ok_or_else(wrong)?.to_json()),
        Nested::Packed(bytes) => {
            return all(packed(kind, bytes)?, text, |one, text| {
                text.push_str(&value(kind, one).ok_or_else(wrong)?.to_json());
                Ok(())
            });
        }
        Nested::List(elements) => return all(elements.iter(), text, |one, text| list(kind, one, text)),
    }
    Ok(())
}

fn all<T>(
    elements: impl Iterator<Item = T>,
    text: &mut String,
    mut write: impl FnMut(T, &mut String) -> Result<()>,
) -> Result<()> {
    text.push('[');
    for (at, element) in elements.enumerate() {
        if at > 0 {
            text.push(',');
        }
        write(element, text)?;
    }
    text.push(']');
    Ok(())
}

/// A value of a column.
enum Value {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    Word(String),
}

impl Value {
    fn to_json(&self) -> String {
        match self {
            Self::Bool(truth) => truth.to_string(),
            Self::Int(number) => number.to_string(),
            Self::Uint(number) => number.to_string(),
            Self::Float(number) if number.is_nan() => "NaN".to_owned(),
            Self::Float(f64::INFINITY) => "Infinity".to_owned(),
            Self::Float(f64::NEG_INFINITY) => "-Infinity".to_owned(),
            Self::Float(number) => serde_json::Value::from(*number).to_string(),
            Self::Word(word) => serde_json::Value::from(word.as_str()).to_string(),
        }
    }
}

fn value(kind: ValueKind, bytes: &[u8]) -> Option<Value> {
    Some(match kind {
        ValueKind::Bool => Value::Bool(bytes.first()? != &0),
        ValueKind::Int(_) => Value::Int(signed(bytes)?),
        ValueKind::Uint(_) => Value::Uint(unsigned(bytes)?),
        ValueKind::Float(2) => Value::Float(half(u16::from_le_bytes(bytes.try_into().ok()?))),
        ValueKind::Float(4) => {
            let number = f32::from_le_bytes(bytes.try_into().ok()?);
            // By way of its digits: 0.1 as an f32 is 0.1, and not 0.10000000149.
            Value::Float(number.to_string().parse().ok()?)
        }
        ValueKind::Float(_) => Value::Float(f64::from_le_bytes(bytes.try_into().ok()?)),
        ValueKind::Date => Value::Word(date(signed(bytes)?)),
        ValueKind::TimestampMs => Value::Word(moment(signed(bytes)?, 1_000, 3)),
        ValueKind::TimestampUs => Value::Word(moment(signed(bytes)?, 1_000_000, 6)),
        ValueKind::TimestampNs => Value::Word(moment(signed(bytes)?, 1_000_000_000, 9)),
        ValueKind::Text | ValueKind::Decimal(_) => Value::Word(std::str::from_utf8(bytes).ok()?.to_owned()),
        ValueKind::Bytes | ValueKind::Unsupported => Value::Word(STANDARD.encode(bytes)),
    })
}

fn unsigned(bytes: &[u8]) -> Option<u64> {
    let mut wide = [0_u8; 8];
    wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(u64::from_le_bytes(wide))
}

fn signed(bytes: &[u8]) -> Option<i64> {
    let fill = if bytes.last()? & 0x80 == 0 { 0 } else { 0xff };
    let mut wide = [fill; 8];
    wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(i64::from_le_bytes(wide))
}

/// A number of 16 bits: one of sign, five of exponent, ten of fraction.
pub(crate) fn half(bits: u16) -> f64 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    sign * match exponent {
        0 => fraction * 2_f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + fraction / 1024.0) * 2_f64.powi(exponent - 15),
    }
}

/// Days since 1970 as a date: years of 365.2425 days that begin in March.
fn date(days: i64) -> String {
    let days = i128::from(days) + 719_468;
    let era = days.div_euclid(146_097);
    let day = days.rem_euclid(146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i128::from(month <= 2);
    format!("{year:04}-{month:02}-{of_month:02}")
}

fn moment(ticks: i64, per_second: i64, digits: usize) -> String {
    let (seconds, rest) = (ticks.div_euclid(per_second), ticks.rem_euclid(per_second));
    let (day, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{}T{hour:02}:{minute:02}:{second:02}.{rest:0digits$}", date(day))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_people_write_them() {
        for (kind, bytes, text) in [
            (ValueKind::Bool, &[1_u8][..], "true"),
            (ValueKind::Int(1), &[0xff], "-1"),
            (ValueKind::Int(8), &(-7_i64).to_le_bytes(), "-7"),
            (
                ValueKind::Uint(8),
                &u64::MAX.to_le_bytes(),
                "18446744073709551615",
            ),
            (ValueKind::Float(2), &0x3c00_u16.to_le_bytes(), "1.0"),
            (ValueKind::Float(2), &1_u16.to_le_bytes(), "5.960464477539063e-8"),
            (ValueKind::Float(4), &0.1_f32.to_le_bytes(), "0.1"),
            (ValueKind::Float(8), &f64::NAN.to_le_bytes(), "NaN"),
            (ValueKind::Date, &(-1_i32).to_le_bytes(), "1969-12-31"),
            (ValueKind::Date, &11_016_i32.to_le_bytes(), "2000-02-29"),
            (
                ValueKind::TimestampUs,
                &(-1_i64).to_le_bytes(),
                "1969-12-31T23:59:59.999999",
            ),
            (ValueKind::Text, "größe".as_bytes(), "größe"),
        ] {
            assert_eq!(to_text(kind, false, bytes).unwrap(), text, "{kind}");
        }
        assert!(to_text(ValueKind::Int(8), false, b"123456789").is_err());
        assert!(to_text(ValueKind::Text, false, b"\xff").is_err());
    }

    #[test]
    fn what_json_has_no_number_for_is_in_lists_as_python_writes_it() {
        let doubles = |numbers: &[f64]| {
            let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
            [3].into_iter().chain(bytes).collect::<Vec<u8>>()
        };
        let row = doubles(&[f64::NAN, f64::INFINITY, -f64::INFINITY, -0.5]);
        assert_eq!(
            to_text(ValueKind::Float(8), true, &row).unwrap(),
            "[NaN,Infinity,-Infinity,-0.5]"
        );
        // Numbers of a column that is no list read back with Python's `float`.
        let one = |number: f64| to_text(ValueKind::Float(8), false, &number.to_le_bytes()).unwrap();
        assert_eq!(
            (one(f64::INFINITY), one(-f64::INFINITY)),
            ("inf".to_owned(), "-inf".to_owned())
        );
        assert_eq!(to_text(ValueKind::Float(8), true, &doubles(&[])).unwrap(), "[]");
    }

    #[test]
    fn numbers_above_the_signed_ones_are_told_apart() {
        let row: Vec<u8> = [3]
            .into_iter()
            .chain(u64::MAX.to_le_bytes())
            .chain(7_u64.to_le_bytes())
            .collect();
        assert_eq!(
            to_numbers(ValueKind::Uint(8), true, &row).unwrap(),
            [Some(Number::Uint(u64::MAX)), Some(Number::Int(7))]
        );
        assert_eq!(
            to_numbers(ValueKind::Bool, false, &[1]).unwrap(),
            [Some(Number::Int(1))]
        );
        // A list with a null in it has a tag in front of each element.
        let with_null = [2, 2, 0, 0, 0, 0, 1, 1, 0, 0, 0, 9];
        assert_eq!(
            to_numbers(ValueKind::Int(1), true, &with_null).unwrap(),
            [None, Some(Number::Int(9))]
        );
        assert_eq!(
            to_numbers(ValueKind::Text, false, b"7").unwrap_err().kind(),
            Kind::Internal
        );
    }
}
