//! One array in numpy's file format: the header is read, the numbers stay where they are.
//!
//! Objects are pickles, which can run any code, and are refused. Structured types are left to numpy itself.

use forebay_core::{Error, Kind, Result};

use crate::decoder::{Array, Data, Value};

/// The longest header that is read; numpy's own limit is the same.
const HEADER_BYTES_MAX: usize = 10_000;
/// Dimensions that an array may have here, with room for that of a batch; numpy is asked about more, whose
/// own limit was 32 for long.
const DIMENSIONS_MAX: usize = 31;
/// Units of dates and times.
const UNITS: [&str; 13] = [
    "Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as",
];

pub(crate) fn decode(field: &[u8]) -> Result<Value> {
    let (start, end) = header_range(field)?;
    let text = field
        .get(start..end)
        .and_then(|text| std::str::from_utf8(text).ok());
    let text = text.ok_or_else(|| damaged("its header is cut off"))?;
    let descr = value(text, "descr").ok_or_else(|| damaged("its header has no descr"))?;
    let order = value(text, "fortran_order").ok_or_else(|| damaged("its header has no fortran_order"))?;
    let shape = value(text, "shape").and_then(shape);
    let shape = shape.ok_or_else(|| damaged("its header has no shape"))?;
    let Some(dtype) = quoted(descr) else {
        return if descr.contains("'O'") || descr.contains("|O") {
            Err(objects())
        } else {
            Ok(Value::DeferToPython)
        };
    };
    if dtype.trim_start_matches(['|', '<', '>', '=']).starts_with('O') {
        return Err(objects());
    }
    let Some(item_bytes) = item_bytes(dtype) else {
        return Ok(Value::DeferToPython);
    };
    if shape.len() > DIMENSIONS_MAX {
        return Ok(Value::DeferToPython);
    }
    // An array without numbers still has strides, which must not overflow.
    let strides = shape
        .iter()
        .try_fold(item_bytes, |bytes, side| bytes.checked_mul((*side).max(1)))
        .filter(|bytes| isize::try_from(*bytes).is_ok());
    let count = strides.map(|bytes| if shape.contains(&0) { 0 } else { bytes });
    let range = count
        .and_then(|bytes| Some(end..end.checked_add(bytes)?))
        .filter(|range| range.end <= field.len())
        .ok_or_else(|| damaged("its numbers are cut off"))?;
    Ok(Value::Array(Array {
        dtype: dtype.to_owned().into(),
        shape: shape.into(),
        is_fortran: order.starts_with("True"),
        data: Data::Field(range),
    }))
}

/// Returns where the text of the header begins and ends.
fn header_range(field: &[u8]) -> Result<(usize, usize)> {
    let (before, length) = match field {
        [0x93, b'N', b'U', b'M', b'P', b'Y', 1, _, low, high, ..] => {
            (10, usize::from(u16::from_le_bytes([*low, *high])))
        }
        [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, _, a, b, c, d, ..] => {
            (12, u32::from_le_bytes([*a, *b, *c, *d]) as usize)
        }
        _ => return Err(damaged("it does not begin like one")),
    };
    if length > HEADER_BYTES_MAX {
        return Err(damaged("its header is longer than numpy allows"));
    }
    Ok((before, before + length))
}

fn damaged(why: &str) -> Error {
    Error::new(Kind::Corrupt, format!("the field is no array of numpy's: {why}"))
}

fn objects() -> Error {
    let message =
        "the array holds Python objects, which are pickles: they can run any code and are not loaded";
    Error::new(Kind::Corrupt, message)
}

/// Returns what stands behind a key, to the end of the text.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let quoted = [format!("'{key}'"), format!("\"{key}\"")];
    let behind = quoted
        .iter()
        .find_map(|quoted| text.split_once(quoted.as_str()).map(|(_, behind)| behind));
    Some(behind?.trim_start().strip_prefix(':')?.trim_start())
}

fn quoted(text: &str) -> Option<&str> {
    let quote = text.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    text[1..].split(quote).next()
}

