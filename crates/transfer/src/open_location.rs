//! An open location: a lake and a key in it, or a path.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use forebay_core::{Error, Kind, ObjectKey, Result};
use forebay_lake::{Lake, ListOptions};
use futures::stream::{self, BoxStream, StreamExt};

use crate::local;

/// Keys of one listing page.
const PAGE_KEYS: usize = 1000;

/// An open location.
#[derive(Debug, Clone)]
pub enum OpenLocation {
    /// In a lake, or in a node's bucket seen as one.
    Lake {
        /// The lake.
        lake: Arc<dyn Lake>,
        /// Text that people see in front of the key, ending with `/`.
        shown: String,
        /// A key or prefix, maybe empty.
        key: String,
    },
    /// On this machine.
    Local(PathBuf),
}

/// One object or file that a walk found.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its own location.
    pub location: OpenLocation,
    /// Its name below the location where the walk began.
    pub relative: String,
    /// Its size.
    pub bytes: u64,
    /// The time of its last change.
    pub modified: SystemTime,
    /// Its ETag; files have none.
    pub etag: Option<String>,
}

impl OpenLocation {
    /// Returns what people see.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Self::Lake { shown, key, .. } => format!("{shown}{key}"),
            Self::Local(path) => path.display().to_string(),
        }
    }

    /// The last part of its name.
    #[must_use]
    pub fn name(&self) -> Option<String> {
        match self {
            Self::Lake { key, .. } => key.rsplit('/').find(|part| !part.is_empty()).map(str::to_owned),
            Self::Local(path) => path.file_name().map(|name| name.to_string_lossy().into_owned()),
        }
    }

    /// Something below. A relative name that would leave a folder is refused.
    pub fn child(&self, relative: &str) -> Result<Self> {
        match self {
            Self::Lake { lake, shown, key } => {
                let slash = if key.is_empty() || key.ends_with('/') {
                    ""
                } else {
                    "/"
                };
                Ok(Self::Lake {
                    lake: Arc::clone(lake),
                    shown: shown.clone(),
                    key: format!("{key}{slash}{relative}"),
                })
            }
            Self::Local(path) => Ok(Self::Local(local::below(path, relative)?)),
        }
    }

    /// Returns whether it names a folder rather than an object.
    #[must_use]
    pub fn is_folder(&self) -> bool {
        match self {
            Self::Lake { key, .. } => key.is_empty() || key.ends_with('/'),
            Self::Local(path) => path.is_dir() || path.as_os_str().to_string_lossy().ends_with('/'),
        }
    }

    /// The object's key, checked.
    pub fn object_key(key: &str, shown: &str) -> Result<ObjectKey> {
        if key.is_empty() {
            return Err(Error::new(Kind::InvalidInput, format!("{shown} names no object")));
        }
        ObjectKey::new(key)
    }

    /// One object or file.
    pub async fn entry(&self) -> Result<Entry> {
        let name = self.name().unwrap_or_default();
        match self {
            Self::Local(path) => local::entry(path, name),
            Self::Lake { lake, shown, key } => {
                let meta = lake
                    .head(&Self::object_key(key, shown)?)
                    .await
                    .map_err(|error| self.not_there(error))?;
                let etag = Some(meta.version.to_string());
                Ok(Entry {
                    location: self.clone(),
                    relative: name,
                    bytes: meta.bytes,
                    modified: meta.modified,
                    etag,
                })
            }
        }
    }

    /// Removes the object or file.
    pub async fn remove(&self) -> Result<()> {
        match self {
            Self::Local(path) => tokio::fs::remove_file(path)
                .await
                .map_err(|why| Error::io(format!("cannot remove {}", path.display()), why)),
            Self::Lake { lake, shown, key } => lake.delete(&Self::object_key(key, shown)?).await,
        }
    }

    /// Says "not there" in the words of the one who asked.
    #[must_use]
    pub fn not_there(&self, error: Error) -> Error {
        match error.kind() {
            Kind::NotFound => Error::new(Kind::NotFound, format!("{} is not there", self.shown())),
            _ => error,
        }
    }

    /// Everything below, page by page, in the order of the lake. A prefix without `/` at its end means the
    /// folder of that name, not all names that begin so.
    pub fn walk(&self) -> BoxStream<'static, Result<Entry>> {
        match self {
            Self::Local(path) => local::walk(path.clone()),
            Self::Lake { lake, shown, key } => {
                let slash = if key.is_empty() || key.ends_with('/') {
                    ""
                } else {
                    "/"
                };
                walk_lake(Arc::clone(lake), shown.clone(), format!("{key}{slash}"))
            }
        }
    }
}

fn walk_lake(lake: Arc<dyn Lake>, shown: String, prefix: String) -> BoxStream<'static, Result<Entry>> {
    // The state is where to go on: `Some(None)` at the start, `None` at the end.
    let pages = stream::try_unfold(Some(None), move |next| {
        let (lake, prefix, shown) = (Arc::clone(&lake), prefix.clone(), shown.clone());
        async move {
            let Some(start_after) = next else { return Ok(None) };
            let options = ListOptions {
                prefix: prefix.clone(),
                start_after,
                limit: PAGE_KEYS,
                delimiter: None,
            };
            let page = lake.list(options).await?;
            let entries: Vec<Result<Entry>> = page
                .objects
                .into_iter()
                .map(|object| {
                    let key = object.key.as_str();
                    let relative = key.strip_prefix(&prefix).unwrap_or(key).to_owned();
                    let location = OpenLocation::Lake {
                        lake: Arc::clone(&lake),
                        shown: shown.clone(),
                        key: key.to_owned(),
                    };
                    let etag = Some(object.version.to_string());
                    Ok(Entry {
                        location,
                        relative,
                        bytes: object.bytes,
                        modified: object.modified,
                        etag,
                    })
                })
                .collect();
            Ok::<_, Error>(Some((stream::iter(entries), page.next.map(Some))))
        }
    });
    pages
        .map(|page| {
            page.map_or_else(
                |error| stream::iter(vec![Err(error)]).left_stream(),
                StreamExt::right_stream,
            )
        })
        .flatten()
        .boxed()
}
