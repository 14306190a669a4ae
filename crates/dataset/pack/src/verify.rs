//! Compares every byte of the data with `SHA256SUMS`, and that with its signature.
//!
//! The signature is checked first: nothing of a manifest that nobody trusted has signed is looked at.

use forebay_core::{Error, Kind, Result};
use forebay_dataset::manifest::{
    Manifest, PublicKey, Report, SIGNATURE_FILE, SUMS_FILE, verify as verify_signature,
};

use crate::folder::Folder;
use crate::manifest::{data_objects, digests};
use crate::work::Work;

/// Result of [`verify`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyReport {
    /// Files that are the same, changed, missing and extra.
    pub files: Report,
    /// Bytes that were read.
    pub bytes: u64,
    /// The trusted key that has signed the manifest, if keys were given.
    pub signed_by: Option<PublicKey>,
}

impl VerifyReport {
    /// Returns whether the data is what the manifest says.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        let files = &self.files;
        files.changed.is_empty() && files.missing.is_empty() && files.extra.is_empty()
    }
}

/// Hashes a folder, `jobs` objects at a time, and compares it with its manifest. If keys are given, one of
/// them must have signed the manifest.
///
/// Errors: `NotFound` without a manifest, `Denied` if it is not signed.
pub fn verify(folder: &Folder, keys: &[PublicKey], jobs: usize, work: &Work<'_>) -> Result<VerifyReport> {
    let shown = folder.shown();
    let Some((text, _)) = folder.read(SUMS_FILE)? else {
        let message = format!("{shown} has no {SUMS_FILE}; write it: forebay dataset manifest {shown}");
        return Err(Error::new(Kind::NotFound, message));
    };
    let signed_by = if keys.is_empty() {
        None
    } else {
        Some(signer(folder, &text, keys)?)
    };
    let manifest = Manifest::parse(&text)?;
    let objects = data_objects(folder)?;
    let bytes = objects.iter().map(|object| object.bytes).sum();
    let mut check = manifest.check();
    for (name, digest) in digests(folder, &objects, jobs, work)? {
        check.found(&name, digest);
    }
    Ok(VerifyReport {
        files: check.finish(),
        bytes,
        signed_by,
    })
}

fn signer(folder: &Folder, manifest: &[u8], keys: &[PublicKey]) -> Result<PublicKey> {
    let Some((signatures, _)) = folder.read(SIGNATURE_FILE)? else {
        let message = format!(
            "the manifest is not signed: there is no {SIGNATURE_FILE}; sign it: forebay dataset manifest URL --sign KEYFILE"
        );
        return Err(Error::new(Kind::Denied, message));
    };
    let signatures = String::from_utf8_lossy(&signatures);
    verify_signature(manifest, &signatures, keys)
}
