//! The index of a dataset: taken as it is stored, mended where shards changed, or built.
//!
//! An index is believed only if every shard has the name, size and version that it was built from. What does
//! not fit is built anew, shard by shard (`indexing/build.rs`), and the whole stored again
//! (`indexing/stored.rs`). Of raw folders the index is their listing, which has to be asked for anyway to
//! know whether something changed: it is built each time, in memory, and has no CRCs of its own unless the
//! files were verified. So it is with what was borrowed from other tools (`indexing/borrowed.rs`).

mod borrowed;
mod build;
mod stored;

use forebay_client::Client;
use forebay_core::{Error, Kind, Result};
use forebay_dataset::index::{Index, IndexBuilder};
use forebay_dataset::raw::{RawBuilder, RawObject};
use forebay_dataset::shard::ShardRecord;

use crate::DatasetOptions;
use crate::source::{Base, RawFolder, ShardObject, Source};
use build::Built;
use stored::{IndexLocation, StoredIndex, Written};

/// The option of an index that says how tokens are cut.
pub(crate) const TOKENS_OPTION: &str = "tokens";
/// Threads that read the data, at most.
pub(crate) const THREADS_MAX: usize = 64;

/// Policy for an index that is missing or does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rebuild {
    /// Nothing: opening fails and says what to do.
    Never,
    /// Builds what is missing or changed.
    #[default]
    Changed,
    /// Everything is built, whatever is there.
    Always,
}

/// Origin of the index of an open dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexOrigin {
    /// It was stored, and it fits.
    Stored,
    /// It was built now, wholly or partly, and stored.
    Built,
    /// It was built now and is in memory only: the lake takes no writes, storing was not wanted, or it is of
    /// raw files.
    InMemory,
}

/// Progress of building an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Bytes read.
    pub bytes_done: u64,
    /// Bytes to read.
    pub bytes_total: u64,
    /// Shards that are complete.
    pub shards_done: u64,
    /// Shards to read.
    pub shards_total: u64,
}

/// Told now and then while an index is built, from any thread.
pub type OnProgress<'a> = &'a (dyn Fn(Progress) + Sync);

/// A shard that was left out because it is damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedShard {
    /// `bucket/key`.
    pub shard: String,
    /// The error, with the offset.
    pub reason: String,
}

/// An index, where it came from, and the shards that it does without.
pub(crate) struct OpenIndex {
    pub(crate) index: Index,
    pub(crate) origin: IndexOrigin,
    pub(crate) damaged: Vec<DamagedShard>,
}

/// The index of what was found.
pub(crate) fn open(
    client: &Client,
    source: &Source,
    options: &DatasetOptions,
    progress: Option<OnProgress<'_>>,
) -> Result<OpenIndex> {
    match source {
        Source::Raw(folders) => Ok(OpenIndex {
            index: raw(folders, options)?,
            origin: IndexOrigin::InMemory,
            damaged: Vec::new(),
        }),
        Source::Shards {
            base,
            shards,
            encodings,
        } => {
            let indexing = Indexing {
                client,
                base,
                shards,
                encodings,
                options,
                progress,
            };
            indexing.open()
        }
    }
}

/// The index of raw folders: what their listings say.
fn raw(folders: &[RawFolder], options: &DatasetOptions) -> Result<Index> {
    let mut index = IndexBuilder::new();
    for folder in folders {
        let mut builder = RawBuilder::new(&folder.prefix, options.labels.clone());
        for (number, object) in folder.objects.iter().enumerate() {
            builder.object(&RawObject {
                name: object.key.get(folder.prefix.len()..).unwrap_or_default(),
                bytes: object.bytes,
                version: &object.version,
                crc32c: folder.crcs.get(number).copied(),
            })?;
        }
        index.add(builder.finish()?)?;
    }
    Index::from_bytes(index.finish()?)
}

/// Returns whether columns have the types that they have in a stored index.
fn has_same_types(stored: &Index, built: &Built) -> bool {
    let known = &stored.head().meta().encodings;
    let mut found = built.encodings.iter();
    found.all(|(column, encoding)| known.get(column).is_none_or(|other| other == encoding))
}

/// Everything that the indexing of shards needs.
struct Indexing<'a> {
    client: &'a Client,
    base: &'a Base,
    shards: &'a [ShardObject],
    encodings: &'a [(String, String)],
    options: &'a DatasetOptions,
    progress: Option<OnProgress<'a>>,
}

