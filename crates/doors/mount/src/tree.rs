//! Names: from a path to what the bucket has there, and the names of a folder.
//!
//! A folder is a prefix that some key has. Where a key and a prefix have the same name the object is shown, and
//! what lies below the prefix is not; a log line says so. Keys that no path can name (an empty part, `.`, `..`,
//! a part of more than 255 bytes) are not shown either, and counted.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_client::{Client, Entry, ItemRange, ListOptions, ListRequest, Name, View};
use forebay_core::{Error, Kind, Result};
use tracing::warn;

use crate::counters::{Counter, Counters};
use crate::inode::Version;
use crate::staged::Staged;

/// Longest name in a folder.
pub(crate) const NAME_BYTES_MAX: usize = 255;

/// Names of one folder, at most: they are held while somebody goes through them.
pub(crate) const FOLDER_ENTRIES_MAX: usize = 4_000_000;

/// What a name stands for in the lake.
#[derive(Debug, Clone)]
pub(crate) enum Found {
    Folder,
    Object(Arc<Version>),
    /// A file that is being written; never found in the lake.
    Staged(Arc<Staged>),
}

/// The bucket, or what lies below a prefix of it.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) client: Client,
    pub(crate) bucket: Box<str>,
    pub(crate) counters: Arc<Counters>,
}

impl Tree {
    /// The object's name for the client.
    pub(crate) fn name(&self, key: &str) -> Result<Name> {
        Name::new(&self.bucket, key)
    }

    /// What is at a key: an object, a folder, or nothing.
    pub(crate) fn find(&self, key: &str) -> Result<Option<Found>> {
        // A key that no object can have is nobody's name.
        let Ok(name) = self.name(key) else {
            return Ok(None);
        };
        match self.client.stat(&name) {
            Ok(stat) => Ok(Some(Found::Object(Arc::new(Version {
                key: key.into(),
                etag: stat.version.into(),
                bytes: stat.bytes,
                modified: stat.modified,
            })))),
            Err(error) if error.kind() == Kind::NotFound => {
                let is_folder = self.has_keys(&format!("{key}/"))?;
                Ok(is_folder.then_some(Found::Folder))
            }
            // A reserved name is nobody's file.
            Err(error) if error.kind() == Kind::InvalidInput => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns whether any key starts with this.
    pub(crate) fn has_keys(&self, prefix: &str) -> Result<bool> {
        let listed = self.client.list_page(ListRequest {
            bucket: self.bucket.to_string(),
            prefix: prefix.to_owned(),
            delimiter: None,
            after: None,
            limit: 1,
        })?;
        Ok(!listed.objects.is_empty())
    }

    /// All names of a folder, in order: complete, or an error.
    pub(crate) fn list(&self, prefix: &str) -> Result<BTreeMap<Box<str>, Found>> {
        let options = ListOptions {
            prefix: prefix.to_owned(),
            delimiter: Some("/".into()),
            page_entries: 0,
        };
        let mut names = BTreeMap::new();
        for entry in self.client.list(&self.bucket, options)? {
            let (name, found) = match entry? {
                Entry::Object(object) => {
                    let name = object.key.get(prefix.len()..).unwrap_or_default();
                    let version = Version {
                        key: object.key.as_str().into(),
                        etag: object.version.into(),
                        bytes: object.bytes,
                        modified: object.modified,
                    };
                    (name.into(), Found::Object(Arc::new(version)))
                }
                Entry::Prefix(folder) => {
                    let name = folder.get(prefix.len()..).unwrap_or_default();
                    (name.strip_suffix('/').unwrap_or(name).into(), Found::Folder)
                }
            };
            self.add(&mut names, prefix, name, found)?;
        }
        if is_step(prefix) && !names.contains_key("whole") && self.has_keys(&format!("{prefix}whole/"))? {
            names.insert("whole".into(), Found::Folder);
        }
        Ok(names)
    }

    fn add(
        &self,
        names: &mut BTreeMap<Box<str>, Found>,
        prefix: &str,
        name: Box<str>,
        found: Found,
    ) -> Result<()> {
        // The folder's own marker, as some tools write it.
        if name.is_empty() && matches!(&found, Found::Object(version) if *version.key == *prefix) {
            return Ok(());
        }
        if !is_name(&name) {
            self.counters.add(Counter::UnnameableKeys);
            warn!(
                folder = prefix,
                name = &*name,
                "a key that no path can name is not shown"
            );
            return Ok(());
        }
        match names.get(&name) {
            Some(Found::Object(_)) => {
                warn!(
                    folder = prefix,
                    name = &*name,
                    "an object and a folder of one name: the object is shown"
                );
            }
            _ => {
                names.insert(name, found);
            }
        }
        if names.len() > FOLDER_ENTRIES_MAX {
            let message =
                "the folder has more names than a mount can list; mount a prefix, or list it with forebay ls";
            return Err(Error::new(Kind::NoSpace, message).with("folder", prefix));
        }
        Ok(())
    }

    /// Bytes of a version; `NotFound` or `Changed` if the lake has another one by now and the cache no longer
    /// has this.
    pub(crate) fn read(&self, version: &Version, offset: u64, length: u64) -> Result<View> {
        let range = ItemRange::Range { offset, length };
        let view = self
            .client
            .get(&self.name(&version.key)?, range, Some(&version.etag))?;
        if view.len() as u64 != length {
            let error = Error::new(Kind::Corrupt, "the node gave fewer bytes than the object has");
            return Err(error.with("key", &version.key).with("offset", offset));
        }
        Ok(view)
    }
}

/// Returns whether a part of a key can be a name in a folder.
pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && name.len() <= NAME_BYTES_MAX && !name.contains('\0')
}

/// Returns whether a prefix is the folder of a checkpoint step, which may have a view that no listing shows.
fn is_step(prefix: &str) -> bool {
    let mut parts = prefix.trim_end_matches('/').rsplit('/');
    let number = parts.next().unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) && parts.next() == Some("steps")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_the_kernel_would_not_take_are_no_names() {
        for bad in ["", ".", "..", &"x".repeat(256)] {
            assert!(!is_name(bad), "{bad}");
        }
        assert!(is_name("a b") && is_name("…") && is_name(&"x".repeat(255)));
    }

    #[test]
    fn only_the_folder_of_a_step_is_asked_for_its_view() {
        assert!(is_step("run/steps/7/") && is_step("steps/00012/"));
        for other in ["", "steps/", "steps/x/", "run/7/", "steps/7/whole/"] {
            assert!(!is_step(other), "{other}");
        }
    }
}
