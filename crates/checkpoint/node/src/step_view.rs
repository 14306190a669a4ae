//! The view of a step: `<run>/steps/<step>/whole/`, a folder of whole safetensors files that no lake has.
//!
//! Files of a step lie as they were saved: in parts, some of them in files of earlier steps. Stock readers
//! want whole tensors. The view shows the files that an export would write (`forebay_checkpoint::whole`) and
//! makes their bytes when somebody reads them (`compose.rs`), so nothing is stored twice. It is a kind of derived
//! objects: the engine asks it for metadata and for missing blocks; everything between, conditions, ranges, pages,
//! leases, sees ordinary objects whose version comes from the digest of the manifest.
//!
//! A key is in a view if it looks so *and* the step is committed; any other key means what it always did.
//! Listings of other prefixes do not show views.
//!
//! Limits: [`MANIFEST_BYTES_MAX`], [`ENTRIES_MAX`], [`TABLES_BYTES_MAX`]; [`VIEWS_BYTES_MAX`] of views are
//! kept. Each step is read once however many ask (the cache knows who is at it), and how many manifests are
//! read and parsed at once is bounded (`permits.rs`).

mod compose;
mod permits;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use forebay_checkpoint::Manifest;
use forebay_checkpoint::names::{self, StepPath};
use forebay_checkpoint::table::Table;
use forebay_checkpoint::whole::{self, WholeFile};
use forebay_core::{BucketName, ByteRange, Error, Kind, ObjectKey, Result, Version};
use forebay_engine::{BucketLake, Derived, DerivedStat};
use forebay_lake::{GetOptions, ListOptions, ListPage, ListedObject, ObjectMeta};
use forebay_reservoir::{ObjectVersion, SourceStream, Urgency};
use futures::TryStreamExt;
use quick_cache::sync::Cache;
use quick_cache::{OptionsBuilder, Weighter};
use tokio::sync::OnceCell;

use permits::ManifestPermits;

/// The largest manifest that gets a view.
const MANIFEST_BYTES_MAX: u64 = 64 << 20;
/// Tensors, parts, files and side tables, of each so many, of a step that gets a view: more than a manifest
/// of that size has, as it is written.
const ENTRIES_MAX: usize = 1 << 18;
/// All side tables of a step that gets a view: they are kept with it once they were needed.
const TABLES_BYTES_MAX: u64 = 64 << 20;
/// Views that are kept, by [`StepView::weight`]; the largest ones fit alone.
const VIEWS_BYTES_MAX: u64 = 512 << 20;
/// The memory that a file, a tensor or a part takes, about.
const ENTRY_BYTES: u64 = 512;
/// Ends every version in a view; with a dash, so that no client takes it for an MD5.
const VERSION_END: &str = "-whole";
/// Changes when the layout of views does, so that pages of older ones are not found.
const LAYOUT: &[u8] = b"forebay-step-view-1";

/// The views of steps that were asked for.
#[derive(Debug)]
pub struct StepViews {
    kept: Cache<StepKey, Arc<StepView>, ViewBytes>,
    permits: ManifestPermits,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct StepKey {
    bucket: BucketName,
    root: String,
    step: u64,
}

/// The files that the view of one step shows.
struct StepView {
    root: String,
    listed: Listed,
    /// Bytes that it takes, with all side tables.
    weight: u64,
    /// Without what no view shows: state that is not a tensor, tree, metadata, alarms.
    manifest: Manifest,
    files: Vec<ViewFile>,
    /// Versions of the files of the manifest, in its order, as they are asked for.
    sources: Vec<OnceCell<ObjectMeta>>,
    /// Its side tables, as they are needed.
    tables: Vec<OnceCell<Table>>,
}

/// A manifest as the lake lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Listed {
    generation: u32,
    bytes: u64,
    /// A step that was removed and saved again has the same generation.
    version: Version,
}

struct ViewFile {
    name: String,
    bytes: u64,
    version: Version,
    body: Body,
}

enum Body {
    Tensors(WholeFile),
    Document(Bytes),
}

/// A file of a view, and the view.
struct FoundFile {
    view: Arc<StepView>,
    file: usize,
}

#[derive(Debug, Clone)]
struct ViewBytes;

