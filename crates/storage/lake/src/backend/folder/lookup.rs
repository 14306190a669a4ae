//! Finding an object: which bytes, which version, which attributes, all of the same instant.
//!
//! A file and its sidecar are two reads, and a writer may replace the object between them. A sidecar that is
//! found is bound to the file by its stamp, so it is right. One that is missing means a foreign file only if
//! the name still leads to the same file afterwards (writers remove a sidecar after the rename); else: again.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use forebay_core::{Error, Kind, ObjectKey, Result, Version};
use rustix::fs::{Stat, fstat};
use rustix::io::Errno;

use super::key_path::KeyPath;
use super::sidecar::{Sidecars, Stamp};
use super::tree::{Tree, explain, is_file, open_file, stat_name};
use crate::{Attributes, ObjectMeta, UpdateToken};

/// Tries of a lookup that keeps losing races.
pub(super) const ATTEMPTS_MAX: usize = 100;

/// An object that was opened to read; the descriptor holds its bytes even if it is replaced.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) file: File,
    pub(super) stamp: Stamp,
    pub(super) meta: ObjectMeta,
}

/// Opens an object.
pub(super) fn open(tree: &Tree, key: &ObjectKey) -> Result<Opened> {
    let path = KeyPath::new(key)?;
    for _ in 0..ATTEMPTS_MAX {
        let folder = tree.open_parent(&path.folders).map_err(absent)?;
        let parent = folder.as_fd();
        let file = open_file(parent, path.name).map_err(absent)?;
        let stat = fstat(&file).map_err(absent)?;
        let sidecars = Sidecars::open(tree)?;
        if let Some(meta) = identify(
            tree,
            &sidecars,
            FileLocation {
                parent,
                name: path.name,
                key,
            },
            &stat,
        )? {
            return Ok(Opened {
                file,
                stamp: Stamp::of(&stat),
                meta,
            });
        }
    }
    Err(too_busy())
}

/// The object's metadata.
pub(super) fn head(tree: &Tree, key: &ObjectKey) -> Result<ObjectMeta> {
    let path = KeyPath::new(key)?;
    let folder = tree.open_parent(&path.folders).map_err(absent)?;
    head_at(
        tree,
        &Sidecars::open(tree)?,
        FileLocation {
            parent: folder.as_fd(),
            name: path.name,
            key,
        },
    )
}

/// Location of an object's file.
#[derive(Clone, Copy)]
pub(super) struct FileLocation<'a> {
    pub(super) parent: BorrowedFd<'a>,
    pub(super) name: &'a str,
    pub(super) key: &'a ObjectKey,
}

/// The metadata of the object at a location.
pub(super) fn head_at(tree: &Tree, sidecars: &Sidecars, location: FileLocation<'_>) -> Result<ObjectMeta> {
    for _ in 0..ATTEMPTS_MAX {
        let stat = stat_name(location.parent, location.name).map_err(absent)?;
        if let Some(meta) = identify(tree, sidecars, location, &stat)? {
            return Ok(meta);
        }
    }
    Err(too_busy())
}

/// The metadata of the file with this `stat`, or `None` if the name leads elsewhere by now.
fn identify(
    tree: &Tree,
    sidecars: &Sidecars,
    location: FileLocation<'_>,
    stat: &Stat,
) -> Result<Option<ObjectMeta>> {
    if !is_file(stat) {
        return Err(absent(Errno::NOENT));
    }
    let stamp = Stamp::of(stat);
    let record = if tree.is_same_device(stat) {
        sidecars.find(location.key, stamp)?
    } else {
        None
    };
    if let Some(record) = record {
        return Ok(Some(meta_of(
            location.key,
            stamp,
            &record.etag,
            record.attributes,
        )));
    }
    let now = Stamp::of(&stat_name(location.parent, location.name).map_err(absent)?);
    Ok((now == stamp).then(|| meta_of(location.key, stamp, &stamp.foreign_etag(), Attributes::default())))
}

fn meta_of(key: &ObjectKey, stamp: Stamp, etag: &str, attributes: Attributes) -> ObjectMeta {
    ObjectMeta {
        key: key.clone(),
        bytes: stamp.bytes,
        version: Version::new(etag),
        modified: stamp.modified(),
        attributes,
        token: UpdateToken {
            etag: Some(etag.to_owned()),
            version: None,
        },
    }
}

/// Nothing there, a folder, a link, or a file where a folder should be: none of them is an object.
fn absent(errno: Errno) -> Error {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ISDIR | Errno::NXIO => {
            Error::new(Kind::NotFound, "no such object")
        }
        errno => explain("cannot open the object's file", errno),
    }
}

fn too_busy() -> Error {
    Error::new(
        Kind::Conflict,
        "the object is being replaced faster than it can be read; try again",
    )
}
