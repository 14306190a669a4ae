//! One committed step: its manifest, and bytes of its files with errors that say what is missing.

use std::ops::Range;

use forebay_checkpoint::Manifest;
use forebay_checkpoint::manifest::{Extent, Object, ObjectKind, Tensor};
use forebay_client::{Item, ItemRange, Scattered, View};
use forebay_core::{Error, Kind, Result};

use crate::Root;
use crate::tables::Tables;

/// A committed step.
#[derive(Debug)]
pub struct Step {
    pub(crate) root: Root,
    pub(crate) manifest: Manifest,
    pub(crate) tables: Tables,
}

/// Bytes of a file that are to be read, and for which tensor or object.
#[derive(Debug, Clone)]
pub(crate) struct Fetch<'a> {
    pub(crate) file: u32,
    pub(crate) range: Range<u64>,
    pub(crate) for_name: &'a str,
}

impl Step {
    /// The step that this manifest of this root commits.
    #[must_use]
    pub fn new(root: Root, manifest: Manifest) -> Self {
        Self {
            root,
            manifest,
            tables: Tables::default(),
        }
    }

    /// Its commit.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns where it lies.
    #[must_use]
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// A tensor by its full name.
    pub fn tensor(&self, name: &str) -> Result<&Tensor> {
        self.manifest.content.tensors.get(name).ok_or_else(|| {
            let message = "the step has no such tensor; forebay ckpt show lists those that it has";
            Error::new(Kind::NotFound, message)
                .with("tensor", name)
                .with("step", self.manifest.step)
        })
    }

    /// State that is not a tensor, proved; of this rank, or of the first that has it.
    pub fn object(&self, name: &str, rank: Option<u32>) -> Result<(ObjectKind, Vec<u8>)> {
        let none = || {
            Error::new(Kind::NotFound, "the step has no such object")
                .with("object", name)
                .with("step", self.manifest.step)
        };
        let all = self.manifest.content.objects.get(name).ok_or_else(none)?;
        let has = |object: &&Object| rank.is_none_or(|rank| object.ranks.contains(&rank));
        let found = all.iter().find(has).ok_or_else(|| match rank {
            Some(rank) => none().with("rank", rank),
            None => none(),
        })?;
        let view = self.extent(&found.bytes, name)?;
        if blake3::hash(&view).to_hex().as_str() != found.bytes.blake3 {
            let error = Error::new(
                Kind::Checksum,
                "an object does not match its digest: its file is damaged",
            );
            return Err(error
                .with("object", name)
                .with("file", self.path(found.bytes.file))
                .with(
                    "bytes",
                    format!("{}-{}", found.bytes.range[0], found.bytes.range[1]),
                ));
        }
        Ok((found.kind, view.to_vec()))
    }

    /// All bytes of an extent, not proved.
    pub(crate) fn extent(&self, extent: &Extent, name: &str) -> Result<View> {
        let fetch = Fetch {
            file: extent.file,
            range: extent.range[0]..extent.range[1],
            for_name: name,
        };
        let mut views = self.fetch(&[fetch])?;
        views
            .pop()
            .ok_or_else(|| Error::new(Kind::Internal, "an answer without items"))
    }

    /// The path of a file by its index.
    pub(crate) fn path(&self, file: u32) -> &str {
        let found = self.manifest.content.files.get(file as usize);
        found.map_or("", |file| file.path.as_str())
    }

    /// A whole file.
    pub(crate) fn file(&self, path: &str) -> Result<View> {
        let view = self
            .root
            .client()
            .get(&self.root.name(path)?, ItemRange::Whole, None);
        view.map_err(|error| self.about_file(error, path))
    }

    /// Bytes of files, one view for each, as long as asked for; one call.
    pub(crate) fn fetch(&self, fetches: &[Fetch<'_>]) -> Result<Vec<View>> {
        let views = self.root.client().get_batch(self.items(fetches)?)?;
        let named = views.into_iter().zip(fetches);
        named
            .map(|(view, fetch)| self.whole(view, fetch, |view| (view.len(), view.object_bytes())))
            .collect()
    }

    /// The same, where the node has them.
    pub(crate) fn fetch_scattered(&self, fetches: &[Fetch<'_>]) -> Result<Vec<Scattered>> {
        let items = self.root.client().read(self.items(fetches)?)?;
        let named = items.into_iter().zip(fetches);
        named
            .map(|(one, fetch)| self.whole(one, fetch, |one| (one.bytes(), one.object_bytes())))
            .collect()
    }

    fn items(&self, fetches: &[Fetch<'_>]) -> Result<Vec<Item>> {
        let mut items = Vec::with_capacity(fetches.len());
        for fetch in fetches {
            let bytes = fetch.range.end - fetch.range.start;
            items.push(Item {
                object: self.root.name(self.path(fetch.file))?.to_wire(),
                range: ItemRange::Range {
                    offset: fetch.range.start,
                    length: bytes,
                },
                version: None,
            });
        }
        Ok(items)
    }

    /// Returns whether it has as many bytes as asked for; `measure` gives its bytes and those of the whole
    /// file.
    fn whole<T>(
        &self,
        found: Result<T>,
        fetch: &Fetch<'_>,
        measure: impl Fn(&T) -> (usize, u64),
    ) -> Result<T> {
        let path = self.path(fetch.file);
        let asked = fetch.range.end - fetch.range.start;
        let found = found.map_err(|error| {
            self.about_file(error, path)
                .with("tensor", fetch.for_name)
                .with("bytes", format!("{}-{}", fetch.range.start, fetch.range.end))
        })?;
        let (bytes, file_bytes) = measure(&found);
        if bytes as u64 == asked {
            return Ok(found);
        }
        Err(too_short()
            .with("file", path)
            .with("tensor", fetch.for_name)
            .with("bytes", format!("{}-{}", fetch.range.start, fetch.range.end))
            .with("file_bytes", file_bytes))
    }

    /// A file that is missing from a step that is still there is damage; else the step was pruned.
    pub(crate) fn about_file(&self, error: Error, path: &str) -> Error {
        match error.kind() {
            Kind::NotFound => {
                let (step, generation) = (self.manifest.step, self.manifest.generation);
                match self.root.manifest_of(step, generation) {
                    Err(gone) if gone.kind() == Kind::NotFound => gone,
                    _ => Error::new(
                        Kind::Corrupt,
                        "a file of the step is missing: the step is damaged; load another one",
                    )
                    .with("file", path),
                }
            }
            Kind::OutOfRange => too_short().with("file", path),
            _ => error,
        }
    }
}

fn too_short() -> Error {
    Error::new(
        Kind::Corrupt,
        "a file is shorter than its manifest says: it was cut off",
    )
}
