//! `Example` and `SequenceExample`: the two protobuf messages that TFRecord payloads are made of, decoded to
//! arrays.
//!
//! A small reader of our own for the few fields they have: packed and unpacked lists, maps in any order (of a
//! repeated key the last counts), fields that we do not know passed over. Byte strings are borrowed from the
//! payload; memory is at most eight times the payload (packed numbers of one byte become eight).

use std::collections::BTreeMap;

use forebay_core::{Error, Kind, Result};

/// One feature: a list of one of three types.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Feature<'a> {
    /// Nothing was set.
    #[default]
    Empty,
    /// Byte strings.
    Bytes(Vec<&'a [u8]>),
    /// 32-bit floats.
    Floats(Vec<f32>),
    /// 64-bit integers.
    Ints(Vec<i64>),
}

/// Features by name.
pub type Features<'a> = BTreeMap<&'a str, Feature<'a>>;

/// A `SequenceExample`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SequenceExample<'a> {
    /// Features of the whole sequence.
    pub context: Features<'a>,
    /// One feature per step, by name.
    pub feature_lists: BTreeMap<&'a str, Vec<Feature<'a>>>,
}

/// Decodes an `Example`. Errors: `Corrupt`.
pub fn decode_example(payload: &[u8]) -> Result<Features<'_>> {
    let mut features = Features::new();
    let mut message = Message(payload);
    let mut read = || {
        while let Some(field) = message.next()? {
            if let (1, Wire::Bytes(inner)) = field {
                read_features(inner, &mut features)?;
            }
        }
        Some(())
    };
    read().map(|()| features).ok_or_else(damaged)
}

/// Decodes a `SequenceExample`. Errors: `Corrupt`.
pub fn decode_sequence_example(payload: &[u8]) -> Result<SequenceExample<'_>> {
    let mut example = SequenceExample::default();
    let mut message = Message(payload);
    let mut read = || {
        while let Some(field) = message.next()? {
            match field {
                (1, Wire::Bytes(inner)) => read_features(inner, &mut example.context)?,
                (2, Wire::Bytes(inner)) => read_feature_lists(inner, &mut example.feature_lists)?,
                _ => {}
            }
        }
        Some(())
    };
    read().map(|()| example).ok_or_else(damaged)
}

fn damaged() -> Error {
    let message = "the record is no tf.train.Example; read it as bytes, or write it again";
    Error::new(Kind::Corrupt, message)
}

/// `Features { map<string, Feature> feature = 1 }`
fn read_features<'a>(bytes: &'a [u8], features: &mut Features<'a>) -> Option<()> {
    let mut message = Message(bytes);
    while let Some(field) = message.next()? {
        if let (1, Wire::Bytes(entry)) = field {
            let (key, value) = map_entry(entry)?;
            features.insert(key, read_feature(value)?);
        }
    }
    Some(())
}

/// `FeatureLists { map<string, FeatureList> feature_list = 1 }`, `FeatureList { repeated Feature feature = 1
/// }`
fn read_feature_lists<'a>(bytes: &'a [u8], lists: &mut BTreeMap<&'a str, Vec<Feature<'a>>>) -> Option<()> {
    let mut message = Message(bytes);
    while let Some(field) = message.next()? {
        if let (1, Wire::Bytes(entry)) = field {
            let (key, value) = map_entry(entry)?;
            let mut list = Vec::new();
            let mut features = Message(value);
            while let Some(field) = features.next()? {
                if let (1, Wire::Bytes(feature)) = field {
                    list.push(read_feature(feature)?);
                }
            }
            lists.insert(key, list);
        }
    }
    Some(())
}

/// Key 1, value 2; either may be missing, and the last counts.
fn map_entry(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (mut key, mut value) = ("", [].as_slice());
    let mut message = Message(bytes);
    while let Some(field) = message.next()? {
        match field {
            (1, Wire::Bytes(bytes)) => key = std::str::from_utf8(bytes).ok()?,
            (2, Wire::Bytes(bytes)) => value = bytes,
            _ => {}
        }
    }
    Some((key, value))
}

/// `Feature { oneof { BytesList = 1, FloatList = 2, Int64List = 3 } }`: the last kind counts, lists of one
/// kind go on.
fn read_feature(bytes: &[u8]) -> Option<Feature<'_>> {
    let mut feature = Feature::Empty;
    let mut message = Message(bytes);
    while let Some(field) = message.next()? {
        match field {
            (1, Wire::Bytes(list)) => read_bytes(list, &mut feature)?,
            (2, Wire::Bytes(list)) => read_floats(list, &mut feature)?,
            (3, Wire::Bytes(list)) => read_ints(list, &mut feature)?,
            _ => {}
        }
    }
    Some(feature)
}

fn read_bytes<'a>(list: &'a [u8], feature: &mut Feature<'a>) -> Option<()> {
    let mut values = match std::mem::take(feature) {
        Feature::Bytes(values) => values,
        _ => Vec::new(),
    };
    let mut message = Message(list);
    while let Some(field) = message.next()? {
        if let (1, Wire::Bytes(value)) = field {
            values.push(value);
        }
    }
    *feature = Feature::Bytes(values);
    Some(())
}

fn read_floats(list: &[u8], feature: &mut Feature<'_>) -> Option<()> {
    let mut values = match std::mem::take(feature) {
        Feature::Floats(values) => values,
        _ => Vec::new(),
    };
    let mut message = Message(list);
    while let Some(field) = message.next()? {
        match field {
            (1, Wire::Fixed32(bits)) => values.push(f32::from_bits(bits)),
            (1, Wire::Bytes(packed)) => {
                let numbers = packed.chunks_exact(4);
                if !numbers.remainder().is_empty() {
                    return None;
                }
                values.extend(numbers.map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes"))));
            }
            _ => {}
        }
    }
    *feature = Feature::Floats(values);
    Some(())
}

fn read_ints(list: &[u8], feature: &mut Feature<'_>) -> Option<()> {
    let mut values = match std::mem::take(feature) {
        Feature::Ints(values) => values,
        _ => Vec::new(),
    };
    let mut message = Message(list);
    while let Some(field) = message.next()? {
        match field {
            (1, Wire::Varint(number)) => values.push(number.cast_signed()),
            (1, Wire::Bytes(packed)) => {
                let mut packed = Message(packed);
                while !packed.0.is_empty() {
                    values.push(packed.varint()?.cast_signed());
                }
            }
            _ => {}
        }
    }
    *feature = Feature::Ints(values);
    Some(())
}

/// The value of a field as it lies on the wire.
enum Wire<'a> {
    Varint(u64),
    Fixed64,
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// Rest of a message.
struct Message<'a>(&'a [u8]);

impl<'a> Message<'a> {
    /// The next field: `None` is damage, `Some(None)` the end.
    #[expect(clippy::option_option, reason = "damage and end are two answers")]
    fn next(&mut self) -> Option<Option<(u64, Wire<'a>)>> {
        if self.0.is_empty() {
            return Some(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => {
                self.take(8)?;
                Wire::Fixed64
            }
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        (tag >> 3 != 0).then_some(Some((tag >> 3, value)))
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for (place, byte) in self.0.iter().take(10).enumerate() {
            number |= u64::from(byte & 0x7f).checked_shl(7 * place as u32)?;
            if byte & 0x80 == 0 {
                self.0 = &self.0[place + 1..];
                return Some(number);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
