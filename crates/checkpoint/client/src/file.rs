//! A file that is not part of a step: on this machine, or an object of a node.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use forebay_client::{Client, ItemRange, Name};
use forebay_core::{Error, Kind, Result};

use crate::view::memory;

/// Bytes of one version of a file, wherever it lies. Threads may share it.
#[derive(Debug)]
pub struct PlainFile {
    /// Name for people.
    shown: String,
    bytes: u64,
    source: FileSource,
}

#[derive(Debug)]
enum FileSource {
    Here(File),
    Node {
        client: Client,
        name: Name,
        version: String,
    },
}

impl PlainFile {
    /// A file of this machine.
    pub fn here(path: &Path) -> Result<Self> {
        let failed =
            |why: std::io::Error| Error::io("cannot open the file", why).with("path", path.display());
        let file = File::open(path).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        if !meta.is_file() {
            let error = Error::new(Kind::InvalidInput, "this is not a file");
            return Err(error.with("path", path.display()));
        }
        Ok(Self {
            shown: path.display().to_string(),
            bytes: meta.len(),
            source: FileSource::Here(file),
        })
    }

    /// Returns what bytes of it are asked of, if it is not on this machine.
    pub(crate) fn client(&self) -> Option<&Client> {
        match &self.source {
            FileSource::Here(_) => None,
            FileSource::Node { client, .. } => Some(client),
        }
    }

    /// An object of a node, as it is now.
    pub fn of_node(client: Client, name: Name) -> Result<Self> {
        let stat = client.stat(&name)?;
        Ok(Self {
            shown: format!("forebay://{name}"),
            bytes: stat.bytes,
            source: FileSource::Node {
                client,
                name,
                version: stat.version,
            },
        })
    }

    /// Returns what people see.
    #[must_use]
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of it, as many as asked for.
    pub fn read(&self, range: Range<u64>) -> Result<Vec<u8>> {
        if range.end > self.bytes || range.start > range.end {
            let error = Error::new(Kind::Corrupt, "the file is shorter than it says: it was cut off");
            return Err(error
                .with("file", &self.shown)
                .with("bytes", self.bytes)
                .with("expected", range.end));
        }
        let length = range.end - range.start;
        let mut target = memory(length)?;
        match &self.source {
            FileSource::Here(file) => file
                .read_exact_at(&mut target, range.start)
                .map_err(|why| Error::io("cannot read the file", why).with("path", &self.shown))?,
            FileSource::Node { .. } if length == 0 => {}
            FileSource::Node {
                client,
                name,
                version,
            } => {
                let range = ItemRange::Range {
                    offset: range.start,
                    length,
                };
                let view = client.get(name, range, Some(version))?;
                if view.len() != target.len() {
                    let error = Error::new(Kind::Changed, "the object became shorter while it was read");
                    return Err(error.with("object", name));
                }
                target.copy_from_slice(&view);
            }
        }
        Ok(target)
    }
}
