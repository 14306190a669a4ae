//! An opened location: a lake and a key in it, or a path.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::anyhow;
use forebay_core::{Error, Kind, ObjectKey};
use forebay_lake::{AddressStyle, Lake, ListOptions, OpenOptions};
use forebay_node::config::reference;
use forebay_node::keys::KeyFile;
use futures::stream::{self, BoxStream, StreamExt};

use super::local;
use super::location::Location;
use crate::admin_client::endpoint;
use crate::args::EndpointArgs;
use crate::exit::{Exit, Outcome};

/// Keys of one listing page.
const PAGE_KEYS: usize = 1000;

/// How long a node may take to answer the door.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

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
            Location::Node { bucket, key } => {
                let options = node_options(args)?;
                is_anyone_there(options.endpoint.as_deref().unwrap_or_default()).await?;
                let lake = forebay_lake::open(&format!("s3://{bucket}"), &options).await?;
                Ok(Self::Lake {
                    lake,
                    shown: format!("forebay://{bucket}/"),
                    key: key.clone(),
                })
            }
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

/// How to reach the node's front door, with the keys of the environment or of its key file.
fn node_options(args: &EndpointArgs) -> Outcome<OpenOptions> {
    let set = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
    let (id, secret) = match (set(reference::ACCESS_KEY_ID), set(reference::SECRET_ACCESS_KEY)) {
        (Some(id), Some(secret)) => (id, secret),
        _ => key_of_file(args)?,
    };
    Ok(OpenOptions {
        endpoint: Some(endpoint(&args.endpoint)?),
        region: Some(args.region.clone()),
        style: Some(AddressStyle::Path),
        access_key_id: Some(id),
        secret_access_key: Some(secret),
        session_token: None,
    })
}

/// Asked first, because the lake's client would try for seconds and then speak of a lake.
async fn is_anyone_there(endpoint: &str) -> Outcome {
    let url = url::Url::parse(endpoint).map_err(Exit::usage)?;
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let connect = tokio::net::TcpStream::connect((host, url.port_or_known_default().unwrap_or(80)));
    match tokio::time::timeout(CONNECT_TIME_MAX, connect).await {
        Ok(Ok(_)) => Ok(()),
        _ => Err(Exit::failure(anyhow!(
            "no node at {endpoint}: nothing answers there; start one with 'forebay serve' or give --endpoint URL"
        ))),
    }
}

fn key_of_file(args: &EndpointArgs) -> Outcome<(String, String)> {
    let path = KeyFile::path(&args.node.data);
    let file = KeyFile::read(&path).map_err(Exit::usage)?;
    let key = file.and_then(|file| file.access_key_id.zip(file.secret_access_key));
    let Some((id, secret)) = key else {
        let (id, secret) = (reference::ACCESS_KEY_ID, reference::SECRET_ACCESS_KEY);
        let message = format!(
            "no keys for the node: set {id} and {secret}, or FOREBAY_DATA to its data folder ({} has none)",
            path.display()
        );
        return Err(Exit::usage(anyhow!(message)));
    };
    Ok((id, secret.reveal().to_owned()))
}
