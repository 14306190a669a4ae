//! Refuses data that is not what its `SHA256SUMS` says, or that nobody trusted has signed.
//!
//! Poisoned training data is the threat: somebody who can write to the lake changes files, adds or removes
//! some. Such a person can write the stored index too, so it is not believed here: everything is read and
//! hashed when the dataset is opened, in the versions that are read from then on, and the digests are
//! compared with the manifests (`verify/manifest_scope.rs` says which ones). Shards are hashed while they are
//! indexed, raw files by `verify/files.rs`, documents that list shards when they are read. Memory: the
//! manifests, and four bytes for each raw file.

mod files;
mod manifest_scope;

use forebay_client::{Client, ItemRange, Name, View};
use forebay_core::{Error, Kind, Result};
use forebay_dataset::index::Index;
use forebay_dataset::manifest::{
    Check, Digest, Extra, Manifest, PublicKey, SIGNATURE_FILE, SUMS_FILE, verify,
};
use forebay_dataset::shard::Format;

use crate::dataset::DatasetOptions;
use crate::indexing::{OnProgress, Rebuild};
use crate::source::{Base, Origins, RawFolder, Source};
use manifest_scope::{Folder, choices};

/// A manifest is not larger: about five million files.
const SUMS_BYTES_MAX: u64 = 512 << 20;
const SIGNATURES_BYTES_MAX: u64 = 1 << 20;

/// Proof that data has to pass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Verify {
    /// Anything.
    #[default]
    Nothing,
    /// Agreement with its `SHA256SUMS`.
    Manifest,
    /// That, and one of these keys has signed it.
    Signed(Vec<PublicKey>),
}

/// Manifests that are believed, and what they have to vouch for.
pub(crate) struct TrustedManifests {
    /// Sorted by bucket and folder; none lies in another.
    manifests: Vec<FolderManifest>,
    origins: Origins,
}

/// A folder and its manifest.
struct FolderManifest {
    folder: Folder,
    manifest: Manifest,
}

impl TrustedManifests {
    /// The manifests of what was found; `None` if nothing has to be verified. Sets the options so that all
    /// bytes are read.
    ///
    /// Errors: `NotFound` without manifest or signature, `Denied` if nobody trusted has signed, `Checksum` if
    /// it was changed since.
    pub(crate) fn read(
        client: &Client,
        source: &Source,
        origins: Origins,
        options: &mut DatasetOptions,
    ) -> Result<Option<Self>> {
        if options.verify == Verify::Nothing {
            return Ok(None);
        }
        if options.borrow || options.rebuild == Rebuild::Never {
            let message = "data that is verified is read when it is opened: it cannot have a borrowed index or index=\"never\"";
            return Err(Error::new(Kind::InvalidInput, message));
        }
        let mut manifests = Vec::new();
        for choice in choices(source, &origins) {
            if let Some(shared) = choice.shared
                && let Some(manifest_index) = FolderManifest::read(client, shared, &options.verify)?
            {
                manifests.push(manifest_index);
                continue;
            }
            for folder in choice.folders {
                let missing = || {
                    let message = "the data has no SHA256SUMS; write it: forebay dataset manifest URL";
                    Error::new(Kind::NotFound, message).with("folder", folder.to_string())
                };
                let manifest_index = FolderManifest::read(client, folder.clone(), &options.verify)?;
                manifests.push(manifest_index.ok_or_else(missing)?);
            }
        }
        (options.rebuild, options.store, options.with_sha256) = (Rebuild::Always, false, true);
        Ok(Some(Self { manifests, origins }))
    }

    /// Compares the shards that were indexed with the manifests. Of whole folders nothing may be missing.
    ///
    /// Errors: `Checksum` if bytes differ, `Changed` if a shard is not in its manifest, `NotFound` if one of
    /// it is not there.
    pub(crate) fn check_shards(&self, index: &Index, base: &Base) -> Result<()> {
        let mut audit = self.audit();
        let mut kinds = Vec::new();
        for shard in index.head().shards() {
            let record = shard?.record();
            let kind = Format::of_name(&record.name);
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
            let unread = || Error::new(Kind::Internal, "a shard was not hashed").with("shard", &record.name);
            let digest = Digest(record.sha256.ok_or_else(unread)?);
            let object = base.absolute(&record.name)?;
            audit.found(&object.bucket, &object.key, digest)?;
        }
        // A manifest may name other files too, such as a description of the data.
        audit.finish(|name| kinds.contains(&Format::of_name(name)))
    }

