//! The staging arena: memory that clients on the host write to before a put.
//!
//! Every buffer is a memfd of its own, given memory in huge pages when it is made, because first touch is ten
//! times slower than a copy. It is lent to one client at a time; when it comes back it waits for the next
//! client *of the same user*, who finds it in its page tables already if it is the same process: a memfd
//! keeps its number for life. Who once mapped a memfd can write to it for ever, so none passes from one user
//! to another.
//!
//! Life cycle: [`Staging::allocate`] lends a buffer; [`StagingBuffer::freeze`] turns it into the bytes of a
//! put, without a copy; dropping either gives it back. Idle buffers are discarded when others need the
//! budget.
//!
//! Limits: the bytes of all memfds, lent and idle, stay within the budget. A full arena is `Busy`, and the
//! caller waits or backs off.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use bytes::Bytes;
use forebay_core::{Error, Kind, Result};
use parking_lot::Mutex;

use crate::segment::{ClientAccess, HUGE_PAGE_BYTES, Segment, SegmentId};

/// Small buffers are rounded up to powers of two from here, so that they fit again.
const SMALL_BYTES_MIN: u64 = 64 << 10;
/// An idle buffer is not lent for less than one part in this many of it.
const WASTE_MAX: u64 = 4;

/// Memory for writes of clients, under one budget.
#[derive(Debug)]
pub struct Staging {
    budget_bytes: u64,
    state: Mutex<StagingState>,
}

#[derive(Debug, Default)]
struct StagingState {
    /// Oldest first.
    idle: Vec<Owned>,
    stats: StagingStats,
}

/// A memfd and the only user who ever maps it.
#[derive(Debug)]
struct Owned {
    segment: Arc<Segment>,
    uid: u32,
}

impl Owned {
    fn bytes(&self) -> u64 {
        self.segment.bytes() as u64
    }
}

/// Counters and gauges of the staging arena.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct StagingStats {
    /// Bytes of all memfds, lent or idle.
    pub held_bytes: u64,
    /// Bytes of those that are lent.
    pub lent_bytes: u64,
    /// Buffers that are lent.
    pub lent_buffers: u64,
    /// Times a buffer was lent.
    pub allocations: u64,
    /// Of these, times an idle buffer was there.
    pub reuses: u64,
    /// Times there was none and no memory for one.
    pub refusals: u64,
}

impl Staging {
    /// An arena without memory.
    #[must_use]
    pub fn new(budget_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            budget_bytes,
            state: Mutex::default(),
        })
    }

    /// The budget.
    #[must_use]
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Counters and gauges now.
    #[must_use]
    pub fn stats(&self) -> StagingStats {
        self.state.lock().stats
    }

    /// Lends a buffer to a user: `Busy` when the arena is full, `InvalidInput` when the buffer is larger than
    /// the arena.
    ///
    /// Blocks while fresh memory is given to a new memfd (one to two milliseconds for each MiB): not for a
    /// thread of the runtime.
    pub fn allocate(self: &Arc<Self>, owner_uid: u32, bytes: u64) -> Result<StagingBuffer> {
        let segment_bytes = segment_bytes_for(bytes)
            .filter(|segment_bytes| *segment_bytes <= self.budget_bytes)
            .ok_or_else(|| self.too_large(bytes))?;
        let idle = self.state.lock().take_idle(owner_uid, bytes);
        let owned = match idle {
            Some(owned) => owned,
            None => self.make(owner_uid, segment_bytes)?,
        };
        Ok(StagingBuffer {
            staging: Arc::clone(self),
            owned: Some(owned),
            bytes,
        })
    }

    /// A new memfd, in place of idle ones where there is no room.
    fn make(&self, uid: u32, bytes: u64) -> Result<Owned> {
        let discarded = self.state.lock().reserve(bytes, self.budget_bytes);
        let Some(discarded) = discarded else {
            let message = "the staging memory is full; wait until writes under way have ended and try again";
            return Err(Error::new(Kind::Busy, message)
                .with("bytes", bytes)
                .with("budget_bytes", self.budget_bytes));
        };
        for owned in discarded {
            owned.segment.discard();
        }
        let size = usize::try_from(bytes).expect("the budget fits the address space");
        match Segment::create(size, ClientAccess::Write) {
            Ok(segment) => {
                segment.fault_in(0..segment.bytes());
                let segment = Arc::new(segment);
                Ok(Owned { segment, uid })
            }
            Err(error) => {
                self.state.lock().unreserve(bytes);
                Err(error)
            }
        }
    }

    fn too_large(&self, bytes: u64) -> Error {
        let message = "a staging buffer of this size does not fit the staging memory; write in parts or raise the budget";
        Error::new(Kind::InvalidInput, message)
            .with("bytes", bytes)
            .with("budget_bytes", self.budget_bytes)
    }
}

