//! From what was typed to a client and names that the loader understands.
//!
//! `forebay://…` goes to a running node; a lake URL or a path gets a node embedded in this process
//! (`embedded.rs`).
//!
//! A name without a known ending and without a pattern means a folder, with or without the slash.

use std::path::Path;

use anyhow::anyhow;
use forebay_client::Client;
use forebay_dataset::raw::{Labels, Manifest};
use forebay_dataset::shard::Format;
use forebay_dataset_pack::Folder;
use forebay_loader::{Dataset, DatasetOptions, Progress, Rebuild};
use forebay_node::EmbeddedNode;

use super::Context;
use super::args::SourceArgs;
pub(crate) use crate::embedded::Access;
use crate::embedded::{Store, connect, store_of};
use crate::exit::{Exit, Outcome};

const SCHEME: &str = "forebay://";
const UNION: &str = "::";

/// An open place: a client and what was typed in the words of its node.
pub(crate) struct Opened {
    pub(crate) client: Client,
    /// `forebay://bucket/…`, unions split.
    pub(crate) names: Vec<String>,
    /// The text that was typed.
    pub(crate) shown: String,
    /// True if nothing may be written, not even an index.
    is_read_only: bool,
    /// Ends with this value, after the client's last call.
    _node: Option<EmbeddedNode>,
}

impl Opened {
    /// Opens what was typed. Blocks; not for a thread of an async runtime.
    pub(crate) fn open(text: &str, node: Option<&str>, access: Access, context: &Context) -> Outcome<Self> {
        let (store, names) = resolve(text, access)?;
        let (client, node) = connect(store.as_ref(), node, access, context)?;
        Ok(Self {
            client,
            names,
            shown: text.to_owned(),
            is_read_only: access == Access::Read && node.is_some(),
            _node: node,
        })
    }

    /// The folder that was typed. Errors: usage, if it was anything else.
    pub(crate) fn folder(&self) -> Outcome<Folder> {
        let [name] = self.names.as_slice() else {
            return Err(self.no_folder());
        };
        let plain = name.strip_prefix(SCHEME).unwrap_or(name);
        let (bucket, prefix) = plain.split_once('/').unwrap_or((plain, ""));
        if plain.contains(['{', '}']) || !(prefix.is_empty() || prefix.ends_with('/')) {
            return Err(self.no_folder());
        }
        Ok(Folder::new(self.client.clone(), bucket, prefix).shown_as(&self.shown))
    }

    fn no_folder(&self) -> Exit {
        Exit::usage(anyhow!(
            "{} is not one folder; name the folder of the dataset, with a / at its end",
            self.shown
        ))
    }

    /// The dataset behind the names, indexed now if it has to be.
    pub(crate) fn dataset(&self, options: DatasetOptions, context: &Context) -> Outcome<Dataset> {
        let bar = context.output.bar(0);
        bar.set_message("indexing");
        let progress = |progress: Progress| {
            bar.set_length(progress.bytes_total);
            bar.set_position(progress.bytes_done);
        };
        let options = DatasetOptions {
            interrupt: Some(context.interrupt.clone()),
            // Who only looks at a folder or a store of their own finds it as it was.
            store: options.store && !self.is_read_only,
            ..options
        };
        let dataset = Dataset::open(&self.client, &self.names, options, Some(&progress));
        bar.finish_and_clear();
        Ok(dataset?)
    }
}

/// Opens a dataset as it is to be looked at.
pub(crate) fn dataset(args: &SourceArgs, context: &Context) -> Outcome<(Opened, Dataset)> {
    let opened = Opened::open(&args.url, args.node.node.as_deref(), Access::Read, context)?;
    let dataset = opened.dataset(options(args)?, context)?;
    Ok((opened, dataset))
}

/// Returns how the loader opens it.
pub(crate) fn options(args: &SourceArgs) -> Outcome<DatasetOptions> {
    Ok(DatasetOptions {
        format: args.format,
        rebuild: Rebuild::Changed,
        build_threads: usize::from(args.jobs),
        tokens: args.tokens.clone(),
        borrow: args.borrow_index,
        shards_outside: args.shards_outside,
        labels: labels(args.labels.as_deref())?,
        ..DatasetOptions::default()
    })
}

