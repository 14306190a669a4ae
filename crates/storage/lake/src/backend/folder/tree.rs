//! The folder as a tree of open descriptors: every step is relative to the one before and follows no link.
//!
//! A path is never handed to the kernel as a whole, so neither `..` nor a symbolic link can lead outside,
//! whatever someone does to the folder meanwhile. Functions answer with the bare `Errno`, because what an
//! errno means (not found, conflict, try again) depends on the operation; [`explain`] makes the rest an
//! error.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use forebay_core::{Error, Kind};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, fsync, mkdirat, openat, statat, unlinkat};
use rustix::io::{Errno, Result};

use super::durable::DurableFolders;
use super::key_path::PRIVATE_FOLDERS;
use super::names::NameCache;

/// Flags for a folder: never through a link.
const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// The most that is read of a private file; S3 allows 2 KiB of user metadata and 8 KiB of headers.
const PRIVATE_FILE_BYTES_MAX: u64 = 256 * 1024;

/// The root of the lake and what is known about it.
#[derive(Debug)]
pub(super) struct Tree {
    root: OwnedFd,
    device: u64,
    durable: DurableFolders,
    names: NameCache,
}

/// The open folders from just below the root down to the parent of an object.
#[derive(Debug)]
pub(super) struct Chain(Vec<OwnedFd>);

impl Tree {
    /// Takes over the opened root.
    pub(super) fn new(root: OwnedFd) -> Result<Self> {
        let device = fstat(&root)?.st_dev;
        Ok(Self {
            root,
            device,
            durable: DurableFolders::default(),
            names: NameCache::default(),
        })
    }

    /// The root.
    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// The names of large folders, kept from page to page of a listing.
    pub(super) fn names(&self) -> &NameCache {
        &self.names
    }

    /// Returns whether a file lies on the same file system as the root; only there do inode numbers mean
    /// anything.
    pub(super) fn is_same_device(&self, stat: &Stat) -> bool {
        stat.st_dev == self.device
    }

    /// The last folder of a chain: where the object lies.
    pub(super) fn parent<'a>(&'a self, chain: &'a Chain) -> BorrowedFd<'a> {
        chain.0.last().map_or(self.root(), AsFd::as_fd)
    }

    /// Opens the last of these folders.
    pub(super) fn open_parent(&self, folders: &[&str]) -> Result<OwnedFd> {
        let mut parent = self
            .root
            .try_clone()
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        for folder in folders {
            parent = open_folder(parent.as_fd(), folder)?;
        }
        Ok(parent)
    }

    /// Opens the folders one below the other.
    pub(super) fn open_chain(&self, folders: &[&str]) -> Result<Chain> {
        let mut chain = Chain(Vec::with_capacity(folders.len()));
        for folder in folders {
            let next = open_folder(self.parent(&chain), folder)?;
            chain.0.push(next);
        }
        Ok(chain)
    }

    /// Opens the folders one below the other and makes those that are missing. `NOENT` means that someone
    /// removed one of them again: try again.
    pub(super) fn make_chain(&self, folders: &[&str]) -> Result<Chain> {
        let mut chain = Chain(Vec::with_capacity(folders.len()));
        for folder in folders {
            let parent = self.parent(&chain);
            let next = match open_folder(parent, folder) {
                Err(Errno::NOENT) => make_folder(parent, folder)?,
                other => other?,
            };
            chain.0.push(next);
        }
        Ok(chain)
    }

    /// Makes what was done in the last folder of the chain durable, and that folder itself.
    pub(super) fn sync_chain(&self, chain: &Chain) -> Result<()> {
        fsync(self.parent(chain))?;
        self.sync_folders(chain)
    }

    /// Removes the folders of the chain that are empty, from the last one up. A put that loses its folder to
    /// this notices and makes it again.
    pub(super) fn prune(&self, chain: &Chain, folders: &[&str]) {
        for index in (0..chain.0.len()).rev() {
            match unlinkat(self.above(chain, index), folders[index], AtFlags::REMOVEDIR) {
                Ok(()) => self.durable.forget(chain.0[index].as_fd()),
                Err(Errno::NOENT) => {}
                Err(_) => return,
            }
        }
    }

    /// Opens one of our private folders, and makes it if it is missing.
    pub(super) fn private(&self, area: &str) -> Result<OwnedFd> {
        let folders = [PRIVATE_FOLDERS[0], PRIVATE_FOLDERS[1], area];
        let mut chain = self.make_chain(&folders)?;
        self.sync_folders(&chain)?;
        chain.0.pop().ok_or(Errno::NOENT)
    }

