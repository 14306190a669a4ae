//! The instant in which an object appears, changes or goes.
//!
//! Order of a write, each step durable before the next: bytes of the temporary file; its sidecar, named after
//! its inode; the rename (under the key's lock, after the condition was checked); the folders. Killed before
//! the rename, the old object is untouched; after it, the new one is whole, with its own ETag. Only then the
//! old object's sidecar is removed, while a descriptor still holds its inode, so that it cannot be a newer
//! object's.

use std::os::fd::OwnedFd;

use forebay_core::{Error, Kind, ObjectKey, Result, Version};
use rustix::fs::{AtFlags, RenameFlags, fstat, linkat, renameat, renameat_with, unlinkat};
use rustix::io::Errno;

use super::key_path::KeyPath;
use super::lock::lock_key;
use super::lookup::{self, ATTEMPTS_MAX};
use super::sidecar::{self, SidecarRecord};
use super::temp::Temp;
use super::tree::{Chain, Tree, explain, is_file, pin, stat_name};
use crate::{Attributes, PutMode, PutReceipt, UpdateToken};

/// An object as it is about to be.
#[derive(Debug)]
pub(super) struct NewObject<'a> {
    pub(super) key: &'a ObjectKey,
    pub(super) etag: &'a str,
    pub(super) attributes: Attributes,
    pub(super) mode: &'a PutMode,
}

/// Makes a temporary file an object.
pub(super) fn publish(tree: &Tree, mut temp: Temp, object: NewObject<'_>) -> Result<PutReceipt> {
    let NewObject {
        key,
        etag,
        attributes,
        mode,
    } = object;
    let path = KeyPath::new(key)?;
    let stamp = temp.seal()?;
    sidecar::write(tree, &SidecarRecord::new(key, stamp, etag.to_owned(), attributes))?;
    let (chain, replaced) = rename_under_lock(tree, &temp, key, &path, mode)?;
    temp.published();
    tree.sync_chain(&chain)
        .map_err(|errno| explain("cannot sync the object's folder", errno))?;
    forget(tree, replaced.as_ref());
    Ok(PutReceipt {
        version: Version::new(etag),
        token: UpdateToken {
            etag: Some(etag.to_owned()),
            version: None,
        },
        modified: Some(stamp.modified()),
    })
}

/// Why an attempt to rename failed: for good, or by an errno that has to be looked at.
enum Failure {
    Final(Error),
    Os(Errno),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Os(errno)
    }
}

/// The folders that lead to the object, and what had its name before.
type Renamed = (Chain, Option<OwnedFd>);

fn rename_under_lock(
    tree: &Tree,
    temp: &Temp,
    key: &ObjectKey,
    path: &KeyPath<'_>,
    mode: &PutMode,
) -> Result<Renamed> {
    let _held = lock_key(tree, key)?;
    for _ in 0..ATTEMPTS_MAX {
        let attempt = match mode {
            PutMode::Update(token) => rename_if(tree, temp, key, path, token),
            PutMode::Overwrite => rename_over(tree, temp, path),
            PutMode::Create => rename_new(tree, temp, path),
        };
        match attempt {
            Ok(renamed) => return Ok(renamed),
            // A delete has removed a folder that it left empty.
            Err(Failure::Os(Errno::NOENT)) => {}
            Err(Failure::Os(errno)) => return Err(collision(errno)),
            Err(Failure::Final(error)) => return Err(error),
        }
    }
    Err(Error::new(
        Kind::Conflict,
        "the key's folder is removed as fast as it is made; try again",
    ))
}

fn rename_over(tree: &Tree, temp: &Temp, path: &KeyPath<'_>) -> Result<Renamed, Failure> {
    let chain = tree.make_chain(&path.folders)?;
    let parent = tree.parent(&chain);
    let replaced = pin(parent, path.name)?;
    let (folder, name) = temp.location();
    renameat(folder, name, parent, path.name)?;
    Ok((chain, replaced))
}

fn rename_if(
    tree: &Tree,
    temp: &Temp,
    key: &ObjectKey,
    path: &KeyPath<'_>,
    token: &UpdateToken,
) -> Result<Renamed, Failure> {
    check_token(tree, key, token)?;
    rename_over(tree, temp, path)
}

