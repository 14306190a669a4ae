//! TFRecord: each sample is a record with an `Example`, each field a feature with one byte string.
//!
//! `Example { Features { map<string, Feature { BytesList }> } }`, features sorted by name. Records of a
//! TFRecord source are written as they are; that is said by [`Records`] and never by the name of a field. The
//! payload goes out in pieces; its CRC is computed on the way.

use forebay_core::{Error, Result, crc32c};

use super::{KEY_FIELD, Out, PackSample, SampleShape, ShardWriter, refused};
use crate::tfrecord::masked;

/// Length, its CRC, and the CRC of the payload.
const FRAME_BYTES: u64 = 16;
/// Field 1 or 2 of a message, with a length in front.
const FIRST: u8 = 0x0a;
const SECOND: u8 = 0x12;
const THIRD: u8 = 0x1a;

/// Kind of the records of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Records {
    /// An `Example` each; fields of these names come as whole features ([`feature`]), the others as bytes.
    Examples(Vec<String>),
    /// Records already: each sample is one field without a key, which is written as it is.
    AsTheyAre,
}

impl Default for Records {
    fn default() -> Self {
        Self::Examples(Vec::new())
    }
}

/// The values of a feature.
#[derive(Debug, Clone, PartialEq)]
pub enum FeatureList {
    /// An `int64_list`.
    Ints(Vec<i64>),
    /// A `float_list`.
    Floats(Vec<f32>),
    /// A `bytes_list`.
    Bytes(Vec<Vec<u8>>),
}

/// A `tf.train.Feature` as it lies in an `Example`.
#[must_use]
pub fn feature(list_of: &FeatureList) -> Vec<u8> {
    let mut list = Vec::new();
    let tag = match list_of {
        FeatureList::Bytes(all) => {
            for bytes in all {
                open(&mut list, FIRST, bytes.len() as u64);
                list.extend_from_slice(bytes);
            }
            FIRST
        }
        FeatureList::Floats(all) => {
            open(&mut list, FIRST, 4 * all.len() as u64);
            list.extend(all.iter().flat_map(|number| number.to_le_bytes()));
            SECOND
        }
        FeatureList::Ints(all) => {
            // A negative number is a varint of ten bytes, as of its 64 bits without a sign.
            let packed: Vec<u8> = all.iter().flat_map(|number| varint(*number as u64)).collect();
            open(&mut list, FIRST, packed.len() as u64);
            list.extend_from_slice(&packed);
            THIRD
        }
    };
    let mut found = Vec::new();
    open(&mut found, tag, list.len() as u64);
    found.extend_from_slice(&list);
    found
}

pub(super) fn sample_bytes(records: &Records, sample: &SampleShape<'_>) -> Result<u64> {
    let payload = match (records, sample.fields) {
        (Records::Examples(whole), fields) => delimited(features_bytes(
            whole,
            features(sample.key, fields).iter().copied(),
        )),
        (Records::AsTheyAre, [(_, bytes)]) if sample.key.is_empty() => *bytes,
        (Records::AsTheyAre, _) => return Err(no_record()),
    };
    Ok(FRAME_BYTES.saturating_add(payload))
}

fn no_record() -> Error {
    refused("a sample with a key or several fields is no record that could stay as it is")
}

/// Name and size of each feature, sorted.
fn features<'a>(key: &'a [u8], fields: &[(&'a str, u64)]) -> Vec<(&'a str, u64)> {
    let mut features = fields.to_vec();
    if !key.is_empty() {
        features.push((KEY_FIELD, key.len() as u64));
    }
    features.sort_unstable();
    features
}

fn features_bytes<'a>(whole: &[String], features: impl Iterator<Item = (&'a str, u64)>) -> u64 {
    let each = features.map(|(name, bytes)| delimited(entry_bytes(whole, name, bytes)));
    each.fold(0, u64::saturating_add)
}

/// A map entry: name and feature.
fn entry_bytes(whole: &[String], name: &str, bytes: u64) -> u64 {
    delimited(name.len() as u64) + delimited(feature_bytes(whole, name, bytes))
}

/// A feature with a list with one value, or one that is there already.
fn feature_bytes(whole: &[String], name: &str, bytes: u64) -> u64 {
    if is_whole(whole, name) {
        return bytes;
    }
    delimited(delimited(bytes))
}

fn is_whole(whole: &[String], name: &str) -> bool {
    whole.iter().any(|one| one == name)
}

/// With tag and length in front.
fn delimited(bytes: u64) -> u64 {
    (1 + varint(bytes).len() as u64).saturating_add(bytes)
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(10);
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

fn open(head: &mut Vec<u8>, tag: u8, bytes: u64) {
    head.push(tag);
    head.extend_from_slice(&varint(bytes));
}

pub(super) struct TfRecordWriter {
    records: Records,
}

impl TfRecordWriter {
    pub(super) fn new(records: Records) -> Self {
        Self { records }
    }
}

impl ShardWriter for TfRecordWriter {
    fn start(&mut self, _out: Out<'_>) -> Result<()> {
        Ok(())
    }

    fn sample(&mut self, sample: &PackSample<'_>, out: Out<'_>) -> Result<()> {
        let sizes: Vec<(&str, u64)> = sample
            .fields
            .iter()
            .map(|(name, bytes)| (*name, bytes.len() as u64))
            .collect();
        let shape = SampleShape {
            key: sample.key,
            fields: &sizes,
        };
        let payload = sample_bytes(&self.records, &shape)? - FRAME_BYTES;
        let length = payload.to_le_bytes();
        out(&length)?;
        out(&masked(crc32c::crc32c(&length)).to_le_bytes())?;
        let mut crc = 0;
        let mut piece = |bytes: &[u8]| {
            crc = crc32c::crc32c_append(crc, bytes);
            out(bytes)
        };
        match (&self.records, sample.fields) {
            (Records::Examples(whole), _) => example(whole, sample, &mut piece)?,
            (Records::AsTheyAre, fields) => fields.iter().try_for_each(|(_, bytes)| piece(bytes))?,
        }
        out(&masked(crc).to_le_bytes())
    }

    fn finish(&mut self, _out: Out<'_>) -> Result<()> {
        Ok(())
    }
}

fn example(whole: &[String], sample: &PackSample<'_>, out: Out<'_>) -> Result<()> {
    let mut features: Vec<(&str, &[u8])> = sample.fields.to_vec();
    if !sample.key.is_empty() {
        features.push((KEY_FIELD, sample.key));
    }
    features.sort_unstable_by_key(|(name, bytes)| (*name, bytes.len()));
    let sizes = features.iter().map(|(name, bytes)| (*name, bytes.len() as u64));
    let mut head = Vec::new();
    open(&mut head, FIRST, features_bytes(whole, sizes));
    for (name, bytes) in features {
        let length = bytes.len() as u64;
        open(&mut head, FIRST, entry_bytes(whole, name, length));
        open(&mut head, FIRST, name.len() as u64);
        head.extend_from_slice(name.as_bytes());
        open(&mut head, SECOND, feature_bytes(whole, name, length));
        if !is_whole(whole, name) {
            open(&mut head, FIRST, delimited(length));
            open(&mut head, FIRST, length);
        }
        out(&head)?;
        out(bytes)?;
        head.clear();
    }
    out(&head)
}
