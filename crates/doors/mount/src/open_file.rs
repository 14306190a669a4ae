//! An open file: bytes of one version, read as the kernel asks for them.
//!
//! A small version is taken whole when it is opened and held under a lease: whatever happens to the object, the
//! descriptor reads what was there. A large one is read as it is asked for, in windows once a reader goes through
//! it in order; so the kernel's requests of 128 KiB do not each cost a question to the node.

use std::sync::Arc;

use forebay_client::View;
use forebay_core::Result;
use parking_lot::Mutex;

use crate::inode::Version;
use crate::shared::Shared;
use crate::tree::Tree;
use crate::whole_copy::WholeCopy;

/// Versions up to this size are held from open to close.
pub(crate) const SNAPSHOT_BYTES_MAX: u64 = 1 << 20;
/// Bytes that are taken at once from the client for a reader that goes through the file.
const WINDOW_BYTES: u64 = 4 << 20;
/// Distance by which the kernel's requests may come out of order.
const REORDER_BYTES_MAX: u64 = 1 << 20;

/// An open file.
pub(crate) struct OpenFile {
    pub(crate) number: u64,
    pub(crate) version: Arc<Version>,
    /// All of it, if it is small.
    snapshot: Option<View>,
    /// The kernel reads this by itself.
    pub(crate) whole: Option<Arc<WholeCopy>>,
    window: Mutex<Window>,
}

/// What was read last.
#[derive(Default)]
struct Window {
    view: Option<View>,
    /// End of the last read.
    next: u64,
}

impl Window {
    fn part(&self, offset: u64, length: u64) -> Option<View> {
        let view = self.view.as_ref()?;
        let covers = view.offset() <= offset && offset + length <= view.offset() + view.len() as u64;
        covers.then(|| view.clone())
    }
}

/// Bytes of an answer: a part of a view.
pub(crate) struct Bytes {
    view: View,
    first: usize,
    length: usize,
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        &self.view[self.first..self.first + self.length]
    }
}

impl Bytes {
    fn of(view: View, offset: u64, length: u64) -> Self {
        let first = (offset - view.offset()) as usize;
        Self {
            view,
            first,
            length: length as usize,
        }
    }
}

impl OpenFile {
    /// Opens a version; a small one is read now. `NotFound` or `Changed` if it is gone.
    pub(crate) fn open(number: u64, version: Arc<Version>, shared: &Shared) -> Result<Self> {
        let small = (1..=SNAPSHOT_BYTES_MAX).contains(&version.bytes);
        let snapshot = match shared.recent.get(number).filter(|_| small) {
            Some(view) => Some(view),
            None if small => Some(shared.tree.read(&version, 0, version.bytes)?),
            None => None,
        };
        Ok(Self {
            number,
            version,
            snapshot,
            whole: None,
            window: Mutex::new(Window::default()),
        })
    }

    /// Opens a version that the kernel reads by itself.
    pub(crate) fn passthrough(number: u64, version: Arc<Version>, whole: Arc<WholeCopy>) -> Self {
        Self {
            number,
            version,
            snapshot: None,
            whole: Some(whole),
            window: Mutex::new(Window::default()),
        }
    }

    /// Bytes from `offset` on; fewer than asked for only at the end.
    pub(crate) fn read(&self, offset: u64, size: u32, tree: &Tree) -> Result<Option<Bytes>> {
        let Some(length) = clip(&self.version, offset, size) else {
            return Ok(None);
        };
        if let Some(view) = &self.snapshot {
            return Ok(Some(Bytes::of(view.clone(), offset, length)));
        }
        let mut window = self.window.lock();
        if let Some(view) = window.part(offset, length) {
            window.next = window.next.max(offset + length);
            return Ok(Some(Bytes::of(view, offset, length)));
        }
        let in_order = offset > 0 && (window.next..=window.next + REORDER_BYTES_MAX).contains(&offset);
        if !in_order {
            window.next = offset + length;
            drop(window);
            let view = tree.read(&self.version, offset, length)?;
            return Ok(Some(Bytes::of(view, offset, length)));
        }
        // Who comes next in the meantime waits here for the window.
        let ahead = length.max(WINDOW_BYTES).min(self.version.bytes - offset);
        let view = tree.read(&self.version, offset, ahead)?;
        window.view = Some(view.clone());
        window.next = offset + length;
        Ok(Some(Bytes::of(view, offset, length)))
    }
}

/// Bytes of a version without an open file (`no_open`).
pub(crate) fn read_unopened(version: &Version, offset: u64, size: u32, tree: &Tree) -> Result<Option<Bytes>> {
    let Some(length) = clip(version, offset, size) else {
        return Ok(None);
    };
    let view = tree.read(version, offset, length)?;
    Ok(Some(Bytes::of(view, offset, length)))
}

/// Length of a read within the version; `None` if there is nothing.
fn clip(version: &Version, offset: u64, size: u32) -> Option<u64> {
    let left = version.bytes.checked_sub(offset)?;
    Some(left.min(u64::from(size))).filter(|length| *length > 0)
}
