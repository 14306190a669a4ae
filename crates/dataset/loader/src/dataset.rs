//! A dataset: names, an index, and samples by number.
//!
//! [`Dataset::open`] finds the shards, takes or builds the index, and compares the two; from then on the
//! dataset is fixed: the versions that were found are the ones that are read, and a shard that is replaced
//! later is an error, never other bytes. A dataset has no threads; clones share everything, threads and
//! forked children may use it at once. Memory: the index (a view of the node's, shared by all processes of
//! the host) and about 200 bytes a shard.

use std::sync::Arc;

use forebay_client::{Client, Interrupt, ObjectName, WorkingSetObject};
use forebay_core::{Error, Kind, Result};
use forebay_dataset::filter::Filter;
use forebay_dataset::index::{Index, Sample};
use forebay_dataset::order::{Fingerprint, Shape, ShardSize, Subset};
use forebay_dataset::raw::Labels;
use forebay_dataset::shard::{Codec, Format, Layout, ShardRecord};
use forebay_dataset::tokens::TokenWindows;
use forebay_dataset::write::KEY_FIELD;

use crate::fetch::fetch;
use crate::indexing::{self, DamagedShard, IndexOrigin, OnProgress, OpenIndex, Rebuild};
use crate::process::PerProcess;
use crate::rows::Rows;
use crate::rows::select::select;
use crate::sample::SampleBytes;
use crate::selection::SampleSelection;
use crate::source::{self, SearchOptions, Source};
use crate::streams::Streams;
use crate::verify::{TrustedManifests, Verify};

/// Options of opening a dataset.
#[derive(Clone)]
pub struct DatasetOptions {
    /// The format of all shards; `None`: as their names suggest.
    pub format: Option<Format>,
    /// Only these fields are read; empty: all.
    pub fields: Vec<String>,
    /// Policy for an index that is missing or does not fit.
    pub rebuild: Rebuild,
    /// Stores a built index beside the data.
    pub store: bool,
    /// Computes the SHA-256 of every shard when it is indexed.
    pub with_sha256: bool,
    /// Windows of tokens, for `npy` and `bin`.
    pub tokens: Option<TokenWindows>,
    /// Origin of labels, for raw files.
    pub labels: Labels,
    /// Shards that are indexed at once.
    pub build_threads: usize,
    /// Says that somebody wants to stop the building of the index.
    pub interrupt: Option<Interrupt>,
    /// Takes the index of a shard from DALI's `.idx` beside it, where there is one: no checksums,
    /// nothing of the shard is read.
    pub borrow: bool,
    /// Proof that the data has to pass; anything but `Nothing` reads all of it when it is opened.
    pub verify: Verify,
    /// Only samples for which this holds, if given.
    pub filter: Option<Filter>,
    /// Only these samples, if given; with a filter those that are in both.
    pub part: Option<SampleSelection>,
    /// Leaves damaged shards out, whole, instead of refusing to open; see [`Dataset::damaged_shards`]. The
    /// index is then not stored.
    pub skip_damaged: bool,
    /// Takes a folder whose pack is not finished: for whoever packs it and looks at what came
    /// out.
    pub unfinished: bool,
    /// Takes shards that a wids index names outside of its own folder, by `forebay://` names.
    pub shards_outside: bool,
    /// Bytes of decoded pages of Parquet, or of decompressed shards, that this process keeps.
    pub decoded_bytes_max: u64,
}

impl Default for DatasetOptions {
    fn default() -> Self {
        Self {
            format: None,
            fields: Vec::new(),
            rebuild: Rebuild::default(),
            store: true,
            with_sha256: false,
            tokens: None,
            labels: Labels::None,
            build_threads: 4,
            interrupt: None,
            borrow: false,
            verify: Verify::Nothing,
            filter: None,
            part: None,
            skip_damaged: false,
            unfinished: false,
            shards_outside: false,
            decoded_bytes_max: 512 << 20,
        }
    }
}

impl std::fmt::Debug for DatasetOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DatasetOptions")
            .field("format", &self.format)
            .field("fields", &self.fields)
            .field("rebuild", &self.rebuild)
            .finish_non_exhaustive()
    }
}

