//! From what was typed to a client and names that the loader understands.
//!
//! `forebay://…` goes to a running node. A lake URL or a path gets a node inside of this process, with the store or folder as a bucket of it; it
//! ends with the command. A path that lies in a folder lake (some folder above it has `.forebay/folder`) is opened as a part of that lake, so versions
//! and the place of the index are those that a node in front of it sees; any other folder is a small lake of its own.
//!
//! A name without a known ending and without a pattern means a folder, with or without the slash.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use forebay_client::{Client, ClientOptions};
use forebay_core::BucketName;
use forebay_dataset::shard::Format;
use forebay_loader::{Dataset, DatasetOptions, Progress, Rebuild};
use forebay_node::config::{BucketConfig, Config};
use forebay_node::options::SelfTest;
use forebay_node::{EmbeddedNode, EmbeddedOptions};

use super::Context;
use super::args::SourceArgs;
use crate::exit::{Exit, Outcome};
use crate::objects::location::Location;

/// Memory of a node inside of this process.
const RAM_BYTES: u64 = 512 << 20;
const SCHEME: &str = "forebay://";
const UNION: &str = "::";
/// The bucket's name where a folder's own name cannot be one.
const BUCKET: &str = "dataset";

/// An open place: a client and what was typed in the words of its node.
pub(crate) struct Opened {
    pub(crate) client: Client,
    /// `forebay://bucket/…`, unions split.
    pub(crate) names: Vec<String>,
    /// What was typed.
    pub(crate) shown: String,
    /// Whether nothing may be written, not even an index.
    only_looks: bool,
    /// Ends with this value, after the client's last call.
    _node: Option<EmbeddedNode>,
}

/// A folder of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Folder {
    pub(crate) bucket: String,
    /// With its slash; empty for a whole bucket.
    pub(crate) prefix: String,
}

/// What a place is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To read it; it has to be there, and one that is not behind a node stays as it is.
    Look,
    /// To write to it; it has to be there.
    Change,
    /// To write to it; it is made if it is missing.
    Make,
}

