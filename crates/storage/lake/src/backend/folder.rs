//! An ordinary folder as a lake: key `a/b` is file `a/b`, and a file that someone puts there is an object.
//!
//! Writes go to a temporary file and appear by rename, durable before they are acknowledged, with S3's ETags.
//! Data that does not fit into a file lies in sidecars under `<root>/.forebay/folder/` and is bound to the
//! file's inode, size and modification time, so whatever other programs do to the folder, it is noticed.
//! Several processes may use the same folder; conditional writes hold between them. Limits: keys must be
//! paths (no `..`, no `//`, segments of at most 255 bytes), a key cannot also be the folder of another key,
//! symbolic links are not followed. Layout and order of writes: docs/formats/folder-lake.md. All file work
//! runs on the blocking pool.

mod checked_json;
mod copy;
mod direct;
mod durable;
pub(crate) mod key_path;
mod list;
mod lock;
mod lookup;
mod names;
mod publish;
mod read;
mod sidecar;
mod temp;
mod tree;
mod upload;
mod walk;
mod writer;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_core::{Clock, Error, Kind, ObjectKey, Result, SystemClock, Version};
use rustix::fs::{Mode, OFlags};
use tokio::task::{JoinError, spawn_blocking};

use self::key_path::KeyPath;
use self::read::PinnedFile;
use self::temp::Temp;
use self::tree::Tree;
use self::writer::{FolderWriter, Sink, finish_put};
use crate::{
    Attributes, ByteStream, CopyOptions, GetOptions, GetResult, Lake, LakeWriter, ListOptions, ListPage,
    ObjectMeta, PartNumber, PartReceipt, PutOptions, PutReceipt, UpdateToken, UploadId, resolve_range,
};

/// A folder as a lake. Clones share the open folder.
#[derive(Debug, Clone)]
pub struct FolderLake {
    tree: Arc<Tree>,
    url: Arc<str>,
}

impl FolderLake {
    /// Opens a folder that exists and removes what killed writers left in it more than a day ago. Blocks.
    pub fn open(root: impl AsRef<Path>) -> Result<Self> {
        let root = root.as_ref();
        let wrong = |error: std::io::Error| {
            Error::io("cannot open the lake's folder", error).with("folder", root.display())
        };
        let root_path = root.canonicalize().map_err(wrong)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder =
            rustix::fs::open(&root_path, flags, Mode::empty()).map_err(|errno| wrong(errno.into()))?;
        let tree = Tree::new(folder).map_err(|errno| wrong(errno.into()))?;
        temp::remove_leftovers(&tree, SystemClock::new().wall());
        let url = format!("file://{}", root_path.display());
        Ok(Self {
            tree: Arc::new(tree),
            url: url.into(),
        })
    }

    /// Makes the folder if it is missing and opens it. Blocks.
    pub fn create(root: impl AsRef<Path>) -> Result<Self> {
        let root = root.as_ref();
        std::fs::create_dir_all(root).map_err(|error| {
            Error::io("cannot make the lake's folder", error).with("folder", root.display())
        })?;
        Self::open(root)
    }

    /// Adds the lake and the key to an error.
    fn context(url: &Arc<str>, key: &ObjectKey) -> impl Fn(Error) -> Error + use<> {
        let (url, key) = (Arc::clone(url), key.clone());
        move |error| error.with("lake", &url).with("key", &key)
    }

    /// Runs blocking work on one key.
    async fn run<T: Send + 'static>(
        &self,
        key: &ObjectKey,
        work: impl FnOnce(&Arc<Tree>, &ObjectKey) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (tree, owned_key) = (Arc::clone(&self.tree), key.clone());
        off_runtime(move || work(&tree, &owned_key))
            .await
            .map_err(Self::context(&self.url, key))
    }
}

/// Runs blocking work off the runtime. Cancelling the wait does not stop the work.
async fn off_runtime<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    joined(spawn_blocking(work).await)
}

fn joined<T>(result: Result<Result<T>, JoinError>) -> Result<T> {
    result.unwrap_or_else(|error| {
        let kind = if error.is_cancelled() {
            Kind::Cancelled
        } else {
            Kind::Internal
        };
        Err(Error::new(kind, "the lake's file work did not end well").caused_by(error))
    })
}

fn check_version(wanted: Option<&Version>, meta: &ObjectMeta) -> Result<()> {
    match wanted {
        Some(wanted) if *wanted != meta.version => {
            let error = Error::new(Kind::Changed, "the object has another version now");
            Err(error.with("wanted", wanted).with("found", &meta.version))
        }
        _ => Ok(()),
    }
}

