//! Asks the node which shards there are: few requests, however many names.
//!
//! Up to [`STATS_MAX`] names are asked for each, at once; more are looked up in a listing of what their
//! beginnings have in common. A folder (a name that ends in `/`, or a bucket alone) is listed once; names
//! that start with a dot are skipped, so our own `.forebay/` is, and so is the manifest. What kind of dataset
//! a folder is: MDS if it has an `index.json` that is one; else the one format that the endings of its
//! objects suggest; else raw files.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use forebay_client::{Client, Entry, ItemRange, ListOptions, ListedObject, Name};
use forebay_core::{Error, Kind, Result};
use forebay_dataset::foreign::{WidsShard, stays_inside, wids};
use forebay_dataset::manifest::{Digest, Hasher, SIGNATURE_FILE, SUMS_FILE};
use forebay_dataset::mds::MdsIndex;
use forebay_dataset::shard::Format;

use super::{Base, Origins, RawFolder, SearchOptions, ShardObject, Source};
use crate::pattern::expand;

/// Names that are asked for each.
const STATS_MAX: usize = 8;
/// Names that an error tells.
const TOLD_MAX: usize = 5;
const SCHEME: &str = "forebay://";
const MDS_INDEX: &str = "index.json";
/// Ending of documents that list shards.
const DOCUMENT: &str = ".json";
/// There while `forebay dataset pack` writes the folder (docs/formats/dataset-pack.md).
const PACKING: [&str; 2] = [".forebay/packing", ".forebay-dataset/packing"];

/// The dataset behind these names, and what of it was named.
///
/// Errors: `NotFound` names what is missing; `InvalidInput` if the format cannot be known.
pub(crate) fn find<S: AsRef<str>>(
    client: &Client,
    patterns: &[S],
    asked: SearchOptions,
) -> Result<(Source, Origins)> {
    let names = expand(patterns)?;
    if names.is_empty() {
        return Err(Error::new(
            Kind::InvalidInput,
            "a dataset needs at least one name",
        ));
    }
    let mut origins = Origins::default();
    let mut parts = Vec::new();
    let mut objects = Vec::new();
    for name in names {
        let plain = name.strip_prefix(SCHEME).unwrap_or(&name);
        if let Some((scheme, _)) = plain.split_once("://") {
            let message = "datasets are read through a node, as forebay://bucket/dir/; start one for that store (forebay serve --lake URL, or forebay.open(URL) in Python)";
            return Err(Error::new(Kind::InvalidInput, message)
                .with("name", &name)
                .with("scheme", scheme));
        }
        let document = plain
            .ends_with(DOCUMENT)
            .then(|| listed(client, &name))
            .transpose()?;
        if plain.ends_with('/') || !plain.contains('/') {
            flush(client, &mut objects, asked.format, &mut parts)?;
            parts.push(folder(client, plain, asked, &mut origins)?);
        } else if let Some(document) = document {
            flush(client, &mut objects, asked.format, &mut parts)?;
            parts.push(shards_of(client, plain, document, asked, &mut origins)?);
        } else {
            objects.push(Name::parse(&name)?);
        }
    }
    flush(client, &mut objects, asked.format, &mut parts)?;
    Ok((join(parts)?, origins))
}

/// A document that lists shards.
enum Document {
    Wids(Vec<WidsShard>, Digest),
    /// The `index.json` of an MDS folder.
    Mds,
}

/// Reads a document that lists shards.
fn listed(client: &Client, name: &str) -> Result<Document> {
    let name = Name::parse(name)?;
    let document = client.get(&name, ItemRange::Whole, None)?;
    match wids(&document) {
        Ok(shards) => Ok(Document::Wids(shards, digest(&document))),
        Err(_) if name.key().ends_with(MDS_INDEX) && MdsIndex::parse(&document).is_ok() => Ok(Document::Mds),
        Err(error) => Err(error.with("object", name)),
    }
}

