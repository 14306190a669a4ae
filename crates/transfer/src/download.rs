//! From a lake into a file: written aside, fsynced, dated like the object, renamed into place.
//!
//! A large object comes in parts, several at once. Which parts are complete is noted beside the unfinished
//! file, whose name holds the version; when the same command runs again only the missing parts are fetched.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use forebay_core::{ByteRange, Error, Kind, ObjectKey, Result, Version};
use forebay_lake::{GetOptions, GetRange, Lake};
use futures::{StreamExt, TryStreamExt, stream};

use crate::local::{PART_SUFFIX, stopped};
use crate::open_location::Entry;
use crate::transfer::{Transfer, date_of_copy};

/// Objects from this size on come in parts.
const PARTS_FROM_BYTES: u64 = 64 << 20;
const PART_BYTES: u64 = 16 << 20;
/// SentParts of one object that are asked for at once, at most; `--parallel` limits all together.
const PARTS_AHEAD_MAX: usize = 8;
/// Characters of the name that an unfinished file shows; four bytes each fit into a file name.
const SHOWN_CHARS: usize = 40;
/// Bytes gathered before a write.
const WRITE_BYTES: usize = 1 << 20;

/// Fetches an object into a file.
pub(crate) async fn run(
    transfer: &Transfer,
    lake: &Arc<dyn Lake>,
    key: &ObjectKey,
    entry: &Entry,
    path: &Path,
) -> Result<()> {
    let etag = entry.etag.clone().unwrap_or_default();
    let part = Unfinished::open(path, &etag, entry.bytes)?;
    let fetch = Fetch {
        transfer,
        lake,
        key,
        version: Version::new(&etag),
        file: Arc::clone(&part.file),
    };
    let ranges = part.missing(entry.bytes);
    let missing_bytes: u64 = ranges.iter().map(|(_, range)| range.len()).sum();
    transfer.advance(entry.bytes - missing_bytes);
    stream::iter(ranges)
        .map(|(index, range)| {
            let (fetch, part) = (&fetch, &part);
            async move {
                fetch.part(range).await?;
                part.note(index)
            }
        })
        .buffer_unordered(PARTS_AHEAD_MAX)
        .try_for_each(|()| async { Ok(()) })
        .await?;
    part.finish(path, entry)
}

/// Copies a file to another place on this machine.
pub(crate) async fn from_file(from: &Path, to: &Path) -> Result<()> {
    make_parent(to)?;
    let temporary = beside(to, "copy");
    let (from, to) = (from.to_path_buf(), to.to_path_buf());
    let work = move || {
        std::fs::copy(&from, &temporary)?;
        let modified = std::fs::metadata(&from)?.modified()?;
        let file = File::options().write(true).open(&temporary)?;
        file.set_modified(modified)?;
        file.sync_all()?;
        std::fs::rename(&temporary, &to)
    };
    let done = tokio::task::spawn_blocking(work).await.map_err(stopped)?;
    done.map_err(|why| Error::io("cannot copy the file", why))
}

struct Fetch<'a> {
    transfer: &'a Transfer,
    lake: &'a Arc<dyn Lake>,
    key: &'a ObjectKey,
    version: Version,
    file: Arc<File>,
}

impl Fetch<'_> {
    async fn part(&self, range: ByteRange) -> Result<()> {
        let _permit = self.transfer.permit().await?;
        let options = GetOptions {
            range: Some(GetRange::Bounded(range)),
            if_match: Some(self.version.clone()),
        };
        let mut got = self.lake.get(self.key, options).await?;
        let (mut offset, mut gathered) = (range.start(), BytesMut::new());
        while let Some(bytes) = got.body.try_next().await? {
            self.transfer.advance(bytes.len() as u64);
            gathered.extend_from_slice(&bytes);
            if gathered.len() >= WRITE_BYTES {
                offset = self.write(offset, gathered.split().freeze()).await?;
            }
        }
        offset = self.write(offset, gathered.freeze()).await?;
        if offset != range.end() {
            return Err(Error::new(Kind::Unavailable, format!("{} ended early", self.key)));
        }
        Ok(())
    }

    async fn write(&self, offset: u64, bytes: Bytes) -> Result<u64> {
        let file = Arc::clone(&self.file);
        let end = offset + bytes.len() as u64;
        let written = tokio::task::spawn_blocking(move || file.write_all_at(&bytes, offset)).await;
        written
            .map_err(stopped)?
            .map_err(|why| Error::io("cannot write the file", why))?;
        Ok(end)
    }
}

/// A file on its way, with a note of what it has.
struct Unfinished {
    file: Arc<File>,
    path: PathBuf,
    notes_path: PathBuf,
    notes: File,
    done: BTreeSet<u64>,
}