/// An open dataset. Clones share everything.
#[derive(Clone)]
pub struct Dataset(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) client: Client,
    pub(crate) index: Index,
    origin: IndexOrigin,
    damaged: Vec<DamagedShard>,
    shards: Vec<ShardLocation>,
    /// In order.
    names: Vec<Arc<str>>,
    fields: Vec<String>,
    shape: Arc<Shape>,
    access: Access,
    subset: Option<Arc<Subset>>,
    pub(crate) rows: PerProcess<Rows>,
    pub(crate) streams: PerProcess<Streams>,
    pub(crate) decoded_bytes_max: u64,
}

/// Ways to read samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// As byte ranges of their shards.
    Ranges,
    /// As rows of Parquet.
    Rows,
    /// From shards that are compressed as a whole.
    Streams,
    /// Some shards are compressed, some not.
    Mixed,
}

/// Location of a shard.
pub(crate) struct ShardLocation {
    /// Of raw files bucket and folder.
    pub(crate) object: ObjectName,
    pub(crate) version: Option<String>,
    /// `bucket/key`.
    pub(crate) name: Arc<str>,
    record: ShardRecord,
}

impl ShardLocation {
    /// Returns whether it can only be read from its start.
    pub(crate) fn is_compressed(&self) -> bool {
        self.record.is_compressed()
    }

    pub(crate) fn codec(&self) -> Codec {
        self.record.codec
    }

    /// Bytes after decompression.
    pub(crate) fn stream_bytes(&self) -> u64 {
        self.record.stream_bytes
    }

    /// Bytes of the object.
    pub(crate) fn bytes(&self) -> u64 {
        self.record.bytes
    }

    pub(crate) fn record_layout(&self) -> Layout {
        self.record.layout
    }
}

impl Dataset {
    /// Opens the dataset behind these names: `forebay://bucket/dir/{0000..1023}.tar`, unions with `::`,
    /// folders that end in `/`.
    ///
    /// The first opening reads every shard once to index it; `progress` is told. Errors: `NotFound` names
    /// missing shards, `InvalidInput` says what is wrong with a name, `Corrupt` what with a shard.
    pub fn open<S: AsRef<str>>(
        client: &Client,
        names: &[S],
        mut options: DatasetOptions,
        progress: Option<OnProgress<'_>>,
    ) -> Result<Self> {
        let (mut source, origins) = source::find(client, names, SearchOptions::of(&options))?;
        let trusted = TrustedManifests::read(client, &source, origins, &mut options)?;
        if let (Some(trusted), Source::Raw(folders)) = (&trusted, &mut source) {
            trusted.check_files(client, folders, &options, progress)?;
        }
        let OpenIndex {
            index,
            origin,
            damaged,
        } = indexing::open(client, &source, &options, progress)?;
        if let (Some(trusted), Source::Shards { base, .. }) = (&trusted, &source) {
            trusted.check_shards(&index, base)?;
        }
        let shards = locations(&index, &source)?;
        let shape = shape(&index, &shards)?;
        let access = access(&shards)?;
        let names = index.head().meta().fields.iter();
        let mut names: Vec<Arc<str>> = names.map(|name| name.as_str().into()).collect();
        names.sort_unstable();
        let is_known = |field: &String| names.iter().any(|name| **name == **field);
        // Where no field has this name, the samples have keys of their own.
        let is_there = |field: &String| field != KEY_FIELD || is_known(field);
        options.fields.retain(is_there);
        if let Some(unknown) = options.fields.iter().find(|field| !is_known(field)) {
            let message = "the dataset has no such field; leave it out, or choose one of those that it has";
            let known = index.head().meta().fields.join(" ");
            return Err(Error::new(Kind::InvalidInput, message)
                .with("field", unknown)
                .with("fields", known));
        }
        let mut inner = Inner {
            client: client.clone(),
            index,
            origin,
            damaged,
            shards,
            names,
            fields: options.fields,
            shape: Arc::new(shape),
            access,
            rows: PerProcess::default(),
            streams: PerProcess::default(),
            decoded_bytes_max: options.decoded_bytes_max,
            subset: None,
        };
        let part = options.part.map(|part| part.subset(&inner.index, &inner.shape));
        inner.subset = part.transpose()?.map(Arc::new);
        if let Some(filter) = &options.filter {
            let found = select(&inner, filter, options.build_threads)?;
            inner.subset = Some(Arc::new(match &inner.subset {
                Some(part) => found.and(part),
                None => found,
            }));
        }
        Ok(Self(Arc::new(inner)))
    }