/// Labels from the names of folders, or from a file of theirs.
pub(crate) fn labels(from: Option<&Path>) -> Outcome<Labels> {
    let Some(from) = from else {
        return Ok(Labels::None);
    };
    if from == Path::new("folder") {
        return Ok(Labels::Folder);
    }
    let text = std::fs::read_to_string(from)
        .map_err(|why| Exit::failure(anyhow!("cannot read the labels in {}: {why}", from.display())))?;
    let manifest = if text.trim_start().starts_with('{') {
        Manifest::jsonl(&text)
    } else {
        Manifest::csv(&text)
    };
    Ok(Labels::Manifest(manifest?))
}

/// The store for an embedded node, if one is needed, and the names.
fn resolve(text: &str, access: Access) -> Outcome<(Option<Store>, Vec<String>)> {
    let parts: Vec<&str> = text.split(UNION).collect();
    if parts.iter().all(|part| part.starts_with(SCHEME)) {
        let names = parts.iter().map(|part| as_folder(part)).collect();
        return Ok((None, names));
    }
    let mut store: Option<Store> = None;
    let mut names = Vec::new();
    for part in parts {
        let found = store_of(part.parse()?, part.ends_with('/'), access)?;
        let (found, key) = found.ok_or_else(|| several(text))?;
        let first = store.get_or_insert_with(|| found.clone());
        if first.url != found.url {
            return Err(several(text));
        }
        names.push(as_folder(&format!("{SCHEME}{}/{key}", first.bucket)));
    }
    Ok((store, names))
}

/// Returns whether a place lies in a folder of a dataset, as they were typed: then it is a part of the
/// dataset. Places that are one by other names are not told.
pub(crate) fn is_inside(place: &str, dataset: &str) -> bool {
    let whole = |text: &str| {
        let text = text.strip_prefix("file://").unwrap_or(text);
        let text = match text.contains("://") {
            true => text.to_owned(),
            false => std::path::absolute(text).map_or(text.to_owned(), |path| path.display().to_string()),
        };
        format!("{}/", text.trim_end_matches('/'))
    };
    let is_folder = |part: &&str| !part.contains('{') && Format::of_name(part).is_none();
    let mut folders = dataset.split(UNION).filter(is_folder);
    folders.any(|folder| whole(place).starts_with(&whole(folder)))
}

fn several(text: &str) -> Exit {
    Exit::usage(anyhow!(
        "{text} lies in several stores; put them behind one node (forebay serve) and name them by forebay://"
    ))
}

/// A name that can only mean a folder gets its slash.
fn as_folder(name: &str) -> String {
    let plain = name.strip_prefix(SCHEME).unwrap_or(name);
    // A document may list shards.
    let is_object = plain.contains('{') || plain.ends_with(".json") || Format::of_name(plain).is_some();
    let is_folder = plain.ends_with('/') || !plain.contains('/');
    if is_object || is_folder {
        name.to_owned()
    } else {
        format!("{name}/")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_can_only_be_folders_get_their_slash() {
        for (typed, name) in [
            ("forebay://box/a", "forebay://box/a/"),
            ("forebay://box/a/", "forebay://box/a/"),
            ("forebay://box", "forebay://box"),
            ("forebay://box/a.tar", "forebay://box/a.tar"),
            ("forebay://box/{a,b}", "forebay://box/{a,b}"),
        ] {
            assert_eq!(as_folder(typed), name);
        }
    }

    #[test]
    fn a_place_in_the_folder_of_a_dataset_is_inside() {
        for (place, dataset) in [
            ("photos/tar", "photos"),
            ("photos", "photos/"),
            ("./photos/a/b/", "photos"),
            ("s3://lake/a/b/", "s3://lake/a"),
            ("forebay://lake/b/c", "forebay://lake/a/::forebay://lake/b/"),
        ] {
            assert!(is_inside(place, dataset), "{place} {dataset}");
        }
        for (place, dataset) in [
            ("photos-tar", "photos"),
            ("photos", "photos/tar"),
            ("a/out", "a/{0..3}.tar"),
            ("a/out", "a/0.tar"),
            ("forebay://lake/a", "s3://lake/a"),
        ] {
            assert!(!is_inside(place, dataset), "{place} {dataset}");
        }
    }

    #[test]
    fn stores_are_not_mixed() {
        let exit = resolve("forebay://box/a/::s3://box/b/", Access::Read)
            .err()
            .unwrap();
        assert!(exit.is_usage);
    }
}
