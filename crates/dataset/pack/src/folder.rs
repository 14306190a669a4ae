//! A folder of a bucket, read and written through a node.

use forebay_client::{
    Client, Entry, Headers, ItemRange, ListOptions, ListedObject, Name, PutOptions, PutSource, WriteCondition,
};
use forebay_core::{Kind, Result};
use forebay_dataset::manifest::{SIGNATURE_FILE, SUMS_FILE};

/// A folder of a bucket, and the client that reads and writes it.
#[derive(Clone)]
pub struct Folder {
    pub(crate) client: Client,
    bucket: String,
    /// Ends with a slash; empty for a whole bucket.
    prefix: String,
    /// Name of the folder in messages.
    shown: String,
}

impl Folder {
    /// The folder below `prefix`, which ends with a slash or is empty.
    #[must_use]
    pub fn new(client: Client, bucket: &str, prefix: &str) -> Self {
        Self {
            client,
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
            shown: format!("forebay://{bucket}/{prefix}"),
        }
    }

    /// The same folder under another name in messages: the one that people typed.
    #[must_use]
    pub fn shown_as(self, shown: &str) -> Self {
        Self {
            shown: shown.to_owned(),
            ..self
        }
    }

    /// The name of the folder in messages.
    #[must_use]
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// The URL of the folder at its node.
    pub(crate) fn url(&self) -> String {
        format!("forebay://{}/{}", self.bucket, self.prefix)
    }

    /// True for a whole bucket.
    pub(crate) fn is_bucket(&self) -> bool {
        self.prefix.is_empty()
    }

    /// The name of an object of the folder.
    pub(crate) fn name(&self, relative: &str) -> Result<Name> {
        Name::new(&self.bucket, &format!("{}{relative}", self.prefix))
    }

    /// Bytes and version of a small object; `None` if it is missing.
    pub(crate) fn read(&self, relative: &str) -> Result<Option<(Vec<u8>, String)>> {
        match self.client.get(&self.name(relative)?, ItemRange::Whole, None) {
            Ok(view) => Ok(Some((view.to_vec(), view.version().to_owned()))),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes a small object. `false`: the condition does not hold. Where the lake decides no conditions, the
    /// object is written without one: one writer at a time is then up to the user.
    pub(crate) fn write(&self, relative: &str, bytes: &[u8], condition: WriteCondition) -> Result<bool> {
        let name = self.name(relative)?;
        let is_text = relative == SUMS_FILE || relative == SIGNATURE_FILE;
        let put = |condition| {
            let options = PutOptions {
                condition,
                headers: Headers {
                    content_type: is_text.then(|| "text/plain".to_owned()),
                    ..Headers::default()
                },
                ..PutOptions::default()
            };
            self.client.put(&name, PutSource::Slice(bytes), options)
        };
        match put(condition) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == Kind::Unsupported => put(WriteCondition::None).map(|_| true),
            Err(error)
                if matches!(
                    error.kind(),
                    Kind::PreconditionFailed | Kind::AlreadyExists | Kind::Changed
                ) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Removes an object.
    pub(crate) fn delete(&self, relative: &str) -> Result<()> {
        self.client.delete(&self.name(relative)?)
    }

    /// All objects below a folder of this folder; their keys are relative to that.
    pub(crate) fn list(&self, below: &str) -> Result<Vec<ListedObject>> {
        let prefix = format!("{}{below}", self.prefix);
        let options = ListOptions {
            prefix: prefix.clone(),
            ..ListOptions::default()
        };
        let mut objects = Vec::new();
        for entry in self.client.list(&self.bucket, options)? {
            if let Entry::Object(mut object) = entry? {
                object.key = object.key.get(prefix.len()..).unwrap_or_default().to_owned();
                objects.push(object);
            }
        }
        Ok(objects)
    }
}
