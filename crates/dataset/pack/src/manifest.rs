//! Writes `SHA256SUMS` beside the data, signed if a key is given.
//!
//! Every object of the folder is read once, in the version that was listed, so an object that is replaced
//! meanwhile is an error and not a mixture. Names that start with a dot, `SHA256SUMS` and its signature are
//! left out. The manifest replaces the one that was found and no other. The signature is written last, so that
//! a signature that does not fit is never silently of the new manifest.

use forebay_client::{ItemRange, ListedObject, WriteCondition, parallel};
use forebay_core::{Error, Kind, Result, Version};
use forebay_dataset::manifest::{
    Digest, Hasher, Manifest, PublicKey, SIGNATURE_FILE, SUMS_FILE, SecretKey, sign,
};

use crate::folder::Folder;
use crate::work::{Stage, StageProgress, Work};

/// One request for bytes of an object.
const RANGE_BYTES: u64 = 8 << 20;

/// Result of [`write_manifest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestReport {
    /// Objects that the manifest names.
    pub files: u64,
    /// Bytes of these objects.
    pub bytes: u64,
    /// False if the manifest was current already.
    pub is_changed: bool,
    /// The key that has signed it.
    pub signed_by: Option<PublicKey>,
}

/// Hashes a folder, `jobs` objects at a time, and writes its manifest unless it is current.
///
/// Errors: `NotFound` if the folder is empty, `Conflict` if somebody else wrote the manifest meanwhile.
pub fn write_manifest(
    folder: &Folder,
    key: Option<&SecretKey>,
    jobs: usize,
    work: &Work<'_>,
) -> Result<ManifestReport> {
    let objects = data_objects(folder)?;
    let text = manifest_text(folder, &objects, jobs, work)?;
    let found = folder.read(SUMS_FILE)?;
    let is_current = found.as_ref().is_some_and(|(found, _)| *found == text.as_bytes());
    if !is_current {
        let condition = found.map_or(WriteCondition::Absent, |(_, version)| {
            WriteCondition::Version(Version::new(&version))
        });
        write(folder, SUMS_FILE, &text, condition)?;
    }
    if let Some(key) = key {
        let signature = sign(text.as_bytes(), key);
        write(folder, SIGNATURE_FILE, &signature, WriteCondition::None)?;
    }
    Ok(ManifestReport {
        files: objects.len() as u64,
        bytes: objects.iter().map(|object| object.bytes).sum(),
        is_changed: !is_current,
        signed_by: key.map(SecretKey::public),
    })
}

/// Hashes a folder and compares it with its manifest; writes nothing.
///
/// Errors: `NotFound` if there is no manifest, `Changed` if it is not current.
pub fn check_manifest(folder: &Folder, jobs: usize, work: &Work<'_>) -> Result<()> {
    let text = manifest_text(folder, &data_objects(folder)?, jobs, work)?;
    let shown = folder.shown();
    match folder.read(SUMS_FILE)? {
        Some((found, _)) if found == text.as_bytes() => Ok(()),
        Some(_) => {
            let message =
                format!("{SUMS_FILE} is not current; 'forebay dataset verify {shown}' says what differs");
            Err(Error::new(Kind::Changed, message))
        }
        None => Err(Error::new(Kind::NotFound, format!("{shown} has no {SUMS_FILE}"))),
    }
}

fn manifest_text(folder: &Folder, objects: &[ListedObject], jobs: usize, work: &Work<'_>) -> Result<String> {
    if objects.is_empty() {
        let message = format!("there is nothing in {}", folder.shown());
        return Err(Error::new(Kind::NotFound, message));
    }
    Ok(Manifest::new(digests(folder, objects, jobs, work)?)?.to_text())
}

fn write(folder: &Folder, name: &str, text: &str, condition: WriteCondition) -> Result<()> {
    if folder.write(name, text.as_bytes(), condition)? {
        return Ok(());
    }
    let message = "somebody else wrote the manifest at the same time; run the command again";
    Err(Error::new(Kind::Conflict, message).with("object", folder.name(name)?))
}

/// All objects that a manifest is about, with names relative to the folder.
pub(crate) fn data_objects(folder: &Folder) -> Result<Vec<ListedObject>> {
    let mut objects = folder.list("")?;
    objects.retain(|object| is_data(&object.key));
    Ok(objects)
}

/// Name and digest of each object.
pub(crate) fn digests(
    folder: &Folder,
    objects: &[ListedObject],
    jobs: usize,
    work: &Work<'_>,
) -> Result<Vec<(String, Digest)>> {
    let bytes = objects.iter().map(|object| object.bytes).sum();
    let progress = work.stage(Stage::Hashing, 0, bytes);
    parallel::map(Some(&folder.client), objects, jobs, |object| {
        let digest = digest(folder, object, &progress, work)?;
        Ok((object.key.clone(), digest))
    })
}

fn digest(
    folder: &Folder,
    object: &ListedObject,
    progress: &StageProgress<'_>,
    work: &Work<'_>,
) -> Result<Digest> {
    let name = folder.name(&object.key)?;
    let mut hasher = Hasher::new();
    let mut offset = 0;
    while offset < object.bytes {
        if work.is_interrupted() {
            return Err(Error::new(Kind::Cancelled, "interrupted while hashing"));
        }
        let length = RANGE_BYTES.min(object.bytes - offset);
        let range = ItemRange::Range { offset, length };
        let view = folder.client.get(&name, range, Some(&object.version))?;
        if view.is_empty() {
            let message = "a range of an object came empty";
            return Err(Error::new(Kind::Internal, message).with("object", &name));
        }
        hasher.push(&view);
        offset += view.len() as u64;
        progress.advance(view.len() as u64);
    }
    Ok(hasher.finish())
}

/// Returns whether an object belongs to the data.
fn is_data(relative: &str) -> bool {
    let is_hidden = relative.split('/').any(|part| part.starts_with('.'));
    let is_folder = relative.is_empty() || relative.ends_with('/');
    !is_hidden && !is_folder && relative != SUMS_FILE && relative != SIGNATURE_FILE
}
