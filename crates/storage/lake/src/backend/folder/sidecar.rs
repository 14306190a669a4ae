//! Sidecar files: the ETag and the attributes of an object, which do not fit into its file.
//!
//! A sidecar is named after the inode of its object's file (`meta/<last two hex digits>/<inode>.json`), not
//! after the key. It is written and synced while the object's file is still a temporary one, so the rename
//! that shows the new bytes shows their ETag in the same instant, and the old object keeps its own sidecar
//! until it is gone. It counts only while inode, size, modification time and key are those of the file; else
//! the file is a foreign one. A sidecar left behind by a crash is harmless and is overwritten when its inode
//! is used again. Format: docs/formats/folder-lake.md.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, SystemTime};

use forebay_core::{Error, ObjectKey, Result};
use rustix::fs::{AtFlags, Mode, OFlags, Stat, fsync, openat, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::checked_json;
use super::tree::{Tree, explain, read_small};
use crate::Attributes;

const FORMAT: &str = "forebay-folder-object";
const FORMAT_VERSION: u32 = 1;
const AREA: &str = "meta";

/// Identity and times of a file when we wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    pub(super) inode: u64,
    pub(super) bytes: u64,
    pub(super) modified_s: i64,
    pub(super) modified_ns: u32,
}

/// The content of a sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SidecarRecord {
    pub(super) format: String,
    pub(super) version: u32,
    pub(super) key: ObjectKey,
    #[serde(flatten)]
    pub(super) stamp: Stamp,
    pub(super) etag: String,
    pub(super) attributes: Attributes,
}

impl Stamp {
    /// The stamp of a file as it is now.
    pub(super) fn of(stat: &Stat) -> Self {
        Self {
            inode: stat.st_ino,
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            modified_s: stat.st_mtime,
            modified_ns: u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
        }
    }

    /// The modification time.
    pub(super) fn modified(self) -> SystemTime {
        let seconds = Duration::from_secs(self.modified_s.unsigned_abs());
        let whole = if self.modified_s < 0 {
            SystemTime::UNIX_EPOCH.checked_sub(seconds)
        } else {
            SystemTime::UNIX_EPOCH.checked_add(seconds)
        };
        let nanoseconds = Duration::from_nanos(u64::from(self.modified_ns));
        whole
            .and_then(|whole| whole.checked_add(nanoseconds))
            .unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// The ETag of a file that we did not write: from its stamp, never from its bytes.
    pub(super) fn foreign_etag(self) -> String {
        let modified = (i128::from(self.modified_s) * 1_000_000_000 + i128::from(self.modified_ns)) as u64;
        format!("f-{:016x}{:016x}{modified:016x}", self.inode, self.bytes)
    }
}

impl SidecarRecord {
    /// A record of this version of the format.
    pub(super) fn new(key: &ObjectKey, stamp: Stamp, etag: String, attributes: Attributes) -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: FORMAT_VERSION,
            key: key.clone(),
            stamp,
            etag,
            attributes,
        }
    }

    fn encode(&self) -> Result<Vec<u8>> {
        checked_json::encode(self)
    }

    /// `None` for anything but a whole record of a version that we know.
    fn decode(file: &[u8]) -> Option<Self> {
        checked_json::decode(file)
            .filter(|record: &Self| record.format == FORMAT && record.version == FORMAT_VERSION)
    }
}

fn shard_of(inode: u64) -> String {
    format!("{:02x}", inode & 0xff)
}

/// Writes the sidecar and makes it durable. Only for a file that nobody can see yet.
pub(super) fn write(tree: &Tree, record: &SidecarRecord) -> Result<()> {
    let text = record.encode()?;
    let wrong = |errno: Errno| explain("cannot write the sidecar of an object", errno);
    let meta = tree.private(AREA).map_err(wrong)?;
    let shard = tree
        .sub_folder(meta.as_fd(), &shard_of(record.stamp.inode))
        .map_err(wrong)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let name = format!("{}.json", record.stamp.inode);
    let mut file = File::from(openat(&shard, name, flags, Mode::from_raw_mode(0o666)).map_err(wrong)?);
    file.write_all(&text)
        .and_then(|()| file.sync_all())
        .map_err(|error| Error::io("cannot write the sidecar of an object", error))?;
    fsync(&shard).map_err(wrong)
}

