//! What is packed: samples of any dataset in the shape that a shard of another format takes.
//!
//! A unit is what stays together: a sample, or of raw files all files with one key (`dir/0001.jpg` and `dir/0001.cls`), by WebDataset's rule: the key is the path
//! up to the first dot of the base name, what follows is the field. A listing is sorted, so such files are neighbours. Shapes come from the index
//! alone; bytes are read later, each unit once. Memory: 8 bytes a unit of raw files, nothing of others.

use forebay_core::{Error, Kind, Result};
use forebay_dataset::shard::{Format, Layout};
use forebay_dataset::write::{KEY_FIELD, MdsColumn, PackFormat};
use forebay_loader::{Dataset, SampleBytes};

/// A file without an ending is this field.
const PLAIN_FIELD: &str = "data";

/// A dataset that is packed.
pub(crate) struct Source {
    pub(crate) dataset: Dataset,
    /// Of raw files the first sample of each unit, and the end.
    groups: Option<Vec<u64>>,
    target: Target,
}

/// What the format of the shards means for keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// Every sample needs one; numbers stand in.
    NeedsKeys,
    /// One is kept if there is one.
    KeepsKeys,
}

/// Key and fields of a unit, before its bytes are there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct UnitShape {
    pub(crate) key: Vec<u8>,
    pub(crate) fields: Vec<(String, u64)>,
}

impl Source {
    /// Looks at the index. Errors: `Unsupported` if samples of this format cannot be taken one by one.
    pub(crate) fn new(dataset: Dataset, format: Format) -> Result<Self> {
        for shard in dataset.index().head().shards() {
            let record = shard?.record();
            if record.format == Format::Parquet {
                let message =
                    "packing from parquet is not there yet; convert with pyarrow, or read it as it is";
                return Err(Error::new(Kind::Unsupported, message).with("shard", record.name));
            }
            record.check_random_access().map_err(|_| {
                let message = "packing from compressed shards is not there yet; decompress them first";
                Error::new(Kind::Unsupported, message).with("shard", &record.name)
            })?;
        }
        let target = if format == Format::Tar {
            Target::NeedsKeys
        } else {
            Target::KeepsKeys
        };
        let groups = is_raw(&dataset)?.then(|| groups(&dataset)).transpose()?;
        Ok(Self {
            dataset,
            groups,
            target,
        })
    }

    /// How many units there are.
    pub(crate) fn units(&self) -> u64 {
        match &self.groups {
            Some(groups) => groups.len().saturating_sub(1) as u64,
            None => self.dataset.len(),
        }
    }

    /// The samples of a unit.
    pub(crate) fn samples_of(&self, unit: u64) -> std::ops::Range<u64> {
        match &self.groups {
            Some(groups) => {
                let at = |unit: u64| groups.get(unit as usize).copied().unwrap_or_default();
                at(unit)..at(unit + 1)
            }
            None => unit..unit + 1,
        }
    }

    /// What a unit will look like.
    pub(crate) fn shape(&self, unit: u64) -> Result<UnitShape> {
        let mut shape = UnitShape::default();
        for number in self.samples_of(unit) {
            let sample = self.dataset.index().sample(number)?;
            let key = sample.key.unwrap_or_default();
            if self.groups.is_some() {
                let (key, field) = cut(key)?;
                shape.key = key.to_vec();
                shape.fields.push((field, sample.bytes()));
            } else {
                shape.key = key.to_vec();
                let fields = sample.fields.iter().filter(|field| self.takes(field.name));
                shape
                    .fields
                    .extend(fields.map(|field| (field.name.to_owned(), field.bytes)));
            }
        }
        if shape.key.is_empty() && self.target == Target::NeedsKeys {
            shape.key = format!("{unit:09}").into_bytes();
        }
        Ok(shape)
    }

