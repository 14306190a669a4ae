//! A node embedded in this process, for a lake or a folder that no running node is asked for.
//!
//! The store or folder is a bucket of it, and it ends with the command. A path that lies in a folder lake
//! (some folder above it has `.forebay/folder`) is opened as a part of that lake, so versions and the places
//! of documents are those that a node in front of it sees; any other folder is a small lake of its own.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use forebay_client::{Client, ClientOptions};
use forebay_core::BucketName;
use forebay_node::config::{BucketConfig, Config};
use forebay_node::options::SelfTest;
use forebay_node::{EmbeddedNode, EmbeddedOptions};

use crate::blocking::Context;
use crate::exit::{Exit, Outcome};
use crate::objects::location::Location;

/// Memory of an embedded node.
const RAM_BYTES: u64 = 512 << 20;
/// The bucket's name where a folder's own name cannot be one.
const BUCKET: &str = "folder";

/// Access that a location is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// To read it; it has to be there, and one that is not behind a node stays as it is.
    Read,
    /// To write to it; it has to be there.
    Write,
    /// To write to it; it is made if it is missing.
    Create,
}

/// A store that becomes a bucket of an embedded node.
#[derive(Clone)]
pub(crate) struct Store {
    pub(crate) bucket: String,
    /// URL of the lake, as a node takes it.
    pub(crate) url: String,
}

/// Starts the node; it ends with the value.
fn start(store: &Store, access: Access) -> Outcome<EmbeddedNode> {
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
        self_test: match access {
            Access::Read => SelfTest::Listing,
            Access::Write | Access::Create => SelfTest::Full,
        },
        config,
        ..EmbeddedOptions::default()
    })?)
}

/// A client of an embedded node for this store, or of the running node; the node has to outlive the client's
/// last call. Blocks; not for a thread of an async runtime.
pub(crate) fn connect(
    store: Option<&Store>,
    node: Option<&str>,
    access: Access,
    context: &Context,
) -> Outcome<(Client, Option<EmbeddedNode>)> {
    let inside = store.map(|store| start(store, access)).transpose()?;
    let options = ClientOptions {
        address: match &inside {
            Some(inside) => Some(inside.socket().display().to_string()),
            None => node.map(str::to_owned),
        },
        interrupt: Some(context.interrupt.clone()),
        ..ClientOptions::default()
    };
    Ok((Client::connect(options)?, inside))
}

/// The store that a location lies in and the key there; `None` for what only a running node has.
pub(crate) fn store_of(
    location: Location,
    has_slash: bool,
    access: Access,
) -> Outcome<Option<(Store, String)>> {
    let (url, key, called) = match location {
        Location::Local(path) => local(&path, has_slash, access)?,
        Location::Lake { store, key, shown } => (store, key, shown),
        Location::Buckets | Location::Node { .. } => return Ok(None),
    };
    let bucket = bucket_name(&called);
    Ok(Some((Store { bucket, url }, key)))
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
fn local(path: &Path, has_slash: bool, access: Access) -> Outcome<(String, String, String)> {
    let path =
        std::path::absolute(path).map_err(|why| Exit::failure(anyhow!("{}: {why}", path.display())))?;
    let is_folder = path.is_dir() || has_slash || access == Access::Create;
    if access == Access::Create {
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
    fn a_folder_is_its_own_lake_unless_it_lies_in_one() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("box/data");
        std::fs::create_dir_all(&data).unwrap();
        let (root, key, _) = local(&data, false, Access::Read).unwrap();
        assert_eq!((Path::new(&root), key.as_str()), (data.as_path(), ""));
        let (root, key, _) = local(&data.join("{0..3}.tar"), false, Access::Read).unwrap();
        assert_eq!((Path::new(&root), key.as_str()), (data.as_path(), "{0..3}.tar"));
        std::fs::create_dir_all(dir.path().join(".forebay/folder")).unwrap();
        let (root, key, _) = local(&data, true, Access::Read).unwrap();
        assert_eq!((Path::new(&root), key.as_str()), (dir.path(), "box/data/"));
    }
}
