//! Segments of the node that this process maps, read-only.
//!
//! A segment is mapped once and kept while views use it and for a while after (mapping it again would cost
//! its page faults again); what the node made for one answer only is not kept. The descriptor is closed after
//! mapping: a process may map thousands of segments and have a limit of 1024 descriptors. The address is
//! aligned to 2 MiB, so that huge pages of the node are huge pages here.
//!
//! The node is checked before it is trusted: a file that could shrink, or is shorter than it claims, would
//! end this process with SIGBUS, so it must be a memfd that is sealed against shrinking and at least as long
//! as its answer says.
#![allow(unsafe_code, reason = "memory that is shared with the node")]

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_core::{Error, Kind, Result};
use forebay_wire::objects::ViewPart;
use rustix::fs::SealFlags;
use rustix::mm::{MapFlags, ProtFlags};

use super::view::Stitched;

/// Alignment of mappings.
pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Time that a mapping without views is kept.
const IDLE_TIME_MAX: Duration = Duration::from_secs(60);

/// Ranges of several parts that are kept mapped side by side.
const JOINED_MAX: usize = 16;

/// Period of the search for unused mappings.
const SWEEP_PERIOD: Duration = Duration::from_secs(1);

/// Addresses that belong to us; unmapped when dropped.
#[derive(Debug)]
pub(super) struct Addresses {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: addresses are not bound to a thread; what lies behind them is read-only or owned by one `&mut`.
unsafe impl Send for Addresses {}
// SAFETY: as above; there is no method that writes through a shared reference.
unsafe impl Sync for Addresses {}

impl Addresses {
    /// Reserves addresses without memory, at least `bytes` from an address that is `gap` behind a multiple of
    /// 2 MiB. Returns that address.
    pub(super) fn reserve(bytes: usize, gap: usize) -> Result<(Self, NonNull<u8>)> {
        let all = bytes.checked_add(gap + HUGE_PAGE_BYTES).ok_or_else(|| {
            Error::new(
                Kind::Corrupt,
                "the node named more bytes than there are addresses",
            )
        })?;
        // SAFETY: a fresh anonymous mapping at an address the kernel chooses touches nothing that exists.
        let start = unsafe {
            let (none, private) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), all, none, private)
        }
        .map_err(|why| cannot_map(why, bytes))?;
        let start = NonNull::new(start.cast::<u8>()).expect("mmap never returns null");
        let skip = start.as_ptr().align_offset(HUGE_PAGE_BYTES) + gap;
        // SAFETY: the address lies inside the reservation: less than 2 MiB for the alignment, then the gap.
        let address = unsafe { start.add(skip) };
        Ok((Self { start, bytes: all }, address))
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        // SAFETY: these addresses are ours, and whoever looks at them holds the owner of this value.
        let result = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        if let Err(why) = result {
            tracing::error!(%why, "shared memory could not be unmapped");
        }
    }
}

pub(super) fn cannot_map(why: rustix::io::Errno, bytes: usize) -> Error {
    Error::io(
        "cannot map shared memory; raise the address space limit of this process",
        why.into(),
    )
    .with("bytes", bytes)
}

/// Checks that a descriptor is a memfd that can never be shorter than `bytes`.
pub(super) fn check_memfd(memfd: &OwnedFd, bytes: u64) -> Result<usize> {
    let wrong = |why: &'static str| Error::new(Kind::Corrupt, why).with("bytes", bytes);
    let seals = rustix::fs::fcntl_get_seals(memfd)
        .map_err(|_| wrong("the node sent something that is not a memfd"))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(wrong(
            "the node sent shared memory that could shrink under its readers",
        ));
    }
    let found =
        rustix::fs::fstat(memfd).map_err(|why| Error::io("cannot look at shared memory", why.into()))?;
    if bytes == 0 || u64::try_from(found.st_size).unwrap_or(0) < bytes {
        return Err(wrong("the node sent shared memory of another size than it said"));
    }
    usize::try_from(bytes).map_err(|_| wrong("the node sent shared memory that is too large"))
}

/// A mapped segment.
#[derive(Debug)]
pub(super) struct Segment {
    base: NonNull<u8>,
    bytes: usize,
    _addresses: Addresses,
}