/// Removes the sidecar of an inode that the caller holds open, so that it is not another file's by now.
pub(super) fn remove(tree: &Tree, inode: u64) {
    let Ok(Some(meta)) = tree.private_if_made(AREA) else {
        return;
    };
    // A sidecar that stays is harmless; see the top of this file.
    let _ = unlinkat(
        &meta,
        format!("{}/{inode}.json", shard_of(inode)),
        AtFlags::empty(),
    );
}

/// Reads sidecars; made once for a listing so that the folder is opened once.
pub(super) struct Sidecars(Option<OwnedFd>);

impl Sidecars {
    /// Opens the folder of the sidecars, if there is one.
    pub(super) fn open(tree: &Tree) -> Result<Self> {
        let meta = tree.private_if_made(AREA);
        Ok(Self(meta.map_err(|errno| {
            explain("cannot open the folder lake's private area", errno)
        })?))
    }

    /// The record that belongs to this very file under this key, or `None` for a foreign file.
    pub(super) fn find(&self, key: &ObjectKey, stamp: Stamp) -> Result<Option<SidecarRecord>> {
        let Some(meta) = &self.0 else { return Ok(None) };
        let path = format!("{}/{}.json", shard_of(stamp.inode), stamp.inode);
        let Some(bytes) = read_small(meta.as_fd(), &path)? else {
            return Ok(None);
        };
        let record = SidecarRecord::decode(&bytes);
        if record.is_none() {
            tracing::warn!(%key, inode = stamp.inode, "sidecar is damaged or of a later version, ignored");
        }
        Ok(record.filter(|record| record.stamp == stamp && record.key == *key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> SidecarRecord {
        let stamp = Stamp {
            inode: 4711,
            bytes: 5,
            modified_s: 1_700_000_000,
            modified_ns: 42,
        };
        let mut attributes = Attributes {
            content_type: Some("text/plain".into()),
            ..Attributes::default()
        };
        attributes.user.insert("who".into(), "me\nyou".into());
        SidecarRecord::new(
            &ObjectKey::new("a/b").unwrap(),
            stamp,
            "5d41402abc4b2a76b9719d911017c592".into(),
            attributes,
        )
    }

    #[test]
    fn records_survive_the_round_trip() {
        assert_eq!(SidecarRecord::decode(&record().encode().unwrap()), Some(record()));
    }

    #[test]
    fn a_record_on_disk_looks_as_documented() {
        let golden = include_bytes!("../../../testdata/folder/sidecar-v1.json");
        assert_eq!(
            String::from_utf8(record().encode().unwrap()).unwrap(),
            String::from_utf8_lossy(golden)
        );
    }

    #[test]
    fn every_cut_and_every_flipped_byte_is_noticed() {
        let whole = record().encode().unwrap();
        for length in 0..whole.len() {
            assert_eq!(SidecarRecord::decode(&whole[..length]), None, "cut at {length}");
        }
        for index in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[index] ^= 0x04;
            assert_eq!(SidecarRecord::decode(&damaged), None, "flipped at {index}");
        }
    }

    #[test]
    fn a_later_version_is_not_guessed_at() {
        let later = SidecarRecord {
            version: 2,
            ..record()
        };
        assert_eq!(SidecarRecord::decode(&later.encode().unwrap()), None);
    }

    #[test]
    fn foreign_etags_differ_in_each_of_inode_size_and_time() {
        let stamp = record().stamp;
        let others = [
            Stamp { inode: 1, ..stamp },
            Stamp { bytes: 6, ..stamp },
            Stamp {
                modified_s: 1,
                ..stamp
            },
            Stamp {
                modified_ns: 1,
                ..stamp
            },
        ];
        for other in others {
            assert_ne!(other.foreign_etag(), stamp.foreign_etag());
        }
    }
}