fn shape(text: &str) -> Option<Vec<usize>> {
    let inner = text.strip_prefix('(')?.split_once(')')?.0;
    let sides = inner.split(',').map(str::trim).filter(|side| !side.is_empty());
    sides
        .map(|side| side.trim_end_matches('L').parse().ok())
        .collect()
}

/// Bytes of one number of a type that numpy writes in one word; `None` if numpy itself has to say what it is.
fn item_bytes(dtype: &str) -> Option<usize> {
    let plain = dtype.strip_prefix(['|', '<', '>', '=']).unwrap_or(dtype);
    let kind = plain.chars().next()?;
    let rest = &plain[kind.len_utf8()..];
    if matches!(kind, 'M' | 'm') {
        let unit = rest.strip_prefix('8')?.strip_prefix('[')?.strip_suffix(']')?;
        let unit = unit.trim_start_matches(|digit: char| digit.is_ascii_digit());
        return UNITS.contains(&unit).then_some(8);
    }
    let sizes: &[&str] = match kind {
        'b' => &["1"],
        'i' | 'u' => &["1", "2", "4", "8"],
        'f' => &["2", "4", "8", "16"],
        'c' => &["8", "16", "32"],
        _ => &[],
    };
    sizes.iter().find(|size| **size == rest)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, numbers: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend_from_slice(&u16::try_from(header.len()).unwrap().to_le_bytes());
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(numbers);
        bytes
    }

    #[test]
    fn the_numbers_stay_where_they_are() {
        let bytes = file(
            "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }\n",
            &[0; 8],
        );
        let Value::Array(array) = decode(&bytes).unwrap() else {
            unreachable!("an array")
        };
        assert_eq!((&*array.dtype, &*array.shape), ("<f4", [2, 1].as_slice()));
        assert_eq!(array.bytes(&bytes), [0; 8]);
    }

    #[test]
    fn objects_are_refused_and_structures_left_to_numpy() {
        let object = file("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"x");
        assert!(decode(&object).unwrap_err().to_string().contains("pickle"));
        let inside = file(
            "{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (1,), }",
            b"x",
        );
        assert!(decode(&inside).unwrap_err().to_string().contains("pickle"));
        let structure = file(
            "{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1,), }",
            b"abcd",
        );
        assert_eq!(decode(&structure).unwrap(), Value::DeferToPython);
    }

    #[test]
    fn types_that_numpy_does_not_have_are_left_to_it() {
        let header = |dtype: &str, shape: &str| {
            format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}")
        };
        for dtype in [
            "<f1", "<i3", "<i4[ns]", "<<i4", "<b4", "<M8[zz]", "<M8", "<M8[]", "<i+4",
        ] {
            let found = decode(&file(&header(dtype, "(1,)"), &[0; 32])).unwrap();
            assert_eq!(found, Value::DeferToPython, "{dtype}");
        }
        for dtype in ["|b1", "<f2", ">c16", "<M8[25us]", "=u8"] {
            let found = decode(&file(&header(dtype, "(1,)"), &[0; 32])).unwrap();
            assert!(matches!(found, Value::Array(_)), "{dtype}");
        }
        let deep = format!("({})", "1, ".repeat(40));
        assert_eq!(
            decode(&file(&header("<i4", &deep), &[0; 4])).unwrap(),
            Value::DeferToPython
        );
        let wide = header("<i4", "(0, 4611686018427387904)");
        assert_eq!(decode(&file(&wide, b"")).unwrap_err().kind(), Kind::Corrupt);
        let empty = header("<i4", "(0, 7)");
        assert!(matches!(decode(&file(&empty, b"")).unwrap(), Value::Array(_)));
    }

    #[test]
    fn what_is_cut_off_or_claims_too_much_is_damaged() {
        let header = "{'descr': '<i8', 'fortran_order': False, 'shape': (99999999999, 99999999999), }";
        for bytes in [
            file(header, b"12345678"),
            file(
                "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }",
                &[0; 15],
            ),
            file("{'descr': '<i8'}", &[0; 8]),
            b"\x93NUMPY\x01\x00\xff\xff".to_vec(),
            b"other".to_vec(),
        ] {
            assert_eq!(decode(&bytes).unwrap_err().kind(), Kind::Corrupt);
        }
    }
}