/// The shards that a document lists, which lie where it lies unless it says otherwise.
fn shards_of(
    client: &Client,
    plain: &str,
    document: Document,
    asked: SearchOptions,
    origins: &mut Origins,
) -> Result<Resolved> {
    let folder_end = plain.rfind('/').map_or(0, |slash| slash + 1);
    let shards = match document {
        Document::Mds => {
            let format = Some(Format::Mds);
            return folder(
                client,
                &plain[..folder_end],
                SearchOptions { format, ..asked },
                origins,
            );
        }
        Document::Wids(shards, digest) => {
            origins.documents.push((Name::parse(plain)?, digest));
            shards
        }
    };
    let mut names = Vec::with_capacity(shards.len());
    for shard in &shards {
        names.push(wids_name(&plain[..folder_end], &shard.url, asked.shards_outside)?);
    }
    let mut parts = Vec::new();
    flush(client, &mut names, asked.format, &mut parts)?;
    let found = parts
        .pop()
        .unwrap_or_else(|| Resolved::Shards(Vec::new(), Vec::new()));
    if let Resolved::Shards(objects, _) = &found {
        for (object, shard) in objects.iter().zip(&shards) {
            if shard.bytes.is_some_and(|bytes| bytes != object.bytes) {
                let message = "a shard does not have the size that the wids index says; upload it again, or make the index again";
                let error = Error::new(Kind::Corrupt, message).with("shard", &object.name);
                return Err(error.with("bytes", object.bytes));
            }
        }
    }
    Ok(found)
}

/// The name of a shard that a wids index in this folder lists. An index may come from anywhere, so without
/// leave it names nothing outside of its folder: else it would decide which other data a job reads.
fn wids_name(folder: &str, url: &str, may_be_outside: bool) -> Result<Name> {
    let (name, below) = match url.strip_prefix(SCHEME) {
        Some(whole) => (whole.to_owned(), whole.strip_prefix(folder)),
        None if url.contains("://") => {
            let message = "the wids index names a shard that does not lie in this node's lake; put the shards beside it";
            return Err(Error::new(Kind::Unsupported, message).with("shard", url));
        }
        None => (format!("{folder}{url}"), Some(url)),
    };
    let is_inside = below.is_some_and(stays_inside);
    if is_inside || (may_be_outside && stays_inside(&name)) {
        return Name::parse(&name);
    }
    let message = "the wids index names a shard outside of its folder; put the shards beside it, or allow it (shards_outside=True, --shards-outside)";
    Err(Error::new(Kind::InvalidInput, message).with("shard", url))
}

/// Shards or files behind one name or a run of names.
enum Resolved {
    Shards(Vec<ShardObject>, Vec<(String, String)>),
    Raw(RawFolder),
}

/// Encodings of columns, by name.
type Encodings = BTreeMap<String, String>;

/// Adds columns to those of other shards. A dataset has one encoding for each: read by another one, values
/// would be wrong.
fn agree<'a>(all: &mut Encodings, columns: impl Iterator<Item = (&'a str, &'a str)>) -> Result<()> {
    for (name, encoding) in columns {
        match all.get(name) {
            Some(known) if known != encoding => {
                let message = "a column is encoded in different ways in different shards; write the shards alike, or mix two datasets instead";
                let error = Error::new(Kind::InvalidInput, message).with("column", name);
                return Err(error.with("encoding", encoding).with("other", known));
            }
            Some(_) => {}
            None => drop(all.insert(name.to_owned(), encoding.to_owned())),
        }
    }
    Ok(())
}

fn join(parts: Vec<Resolved>) -> Result<Source> {
    let (mut shards, mut encodings, mut raw) = (Vec::new(), Encodings::new(), Vec::new());
    for part in parts {
        match part {
            Resolved::Shards(mut some, how) => {
                shards.append(&mut some);
                let how = how.iter();
                agree(
                    &mut encodings,
                    how.map(|(name, encoding)| (name.as_str(), encoding.as_str())),
                )?;
            }
            Resolved::Raw(folder) => raw.push(folder),
        }
    }
    if !raw.is_empty() && !shards.is_empty() {
        let message = "shards and folders of raw files cannot be one dataset; mix two datasets instead";
        return Err(Error::new(Kind::InvalidInput, message).with("folder", &raw[0].prefix));
    }
    if !raw.is_empty() {
        return Ok(Source::Raw(raw));
    }
    let names: Vec<Name> = shards
        .iter()
        .map(|shard: &ShardObject| shard.name.clone())
        .collect();
    Ok(Source::Shards {
        base: Base::of(&names),
        shards,
        encodings: encodings.into_iter().collect(),
    })
}

/// Finds the named objects that were collected so far.
fn flush(
    client: &Client,
    names: &mut Vec<Name>,
    format: Option<Format>,
    parts: &mut Vec<Resolved>,
) -> Result<()> {
    let names = std::mem::take(names);
    if names.is_empty() {
        return Ok(());
    }
    let found = if names.len() <= STATS_MAX {
        stat_each(client, &names)?
    } else {
        look_up(client, &names)?
    };
    let missing: Vec<&Name> = names.iter().filter(|name| !found.contains_key(*name)).collect();
    if !missing.is_empty() {
        return Err(missing_shards(&missing, names.len()));
    }
    let mut shards = Vec::with_capacity(names.len());
    for name in names {
        let (bytes, version) = found[&name].clone();
        let format = format_of(&name, format)?;
        shards.push(ShardObject {
            name,
            bytes,
            version,
            format,
            codec: None,
            stream_bytes: None,
            hashes: None,
        });
    }
    parts.push(Resolved::Shards(shards, Vec::new()));
    Ok(())
}

