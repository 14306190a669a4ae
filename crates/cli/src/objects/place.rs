//! An opened location: a lake and a key in it, or a path.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::anyhow;
use forebay_core::{Error, Kind, ObjectKey};
use forebay_lake::{Lake, ListOptions, OpenOptions};
use futures::stream::{self, BoxStream, StreamExt};

use super::location::Location;
use super::{local, node};
use crate::args::EndpointArgs;
use crate::exit::{Exit, Outcome};

/// Keys of one listing page.
const PAGE_KEYS: usize = 1000;

/// An opened location.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// In a lake, or in a node's bucket seen as one.
    Lake {
        lake: Arc<dyn Lake>,
        /// What people see in front of the key, ending with `/`.
        shown: String,
        key: String,
    },
    /// On this machine.
    Local(PathBuf),
}

/// One object or file that a walk found.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// Where it is.
    pub(crate) place: Place,
    /// Its name below the place where the walk began.
    pub(crate) relative: String,
    pub(crate) bytes: u64,
    pub(crate) modified: SystemTime,
    /// Its ETag; files have none.
    pub(crate) etag: Option<String>,
}

impl Place {
    /// Opens a location. Nothing is asked of a lake yet; of a node, whether it is there.
    pub(crate) async fn open(location: &Location, args: &EndpointArgs) -> Outcome<Self> {
        match location {
            Location::Buckets => Err(Exit::usage(anyhow!("name a bucket: forebay://bucket/…"))),
            Location::Local(path) => Ok(Self::Local(path.clone())),
            Location::Lake { store, shown, key } => {
                let lake = forebay_lake::open(store, &OpenOptions::default()).await?;
                Ok(Self::Lake {
                    lake,
                    shown: shown.clone(),
                    key: key.clone(),
                })
            }
            Location::Node { bucket, key } => Ok(Self::Lake {
                lake: node::bucket(bucket, args).await?,
                shown: format!("forebay://{bucket}/"),
                key: key.clone(),
            }),
        }
    }

    /// What people see.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Lake { shown, key, .. } => format!("{shown}{key}"),
            Self::Local(path) => path.display().to_string(),
        }
    }

    /// The last part of its name.
    pub(crate) fn name(&self) -> Option<String> {
        match self {
            Self::Lake { key, .. } => key.rsplit('/').find(|part| !part.is_empty()).map(str::to_owned),
            Self::Local(path) => path.file_name().map(|name| name.to_string_lossy().into_owned()),
        }
    }

    /// Something below. A relative name that would leave a folder is refused.
    pub(crate) fn child(&self, relative: &str) -> Outcome<Self> {
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

    /// Whether it names a folder rather than an object.
    pub(crate) fn is_folder(&self) -> bool {
        match self {
            Self::Lake { key, .. } => key.is_empty() || key.ends_with('/'),
            Self::Local(path) => path.is_dir() || path.as_os_str().to_string_lossy().ends_with('/'),
        }
    }

    /// The object's key, checked.
    pub(crate) fn object_key(key: &str, shown: &str) -> Outcome<ObjectKey> {
        if key.is_empty() {
            return Err(Exit::usage(anyhow!("{shown} names no object")));
        }
        Ok(ObjectKey::new(key)?)
    }

    /// One object or file.
    pub(crate) async fn entry(&self) -> Outcome<Entry> {
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
                    place: self.clone(),
                    relative: name,
                    bytes: meta.bytes,
                    modified: meta.modified,
                    etag,
                })
            }
        }
    }

    /// Says "not there" in the words of the one who asked.
    pub(crate) fn not_there(&self, error: Error) -> Exit {
        match error.kind() {
            Kind::NotFound => Exit::failure(Error::new(
                Kind::NotFound,
                format!("{} is not there", self.shown()),
            )),
            _ => error.into(),
        }
    }

    /// Everything below, page by page, in the order of the lake. A prefix without `/` at its end means the
    /// folder of that name, not all names that begin so.
    pub(crate) fn walk(&self) -> BoxStream<'static, Outcome<Entry>> {
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

fn walk_lake(lake: Arc<dyn Lake>, shown: String, prefix: String) -> BoxStream<'static, Outcome<Entry>> {
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
            let entries: Vec<Outcome<Entry>> = page
                .objects
                .into_iter()
                .map(|object| {
                    let key = object.key.as_str();
                    let relative = key.strip_prefix(&prefix).unwrap_or(key).to_owned();
                    let place = Place::Lake {
                        lake: Arc::clone(&lake),
                        shown: shown.clone(),
                        key: key.to_owned(),
                    };
                    let etag = Some(object.version.to_string());
                    Ok(Entry {
                        place,
                        relative,
                        bytes: object.bytes,
                        modified: object.modified,
                        etag,
                    })
                })
                .collect();
            Ok::<_, Exit>(Some((stream::iter(entries), page.next.map(Some))))
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
