//! `forebay dataset manifest`: writes `SHA256SUMS` beside the data.
//!
//! Every object of the folder is read once, in the version that was listed, so an object that is replaced meanwhile is an error and not a
//! mixture. Names that start with a dot, `SHA256SUMS` and its signature are left out. The manifest is written over the one that was found and no
//! other; the signature last, so that one that is there and does not fit is never silently of the new manifest.

use std::path::Path;

use anyhow::{Context as _, anyhow};
use forebay_client::{
    Client, Condition, Entry, Headers, ItemRange, ListOptions, ListedObject, Name, PutOptions, PutSource,
};
use forebay_core::{Error, Kind, Result, format_bytes};
use forebay_dataset::manifest::{Digest, Hasher, Manifest, SIGNATURE_FILE, SUMS_FILE, SecretKey, sign};
use indicatif::ProgressBar;

use super::args::{FolderArgs, ManifestArgs};
use super::open::{Folder, Opened, Purpose};
use super::{Context, parallel};
use crate::exit::{Exit, Outcome};

/// One request for bytes of an object.
const RANGE_BYTES: u64 = 8 << 20;

/// A folder whose objects are hashed.
pub(crate) struct Hashing<'a> {
    pub(crate) client: &'a Client,
    pub(crate) folder: &'a Folder,
}

pub(crate) fn run(args: &ManifestArgs, context: &Context) -> Outcome {
    let key = args.sign.as_deref().map(read_key).transpose()?;
    let (opened, folder) = open(&args.folder, Purpose::Change, context)?;
    let hashing = Hashing {
        client: &opened.client,
        folder: &folder,
    };
    let objects = hashing.objects()?;
    if objects.is_empty() {
        return Err(Exit::failure(anyhow!("there is nothing in {}", opened.shown)));
    }
    let bytes: u64 = objects.iter().map(|object| object.bytes).sum();
    let digests = hashing.digests(&objects, args.folder.jobs, context)?;
    let text = Manifest::new(digests)?.to_text();
    let found = hashing.document(SUMS_FILE)?;
    let is_current = found.as_ref().is_some_and(|(found, _)| *found == text.as_bytes());
    if args.check_only {
        return match (is_current, found) {
            (true, _) => Ok(()),
            (false, None) => Err(Exit::failure(anyhow!("{} has no {SUMS_FILE}", opened.shown))),
            (false, Some(_)) => Err(Exit::failure(anyhow!(
                "{SUMS_FILE} is not current; 'forebay dataset verify {}' says what differs",
                opened.shown
            ))),
        };
    }
    if !is_current {
        let condition = found.map_or(Condition::Absent, |(_, version)| Condition::Version(version));
        hashing.write(SUMS_FILE, text.as_bytes(), condition)?;
    }
    if let Some(key) = &key {
        hashing.write(
            SIGNATURE_FILE,
            sign(text.as_bytes(), key).as_bytes(),
            Condition::None,
        )?;
    }
    let signed_by = key.map(|key| key.public().to_string());
    context.output.data(&serde_json::json!({
        "manifest": SUMS_FILE, "files": objects.len(), "bytes": bytes, "changed": !is_current, "signed_by": signed_by,
    }));
    let what = if is_current { "is current" } else { "written" };
    let signed = signed_by.map_or_else(String::new, |key| format!(", signed by {key}"));
    context.output.say(format!(
        "{SUMS_FILE} {what}: {} files, {}{signed}",
        objects.len(),
        format_bytes(bytes)
    ));
    Ok(())
}

/// The folder that was typed.
pub(crate) fn open(args: &FolderArgs, purpose: Purpose, context: &Context) -> Outcome<(Opened, Folder)> {
    let opened = Opened::open(&args.url, args.node.node.as_deref(), purpose, context)?;
    let folder = opened.folder()?;
    Ok((opened, folder))
}

fn read_key(path: &Path) -> Outcome<SecretKey> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(SecretKey::from_pem(&text).map_err(|error| error.with("file", path.display()))?)
}

