//! File system under a staging log: few calls, each synced where the log needs it.
//!
//! The one place of the log that touches files, so that tests let a process die between any two calls.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
#[cfg(test)]
use std::sync::{Arc, atomic::AtomicU32, atomic::Ordering};

use forebay_core::{Error, Kind, Result, crc32c};

/// Bytes that are read at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// See the top of this file.
#[derive(Debug, Clone, Default)]
pub(super) struct Disk {
    /// Calls that succeed before the process is dead.
    #[cfg(test)]
    pub(super) steps_left: Option<Arc<AtomicU32>>,
}

impl Disk {
    /// One call that changes the disk. In tests the process may be dead by now.
    #[cfg_attr(not(test), allow(clippy::unused_self, clippy::unnecessary_wraps))]
    fn step(&self) -> io::Result<()> {
        #[cfg(test)]
        if let Some(left) = &self.steps_left {
            let spent = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            spent.map_err(|_| io::Error::other("the process is dead"))?;
        }
        Ok(())
    }

    /// Makes a folder for the user of the process alone; `false` if it is there.
    pub(super) fn make_folder(&self, path: &Path) -> Result<bool> {
        let made = self
            .step()
            .and_then(|()| fs::DirBuilder::new().mode(0o700).create(path));
        match made {
            Ok(()) => Ok(true),
            Err(why) if why.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(why) => Err(failed("cannot be made", path, why)),
        }
    }

    /// Makes changes of a folder's list durable.
    pub(super) fn sync_folder(&self, path: &Path) -> Result<()> {
        let sync = || {
            self.step()?;
            File::open(path)?.sync_all()
        };
        sync().map_err(|why| failed("cannot be synced", path, why))
    }

    /// Writes a file and makes its bytes durable.
    pub(super) fn write_synced(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let write = || {
            self.step()?;
            let mut file = File::create(path)?;
            // A process may die, or a disk be full, with half of the bytes written.
            let (first, rest) = bytes.split_at(bytes.len() / 2);
            self.step()?;
            file.write_all(first)?;
            self.step()?;
            file.write_all(rest)?;
            self.step()?;
            file.sync_all()
        };
        write().map_err(|why| failed("cannot be written", path, why))
    }

    pub(super) fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let renamed = self.step().and_then(|()| fs::rename(from, to));
        renamed.map_err(|why| failed("cannot be renamed", to, why))
    }

    /// Removes a file; `false` if there is none.
    pub(super) fn remove_file(&self, path: &Path) -> Result<bool> {
        match self.step().and_then(|()| fs::remove_file(path)) {
            Ok(()) => Ok(true),
            Err(why) if why.kind() == ErrorKind::NotFound => Ok(false),
            Err(why) => Err(failed("cannot be removed", path, why)),
        }
    }

    /// Removes a folder with its files; fine if there is none.
    pub(super) fn remove_folder(&self, path: &Path) -> Result<()> {
        for name in self.list(path)? {
            self.remove_file(&path.join(name))?;
        }
        match self.step().and_then(|()| fs::remove_dir(path)) {
            Err(why) if why.kind() != ErrorKind::NotFound => Err(failed("cannot be removed", path, why)),
            _ => Ok(()),
        }
    }

    /// Names in a folder; none if the folder is not there.
    pub(super) fn list(&self, path: &Path) -> Result<Vec<String>> {
        let list = || -> io::Result<Vec<String>> {
            let mut names = Vec::new();
            for found in fs::read_dir(path)? {
                names.push(found?.file_name().to_string_lossy().into_owned());
            }
            names.sort();
            Ok(names)
        };
        match list() {
            Err(why) if why.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            listed => listed.map_err(|why| failed("cannot be listed", path, why)),
        }
    }

    /// Reads a small file whole; `None` if there is none, `Corrupt` if it is larger than any is.
    pub(super) fn read(&self, path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>> {
        let read = || -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read() {
            Err(why) if why.kind() == ErrorKind::NotFound => Ok(None),
            Err(why) => Err(failed("cannot be read", path, why)),
            Ok(bytes) if bytes.len() as u64 > bytes_max => {
                let message = "a staged entry has a larger marker than any has";
                Err(Error::new(Kind::Corrupt, message).with("file", path.display()))
            }
            Ok(bytes) => Ok(Some(bytes)),
        }
    }

    /// Reads a file in chunks and proves it: `Corrupt` if it is missing, or has not this length and CRC32C.
    /// `take` gets the first byte of each chunk and the chunk, before the whole is proved.
    pub(super) fn read_proved(
        &self,
        path: &Path,
        (bytes, crc32c): (u64, u32),
        mut take: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut file = File::open(path).map_err(|why| match why.kind() {
            ErrorKind::NotFound => {
                Error::new(Kind::Corrupt, "a staged piece is missing").with("file", path.display())
            }
            _ => failed("cannot be opened", path, why),
        })?;
        let mut chunk = vec![0; CHUNK_BYTES];
        let (mut first, mut crc) = (0u64, 0);
        loop {
            let read = file
                .read(&mut chunk)
                .map_err(|why| failed("cannot be read", path, why))?;
            if read == 0 {
                break;
            }
            crc = crc32c::crc32c_append(crc, &chunk[..read]);
            if first + read as u64 > bytes {
                break;
            }
            take(first, &chunk[..read])?;
            first += read as u64;
        }
        if (first, crc) == (bytes, crc32c) {
            return Ok(());
        }
        Err(Error::new(Kind::Corrupt, "a staged piece is damaged").with("file", path.display()))
    }
}

fn failed(what: &str, path: &Path, why: io::Error) -> Error {
    let message = format!("a staged entry {what}: {why}");
    let error = if why.kind() == ErrorKind::StorageFull {
        Error::new(Kind::NoSpace, message).caused_by(why)
    } else {
        Error::io(message, why)
    };
    error.with("file", path.display())
}