#[async_trait]
impl Lake for FolderLake {
    fn url(&self) -> &str {
        &self.url
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectMeta> {
        self.run(key, |tree, key| lookup::head(tree, key)).await
    }

    async fn get(&self, key: &ObjectKey, options: GetOptions) -> Result<GetResult> {
        let open = move |tree: &Arc<Tree>, key: &ObjectKey| {
            let opened = lookup::open(tree, key)?;
            check_version(options.if_match.as_ref(), &opened.meta)?;
            let range = resolve_range(options.range, opened.meta.bytes)?;
            let pinned = PinnedFile::new(opened.file, opened.stamp);
            let first = pinned.read_chunk(&range)?;
            Ok((opened.meta, pinned, first, range))
        };
        let (meta, pinned, first, range) = self.run(key, open).await?;
        let (start, bytes) = (range.start, range.end - range.start);
        let body = read::body(pinned, first, range, Self::context(&self.url, key));
        Ok(GetResult {
            meta,
            start,
            bytes,
            body,
        })
    }

    async fn writer(
        &self,
        key: &ObjectKey,
        options: PutOptions,
        bytes_hint: Option<u64>,
    ) -> Result<Box<dyn LakeWriter>> {
        let is_hashed = options.content.is_none() || options.md5.is_some();
        let create = move |tree: &Arc<Tree>, key: &ObjectKey| {
            KeyPath::new(key)?;
            if is_hashed {
                Temp::create(tree)
            } else {
                Temp::create_unhashed(tree, bytes_hint)
            }
        };
        let temp = self.run(key, create).await?;
        let (tree, url) = (Arc::clone(&self.tree), Arc::clone(&self.url));
        Ok(Box::new(FolderWriter {
            tree,
            url,
            key: key.clone(),
            sink: Sink::new(temp),
        }))
    }

    async fn put(&self, key: &ObjectKey, body: Bytes, options: PutOptions) -> Result<PutReceipt> {
        let put = move |tree: &Arc<Tree>, key: &ObjectKey| {
            KeyPath::new(key)?;
            finish_put(tree, Temp::create(tree)?, key, &[body], options)
        };
        self.run(key, put).await
    }

    async fn delete(&self, key: &ObjectKey) -> Result<()> {
        self.run(key, |tree, key| publish::delete(tree, key, None)).await
    }

    async fn delete_if(&self, key: &ObjectKey, token: &UpdateToken) -> Result<()> {
        let token = token.clone();
        self.run(key, move |tree, key| publish::delete(tree, key, Some(&token)))
            .await
    }

    async fn copy(&self, from: &ObjectKey, to: &ObjectKey, options: CopyOptions) -> Result<PutReceipt> {
        let to = to.clone();
        self.run(from, move |tree, from| copy::copy(tree, from, &to, options))
            .await
    }

    async fn list(&self, options: ListOptions) -> Result<ListPage> {
        let tree = Arc::clone(&self.tree);
        off_runtime(move || list::page(&tree, &options))
            .await
            .map_err(|error| error.with("lake", &self.url))
    }

    async fn start_upload(&self, key: &ObjectKey, attributes: Attributes) -> Result<UploadId> {
        self.run(key, move |tree, key| upload::start(tree, key, attributes))
            .await
    }

    async fn upload_part(
        &self,
        key: &ObjectKey,
        upload: &UploadId,
        number: PartNumber,
        bytes: u64,
        body: ByteStream,
    ) -> Result<PartReceipt> {
        let part = upload::NewPart {
            key: key.clone(),
            upload: upload.clone(),
            number,
            bytes,
        };
        upload::store_part(&self.tree, part, body)
            .await
            .map_err(Self::context(&self.url, key))
    }

    async fn complete_upload(
        &self,
        key: &ObjectKey,
        upload: &UploadId,
        parts: &[PartReceipt],
        options: PutOptions,
    ) -> Result<PutReceipt> {
        let (upload, parts) = (upload.clone(), parts.to_vec());
        self.run(key, move |tree, key| {
            upload::complete(tree, key, &upload, &parts, &options)
        })
        .await
    }

    async fn abort_upload(&self, key: &ObjectKey, upload: &UploadId) -> Result<()> {
        let upload = upload.clone();
        self.run(key, move |tree, key| upload::abort(tree, key, &upload))
            .await
    }
}