impl Unfinished {
    fn open(target: &Path, etag: &str, bytes: u64) -> Result<Self> {
        make_parent(target)?;
        let (path, notes_path) = (
            beside(target, &format!("part {etag}")),
            beside(target, &format!("notes {etag}")),
        );
        // Notes count only for a file that is there; one that was removed starts afresh.
        let noted = if path.exists() {
            std::fs::read_to_string(&notes_path).unwrap_or_default()
        } else {
            String::new()
        };
        let done = if bytes < PARTS_FROM_BYTES {
            BTreeSet::new()
        } else {
            noted.lines().filter_map(|line| line.parse().ok()).collect()
        };
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|why| cannot_write(&path, why))?;
        let fresh = done.is_empty();
        let notes = File::options()
            .create(true)
            .append(!fresh)
            .write(true)
            .truncate(fresh)
            .open(&notes_path);
        let notes = notes.map_err(|why| cannot_write(&notes_path, why))?;
        Ok(Self {
            file: Arc::new(file),
            path,
            notes_path,
            notes,
            done,
        })
    }

    /// Returns what has to be fetched: part number and range.
    fn missing(&self, bytes: u64) -> Vec<(u64, ByteRange)> {
        let part_bytes = if bytes < PARTS_FROM_BYTES {
            bytes.max(1)
        } else {
            PART_BYTES
        };
        let parts = (0..bytes.div_ceil(part_bytes)).filter(|index| !self.done.contains(index));
        parts
            .filter_map(|index| {
                Some((
                    index,
                    ByteRange::new(index * part_bytes, ((index + 1) * part_bytes).min(bytes)).ok()?,
                ))
            })
            .collect()
    }

    /// A part is complete; the bytes go to the disk before the note does.
    fn note(&self, index: u64) -> Result<()> {
        let noted = self
            .file
            .sync_data()
            .and_then(|()| (&self.notes).write_all(format!("{index}\n").as_bytes()));
        noted.map_err(|why| cannot_write(&self.path, why))
    }

    fn finish(self, target: &Path, entry: &Entry) -> Result<()> {
        let finished = self
            .file
            .set_len(entry.bytes)
            .and_then(|()| self.file.set_modified(date_of_copy(entry)))
            .and_then(|()| self.file.sync_all())
            .and_then(|()| std::fs::rename(&self.path, target));
        finished.map_err(|why| cannot_write(target, why))?;
        // A left-over note is harmless: it counts only for an unfinished file.
        let _ = std::fs::remove_file(&self.notes_path);
        Ok(())
    }
}

fn make_parent(path: &Path) -> Result<()> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent)
        .map_err(|why| Error::io(format!("cannot make the folder {}", parent.display()), why))
}

fn cannot_write(path: &Path, why: std::io::Error) -> Error {
    Error::io(format!("cannot write {}", path.display()), why)
}

/// A hidden name beside a path, which nothing else has: the whole name and tag are in its hash, because both
/// may be longer than a name can be and no part of a version may be lost.
fn beside(path: &Path, tag: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let hash = blake3::hash(&[name, b"\0", tag.as_bytes()].concat()).to_hex();
    let shown: String = String::from_utf8_lossy(name).chars().take(SHOWN_CHARS).collect();
    path.with_file_name(format!(".{shown}.{}{PART_SUFFIX}", &hash[..32]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noted_parts_are_not_fetched_again() {
        let dir = tempfile::tempdir().unwrap();
        let (target, bytes) = (dir.path().join("x"), PARTS_FROM_BYTES + 1);
        let part = Unfinished::open(&target, "\"e\"", bytes).unwrap();
        let all = part.missing(bytes);
        assert_eq!(all.iter().map(|(_, range)| range.len()).sum::<u64>(), bytes);
        part.note(2).unwrap();
        drop(part);
        let again = Unfinished::open(&target, "\"e\"", bytes).unwrap();
        assert_eq!(again.missing(bytes).len(), all.len() - 1);
        let other = Unfinished::open(&target, "\"f\"", bytes).unwrap();
        assert_eq!(
            other.missing(bytes).len(),
            all.len(),
            "another version starts afresh"
        );
    }

    #[test]
    fn unfinished_files_of_versions_that_differ_only_at_their_end_are_not_mixed() {
        let target = Path::new("/tmp/here/x");
        let etag = |end: &str| format!("f-{}{end}", "0".repeat(47));
        assert_ne!(beside(target, &etag("1")), beside(target, &etag("2")));
    }

    #[test]
    fn the_longest_name_can_be_fetched() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["n".repeat(255), "\u{1F30A}".repeat(63)] {
            let (target, etag) = (dir.path().join(&name), "e".repeat(200));
            assert!(Unfinished::open(&target, &etag, 1).is_ok());
        }
    }

    #[test]
    fn an_empty_object_has_nothing_to_fetch() {
        let dir = tempfile::tempdir().unwrap();
        assert!(
            Unfinished::open(&dir.path().join("x"), "e", 0)
                .unwrap()
                .missing(0)
                .is_empty()
        );
    }
}
