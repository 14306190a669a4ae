//! A view: the bytes of an object or a part of it, wherever they lie.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use forebay_core::{Error, Kind, Result};
use forebay_wire::objects::Found;
use forebay_wire::{
    self as wire, FrameHeader, HEADER_BYTES, Item, ItemRange, ObjectName, TierBytes, objects,
};
use serde::{Deserialize, Serialize};

use crate::local::Mapped;

/// Read-only bytes of an object. Clones share them; the node may reuse the memory after the last one is gone.
///
/// A view stays valid and unchanged whatever happens to the object, the node or the connection.
#[derive(Clone)]
pub struct View(Arc<Inner>);

struct Inner {
    object: ObjectName,
    version: String,
    object_bytes: u64,
    offset: u64,
    sources: TierBytes,
    bytes: Bytes,
    origin: Option<Origin>,
}

/// Memory that the bytes of a view lie in.
pub(crate) enum Bytes {
    /// In memory of the node.
    Mapped(Mapped),
    /// In memory of this process.
    Owned(Vec<u8>),
}

/// The lease behind a view, as another process can take a share in it.
pub(crate) struct Origin {
    pub(crate) generation: u64,
    pub(crate) view: objects::View,
}

impl View {
    pub(crate) fn new(object: ObjectName, found: Found, bytes: Bytes, origin: Option<Origin>) -> Self {
        Self(Arc::new(Inner {
            object,
            version: found.version,
            object_bytes: found.object_bytes,
            offset: found.offset,
            sources: found.sources,
            bytes,
            origin,
        }))
    }

    /// Nothing, of the object that a handle names.
    pub(crate) fn empty(handle: &ViewHandle) -> Self {
        let found = Found {
            version: handle.version.clone(),
            object_bytes: handle.object_bytes,
            offset: handle.offset,
            view: None,
            sources: handle.sources,
        };
        Self::new(handle.object.clone(), found, Bytes::Owned(Vec::new()), None)
    }

    /// The object.
    #[must_use]
    pub fn object(&self) -> &ObjectName {
        &self.0.object
    }

    /// The version that the bytes belong to.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.0.version
    }

    /// Size of the whole object.
    #[must_use]
    pub fn object_bytes(&self) -> u64 {
        self.0.object_bytes
    }

    /// Returns where in the object the bytes start.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.0.offset
    }

    /// Returns where the bytes came from.
    #[must_use]
    pub fn sources(&self) -> TierBytes {
        self.0.sources
    }

    /// Returns whether the bytes are read where the node keeps them; `false` if they were copied.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        matches!(self.0.bytes, Bytes::Mapped(_))
    }

    /// Returns what another process needs to look at the same bytes; see [`crate::Client::open_handle`].
    #[must_use]
    pub fn handle(&self) -> ViewHandle {
        let inner = &*self.0;
        ViewHandle {
            lease: inner
                .origin
                .as_ref()
                .map(|origin| (origin.generation, origin.view.clone())),
            object: inner.object.clone(),
            version: inner.version.clone(),
            offset: inner.offset,
            bytes: self.len() as u64,
            object_bytes: inner.object_bytes,
            sources: inner.sources,
        }
    }
}

impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0.bytes {
            Bytes::Mapped(mapped) => mapped.as_slice(),
            Bytes::Owned(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View")
            .field(
                "object",
                &format_args!("{}/{}", self.0.object.bucket, self.0.object.key),
            )
            .field("offset", &self.0.offset)
            .field("bytes", &self.len())
            .finish_non_exhaustive()
    }
}

/// A view on its way to another process: its lease while that lives, and enough to read the same bytes again
/// after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewHandle {
    lease: Option<(u64, objects::View)>,
    object: ObjectName,
    version: String,
    offset: u64,
    bytes: u64,
    object_bytes: u64,
    sources: TierBytes,
}

impl wire::Message for ViewHandle {
    const FAMILY: wire::FamilyId = objects::HANDLES;
}

impl ViewHandle {
    /// As bytes with a checksum.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut frame = Vec::new();
        wire::encode(self, &mut frame)?;
        Ok(frame)
    }

    /// From the bytes of [`ViewHandle::encode`].
    pub fn decode(frame: &[u8]) -> Result<Self> {
        let short = || Error::new(Kind::Corrupt, "the handle of a view is cut off");
        let (header, message) = frame.split_first_chunk::<HEADER_BYTES>().ok_or_else(short)?;
        let header = FrameHeader::parse(header)?;
        if header.length != message.len() {
            return Err(short());
        }
        wire::decode(&header, message)
    }

    /// The object.
    #[must_use]
    pub fn object(&self) -> &ObjectName {
        &self.object
    }

    /// The version.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    pub(crate) fn sources(&self) -> TierBytes {
        self.sources
    }

    pub(crate) fn leased(&self) -> Option<(u64, &objects::View)> {
        self.lease.as_ref().map(|(generation, view)| (*generation, view))
    }

    /// Returns what to read to get the same bytes again; `None` if there are none.
    pub(crate) fn item(&self) -> Option<Item> {
        let item = Item {
            object: self.object.clone(),
            range: ItemRange::Range {
                offset: self.offset,
                length: self.bytes,
            },
            version: Some(self.version.clone()),
        };
        (self.bytes > 0).then_some(item)
    }

    pub(crate) fn found(&self, view: &objects::View) -> Found {
        Found {
            version: self.version.clone(),
            object_bytes: self.object_bytes,
            offset: self.offset,
            view: Some(view.clone()),
            sources: TierBytes::default(),
        }
    }
}