impl Hashing<'_> {
    /// All objects that a manifest is about; keys are whole.
    pub(crate) fn objects(&self) -> Result<Vec<ListedObject>> {
        let prefix = &self.folder.prefix;
        let options = ListOptions {
            prefix: prefix.clone(),
            ..ListOptions::default()
        };
        let mut objects = Vec::new();
        for entry in self.client.list(&self.folder.bucket, options)? {
            if let Entry::Object(object) = entry?
                && is_data(object.key.get(prefix.len()..).unwrap_or_default())
            {
                objects.push(object);
            }
        }
        Ok(objects)
    }

    /// Name and digest of each, with a bar.
    pub(crate) fn digests(
        &self,
        objects: &[ListedObject],
        jobs: u16,
        context: &Context,
    ) -> Result<Vec<(String, Digest)>> {
        let bar = context
            .output
            .bar(objects.iter().map(|object| object.bytes).sum());
        bar.set_message("hashing");
        let hashed = parallel::each(objects, usize::from(jobs), |object| {
            self.digest(object, &bar, context)
        });
        bar.finish_and_clear();
        hashed
    }

    fn digest(
        &self,
        object: &ListedObject,
        bar: &ProgressBar,
        context: &Context,
    ) -> Result<(String, Digest)> {
        let name = Name::new(&self.folder.bucket, &object.key)?;
        let mut hasher = Hasher::new();
        let mut offset = 0;
        while offset < object.bytes {
            if (context.interrupt)() {
                return Err(Error::new(Kind::Cancelled, "interrupted while hashing"));
            }
            let length = RANGE_BYTES.min(object.bytes - offset);
            let view = self
                .client
                .get(&name, ItemRange::Range { offset, length }, Some(&object.version))?;
            if view.is_empty() {
                return Err(
                    Error::new(Kind::Internal, "a range of an object came empty").with("object", &name)
                );
            }
            hasher.push(&view);
            offset += view.len() as u64;
            bar.inc(view.len() as u64);
        }
        let relative = object.key.get(self.folder.prefix.len()..).unwrap_or_default();
        Ok((relative.to_owned(), hasher.finish()))
    }

    /// The bytes and version of a document beside the data.
    pub(crate) fn document(&self, name: &str) -> Result<Option<(Vec<u8>, String)>> {
        let name = self.name(name)?;
        match self.client.get(&name, ItemRange::Whole, None) {
            Ok(view) => Ok(Some((view.to_vec(), view.version().to_owned()))),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes a document beside the data; where the lake decides no conditions, without one.
    pub(crate) fn write(&self, name: &str, bytes: &[u8], condition: Condition) -> Result<()> {
        let name = self.name(name)?;
        let put = |condition| {
            let options = PutOptions {
                condition,
                headers: Headers {
                    content_type: Some("text/plain".into()),
                    ..Headers::default()
                },
                ..PutOptions::default()
            };
            self.client.put(&name, PutSource::Slice(bytes), options)
        };
        match put(condition) {
            Err(error) if error.kind() == Kind::Unsupported => put(Condition::None).map(|_| ()),
            Err(error)
                if matches!(
                    error.kind(),
                    Kind::PreconditionFailed | Kind::AlreadyExists | Kind::Changed
                ) =>
            {
                let message = "somebody else wrote the manifest at the same time; run the command again";
                Err(Error::new(Kind::Conflict, message).caused_by(error))
            }
            other => other.map(|_| ()),
        }
    }

    fn name(&self, name: &str) -> Result<Name> {
        Name::new(&self.folder.bucket, &format!("{}{name}", self.folder.prefix))
    }
}

/// Whether an object belongs to the data.
pub(crate) fn is_data(relative: &str) -> bool {
    let is_hidden = relative.split('/').any(|part| part.starts_with('.'));
    let is_folder = relative.is_empty() || relative.ends_with('/');
    !is_hidden && !is_folder && relative != SUMS_FILE && relative != SIGNATURE_FILE
}