    /// Opens one of our private folders if it is there.
    pub(super) fn private_if_made(&self, area: &str) -> Result<Option<OwnedFd>> {
        match self.open_parent(&[PRIVATE_FOLDERS[0], PRIVATE_FOLDERS[1], area]) {
            Ok(folder) => Ok(Some(folder)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Makes the folders of the chain durable, not what is in the last one.
    fn sync_folders(&self, chain: &Chain) -> Result<()> {
        for (index, folder) in chain.0.iter().enumerate() {
            self.durable.ensure(folder.as_fd(), self.above(chain, index))?;
        }
        Ok(())
    }

    /// The folder that holds the one at `index`.
    fn above<'a>(&'a self, chain: &'a Chain, index: usize) -> BorrowedFd<'a> {
        if index == 0 {
            self.root()
        } else {
            chain.0[index - 1].as_fd()
        }
    }

    /// Like [`Tree::private`], for a folder inside one of the private ones.
    pub(super) fn sub_folder(&self, parent: BorrowedFd<'_>, name: &str) -> Result<OwnedFd> {
        let folder = match open_folder(parent, name) {
            Err(Errno::NOENT) => make_folder(parent, name)?,
            other => other?,
        };
        self.durable.ensure(folder.as_fd(), parent)?;
        Ok(folder)
    }
}

fn make_folder(parent: BorrowedFd<'_>, name: &str) -> Result<OwnedFd> {
    match mkdirat(parent, name, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(Errno::EXIST) => open_folder(parent, name),
        Err(errno) => Err(errno),
    }
}

/// Opens a folder; a link or a file is `NOTDIR`.
pub(super) fn open_folder(parent: BorrowedFd<'_>, name: &str) -> Result<OwnedFd> {
    openat(parent, name, FOLDER, Mode::empty()).map_err(link_is_no_folder)
}

/// Opens a file to read; a link is `LOOP`, a pipe does not block.
pub(super) fn open_file(parent: BorrowedFd<'_>, name: &str) -> Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty()).map(File::from)
}

/// Makes a new file to write and read; one that exists is `EXIST`.
pub(super) fn create_file(parent: BorrowedFd<'_>, name: &str) -> Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::from_raw_mode(0o666)).map(File::from)
}

/// Holds whatever has this name, so that its inode number cannot be given to another file meanwhile.
pub(super) fn pin(parent: BorrowedFd<'_>, name: &str) -> Result<Option<OwnedFd>> {
    match openat(
        parent,
        name,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    ) {
        Ok(held) => Ok(Some(held)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Returns what has this name, without following a link.
pub(super) fn stat_name(parent: BorrowedFd<'_>, name: &str) -> Result<Stat> {
    statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
}

/// Returns whether this is a plain file.
pub(super) fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

fn link_is_no_folder(errno: Errno) -> Errno {
    if errno == Errno::LOOP {
        Errno::NOTDIR
    } else {
        errno
    }
}

/// The content of one of our small private files, or `None` if there is none.
pub(super) fn read_small(folder: BorrowedFd<'_>, path: &str) -> forebay_core::Result<Option<Vec<u8>>> {
    let file = match open_file(folder, path) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(explain("cannot open a private file of the lake's folder", errno)),
    };
    let mut bytes = Vec::new();
    file.take(PRIVATE_FILE_BYTES_MAX)
        .read_to_end(&mut bytes)
        .map_err(|error| Error::io("cannot read a private file of the lake's folder", error))?;
    Ok(Some(bytes))
}

/// An error for an errno that has no meaning of its own in the operation.
pub(super) fn explain(what: &'static str, errno: Errno) -> Error {
    match errno {
        Errno::ROFS => Error::new(Kind::Denied, what).caused_by(std::io::Error::from(errno)),
        Errno::NAMETOOLONG => Error::new(Kind::InvalidInput, "the key is too long for this file system")
            .caused_by(std::io::Error::from(errno)),
        _ => Error::io(what, errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_and_a_read_only_one_are_told_apart() {
        assert_eq!(explain("x", Errno::NOSPC).kind(), Kind::NoSpace);
        assert_eq!(explain("x", Errno::DQUOT).kind(), Kind::NoSpace);
        assert_eq!(explain("x", Errno::ROFS).kind(), Kind::Denied);
        assert_eq!(explain("x", Errno::ACCESS).kind(), Kind::Denied);
        assert_eq!(explain("x", Errno::IO).kind(), Kind::Io);
    }
}
