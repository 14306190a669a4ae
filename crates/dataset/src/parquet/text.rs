//! Values of columns as people and other formats write them: digits, dates, JSON for lists.
//!
//! Numbers are digits that read back to the same number, dates and times ISO 8601, raw bytes inside of lists base64.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forebay_core::{Error, Kind, Result};
use serde_json::Value;

use super::nested::Nested;
use super::schema::ValueKind;

/// A row of a column as text; lists as JSON.
///
/// Errors: `Corrupt` if the bytes are not those of such a value.
pub fn to_text(kind: ValueKind, is_list: bool, bytes: &[u8]) -> Result<String> {
    Ok(match to_json(kind, is_list, bytes)? {
        Value::String(text) => text,
        other => other.to_string(),
    })
}

/// A row of a column as JSON.
pub fn to_json(kind: ValueKind, is_list: bool, bytes: &[u8]) -> Result<Value> {
    if is_list {
        return nested(kind, &Nested::read(bytes)?);
    }
    value(kind, bytes).ok_or_else(wrong)
}

fn wrong() -> Error {
    let message = "a value of the column does not have the size of its type; write the file again";
    Error::new(Kind::Corrupt, message)
}

fn nested(kind: ValueKind, list: &Nested<'_>) -> Result<Value> {
    Ok(match list {
        Nested::Null => Value::Null,
        Nested::Value(bytes) => value(kind, bytes).ok_or_else(wrong)?,
        Nested::Packed(bytes) => {
            let width = kind.width().filter(|width| *width > 0).ok_or_else(wrong)?;
            let values = bytes.chunks(width).map(|one| value(kind, one).ok_or_else(wrong));
            Value::Array(values.collect::<Result<_>>()?)
        }
        Nested::List(elements) => {
            let elements = elements.iter().map(|element| nested(kind, element));
            Value::Array(elements.collect::<Result<_>>()?)
        }
    })
}

fn value(kind: ValueKind, bytes: &[u8]) -> Option<Value> {
    Some(match kind {
        ValueKind::Bool => Value::Bool(bytes.first()? != &0),
        ValueKind::Int(_) => signed(bytes)?.into(),
        ValueKind::Uint(_) => unsigned(bytes)?.into(),
        ValueKind::Float(2) => float(half(u16::from_le_bytes(bytes.try_into().ok()?))),
        ValueKind::Float(4) => {
            let number = f32::from_le_bytes(bytes.try_into().ok()?);
            // By way of its digits: 0.1 as an f32 is 0.1, and not 0.10000000149.
            number.to_string().parse().map_or(Value::Null, float)
        }
        ValueKind::Float(_) => float(f64::from_le_bytes(bytes.try_into().ok()?)),
        ValueKind::Date => date(signed(bytes)?).into(),
        ValueKind::TimestampMs => moment(signed(bytes)?, 1_000, 3).into(),
        ValueKind::TimestampUs => moment(signed(bytes)?, 1_000_000, 6).into(),
        ValueKind::TimestampNs => moment(signed(bytes)?, 1_000_000_000, 9).into(),
        ValueKind::Text | ValueKind::Decimal(_) => std::str::from_utf8(bytes).ok()?.into(),
        ValueKind::Bytes | ValueKind::Unsupported => STANDARD.encode(bytes).into(),
    })
}

fn float(number: f64) -> Value {
    match serde_json::Number::from_f64(number) {
        Some(number) => Value::Number(number),
        None => Value::String(number.to_string()),
    }
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
fn half(bits: u16) -> f64 {
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
}
