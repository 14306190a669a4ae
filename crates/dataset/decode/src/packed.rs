//! The values of a batch in one piece of memory, where they have one type and one shape.
//!
//! Numbers become one row each; arrays of equal shape one more dimension in front. Anything else stays a
//! list.

use std::borrow::Cow;

use smallvec::smallvec;

use crate::decoder::{Array, Decoder, Shape, Value};

/// One array for a field of all samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed<M> {
    /// As numpy writes it.
    pub dtype: Cow<'static, str>,
    /// The dimensions; the first one counts samples.
    pub shape: Shape,
    /// The numbers.
    pub memory: M,
}

/// Packs the values of a field, of which each has its bytes in `fields`; `None` if they are not alike.
/// `memory` gives an empty vector with room for so many bytes.
pub fn pack(
    decoder: &Decoder,
    values: &[Value],
    fields: &[&[u8]],
    memory: impl FnOnce(usize) -> Vec<u8>,
) -> Option<Packed<Vec<u8>>> {
    match decoder {
        Decoder::Int => numbers(values, "<i8", memory, |value| match value {
            Value::Int(number) => Some(number.to_le_bytes()),
            _ => None,
        }),
        Decoder::Float => numbers(values, "<f8", memory, |value| match value {
            Value::Float(number) => Some(number.to_le_bytes()),
            _ => None,
        }),
        Decoder::Npy | Decoder::Tokens { .. } | Decoder::Image(_) => arrays(values, fields, memory),
        Decoder::Text | Decoder::Json => None,
    }
}

fn numbers(
    values: &[Value],
    dtype: &'static str,
    memory: impl FnOnce(usize) -> Vec<u8>,
    bytes: impl Fn(&Value) -> Option<[u8; 8]>,
) -> Option<Packed<Vec<u8>>> {
    let numbers: Vec<[u8; 8]> = values.iter().map(bytes).collect::<Option<_>>()?;
    let mut memory = memory(numbers.len() * 8);
    numbers.iter().for_each(|number| memory.extend_from_slice(number));
    Some(Packed {
        dtype: Cow::Borrowed(dtype),
        shape: smallvec![values.len()],
        memory,
    })
}

fn arrays(
    values: &[Value],
    fields: &[&[u8]],
    memory: impl FnOnce(usize) -> Vec<u8>,
) -> Option<Packed<Vec<u8>>> {
    let arrays = values.iter().map(|value| match value {
        Value::Array(array) => Some(array),
        _ => None,
    });
    let arrays: Vec<&Array> = arrays.collect::<Option<_>>()?;
    let first = arrays.first()?;
    let is_alike = |array: &&Array| array.dtype == first.dtype && array.shape == first.shape;
    // Numbers in Fortran's order would have to be turned; numpy does that where it is wanted.
    if first.is_fortran && first.shape.len() > 1 || !arrays.iter().all(is_alike) {
        return None;
    }
    if arrays
        .iter()
        .any(|array| array.is_fortran != first.is_fortran && first.shape.len() > 1)
    {
        return None;
    }
    let each = first.bytes(fields.first()?).len();
    let mut memory = memory(each * arrays.len());
    for (array, field) in arrays.iter().zip(fields) {
        memory.extend_from_slice(array.bytes(field));
    }
    let shape = std::iter::once(arrays.len()).chain(first.shape.iter().copied());
    Some(Packed {
        dtype: first.dtype.clone(),
        shape: shape.collect(),
        memory,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(name: &str, fields: &[&[u8]]) -> Option<Packed<Vec<u8>>> {
        let decoder = Decoder::parse(name).unwrap();
        let values: Vec<Value> = fields
            .iter()
            .map(|field| decoder.decode(field).unwrap())
            .collect();
        pack(&decoder, &values, fields, Vec::with_capacity)
    }

    #[test]
    fn tokens_of_equal_length_become_rows() {
        let found = packed("tokens:uint8", &[b"abc", b"def"]).unwrap();
        assert_eq!((&*found.dtype, &*found.shape), ("|u1", [2, 3].as_slice()));
        assert_eq!(found.memory, b"abcdef");
        assert_eq!(packed("tokens:uint8", &[b"abc", b"de"]), None);
    }

    #[test]
    fn no_numbers_are_an_empty_array_and_no_arrays_are_none() {
        assert_eq!(*packed("int", &[]).unwrap().shape, [0]);
        assert_eq!(packed("tokens:uint8", &[]), None);
    }
}
