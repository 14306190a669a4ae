//! Refuses data that is not what its `SHA256SUMS` says, or that nobody trusted has signed.
//!
//! Poisoned training data is the threat: somebody who can write to the lake changes shards, adds or removes some. Such a person can write the stored
//! index too, so it is not believed here: all shards are read and hashed when the dataset is opened, in the versions that are read from then on, and
//! their digests compared with the manifest in the folder that the shards have in common.

use forebay_client::{Client, ItemRange, Name};
use forebay_core::{Error, Kind, Result};
use forebay_dataset::index::Index;
use forebay_dataset::manifest::{
    Digest, Extra, Hasher, Manifest, PublicKey, SIGNATURE_FILE, SUMS_FILE, verify,
};
use forebay_dataset::shard::Format;

use crate::dataset::DatasetOptions;
use crate::indexing::Rebuild;
use crate::source::{Base, Source};

const MDS_INDEX: &str = "index.json";

/// What data has to be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Verify {
    /// Anything.
    #[default]
    Nothing,
    /// What its `SHA256SUMS` says.
    Manifest,
    /// That, and one of these keys has signed it.
    Signed(Vec<PublicKey>),
}

/// A manifest that is believed, and where it lies.
pub(crate) struct Trusted<'a> {
    client: &'a Client,
    base: &'a Base,
    manifest: Manifest,
}

impl<'a> Trusted<'a> {
    /// The manifest of what was found; `None` if nothing has to be verified. Sets the options so that all bytes are read.
    ///
    /// Errors: `NotFound` without manifest or signature, `Denied` if nobody trusted has signed, `Checksum` if it was changed since, `Unsupported` for raw files
    /// and shards of several buckets.
    pub(crate) fn read(
        client: &'a Client,
        source: &'a Source,
        options: &mut DatasetOptions,
    ) -> Result<Option<Self>> {
        if options.verify == Verify::Nothing {
            return Ok(None);
        }
        if options.borrow || options.rebuild == Rebuild::Never {
            let message = "data that is verified is read when it is opened: it cannot have a borrowed index or index=\"never\"";
            return Err(Error::new(Kind::InvalidInput, message));
        }
        let base = match source {
            Source::Shards { base, .. } if base.is_one_bucket() => base,
            _ => {
                let message = "only shards in one bucket are verified when they are opened; pack raw files, or run: forebay dataset verify URL";
                return Err(Error::new(Kind::Unsupported, message));
            }
        };
        let text = document(client, base, SUMS_FILE)?.ok_or_else(|| {
            let message = "the data has no SHA256SUMS; write it: forebay dataset manifest URL";
            Error::new(Kind::NotFound, message).with("folder", base.home().1)
        })?;
        if let Verify::Signed(keys) = &options.verify {
            let signatures = document(client, base, SIGNATURE_FILE)?.ok_or_else(|| {
                let message =
                    "the SHA256SUMS of the data is not signed; sign it: forebay dataset manifest URL --sign KEYFILE";
                Error::new(Kind::NotFound, message).with("folder", base.home().1)
            })?;
            verify(&text, &String::from_utf8_lossy(&signatures), keys)?;
        }
        (options.rebuild, options.store, options.with_sha256) = (Rebuild::Always, false, true);
        let manifest = Manifest::parse(&text)?;
        Ok(Some(Self {
            client,
            base,
            manifest,
        }))
    }

    /// Compares what was read with the manifest. Of a whole folder nothing may be missing.
    ///
    /// Errors: `Checksum` if bytes differ, `Changed` if a shard is not in the manifest, `NotFound` if one of it is not there.
    pub(crate) fn check(&self, index: &Index, is_folder: bool) -> Result<()> {
        let mut check = self.manifest.check();
        let mut is_mds = false;
        let mut kinds = Vec::new();
        for shard in index.head().shards() {
            let record = shard?.record();
            is_mds |= record.format == Format::Mds;
            let kind = Format::of_name(&record.name);
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
            let unread = || Error::new(Kind::Internal, "a shard was not hashed").with("shard", &record.name);
            check.found(&record.name, Digest(record.sha256.ok_or_else(unread)?));
        }
        // It says which shards there are and how their columns are read.
        if is_mds && let Some(document) = document(self.client, self.base, MDS_INDEX)? {
            let mut hasher = Hasher::new();
            hasher.push(&document);
            check.found(MDS_INDEX, hasher.finish());
        }
        let mut report = check.finish();
        // A manifest may name other files too, such as a description of the data.
        report
            .missing
            .retain(|name| is_folder && kinds.contains(&Format::of_name(name)));
        let about = |error: Error| error.with("folder", self.base.home().1);
        report.require(Extra::Refuse).map_err(about)
    }
}

/// A document in the folder of the shards.
fn document(client: &Client, base: &Base, name: &str) -> Result<Option<Vec<u8>>> {
    let (bucket, folder) = base.home();
    match client.get(
        &Name::new(bucket, &format!("{folder}{name}"))?,
        ItemRange::Whole,
        None,
    ) {
        Ok(view) => Ok(Some(view.to_vec())),
        Err(error) if error.kind() == Kind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