impl Opened {
    /// Opens what was typed. Blocks; not for a thread of an async runtime.
    pub(crate) fn open(text: &str, node: Option<&str>, purpose: Purpose, context: &Context) -> Outcome<Self> {
        let (lake, names) = resolve(text, purpose)?;
        let node_inside = lake.map(|lake| start(&lake, purpose)).transpose()?;
        let options = ClientOptions {
            address: match &node_inside {
                Some(inside) => Some(inside.socket().display().to_string()),
                None => node.map(str::to_owned),
            },
            interrupt: Some(context.interrupt.clone()),
            ..ClientOptions::default()
        };
        Ok(Self {
            client: Client::connect(options)?,
            names,
            shown: text.to_owned(),
            only_looks: purpose == Purpose::Look && node_inside.is_some(),
            _node: node_inside,
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
        Ok(Folder {
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
        })
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
            store: options.store && !self.only_looks,
            ..options
        };
        let dataset = Dataset::open(&self.client, &self.names, options, Some(&progress));
        bar.finish_and_clear();
        Ok(dataset?)
    }
}

/// Opens a dataset as it is to be looked at.
pub(crate) fn dataset(args: &SourceArgs, context: &Context) -> Outcome<(Opened, Dataset)> {
    let opened = Opened::open(&args.url, args.node.node.as_deref(), Purpose::Look, context)?;
    let dataset = opened.dataset(options(args), context)?;
    Ok((opened, dataset))
}

/// How the loader opens it.
pub(crate) fn options(args: &SourceArgs) -> DatasetOptions {
    DatasetOptions {
        format: args.format,
        rebuild: Rebuild::Changed,
        build_threads: usize::from(args.jobs),
        ..DatasetOptions::default()
    }
}

/// A store that becomes a bucket of a node inside.
struct Store {
    bucket: String,
    /// What a node takes as the lake of a bucket.
    url: String,
}

fn start(store: &Store, purpose: Purpose) -> Outcome<EmbeddedNode> {
    let bucket = BucketConfig {
        name: store.bucket.clone(),
        lake: Some(store.url.clone()),
        consistency: None,
        public_read: false,
        allow_uids: None,
    };
    let config = Config {
        buckets: vec![bucket],
        ..Config::default()
    };
    Ok(EmbeddedNode::start(EmbeddedOptions {
        lake: Some("memory://".into()),
        ram_bytes: Some(RAM_BYTES),
        self_test: match purpose {
            Purpose::Look => SelfTest::Listing,
            Purpose::Change | Purpose::Make => SelfTest::Full,
        },
        config,
        ..EmbeddedOptions::default()
    })?)
}

/// The store for a node inside, if one is needed, and the names.
fn resolve(text: &str, purpose: Purpose) -> Outcome<(Option<Store>, Vec<String>)> {
    let parts: Vec<&str> = text.split(UNION).collect();
    if parts.iter().all(|part| part.starts_with(SCHEME)) {
        let names = parts.iter().map(|part| as_folder(part)).collect();
        return Ok((None, names));
    }
    let mut store: Option<Store> = None;
    let mut names = Vec::new();
    for part in parts {
        let (url, key, called) = match part.parse::<Location>()? {
            Location::Local(path) => local(&path, part.ends_with('/'), purpose)?,
            Location::Lake { store, key, shown } => (store, key, shown),
            Location::Buckets | Location::Node { .. } => return Err(several(text)),
        };
        match &store {
            Some(first) if first.url != url => return Err(several(text)),
            Some(_) => {}
            None => {
                let bucket = bucket_name(&called);
                store = Some(Store { bucket, url });
            }
        }
        let bucket = store.as_ref().map_or(BUCKET, |store| &store.bucket);
        names.push(as_folder(&format!("{SCHEME}{bucket}/{key}")));
    }
    Ok((store, names))
}

fn several(text: &str) -> Exit {
    Exit::usage(anyhow!(
        "{text} lies in several stores; put them behind one node (forebay serve) and name them by forebay://"
    ))
}

/// A name that can only mean a folder gets its slash.
fn as_folder(name: &str) -> String {
    let plain = name.strip_prefix(SCHEME).unwrap_or(name);
    let is_object = plain.contains('{') || Format::of_name(plain).is_some();
    let is_folder = plain.ends_with('/') || !plain.contains('/');
    if is_object || is_folder {
        name.to_owned()
    } else {
        format!("{name}/")
    }
}

/// The last part of a store's name, if a bucket can be called so.
fn bucket_name(called: &str) -> String {
    let last = called
        .trim_end_matches('/')
        .rsplit('/')
        .next()
        .unwrap_or_default();
    BucketName::new(last).map_or_else(|_| BUCKET.to_owned(), |name| name.to_string())
}

/// The root folder, the key below it, and the root's name.
fn local(path: &Path, has_slash: bool, purpose: Purpose) -> Outcome<(String, String, String)> {
    let path =
        std::path::absolute(path).map_err(|why| Exit::failure(anyhow!("{}: {why}", path.display())))?;
    let is_folder = path.is_dir() || has_slash || purpose == Purpose::Make;
    if purpose == Purpose::Make {
        std::fs::create_dir_all(&path)
            .map_err(|why| Exit::failure(anyhow!("cannot make the folder {}: {why}", path.display())))?;
    }
    // A pattern may stand for folders too: the root is what comes before it.
    let is_plain = |part: &Path| !part.to_string_lossy().contains('{');
    let start = if is_folder {
        path.as_path()
    } else {
        path.parent().unwrap_or(&path)
    };
    let folder = start.ancestors().find(|part| is_plain(part)).unwrap_or(start);
    if !folder.is_dir() {
        return Err(Exit::failure(anyhow!("there is no folder {}", folder.display())));
    }
    let root = lake_above(folder).unwrap_or_else(|| folder.to_path_buf());
    let key = path.strip_prefix(&root).unwrap_or(Path::new(""));
    let (Some(root), Some(key)) = (root.to_str(), key.to_str()) else {
        return Err(Exit::usage(anyhow!("{} is not UTF-8", path.display())));
    };
    let slash = if is_folder && !key.is_empty() { "/" } else { "" };
    Ok((root.to_owned(), format!("{key}{slash}"), root.to_owned()))
}

/// The folder lake that a folder lies in, if there is one above it.
fn lake_above(folder: &Path) -> Option<PathBuf> {
    let above = folder.ancestors().skip(1);
    let found = above.filter(|parent| parent.join(".forebay/folder").is_dir());
    found.last().map(Path::to_path_buf)
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
    fn a_folder_is_its_own_lake_unless_it_lies_in_one() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("box/data");
        std::fs::create_dir_all(&data).unwrap();
        let (root, key, _) = local(&data, false, Purpose::Look).unwrap();
        assert_eq!((Path::new(&root), key.as_str()), (data.as_path(), ""));
        let (root, key, _) = local(&data.join("{0..3}.tar"), false, Purpose::Look).unwrap();
        assert_eq!((Path::new(&root), key.as_str()), (data.as_path(), "{0..3}.tar"));
        std::fs::create_dir_all(dir.path().join(".forebay/folder")).unwrap();
        let (root, key, _) = local(&data, true, Purpose::Look).unwrap();
        assert_eq!((Path::new(&root), key.as_str()), (dir.path(), "box/data/"));
    }

    #[test]
    fn stores_are_not_mixed() {
        let exit = resolve("forebay://box/a/::s3://box/b/", Purpose::Look)
            .err()
            .unwrap();
        assert!(exit.is_usage);
    }
}