    /// Key and fields of a unit whose samples were read.
    pub(crate) fn fields<'a>(
        &self,
        samples: &'a [SampleBytes],
        shape: &'a UnitShape,
    ) -> Vec<(&'a str, &'a [u8])> {
        let bytes = samples.iter().flat_map(|sample| &sample.fields);
        let bytes = bytes.filter(|field| self.groups.is_some() || self.takes(field.name()));
        let names = shape.fields.iter().map(|(name, _)| name.as_str());
        names.zip(bytes.map(|field| &**field)).collect()
    }

    /// In a tar the key is the name; a field of that name would be a second one.
    fn takes(&self, field: &str) -> bool {
        field != KEY_FIELD || self.target == Target::KeepsKeys
    }

    /// The columns of an MDS dataset of all units, sorted as the library has them.
    pub(crate) fn columns(&self) -> Result<Vec<MdsColumn>> {
        let mut names: Vec<String> = Vec::new();
        match self.groups {
            Some(_) => {
                for unit in 0..self.units() {
                    for (field, _) in self.shape(unit)?.fields {
                        if !names.contains(&field) {
                            names.push(field);
                        }
                    }
                }
            }
            None => names.extend_from_slice(self.dataset.fields()),
        }
        let has_keys = self.units() > 0 && !self.shape(0)?.key.is_empty();
        if has_keys && !names.iter().any(|name| name == KEY_FIELD) {
            names.push(KEY_FIELD.to_owned());
        }
        let encodings = &self.dataset.index().head().meta().encodings;
        let column = |name: String| match encodings.get(&name) {
            Some(encoding) => MdsColumn {
                name,
                encoding: encoding.clone(),
            },
            None => MdsColumn::of_field(&name),
        };
        let mut columns: Vec<MdsColumn> = names.into_iter().map(column).collect();
        columns.sort();
        Ok(columns)
    }
}

/// The shards that were asked for.
pub(crate) fn pack_format(source: &Source, format: Format) -> Result<PackFormat> {
    match format {
        Format::Tar => Ok(PackFormat::Tar),
        Format::TfRecord => Ok(PackFormat::TfRecord),
        Format::Mds => source.columns().map(PackFormat::Mds),
        Format::Parquet => Err(Error::new(
            Kind::Unsupported,
            "packing to parquet is not there yet; choose tar, tfrecord or mds",
        )),
        other => {
            let message = "shards are packed as tar, tfrecord or mds";
            Err(Error::new(Kind::InvalidInput, message).with("format", other.as_str()))
        }
    }
}

fn is_raw(dataset: &Dataset) -> Result<bool> {
    let first = dataset.index().head().shards().next().transpose()?;
    Ok(first.is_some_and(|shard| shard.record().layout == Layout::ObjectPerSample))
}

/// Where each unit of raw files begins, and the end.
fn groups(dataset: &Dataset) -> Result<Vec<u64>> {
    let mut starts = Vec::new();
    let mut before: Option<(u32, Vec<u8>)> = None;
    for number in 0..dataset.len() {
        let sample = dataset.index().sample(number)?;
        let key = cut(sample.key.unwrap_or_default())?.0;
        let is_same = before
            .as_ref()
            .is_some_and(|(shard, other)| *shard == sample.shard && other == key);
        if !is_same {
            starts.push(number);
            before = Some((sample.shard, key.to_vec()));
        }
    }
    starts.push(dataset.len());
    Ok(starts)
}

/// Key and field of the name of a file.
fn cut(name: &[u8]) -> Result<(&[u8], String)> {
    let base = name
        .iter()
        .rposition(|byte| *byte == b'/')
        .map_or(0, |slash| slash + 1);
    let dot = name[base..]
        .iter()
        .position(|byte| *byte == b'.')
        .map(|dot| base + dot);
    let Some(dot) = dot.filter(|dot| *dot + 1 < name.len()) else {
        return Ok((name.strip_suffix(b".").unwrap_or(name), PLAIN_FIELD.to_owned()));
    };
    let field = std::str::from_utf8(&name[dot + 1..]).map_err(|_| {
        let message = "the ending of a file is not UTF-8, so it cannot be the name of a field; rename it";
        Error::new(Kind::InvalidInput, message).with("file", String::from_utf8_lossy(name))
    })?;
    Ok((&name[..dot], field.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_at_the_first_dot_of_the_base_name() {
        for (name, key, field) in [
            ("cat/0001.jpg", "cat/0001", "jpg"),
            ("v1.0/0001.seg.PNG", "v1.0/0001", "seg.png"),
            ("README", "README", "data"),
            ("odd.", "odd", "data"),
        ] {
            assert_eq!(
                cut(name.as_bytes()).unwrap(),
                (key.as_bytes(), field.to_owned()),
                "{name}"
            );
        }
        assert!(cut(b"a.\xff").is_err());
    }
}
