//! The client: the same calls for a node on this host and a remote one.

use std::fmt;
use std::sync::Arc;

use forebay_core::{BucketName, Error, Kind, Result, WriteCondition};
use forebay_wire::objects::{ListRequest, Listed, ObjectStat};
use forebay_wire::{BATCH_ITEMS_MAX, Headers, Item, ItemRange};

use crate::buffer::{Memory, WritableBuffer};
use crate::listing::{ListOptions, Listing};
use crate::local::Local;
use crate::options::{Address, ClientOptions};
use crate::remote::Remote;
use crate::wait::check_interrupt;
use crate::writer::{ObjectWriter, Upload};
use crate::{ClientStats, Name, Scattered, View, ViewHandle};

/// A client of one node. Clones share everything; threads may use it at once.
#[derive(Clone)]
pub struct Client {
    pub(crate) node: Node,
    address: Arc<str>,
}

/// The node, on this host or remote.
#[derive(Clone)]
pub(crate) enum Node {
    Local(Arc<Local>),
    Remote(Arc<Remote>),
}

/// The same call on either.
macro_rules! on {
    ($client:expr, $node:ident => $call:expr) => {
        match &$client.node {
            Node::Local($node) => $call,
            Node::Remote($node) => $call,
        }
    };
}

/// Memory that the bytes of a put lie in.
#[derive(Debug)]
pub enum PutSource<'a> {
    /// In memory of the caller: copied once.
    Slice(&'a [u8]),
    /// In memory of the node ([`Client::alloc`]): not copied.
    Buffer(WritableBuffer),
}

/// Options of a write.
#[derive(Debug, Clone)]
pub struct PutOptions {
    /// Condition that must hold.
    pub condition: WriteCondition,
    /// Content type and so on.
    pub headers: Headers,
    /// User metadata.
    pub metadata: Vec<(String, String)>,
    /// CRC32C of the bytes, if the caller knows it: the node compares.
    pub crc32c: Option<u32>,
}

impl Default for PutOptions {
    fn default() -> Self {
        Self {
            condition: WriteCondition::None,
            headers: Headers::default(),
            metadata: Vec::new(),
            crc32c: None,
        }
    }
}

/// Version and size of what was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutReceipt {
    /// The new version.
    pub version: String,
    /// Its size.
    pub bytes: u64,
}

impl Client {
    /// Finds the node and greets it. `Unavailable` if there is none.
    pub fn connect(options: ClientOptions) -> Result<Self> {
        match Address::find(&options)? {
            Address::Socket(path) => {
                let address = path.display().to_string().into();
                let local = Local::new(path, options);
                local.greet()?;
                let node = Node::Local(local);
                Ok(Self { node, address })
            }
            Address::Http(scheme, host) => {
                let address = format!("{}://{host}", scheme.as_str()).into();
                let remote = Remote::new(host, scheme, options)?;
                remote.ping()?;
                let node = Node::Remote(remote);
                Ok(Self { node, address })
            }
        }
    }

    /// The node's address.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// `Cancelled` if somebody wants to stop waiting ([`ClientOptions::interrupt`]); for who waits beside
    /// calls of the client.
    pub fn check_interrupt(&self) -> Result<()> {
        on!(self, node => check_interrupt(node.options.interrupt.as_ref()))
    }

    /// `http://host:port` or `https://host:port` of the node's S3 endpoint, if it has one.
    #[must_use]
    pub fn s3_url(&self) -> Option<String> {
        match &self.node {
            Node::Local(local) => local.s3_url(),
            Node::Remote(_) => Some(self.address.to_string()),
        }
    }

    /// The bytes of an object or a part of it; of this version, if one is named.
    pub fn get(&self, name: &Name, range: ItemRange, version: Option<&str>) -> Result<View> {
        let item = Item {
            object: name.to_wire(),
            range,
            version: version.map(Into::into),
        };
        self.read_one(item).map_err(|error| about(error, name))
    }

    /// Many items at once, in order, each where the node keeps it, with a result of its own.
    pub fn read(&self, mut items: Vec<Item>) -> Result<Vec<Result<Scattered>>> {
        let mut found = Vec::with_capacity(items.len());
        while !items.is_empty() {
            let rest = items.split_off(items.len().min(BATCH_ITEMS_MAX));
            found.append(&mut on!(self, node => node.read(items))?);
            items = rest;
        }
        Ok(found)
    }

    /// The same, each as one slice.
    pub fn get_batch(&self, items: Vec<Item>) -> Result<Vec<Result<View>>> {
        let found = self.read(items)?.into_iter();
        Ok(found.map(|item| item.and_then(Scattered::flat)).collect())
    }

    fn read_one(&self, item: Item) -> Result<View> {
        let found = on!(self, node => node.read(vec![item]))?.pop();
        let found = found.unwrap_or_else(|| Err(Error::new(Kind::Internal, "an answer without items")));
        found.and_then(Scattered::flat)
    }

    /// Copies bytes of an object from `offset` on; returns how many, fewer than asked for only at the end of
    /// the object, and 0 at or behind it.
    pub fn read_into(&self, name: &Name, offset: u64, target: &mut [u8]) -> Result<usize> {
        let read = on!(self, node => node.read_into(&name.to_wire(), offset, target));
        read.map_err(|error| about(error, name))
    }