    /// Reads all files of raw folders and compares them with the manifests; notes their checksums for the
    /// index.
    ///
    /// Errors: those of [`Self::check_shards`]; `Cancelled` if somebody wants to stop.
    pub(crate) fn check_files(
        &self,
        client: &Client,
        folders: &mut [RawFolder],
        options: &DatasetOptions,
        progress: Option<OnProgress<'_>>,
    ) -> Result<()> {
        let crcs = files::hash(client, folders, options, progress, self.audit())?;
        for (folder, crcs) in folders.iter_mut().zip(crcs) {
            folder.crcs = crcs;
        }
        Ok(())
    }

    fn audit(&self) -> Audit<'_> {
        Audit {
            trusted: self,
            checks: self
                .manifests
                .iter()
                .map(|manifest_index| manifest_index.manifest.check())
                .collect(),
        }
    }

    /// The number of the manifest_index of an object: the last one that is not behind its key, since none
    /// lies in another.
    fn manifest_index(&self, bucket: &str, key: &str) -> Option<usize> {
        let before = |manifest_index: &FolderManifest| {
            (
                manifest_index.folder.bucket.as_str(),
                manifest_index.folder.prefix.as_str(),
            ) <= (bucket, key)
        };
        let number = self.manifests.partition_point(before).checked_sub(1)?;
        self.manifests[number].folder.holds(bucket, key).then_some(number)
    }
}

impl FolderManifest {
    /// The folder with its manifest, if it has one.
    fn read(client: &Client, folder: Folder, wanted: &Verify) -> Result<Option<Self>> {
        let Some(text) = document(client, &folder, SUMS_FILE, SUMS_BYTES_MAX)? else {
            return Ok(None);
        };
        let about = |error: Error| error.with("folder", folder.to_string());
        if let Verify::Signed(keys) = wanted {
            let signatures = document(client, &folder, SIGNATURE_FILE, SIGNATURES_BYTES_MAX)?;
            let signatures = signatures.ok_or_else(|| {
                let message =
                    "the SHA256SUMS of the data is not signed; sign it: forebay dataset manifest URL --sign KEYFILE";
                about(Error::new(Kind::NotFound, message))
            })?;
            verify(&text, &String::from_utf8_lossy(&signatures), keys).map_err(about)?;
        }
        let manifest = Manifest::parse(&text).map_err(about)?;
        Ok(Some(Self { folder, manifest }))
    }
}

/// One comparison of what is there with all manifests.
struct Audit<'a> {
    trusted: &'a TrustedManifests,
    /// One for each manifest_index.
    checks: Vec<Check<'a>>,
}

impl Audit<'_> {
    /// Judges an object.
    fn found(&mut self, bucket: &str, key: &str, digest: Digest) -> Result<()> {
        let number = self.trusted.manifest_index(bucket, key).ok_or_else(|| {
            let message = "a file lies in no folder that a manifest vouches for";
            Error::new(Kind::Internal, message).with("object", format!("{bucket}/{key}"))
        })?;
        let below = &key[self.trusted.manifests[number].folder.prefix.len()..];
        self.checks[number].found(below, digest);
        Ok(())
    }

    /// An error unless all is as the manifests say; `is_data` tells which files of a manifest have to be
    /// there, if their whole folder was named.
    fn finish(mut self, is_data: impl Fn(&str) -> bool) -> Result<()> {
        for (name, digest) in &self.trusted.origins.documents {
            self.found(name.bucket(), name.key(), *digest)?;
        }
        let named = &self.trusted.origins.folders;
        for (manifest_index, check) in self.trusted.manifests.iter().zip(self.checks) {
            let Folder { bucket, prefix } = &manifest_index.folder;
            let mut report = check.finish();
            report.missing.retain(|name| {
                let key = format!("{prefix}{name}");
                let below =
                    |(of, folder): &(String, String)| of == bucket && key.starts_with(folder.as_str());
                is_data(name) && named.iter().any(below)
            });
            let about = |error: Error| error.with("folder", manifest_index.folder.to_string());
            report.require(Extra::Refuse).map_err(about)?;
        }
        Ok(())
    }
}

/// A document in a folder.
fn document(client: &Client, folder: &Folder, name: &str, bytes_max: u64) -> Result<Option<View>> {
    let name = Name::new(&folder.bucket, &format!("{}{name}", folder.prefix))?;
    let found = client.stat(&name).and_then(|stat| {
        if stat.bytes > bytes_max {
            let message = "the document is too large to be what its name says; write it again: forebay dataset manifest URL";
            let error = Error::new(Kind::InvalidInput, message).with("object", &name);
            return Err(error.with("bytes", stat.bytes).with("bytes_max", bytes_max));
        }
        client.get(&name, ItemRange::Whole, Some(&stat.version))
    });
    match found {
        Ok(view) => Ok(Some(view)),
        Err(error) if error.kind() == Kind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