/// Returns whether the object is still the one that the token names. Called under the key's lock.
fn check_token(tree: &Tree, key: &ObjectKey, token: &UpdateToken) -> Result<()> {
    let found = match lookup::head(tree, key) {
        Ok(meta) => Some(meta.token),
        Err(error) if error.kind() == Kind::NotFound => None,
        Err(error) => return Err(error),
    };
    if found.as_ref() != Some(token) {
        let message = "the object is not the one the request names; read it again";
        return Err(Error::new(Kind::PreconditionFailed, message));
    }
    Ok(())
}

/// Renames only if nothing has the name, decided by the kernel: true between processes, and for `cp` as well.
fn rename_new(tree: &Tree, temp: &Temp, path: &KeyPath<'_>) -> Result<Renamed, Failure> {
    let chain = tree.make_chain(&path.folders)?;
    let parent = tree.parent(&chain);
    let (folder, name) = temp.location();
    let renamed = match renameat_with(folder, name, parent, path.name, RenameFlags::NOREPLACE) {
        // Some file systems do not know the flag; all know hard links.
        Err(Errno::INVAL | Errno::NOSYS) => linkat(folder, name, parent, path.name, AtFlags::empty())
            .and_then(|()| unlinkat(folder, name, AtFlags::empty())),
        other => other,
    };
    match renamed {
        Ok(()) => Ok((chain, None)),
        Err(Errno::EXIST) => match stat_name(parent, path.name) {
            Ok(stat) if !is_file(&stat) => Err(Failure::Os(Errno::ISDIR)),
            _ => Err(Error::new(Kind::AlreadyExists, "an object with this key exists").into()),
        },
        Err(errno) => Err(errno.into()),
    }
}

fn collision(errno: Errno) -> Error {
    match errno {
        Errno::ISDIR | Errno::NOTEMPTY => Error::new(
            Kind::Conflict,
            "a folder or link has this name, because other keys lie below it; choose another key",
        ),
        Errno::NOTDIR => Error::new(
            Kind::Conflict,
            "a part of the key before a '/' is an object or link, and a folder cannot have both; choose another key",
        ),
        errno => explain("cannot give the object its name", errno),
    }
}

/// Removes an object. Without a condition, one that is not there is fine.
pub(super) fn delete(tree: &Tree, key: &ObjectKey, only: Option<&UpdateToken>) -> Result<()> {
    let absent = || match only {
        None => Ok(()),
        Some(_) => Err(Error::new(Kind::NotFound, "no such object")),
    };
    let path = KeyPath::new(key)?;
    let wrong = |errno: Errno| explain("cannot remove the object's file", errno);
    let chain = match tree.open_chain(&path.folders) {
        Ok(chain) => chain,
        Err(Errno::NOENT | Errno::NOTDIR) => return absent(),
        Err(errno) => return Err(wrong(errno)),
    };
    let parent = tree.parent(&chain);
    let removed = {
        let _held = lock_key(tree, key)?;
        let held = pin(parent, path.name).map_err(wrong)?;
        let is_object = held
            .as_ref()
            .and_then(|held| fstat(held).ok())
            .is_some_and(|stat| is_file(&stat));
        if !is_object {
            // Nothing, or a folder or link that is not ours to remove.
            return absent();
        }
        if let Some(token) = only {
            check_token(tree, key, token)?;
        }
        match unlinkat(parent, path.name, AtFlags::empty()) {
            Ok(()) => held,
            Err(Errno::NOENT | Errno::ISDIR) => return absent(),
            Err(errno) => return Err(wrong(errno)),
        }
    };
    tree.sync_chain(&chain).map_err(wrong)?;
    forget(tree, removed.as_ref());
    tree.prune(&chain, &path.folders);
    Ok(())
}

/// Removes the sidecar of a file that has lost its name and is still held.
fn forget(tree: &Tree, held: Option<&OwnedFd>) {
    if let Some(stat) = held.and_then(|held| fstat(held).ok()).filter(is_file) {
        sidecar::remove(tree, stat.st_ino);
    }
}