    /// The samples of the part for which the filter holds; `None` if there is neither. Numbers are those of
    /// the whole dataset everywhere.
    #[must_use]
    pub fn subset(&self) -> Option<&Arc<Subset>> {
        self.0.subset.as_ref()
    }

    /// Returns how many samples there are, whatever the filter says.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.index.len()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Names of all fields that occur, sorted.
    #[must_use]
    pub fn fields(&self) -> &[String] {
        &self.0.index.head().meta().fields
    }

    /// The index: locations, keys, encodings, columns.
    #[must_use]
    pub fn index(&self) -> &Index {
        &self.0.index
    }

    /// Returns where the index came from.
    #[must_use]
    pub fn index_origin(&self) -> IndexOrigin {
        self.0.origin
    }

    /// Shards that were left out because they are damaged.
    #[must_use]
    pub fn damaged_shards(&self) -> &[DamagedShard] {
        &self.0.damaged
    }

    /// Returns what the order of an epoch depends on.
    #[must_use]
    pub fn shape(&self) -> &Arc<Shape> {
        &self.0.shape
    }

    /// Sample `number`, checked.
    ///
    /// Errors: `OutOfRange`, `Corrupt` with shard, key and offset, `Changed` if its shard was replaced.
    pub fn sample(&self, number: u64) -> Result<SampleBytes> {
        let sample = fetch(&self.0, 0, &[number], None)?.samples.pop();
        sample.unwrap_or_else(|| {
            Err(Error::new(
                Kind::Internal,
                "a request for a sample without an answer",
            ))
        })
    }

    /// These samples, in one request to the node, each with a result of its own.
    pub fn samples(&self, numbers: &[u64]) -> Result<Vec<Result<SampleBytes>>> {
        Ok(fetch(&self.0, 0, numbers, None)?.samples)
    }
}

impl std::fmt::Debug for Dataset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dataset")
            .field("samples", &self.len())
            .field("shards", &self.0.shards.len())
            .finish_non_exhaustive()
    }
}

impl Inner {
    pub(crate) fn shard(&self, number: u32) -> Result<&ShardLocation> {
        self.shards.get(number as usize).ok_or_else(|| {
            Error::new(
                Kind::Corrupt,
                "the dataset index names a shard that it does not have",
            )
            .with("shard", number)
        })
    }

    pub(crate) fn layout(&self, shard: u32) -> Layout {
        self.shards
            .get(shard as usize)
            .map_or(Layout::OneObject, ShardLocation::record_layout)
    }

    /// Bytes of all shards.
    pub(crate) fn bytes(&self) -> u64 {
        self.shards.iter().map(|place| place.record.bytes).sum()
    }

    pub(crate) fn largest_shard_bytes(&self) -> u64 {
        self.shards
            .iter()
            .map(|place| place.record.bytes)
            .max()
            .unwrap_or_default()
    }

    /// The shards as a node's cache knows them; raw files are not among them.
    pub(crate) fn working_set_objects(&self) -> impl Iterator<Item = WorkingSetObject> {
        let whole = self
            .shards
            .iter()
            .filter(|place| place.record.layout == Layout::OneObject);
        whole.filter_map(|place| {
            Some(WorkingSetObject {
                object: place.object.clone(),
                version: place.version.clone()?,
                bytes: place.record.bytes,
            })
        })
    }

    /// Bytes of all compressed shards, decompressed.
    pub(crate) fn compressed_bytes(&self) -> u64 {
        let compressed = self.shards.iter().filter(|place| place.is_compressed());
        compressed.fold(0, |sum, place| sum.saturating_add(place.record.stream_bytes))
    }

    /// Returns how its samples are read.
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// Returns whether a field of this name is wanted.
    pub(crate) fn is_wanted(&self, name: &str) -> bool {
        self.fields.is_empty() || self.fields.iter().any(|wanted| wanted == name)
    }