type ObjectStats = HashMap<Name, (u64, String)>;

/// All at once: a lake far away answers them in the time of one.
fn stat_each(client: &Client, names: &[Name]) -> Result<ObjectStats> {
    let stats = std::thread::scope(|scope| {
        let threads: Vec<_> = names
            .iter()
            .map(|name| scope.spawn(|| client.stat(name)))
            .collect();
        let lost = |_| {
            Err(Error::new(
                Kind::Internal,
                "a thread that looks for a shard has panicked",
            ))
        };
        let stats = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(lost));
        stats.collect::<Vec<_>>()
    });
    let mut found = ObjectStats::new();
    for (name, stat) in names.iter().zip(stats) {
        match stat {
            Ok(stat) => drop(found.insert(name.clone(), (stat.bytes, stat.version))),
            Err(error) if error.kind() == Kind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// One listing per bucket, of what the names there have in common.
fn look_up(client: &Client, names: &[Name]) -> Result<ObjectStats> {
    let mut wanted: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for name in names {
        wanted.entry(name.bucket()).or_default().insert(name.key());
    }
    let mut found = ObjectStats::new();
    for (bucket, keys) in wanted {
        let (Some(first), Some(last)) = (keys.first(), keys.last()) else {
            continue;
        };
        let shared = first
            .chars()
            .zip(last.chars())
            .take_while(|(one, other)| one == other);
        let prefix: String = shared.map(|(one, _)| one).collect();
        each_object(client, bucket, &prefix, |object| {
            if keys.contains(object.key.as_str()) {
                let name = Name::new(bucket, &object.key)?;
                found.insert(name, (object.bytes, object.version));
            }
            Ok(())
        })?;
    }
    Ok(found)
}

fn each_object(
    client: &Client,
    bucket: &str,
    prefix: &str,
    mut take: impl FnMut(ListedObject) -> Result<()>,
) -> Result<()> {
    let options = ListOptions {
        prefix: prefix.to_owned(),
        ..ListOptions::default()
    };
    for entry in client.list(bucket, options)? {
        if let Entry::Object(object) = entry? {
            take(object)?;
        }
    }
    Ok(())
}

fn missing_shards(missing: &[&Name], all: usize) -> Error {
    let told: Vec<String> = missing.iter().take(TOLD_MAX).map(ToString::to_string).collect();
    let message = if missing.iter().any(|name| name.key().contains(['*', '?'])) {
        "shards of the dataset are not there; there are no wildcards: name the folder, with a / at its end, or a range such as {0000..1023}.tar"
    } else {
        "shards of the dataset are not there; correct the name (that of a folder ends with a /), or upload them"
    };
    let error = Error::new(Kind::NotFound, message).with("first", told.join(" "));
    error.with("missing", missing.len()).with("shards", all)
}

fn format_of(name: &Name, given: Option<Format>) -> Result<Format> {
    given.or_else(|| Format::of_name(name.key())).ok_or_else(|| {
        let message = "the name of the shard does not tell its format; say which it is: tar, tfrecord, mds, jsonl, npy or bin";
        Error::new(Kind::InvalidInput, message).with("shard", name)
    })
}

fn digest(document: &[u8]) -> Digest {
    let mut hasher = Hasher::new();
    hasher.push(document);
    hasher.finish()
}

/// Everything below a folder.
fn folder(client: &Client, plain: &str, asked: SearchOptions, origins: &mut Origins) -> Result<Resolved> {
    let format = asked.format;
    let (bucket, prefix) = plain.split_once('/').unwrap_or((plain, ""));
    origins.folders.push((bucket.to_owned(), prefix.to_owned()));
    let mut objects = Vec::new();
    each_object(client, bucket, prefix, |object| {
        let below = object.key.get(prefix.len()..).unwrap_or_default();
        if PACKING.contains(&below) && !asked.unfinished {
            let message = "the dataset is not whole: it is being packed, or that was interrupted; \
                           run the same forebay dataset pack again to finish it";
            return Err(Error::new(Kind::NotFound, message).with("folder", plain));
        }
        let hidden = below.split('/').any(|part| part.starts_with('.'));
        let is_manifest = below == SUMS_FILE || below == SIGNATURE_FILE;
        if !hidden && !is_manifest && !below.is_empty() && !below.ends_with('/') {
            objects.push(object);
        }
        Ok(())
    })?;
    if objects.is_empty() {
        let message = "there is nothing in the folder of the dataset; correct the name, or upload the shards";
        return Err(Error::new(Kind::NotFound, message).with("folder", plain));
    }
    let index_json = format!("{prefix}{MDS_INDEX}");
    let has_index = objects.iter().any(|object| object.key == index_json);
    if has_index && matches!(format, None | Some(Format::Mds)) {
        let name = Name::new(bucket, &index_json)?;
        let document = client.get(&name, ItemRange::Whole, None)?;
        match MdsIndex::parse(&document) {
            Ok(index) => {
                origins.documents.push((name, digest(&document)));
                return mds(&index, bucket, prefix, &objects);
            }
            // Many things are called index.json.
            Err(error) if format.is_some() || error.kind() == Kind::Unsupported => {
                return Err(error.with("object", index_json));
            }
            Err(_) => {}
        }
    }
    match folder_format(&objects, format).map_err(|error| error.with("folder", plain))? {
        Format::Raw => Ok(Resolved::Raw(RawFolder {
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
            objects,
            crcs: Vec::new(),
        })),
        format => pick(bucket, objects, format).map(|shards| Resolved::Shards(shards, Vec::new())),
    }
}

/// The one format that the names suggest; raw files if they suggest none.
fn folder_format(objects: &[ListedObject], given: Option<Format>) -> Result<Format> {
    if let Some(format) = given {
        return Ok(format);
    }
    let mut formats: Vec<&str> = Vec::new();
    let mut last = Format::Raw;
    for format in objects.iter().filter_map(|object| Format::of_name(&object.key)) {
        if !formats.contains(&format.as_str()) {
            formats.push(format.as_str());
            last = format;
        }
    }
    if formats.len() > 1 {
        let message = "the folder holds several formats; say which one the dataset is, or name its shards";
        return Err(Error::new(Kind::InvalidInput, message).with("formats", formats.join(" ")));
    }
    Ok(last)
}

/// The objects of a format; all, if none has an ending that says so.
fn pick(bucket: &str, objects: Vec<ListedObject>, format: Format) -> Result<Vec<ShardObject>> {
    let is_one = |object: &ListedObject| Format::of_name(&object.key) == Some(format);
    let some = objects.iter().any(is_one);
    let objects = objects.into_iter().filter(|object| !some || is_one(object));
    let shard = |object: ListedObject| {
        let name = Name::new(bucket, &object.key)?;
        Ok(ShardObject {
            name,
            bytes: object.bytes,
            version: object.version,
            format,
            codec: None,
            stream_bytes: None,
            hashes: None,
        })
    };
    objects.map(shard).collect()
}

/// The shards of an MDS dataset, as its document has them.
fn mds(index: &MdsIndex, bucket: &str, prefix: &str, objects: &[ListedObject]) -> Result<Resolved> {
    let there: HashMap<&str, &ListedObject> = objects
        .iter()
        .map(|object| (object.key.as_str(), object))
        .collect();
    let (mut shards, mut missing, mut encodings) = (Vec::new(), Vec::new(), Encodings::new());
    for shard in &index.shards {
        let stored = shard.stored();
        let agreed = agree(&mut encodings, shard.columns.iter());
        agreed.map_err(|error| error.with("shard", &stored.name))?;
        let name = Name::new(bucket, &format!("{prefix}{}", stored.name))?;
        match there.get(name.key()) {
            None => missing.push(name),
            Some(object) if object.bytes != stored.bytes => {
                let message = "a shard does not have the size that index.json says; upload it again";
                let error = Error::new(Kind::Corrupt, message).with("shard", &name);
                return Err(error.with("bytes", object.bytes).with("expected", stored.bytes));
            }
            Some(object) => shards.push(ShardObject {
                name,
                bytes: object.bytes,
                version: object.version.clone(),
                format: Format::Mds,
                codec: Some(shard.codec()?),
                stream_bytes: Some(shard.raw_data.bytes),
                hashes: Some(stored.clone()),
            }),
        }
    }
    if !missing.is_empty() {
        return Err(missing_shards(
            &missing.iter().collect::<Vec<_>>(),
            index.shards.len(),
        ));
    }
    Ok(Resolved::Shards(shards, encodings.into_iter().collect()))
}