impl Indexing<'_> {
    fn open(&self) -> Result<OpenIndex> {
        let place = IndexLocation::of(self.base, self.shards, self.options)?;
        let stored = match self.options.rebuild {
            Rebuild::Always => StoredIndex {
                index: None,
                version: place.version(self.client)?,
            },
            Rebuild::Never | Rebuild::Changed => place.load(self.client)?,
        };
        let changed = self.changed(stored.index.as_ref())?;
        if changed.is_empty()
            && let Some(index) = stored.index
        {
            return Ok(OpenIndex {
                index,
                origin: IndexOrigin::Stored,
                damaged: Vec::new(),
            });
        }
        if self.options.rebuild == Rebuild::Never {
            let message = "the dataset has no index; build it: forebay dataset index URL";
            return Err(Error::new(Kind::NotFound, message).with("index", place.name()));
        }
        let mut built = build::shards(self, &changed)?;
        let mut damaged = std::mem::take(&mut built.damaged);
        let reused = stored.index.filter(|_| changed.len() < self.shards.len());
        let bytes = match reused {
            None => self.join(built, None)?,
            Some(index) if has_same_types(&index, &built) => self.join(built, Some(&index))?,
            // The type that the stored index has may be of the shard that was replaced: only all shards
            // together tell whether they fit.
            Some(_) => {
                let all: Vec<usize> = (0..self.shards.len()).collect();
                let mut built = build::shards(self, &all)?;
                damaged = std::mem::take(&mut built.damaged);
                self.join(built, None)?
            }
        };
        let (index, origin) = if damaged.is_empty() {
            self.keep(&place, stored.version, bytes)?
        } else {
            // Whoever finds a stored index believes that it is of all shards.
            (Index::from_bytes(bytes)?, IndexOrigin::InMemory)
        };
        Ok(OpenIndex {
            index,
            origin,
            damaged,
        })
    }

    /// Numbers of the shards that the stored index does not know as they are.
    ///
    /// Errors: what is wrong with the first one, if nothing may be built.
    fn changed(&self, stored: Option<&Index>) -> Result<Vec<usize>> {
        let Some(index) = stored.filter(|index| index.shard_count() as usize == self.shards.len()) else {
            return Ok((0..self.shards.len()).collect());
        };
        let mut changed = Vec::new();
        for (number, shard) in self.shards.iter().enumerate() {
            let known = index.shard(u32::try_from(number).unwrap_or(u32::MAX))?.record();
            let checked = known.check(shard.bytes, Some(&shard.version));
            match checked {
                Err(error) if self.options.rebuild == Rebuild::Never => return Err(error),
                Ok(()) if self.is_about(&known, shard) => {}
                _ => changed.push(number),
            }
        }
        Ok(changed)
    }

    /// Returns whether a record is about this shard and knows all that is wanted.
    fn is_about(&self, known: &ShardRecord, shard: &ShardObject) -> bool {
        known.name == self.base.relative(&shard.name)
            && known.format == shard.format
            && (known.sha256.is_some() || !self.options.with_sha256)
    }

    /// New shards and, between them, those of the stored index.
    fn join(&self, built: Built, stored: Option<&Index>) -> Result<Vec<u8>> {
        let mut index = IndexBuilder::new();
        let known = stored
            .iter()
            .flat_map(|stored| stored.head().meta().encodings.iter());
        for (field, encoding) in known.chain(&built.encodings) {
            index.encoding(field, encoding);
        }
        for (field, encoding) in self.encodings {
            index.encoding(field, encoding);
        }
        if let Some(tokens) = &self.options.tokens {
            index.option(TOKENS_OPTION, stored::token_text(tokens));
        }
        for (number, shard) in (0_u32..).zip(built.shards) {
            let missing = || Error::new(Kind::Internal, "a shard was neither built nor stored");
            let shard = match shard {
                Some(shard) => shard,
                None => stored.ok_or_else(missing)?.shard_index(number)?,
            };
            index.add(shard)?;
        }
        index.finish()
    }

    /// Stores the index, or says why not; whoever was faster is believed if its index fits.
    fn keep(
        &self,
        place: &IndexLocation,
        before: Option<String>,
        bytes: Vec<u8>,
    ) -> Result<(Index, IndexOrigin)> {
        if !self.options.store || self.options.borrow {
            return Ok((Index::from_bytes(bytes)?, IndexOrigin::InMemory));
        }
        match place.store(self.client, &bytes, before) {
            Written::Done => Ok((Index::from_bytes(bytes)?, IndexOrigin::Built)),
            Written::Refused(error) => {
                tracing::warn!(index = %place.name(), %error, "cannot store the dataset index, keeping it in memory");
                Ok((Index::from_bytes(bytes)?, IndexOrigin::InMemory))
            }
            Written::Overtaken => {
                let other = place.load(self.client)?.index;
                let fits = |index: &Index| self.changed(Some(index)).is_ok_and(|changed| changed.is_empty());
                match other.filter(fits) {
                    Some(index) => Ok((index, IndexOrigin::Stored)),
                    None => Ok((Index::from_bytes(bytes)?, IndexOrigin::InMemory)),
                }
            }
        }
    }
}