// SAFETY: read-only memory that lives as long as this value; see `Addresses`.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Checks and maps a descriptor that came from the node.
    pub(super) fn map(memfd: &OwnedFd, bytes: u64) -> Result<Self> {
        let bytes = check_memfd(memfd, bytes)?;
        let (addresses, address) = Addresses::reserve(bytes, 0)?;
        // SAFETY: the target lies inside the addresses reserved just above, which nobody uses.
        let base = unsafe {
            let shared = MapFlags::SHARED | MapFlags::FIXED;
            rustix::mm::mmap(address.as_ptr().cast(), bytes, ProtFlags::READ, shared, memfd, 0)
        }
        .map_err(|why| cannot_map(why, bytes))?;
        Ok(Self {
            base: NonNull::new(base.cast()).expect("mmap never returns null"),
            bytes,
            _addresses: addresses,
        })
    }

    /// Returns where a part starts, if all of it lies in the segment.
    pub(super) fn locate(&self, part: &ViewPart) -> Result<NonNull<u8>> {
        let end = part.offset.checked_add(part.bytes);
        if part.bytes == 0 || end.is_none_or(|end| end > self.bytes as u64) {
            let error = Error::new(Kind::Corrupt, "the node named bytes outside of a segment");
            return Err(error
                .with("segment", part.segment)
                .with("offset", part.offset)
                .with("bytes", part.bytes));
        }
        let offset = usize::try_from(part.offset).expect("it is at most the segment's size");
        // SAFETY: `offset` is inside the mapping, as checked above.
        Ok(unsafe { self.base.add(offset) })
    }

    /// The bytes of a part, for copying them; they do not change while the lease of the part is held.
    pub(super) fn slice(&self, part: &ViewPart) -> Result<&[u8]> {
        let start = self.locate(part)?;
        let bytes = usize::try_from(part.bytes).expect("it is at most the segment's size");
        // SAFETY: all of it lies inside the mapping (`locate`), which lives as long as `self`; the node never
        // writes to leased bytes.
        Ok(unsafe { std::slice::from_raw_parts(start.as_ptr(), bytes) })
    }
}

struct Cached {
    segment: Arc<Segment>,
    used: Instant,
}

/// Several parts that are mapped side by side.
struct Joined {
    parts: Vec<ViewPart>,
    stitched: Arc<Stitched>,
    used: Instant,
}

/// The segments that are mapped, by the node's number.
pub(super) struct Segments {
    mapped: HashMap<u64, Cached>,
    joined: Vec<Joined>,
    swept: Instant,
}

impl Segments {
    pub(super) fn new() -> Self {
        Self {
            mapped: HashMap::new(),
            joined: Vec::new(),
            swept: Instant::now(),
        }
    }

    /// A segment that is mapped already.
    pub(super) fn get(&mut self, segment: u64, now: Instant) -> Option<Arc<Segment>> {
        let cached = self.mapped.get_mut(&segment)?;
        cached.used = now;
        Some(Arc::clone(&cached.segment))
    }

    /// Keeps a mapping for the next views.
    pub(super) fn keep(&mut self, segment: u64, mapped: &Arc<Segment>) {
        let used = Instant::now();
        self.mapped.entry(segment).or_insert_with(|| Cached {
            segment: Arc::clone(mapped),
            used,
        });
    }

    /// Returns where the same parts are mapped side by side already.
    pub(super) fn joined(&mut self, parts: &[ViewPart]) -> Option<Arc<Stitched>> {
        let found = self.joined.iter_mut().find(|joined| joined.parts == parts)?;
        found.used = Instant::now();
        Some(Arc::clone(&found.stitched))
    }

    /// Keeps parts that were mapped side by side for the next view of them. Returns what had to make room; to
    /// be dropped after the lock is given back.
    #[must_use]
    pub(super) fn keep_joined(
        &mut self,
        parts: &[ViewPart],
        stitched: &Arc<Stitched>,
    ) -> Option<impl Sized + use<>> {
        if self.joined.iter().any(|joined| joined.parts == parts) {
            return None;
        }
        let full = self.joined.len() >= JOINED_MAX;
        let oldest = (0..self.joined.len()).min_by_key(|index| self.joined[*index].used);
        let dropped = oldest
            .filter(|_| full)
            .map(|index| self.joined.swap_remove(index));
        self.joined.push(Joined {
            parts: parts.to_vec(),
            stitched: Arc::clone(stitched),
            used: Instant::now(),
        });
        dropped
    }

    /// Takes out what no view has used for long; to be dropped after the lock is given back.
    #[must_use]
    pub(super) fn sweep(&mut self, now: Instant) -> impl Sized + use<> {
        if now.duration_since(self.swept) < SWEEP_PERIOD {
            return (Vec::new(), Vec::new());
        }
        self.swept = now;
        let idle = |joined: &mut Joined| {
            Arc::strong_count(&joined.stitched) == 1 && now.duration_since(joined.used) > IDLE_TIME_MAX
        };
        let joined: Vec<Joined> = self.joined.extract_if(.., idle).collect();
        let unused = |_: &u64, cached: &mut Cached| {
            Arc::strong_count(&cached.segment) == 1 && now.duration_since(cached.used) > IDLE_TIME_MAX
        };
        let segments: Vec<Cached> = self.mapped.extract_if(unused).map(|(_, cached)| cached).collect();
        (segments, joined)
    }
}