/// Bytes of the memfd for a buffer.
fn segment_bytes_for(bytes: u64) -> Option<u64> {
    let huge_page_bytes = HUGE_PAGE_BYTES as u64;
    if bytes <= huge_page_bytes {
        Some(bytes.next_power_of_two().max(SMALL_BYTES_MIN))
    } else {
        bytes.checked_next_multiple_of(huge_page_bytes)
    }
}

impl StagingState {
    /// The smallest idle buffer of the user that fits without much waste.
    fn take_idle(&mut self, uid: u32, bytes: u64) -> Option<Owned> {
        let fits = |owned: &Owned| {
            let largest = bytes.max(SMALL_BYTES_MIN).saturating_mul(WASTE_MAX);
            owned.uid == uid && owned.bytes() >= bytes && owned.bytes() <= largest
        };
        let candidates = self.idle.iter().enumerate().filter(|(_, owned)| fits(owned));
        let (place, _) = candidates.min_by_key(|(_, owned)| owned.bytes())?;
        let owned = self.idle.remove(place);
        self.stats.reuses += 1;
        self.lend(owned.bytes());
        Some(owned)
    }

    fn lend(&mut self, bytes: u64) {
        self.stats.allocations += 1;
        self.stats.lent_buffers += 1;
        self.stats.lent_bytes += bytes;
    }

    /// Counts a new memfd as held and lent, and gives the idle ones that must go for it, oldest first; `None`
    /// if that is not enough.
    fn reserve(&mut self, bytes: u64, budget_bytes: u64) -> Option<Vec<Owned>> {
        if self.stats.lent_bytes + bytes > budget_bytes {
            self.stats.refusals += 1;
            return None;
        }
        let mut discarded = Vec::new();
        while self.stats.held_bytes + bytes > budget_bytes {
            let owned = self.idle.remove(0);
            self.stats.held_bytes -= owned.bytes();
            discarded.push(owned);
        }
        self.stats.held_bytes += bytes;
        self.lend(bytes);
        Some(discarded)
    }

    /// Takes back what [`Self::reserve`] counted.
    fn unreserve(&mut self, bytes: u64) {
        self.stats.held_bytes -= bytes;
        self.stats.lent_bytes -= bytes;
        self.stats.lent_buffers -= 1;
    }
}

/// Memory that is lent to one client.
#[derive(Debug)]
pub struct StagingBuffer {
    staging: Arc<Staging>,
    /// There until it is given back.
    owned: Option<Owned>,
    bytes: u64,
}

impl StagingBuffer {
    fn owned(&self) -> &Owned {
        self.owned.as_ref().expect("it is given back in drop only")
    }

    /// The number of the memfd: the same one each time the same memory is lent, so that a client can keep its
    /// mapping.
    #[must_use]
    pub fn id(&self) -> SegmentId {
        self.owned().segment.id()
    }

    /// The memfd, for the client to map; sealed against resizing.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.owned().segment.as_fd()
    }

    /// The user it is lent to; nobody else may map it.
    #[must_use]
    pub fn owner_uid(&self) -> u32 {
        self.owned().uid
    }

    /// Bytes that were asked for.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the memfd: what to map.
    #[must_use]
    pub fn mapped_bytes(&self) -> u64 {
        self.owned().bytes()
    }

    /// The first `bytes` of it (at most all), where the client wrote them; it is given back when they are
    /// dropped.
    #[must_use]
    pub fn freeze(mut self, bytes: u64) -> Bytes {
        self.bytes = bytes.min(self.bytes);
        Bytes::from_owner(Frozen(self))
    }
}

impl Drop for StagingBuffer {
    fn drop(&mut self) {
        let Some(owned) = self.owned.take() else { return };
        let mut state = self.staging.state.lock();
        state.stats.lent_bytes -= owned.bytes();
        state.stats.lent_buffers -= 1;
        state.idle.push(owned);
    }
}

struct Frozen(StagingBuffer);

impl AsRef<[u8]> for Frozen {
    fn as_ref(&self) -> &[u8] {
        let bytes = usize::try_from(self.0.bytes).expect("within the memfd");
        self.0.owned().segment.front(bytes)
    }
}

#[cfg(test)]
mod tests;