impl Weighter<StepKey, Arc<StepView>> for ViewBytes {
    fn weight(&self, _: &StepKey, view: &Arc<StepView>) -> u64 {
        // The cache takes nothing near its whole size, and such a view would be read anew for every page.
        view.weight.min(VIEWS_BYTES_MAX / 10 * 9)
    }
}

impl Default for StepViews {
    fn default() -> Self {
        let options = OptionsBuilder::new()
            .shards(1)
            .estimated_items_capacity(64)
            .weight_capacity(VIEWS_BYTES_MAX)
            .build()
            .expect("all that has no default is given");
        Self {
            kept: Cache::with_options(options, ViewBytes, Default::default(), Default::default()),
            permits: ManifestPermits::new(),
        }
    }
}

impl StepViews {
    /// The view of a step as it is now; `None` if the step is not committed.
    async fn find(&self, bucket: &BucketLake, root: &str, step: u64) -> Result<Option<Arc<StepView>>> {
        let Some(listed) = highest(bucket, root, step).await? else {
            return Ok(None);
        };
        let key = StepKey {
            bucket: bucket.name().clone(),
            root: root.to_owned(),
            step,
        };
        let guard = loop {
            match self.kept.get_value_or_guard_async(&key).await {
                Ok(view) if view.listed == listed => return Ok(Some(view)),
                // Of another commit.
                Ok(_) => drop(self.kept.remove_if(&key, |view| view.listed != listed)),
                // Who else asks for this step waits for it, and reads it if this one does not.
                Err(guard) => break guard,
            }
        };
        match StepView::read(&self.permits, bucket, root, step, listed).await {
            Ok(view) => {
                let view = Arc::new(view);
                // A view that is not kept is good all the same.
                let _ = guard.insert(Arc::clone(&view));
                Ok(Some(view))
            }
            // Pruned since it was listed.
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The file of a view that this version of an object is; `Changed` if the step has another commit by now.
    async fn of_version(&self, bucket: &BucketLake, object: &ObjectVersion) -> Result<FoundFile> {
        let changed = || {
            let error = Error::new(Kind::Changed, "the step has another commit now, or was removed");
            error.with("key", &object.key)
        };
        let (root, step, name) = names::parse_whole_path(object.key.as_str()).ok_or_else(changed)?;
        let key = StepKey {
            bucket: bucket.name().clone(),
            root: root.to_owned(),
            step,
        };
        let fits = |view: Arc<StepView>| {
            let is_it = |file: &ViewFile| file.name == name && file.version == object.version;
            let file = view.files.iter().position(is_it)?;
            Some(FoundFile { view, file })
        };
        if let Some(found) = self.kept.get(&key).and_then(fits) {
            return Ok(found);
        }
        let view = self.find(bucket, root, step).await?;
        view.and_then(fits).ok_or_else(changed)
    }
}

#[async_trait]
impl Derived for StepViews {
    async fn stat(&self, bucket: &BucketLake, key: &ObjectKey) -> Result<DerivedStat> {
        let Some((root, step, name)) = names::parse_whole_path(key.as_str()) else {
            return Ok(DerivedStat::NotMine);
        };
        let Some(view) = self.find(bucket, root, step).await? else {
            return Ok(DerivedStat::NotMine);
        };
        let file = view.files.iter().find(|file| file.name == name);
        Ok(file.map_or(DerivedStat::Missing, |file| {
            DerivedStat::Object(view.listed_file(key.clone(), file))
        }))
    }

    async fn list(&self, bucket: &BucketLake, options: &ListOptions) -> Result<Option<ListPage>> {
        let Some((root, step, name)) = names::parse_whole_path(&options.prefix) else {
            return Ok(None);
        };
        let Some(view) = self.find(bucket, root, step).await? else {
            return Ok(None);
        };
        let folder = options.prefix.strip_suffix(name).unwrap_or_default();
        let mut page = ListPage::default();
        for file in &view.files {
            let key = format!("{folder}{}", file.name);
            let is_behind = options.start_after.as_ref().is_none_or(|after| key > *after);
            if !file.name.starts_with(name) || !is_behind {
                continue;
            }
            if options.limit > 0 && page.objects.len() == options.limit {
                page.next = page.objects.last().map(|object| object.key.to_string());
                break;
            }
            page.objects.push(view.listed_file(ObjectKey::new(&key)?, file));
        }
        Ok(Some(page))
    }

    fn has_version(&self, key: &ObjectKey, version: &Version) -> bool {
        version.as_str().ends_with(VERSION_END) && names::parse_whole_path(key.as_str()).is_some()
    }

    async fn fetch(
        &self,
        bucket: &BucketLake,
        object: &ObjectVersion,
        range: ByteRange,
        urgency: &Urgency,
    ) -> Result<SourceStream> {
        let found = self.of_version(bucket, object).await?;
        Ok(found.fetch(bucket, range, urgency))
    }

    /// Nothing can be written or removed in the view of a committed step.
    async fn check_writable(&self, bucket: &BucketLake, key: &ObjectKey) -> Result<()> {
        let Some((root, step, _)) = names::parse_whole_path(key.as_str()) else {
            return Ok(());
        };
        if highest(bucket, root, step).await?.is_none() {
            return Ok(());
        }
        let message = "this folder is the view of a committed step and cannot be changed; save another step, or remove this one \
            with forebay ckpt rm";
        Err(Error::new(Kind::InvalidInput, message)
            .with("key", key)
            .with("step", step))
    }
}

/// The manifest of the highest generation of a step, if it is committed.
async fn highest(bucket: &BucketLake, root: &str, step: u64) -> Result<Option<Listed>> {
    let mut ask = ListOptions {
        prefix: format!("{root}{}manifest-", names::step_folder(step)),
        ..ListOptions::default()
    };
    let mut found: Option<Listed> = None;
    loop {
        let page = bucket.lake().list(ask.clone()).await?;
        for object in &page.objects {
            let path = object.key.as_str().strip_prefix(root).unwrap_or_default();
            if let Some(StepPath::Manifest { generation, .. }) = names::parse_path(path)
                && found.as_ref().is_none_or(|found| found.generation < generation)
            {
                found = Some(Listed {
                    generation,
                    bytes: object.bytes,
                    version: object.version.clone(),
                });
            }
        }
        let Some(next) = page.next else { return Ok(found) };
        ask.start_after = Some(next);
    }
}

impl StepView {
    async fn read(
        permits: &ManifestPermits,
        bucket: &BucketLake,
        root: &str,
        step: u64,
        listed: Listed,
    ) -> Result<Self> {
        let path = names::manifest(step, listed.generation);
        let bytes = listed.bytes;
        if bytes > MANIFEST_BYTES_MAX {
            return Err(no_view("its manifest is too large").with("manifest_bytes", bytes));
        }
        let key = ObjectKey::new(&format!("{root}{path}"))?;
        let permit = permits.to_read(bucket.name(), bytes).await?;
        let document = read_small(bucket, &key, bytes).await?;
        let parse = permits.to_parse().await?;
        let root = root.to_owned();
        let made = tokio::task::spawn_blocking(move || {
            let made = Self::new(root, step, listed, &document);
            drop((document, parse, permit));
            made
        })
        .await;
        let made = made.unwrap_or_else(|why| {
            Err(Error::new(Kind::Internal, "reading a manifest was stopped").caused_by(why))
        });
        made.map_err(|error| error.with("manifest", path))
    }

    fn new(root: String, step: u64, listed: Listed, document: &[u8]) -> Result<Self> {
        let manifest = Manifest::decode_tensors(document)?;
        if (manifest.step, manifest.generation) != (step, listed.generation) {
            let message = "a manifest is of another step or generation than its name says";
            return Err(Error::new(Kind::Corrupt, message));
        }
        let mut weight = document.len() as u64 + weigh(&manifest)?;
        let options = whole::Options {
            prefix: String::new(),
            file_bytes_max: whole::FILE_BYTES_MAX,
        };
        let whole = match manifest.content.tensors.is_empty() {
            true => Vec::new(),
            false => whole::files(&manifest, &options)?,
        };
        let files = view_files(&manifest.digest, whole);
        weight += files.iter().map(|file| file.body.kept_bytes()).sum::<u64>();
        Ok(Self {
            root,
            listed,
            weight,
            sources: (0..manifest.content.files.len())
                .map(|_| OnceCell::new())
                .collect(),
            tables: (0..manifest.content.tables.len())
                .map(|_| OnceCell::new())
                .collect(),
            files,
            manifest,
        })
    }

    fn listed_file(&self, key: ObjectKey, file: &ViewFile) -> ListedObject {
        ListedObject {
            key,
            bytes: file.bytes,
            version: file.version.clone(),
            modified: self.modified(),
        }
    }

    fn modified(&self) -> SystemTime {
        let since = Duration::from_millis(self.manifest.created_ms);
        SystemTime::UNIX_EPOCH
            .checked_add(since)
            .unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

impl Body {
    /// Bytes of it that lie in memory.
    fn kept_bytes(&self) -> u64 {
        match self {
            Self::Tensors(file) => file.header.len() as u64 + file.tensors.len() as u64 * ENTRY_BYTES,
            Self::Document(bytes) => bytes.len() as u64,
        }
    }
}

/// Returns what a manifest and its side tables take in memory; an error if that is more than a view may have.
fn weigh(manifest: &Manifest) -> Result<u64> {
    let content = &manifest.content;
    let tensors = content.tensors.values();
    let parts: usize = tensors.map(|tensor| tensor.parts.len()).sum();
    let entries = [
        content.tensors.len(),
        parts,
        content.files.len(),
        content.tables.len(),
    ];
    if entries.iter().any(|entries| *entries > ENTRIES_MAX) {
        let error = no_view("it has too many tensors, parts, files or side tables");
        return Err(error.with("of_each_max", ENTRIES_MAX));
    }
    let mut tables = content.tables.iter();
    let tables_bytes = tables.try_fold(0u64, |sum, table| sum.checked_add(table.bytes));
    let Some(tables_bytes) = tables_bytes.filter(|bytes| *bytes <= TABLES_BYTES_MAX) else {
        return Err(no_view("its side tables are too large").with("tables_bytes_max", TABLES_BYTES_MAX));
    };
    Ok(tables_bytes + entries.iter().sum::<usize>() as u64 * ENTRY_BYTES)
}

/// The files that a view shows, by name.
fn view_files(digest: &str, whole: Vec<WholeFile>) -> Vec<ViewFile> {
    let index = whole::index(&whole);
    let tensors = whole.into_iter().map(|file| ViewFile {
        name: file.name.clone(),
        bytes: file.bytes,
        version: version(digest, &file.name),
        body: Body::Tensors(file),
    });
    let index = index.map(|text| ViewFile {
        name: whole::INDEX.to_owned(),
        bytes: text.len() as u64,
        version: version(digest, whole::INDEX),
        body: Body::Document(text.into()),
    });
    let mut files: Vec<ViewFile> = tensors.chain(index).collect();
    files.sort_by(|a, b| a.name.cmp(&b.name));
    files
}

fn version(digest: &str, name: &str) -> Version {
    let mut hasher = blake3::Hasher::new();
    for part in [LAYOUT, digest.as_bytes(), name.as_bytes()] {
        hasher.update(part);
        hasher.update(&[0]);
    }
    let hash = hasher.finalize().to_hex();
    Version::new(&format!("{}{VERSION_END}", &hash[..32]))
}

fn no_view(why: &str) -> Error {
    let message = format!("this step has no view, because {why}; write its files with forebay ckpt export");
    Error::new(Kind::Unsupported, message)
}

/// All bytes of an object of this size.
async fn read_small(bucket: &BucketLake, key: &ObjectKey, bytes: u64) -> Result<Vec<u8>> {
    let mut got = bucket.lake().get(key, GetOptions::default()).await?;
    if got.bytes != bytes {
        let error = Error::new(
            Kind::Corrupt,
            "a file of the step has another size than it should have",
        );
        return Err(error
            .with("key", key)
            .with("bytes", got.bytes)
            .with("expected", bytes));
    }
    let mut all = Vec::with_capacity(usize::try_from(bytes).unwrap_or(0));
    while let Some(chunk) = got.body.try_next().await? {
        all.extend_from_slice(&chunk);
    }
    Ok(all)
}

impl fmt::Debug for StepView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepView")
            .field("root", &self.root)
            .field("step", &self.manifest.step)
            .field("generation", &self.listed.generation)
            .finish_non_exhaustive()
    }
}