    /// Leaves the fields that are wanted.
    pub(crate) fn select(&self, sample: &mut Sample<'_>) {
        if !self.fields.is_empty() {
            sample.fields.retain(|field| self.is_wanted(field.name));
        }
    }

    pub(crate) fn field_name(&self, name: &str) -> Arc<str> {
        match self.names.binary_search_by(|known| (**known).cmp(name)) {
            Ok(at) => Arc::clone(&self.names[at]),
            Err(_) => name.into(),
        }
    }
}

/// Returns where the shards of an index lie, in its order.
fn locations(index: &Index, source: &Source) -> Result<Vec<ShardLocation>> {
    let mut locations = Vec::with_capacity(index.shard_count() as usize);
    for (number, shard) in index.head().shards().enumerate() {
        let record = shard?.record();
        let (object, version) = match source {
            Source::Shards { base, .. } => (base.absolute(&record.name)?, record.version.clone()),
            Source::Raw(folders) => {
                let bucket = folders.get(number).map(|folder| folder.bucket.clone());
                let object = ObjectName {
                    bucket: bucket.unwrap_or_default(),
                    key: record.name.clone(),
                };
                (object, None)
            }
        };
        let name = format!("{}/{}", object.bucket, object.key).into();
        locations.push(ShardLocation {
            object,
            version,
            name,
            record,
        });
    }
    Ok(locations)
}

/// Returns how the samples of these shards are read: all the same way.
fn access(locations: &[ShardLocation]) -> Result<Access> {
    let rows = locations
        .iter()
        .filter(|place| place.record.format == Format::Parquet)
        .count();
    match rows {
        0 => Ok(
            match locations.iter().filter(|place| place.is_compressed()).count() {
                0 => Access::Ranges,
                all if all == locations.len() => Access::Streams,
                _ => Access::Mixed,
            },
        ),
        all if all == locations.len() => Ok(Access::Rows),
        _ => {
            let message = "Parquet and other shards cannot be one dataset; mix two datasets instead";
            Err(Error::new(Kind::InvalidInput, message))
        }
    }
}

/// Samples and bytes of each shard, and which data, cut in which way, it is.
fn shape(index: &Index, locations: &[ShardLocation]) -> Result<Shape> {
    let mut sizes = Vec::with_capacity(locations.len());
    let mut versions = Vec::with_capacity(locations.len());
    for (shard, place) in index.head().shards().zip(locations) {
        let shard = shard?;
        sizes.push(ShardSize {
            samples: shard.samples(),
            // A window of a compressed shard is what it takes in memory.
            bytes: place.record.stream_bytes,
        });
        versions.push(version_of(
            index,
            place,
            shard.first_sample()..shard.first_sample() + shard.samples(),
        )?);
    }
    let parts = locations.iter().zip(&versions).zip(&sizes);
    let parts =
        parts.map(|((place, version), size)| (place.record.name.as_str(), version.as_str(), size.samples));
    // Tokens that are cut in another way are other samples, also if there are as many.
    let cut = index.head().meta().options.get(indexing::TOKENS_OPTION);
    let cut = cut.map(|cut| (indexing::TOKENS_OPTION, cut.as_str(), 0));
    let fingerprint = Fingerprint::of(parts.chain(cut));
    Shape::new(sizes, fingerprint)
}

/// The version of a shard; of a raw folder a fingerprint of all objects.
fn version_of(index: &Index, place: &ShardLocation, samples: std::ops::Range<u64>) -> Result<String> {
    use forebay_dataset::index::Value;
    if place.record.layout == Layout::OneObject {
        return Ok(place.record.version.clone().unwrap_or_default());
    }
    let mut objects = Vec::new();
    for number in samples {
        let key = String::from_utf8_lossy(index.key(number)?.unwrap_or_default()).into_owned();
        let version = match index.value(forebay_dataset::raw::VERSION_COLUMN, number)? {
            Some(Value::Text(version)) => version.to_owned(),
            _ => String::new(),
        };
        objects.push((key, version));
    }
    let parts = objects
        .iter()
        .map(|(key, version)| (key.as_str(), version.as_str(), 1));
    Ok(Fingerprint::of(parts).to_string())
}