    /// The view behind a handle: the same memory while its lease lives, else the same bytes read again.
    /// `Changed` if the object was replaced meanwhile.
    pub fn open_handle(&self, handle: &ViewHandle) -> Result<View> {
        if let Node::Local(local) = &self.node
            && let Some(view) = local.open_shared(handle)?
        {
            return Ok(view);
        }
        let Some(item) = handle.item() else {
            return Ok(View::empty(handle));
        };
        self.read_one(item).map_err(|error| match error.kind() {
            Kind::Changed | Kind::PreconditionFailed | Kind::NotFound => Error::new(
                Kind::Changed,
                "the view has ended and its object was replaced since; read it again",
            )
            .caused_by(error),
            _ => error,
        })
    }

    /// Metadata of an object.
    pub fn stat(&self, name: &Name) -> Result<ObjectStat> {
        on!(self, node => node.stat(name.to_wire())).map_err(|error| about(error, name))
    }

    /// The objects of a bucket, page after page.
    pub fn list(&self, bucket: &str, options: ListOptions) -> Result<Listing> {
        BucketName::new(bucket)?;
        Ok(Listing::new(self.clone(), bucket, options))
    }

    /// One page of a listing; [`Client::list`] goes through all of them.
    pub fn list_page(&self, request: ListRequest) -> Result<Listed> {
        on!(self, node => node.list(request))
    }

    /// Removes an object; fine if it is not there.
    pub fn delete(&self, name: &Name) -> Result<()> {
        on!(self, node => node.delete(name.to_wire())).map_err(|error| about(error, name))
    }

    /// Names of the buckets that this client may see.
    pub fn buckets(&self) -> Result<Vec<String>> {
        on!(self, node => node.buckets())
    }

    /// Makes an empty bucket; fine if it is there.
    pub fn create_bucket(&self, bucket: &str) -> Result<()> {
        BucketName::new(bucket)?;
        on!(self, node => node.create_bucket(bucket))
    }

    /// Returns whether the node is there and ready.
    pub fn ping(&self) -> Result<()> {
        on!(self, node => node.ping())
    }

    /// Writable memory of the node; a put of it copies nothing. Waits while the node's arena is full. What is
    /// larger than the whole arena is memory of this process, and a put of it is copied in parts.
    pub fn alloc(&self, bytes: u64) -> Result<WritableBuffer> {
        let staged = match &self.node {
            Node::Local(local) => local.allocate(bytes)?,
            Node::Remote(_) => None,
        };
        let memory = match staged {
            Some(staged) => Memory::Staging(staged),
            None => Memory::Own(own_memory(bytes)?),
        };
        Ok(WritableBuffer(memory))
    }

    /// Writes an object, whole or not at all; returns when the lake has it. What is larger than the node's
    /// staging memory goes there in parts.
    pub fn put(&self, name: &Name, source: PutSource<'_>, options: PutOptions) -> Result<PutReceipt> {
        match (&self.node, source) {
            (Node::Local(local), PutSource::Buffer(WritableBuffer(Memory::Staging(buffer)))) => {
                local.put_buffer(name, buffer, options)
            }
            (_, PutSource::Buffer(buffer)) => on!(self, node => node.put_slice(name, &buffer, &options)),
            (_, PutSource::Slice(bytes)) => on!(self, node => node.put_slice(name, bytes, &options)),
        }
    }

    /// An object that is written piece by piece; `bytes_hint` is its size if that is known, and then it must
    /// have it.
    #[must_use]
    pub fn writer(&self, name: &Name, options: PutOptions, bytes_hint: Option<u64>) -> ObjectWriter {
        ObjectWriter::new(self.clone(), name.clone(), options, bytes_hint)
    }

    /// Opens a write in parts.
    pub(crate) fn begin(&self, name: &Name, options: &PutOptions, bytes: Option<u64>) -> Result<Upload> {
        let begun = match &self.node {
            Node::Local(local) => local.begin_write(name, options, bytes).map(Upload::Local),
            Node::Remote(remote) => remote.begin_write(name, options, bytes).map(Upload::Remote),
        };
        begun.map_err(|error| about(error, name))
    }

    /// The node on this host, which alone can save.
    pub(crate) fn local_for_saves(&self) -> Result<&Arc<Local>> {
        match &self.node {
            Node::Local(local) => Ok(local),
            Node::Remote(_) => {
                let message = "a step is saved through a node on the same host, in shared memory; start one with `forebay serve`, or an embedded one";
                Err(Error::new(Kind::Unsupported, message).with("node", &self.address))
            }
        }
    }

    pub(crate) fn is_local(&self) -> bool {
        matches!(self.node, Node::Local(_))
    }

    /// Returns what this client did so far.
    #[must_use]
    pub fn stats(&self) -> ClientStats {
        on!(self, node => node.stats())
    }
}

fn own_memory(bytes: u64) -> Result<Vec<u8>> {
    let no_memory = || Error::new(Kind::NoSpace, "no memory for the buffer").with("bytes", bytes);
    let bytes = usize::try_from(bytes).map_err(|_| no_memory())?;
    let mut memory = Vec::new();
    memory
        .try_reserve_exact(bytes)
        .map_err(|why| no_memory().caused_by(why))?;
    memory.resize(bytes, 0);
    Ok(memory)
}

/// Says which object an error is about, if it does not say so itself.
pub(crate) fn about(error: Error, name: &Name) -> Error {
    let said = error.context().any(|(pair, _)| pair == "object" || pair == "key");
    if said { error } else { error.with("object", name) }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}
