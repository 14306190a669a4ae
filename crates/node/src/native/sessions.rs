//! Sessions: one per process that uses the node.
//!
//! A process opens a session with its first connection and gets a secret; further connections that name the secret belong to the
//! same session. The session lives as long as its first connection, so the kernel tells the node when a process is dead, however
//! it died: leases, staging buffers and regions go with it, and its other connections are closed. Just before a fork the parent opens a
//! session for the child, so a secret is never shared by two processes for long.
//!
//! Limits: sessions are as many as connections; regions, buffers and open writes are counted here.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::{Error, Kind, Result};
use forebay_reservoir::{PlanHold, StagingBuffer};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::long_write::{OpenWrite, PartSender};
use crate::checkpoint::{OpenSave, Save};

/// Regions, buffers, open writes, plans and open saves that one session may have at a time.
const REGIONS_MAX: usize = 64;
const BUFFERS_MAX: usize = 1024;
const WRITES_MAX: usize = 16;
const PLANS_MAX: usize = 64;
const SAVES_MAX: usize = 64;
/// Bytes of a client's name that are kept.
const CLIENT_NAME_BYTES_MAX: usize = 128;

/// What opens or joins a session.
pub(super) type Secret = [u8; 16];

/// Who sits at the other end of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) uid: u32,
    pub(super) pid: i32,
}

/// A process that uses the node.
#[derive(Debug)]
pub(super) struct Session {
    /// Never used twice in one life of the node.
    pub(super) number: u64,
    pub(super) secret: Secret,
    pub(super) peer: Peer,
    /// Its name, for logs.
    pub(super) client: String,
    /// The first connection has ended, or the node stops.
    pub(super) ended: CancellationToken,
    /// Bytes of the cache that its leases hold.
    leased_bytes: AtomicU64,
    regions: Mutex<BTreeMap<u64, Arc<Region>>>,
    buffers: Mutex<BTreeMap<u64, StagingBuffer>>,
    writes: Mutex<BTreeMap<u64, OpenWrite>>,
    plans: Mutex<BTreeMap<u64, PlanHold>>,
    saves: Mutex<BTreeMap<String, OpenSave>>,
}

/// Memory of the client that the node may write to.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) memfd: OwnedFd,
    pub(super) bytes: u64,
}

impl Session {
    /// Counts leased bytes unless that would pass `max`.
    pub(super) fn charge_within(&self, bytes: u64, max: u64) -> bool {
        let within = |now: u64| now.checked_add(bytes).filter(|sum| *sum <= max);
        self.leased_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, within)
            .is_ok()
    }

    /// Counts leased bytes, whatever the limit: the holder of an adopted lease must be known.
    pub(super) fn charge(&self, bytes: u64) {
        self.leased_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes back what was counted.
    pub(super) fn discharge(&self, bytes: u64) {
        self.leased_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Remembers a region under a number.
    pub(super) fn add_region(&self, number: u64, region: Region) -> Result<()> {
        let mut regions = self.regions.lock();
        if regions.len() >= REGIONS_MAX {
            let error = Error::new(Kind::Busy, "this client has too many regions; unregister some");
            return Err(error.with("regions_max", REGIONS_MAX));
        }
        regions.insert(number, Arc::new(region));
        Ok(())
    }

    pub(super) fn region(&self, number: u64) -> Option<Arc<Region>> {
        self.regions.lock().get(&number).map(Arc::clone)
    }

    pub(super) fn remove_region(&self, number: u64) {
        self.regions.lock().remove(&number);
    }

    /// Remembers a staging buffer.
    pub(super) fn add_buffer(&self, buffer: StagingBuffer) -> Result<()> {
        let mut buffers = self.buffers.lock();
        if buffers.len() >= BUFFERS_MAX {
            let error = Error::new(Kind::Busy, "this client has too many buffers; put or free some");
            return Err(error.with("buffers_max", BUFFERS_MAX));
        }
        buffers.insert(buffer.id().0, buffer);
        Ok(())
    }

    pub(super) fn take_buffer(&self, number: u64) -> Option<StagingBuffer> {
        self.buffers.lock().remove(&number)
    }

    /// A second descriptor of a staging buffer, and the bytes of its memfd.
    pub(super) fn buffer_descriptor(&self, number: u64) -> Option<Result<(OwnedFd, u64)>> {
        let buffers = self.buffers.lock();
        let buffer = buffers.get(&number)?;
        let descriptor = buffer.fd().try_clone_to_owned();
        let bytes = buffer.mapped_bytes();
        Some(
            descriptor
                .map(|descriptor| (descriptor, bytes))
                .map_err(|why| Error::io("cannot hand out a buffer", why)),
        )
    }

    /// Remembers an open write under a number; refused when the session is over, because nobody would end it.
    pub(super) fn add_write(&self, number: u64, write: OpenWrite) -> Result<()> {
        let mut writes = self.writes.lock();
        if self.ended.is_cancelled() {
            let message = "the session has ended; connect again";
            return Err(Error::new(Kind::Unavailable, message));
        }
        if writes.len() >= WRITES_MAX {
            let message = "this client has too many writes under way; finish or abort some";
            return Err(Error::new(Kind::Busy, message).with("writes_max", WRITES_MAX));
        }
        writes.insert(number, write);
        Ok(())
    }

    /// Where the parts of an open write go.
    pub(super) fn write_parts(&self, number: u64) -> Option<PartSender> {
        self.writes.lock().get(&number).map(OpenWrite::parts)
    }

    pub(super) fn take_write(&self, number: u64) -> Option<OpenWrite> {
        self.writes.lock().remove(&number)
    }

    /// Adds to the plan of a reader, which begins if it has not; refused when the session is over, because nobody would end it.
    pub(super) fn add_to_plan(
        &self,
        reader: u64,
        begin: impl FnOnce() -> PlanHold,
        add: impl FnOnce(&mut PlanHold),
    ) -> Result<()> {
        let mut plans = self.plans.lock();
        if self.ended.is_cancelled() {
            let message = "the session has ended; connect again";
            return Err(Error::new(Kind::Unavailable, message));
        }
        if plans.len() >= PLANS_MAX && !plans.contains_key(&reader) {
            let message = "this client has too many plans; end some";
            return Err(Error::new(Kind::Busy, message).with("plans_max", PLANS_MAX));
        }
        add(plans.entry(reader).or_insert_with(begin));
        Ok(())
    }

    pub(super) fn end_plan(&self, reader: u64) {
        let plan = self.plans.lock().remove(&reader);
        drop(plan);
    }

    /// Remembers an open save; refused when the session is over, because nobody would end it.
    pub(super) fn add_save(&self, save: OpenSave) -> Result<()> {
        let mut saves = self.saves.lock();
        if self.ended.is_cancelled() {
            let message = "the session has ended; connect again";
            return Err(Error::new(Kind::Unavailable, message));
        }
        if saves.len() >= SAVES_MAX {
            let message = "this client has too many saves open; stage or abort some";
            return Err(Error::new(Kind::Busy, message).with("saves_max", SAVES_MAX));
        }
        saves.insert(save.save.id.clone(), save);
        Ok(())
    }

    /// An open save of this session.
    pub(super) fn save(&self, id: &str) -> Result<Arc<Save>> {
        let save = self.saves.lock().get(id).map(|open| Arc::clone(&open.save));
        save.ok_or_else(|| {
            let message = "this client has no open save of this name; begin one, and stage it once";
            Error::new(Kind::NotFound, message).with("save", id)
        })
    }

    /// Forgets an open save, which gives it up unless it was staged.
    pub(super) fn remove_save(&self, id: &str) {
        let save = self.saves.lock().remove(id);
        drop(save);
    }

    /// Drops what only the process itself could use.
    fn clear(&self) {
        self.regions.lock().clear();
        self.writes.lock().clear();
        let saves = std::mem::take(&mut *self.saves.lock());
        drop(saves);
        let plans = std::mem::take(&mut *self.plans.lock());
        drop(plans);
        let buffers = std::mem::take(&mut *self.buffers.lock());
        drop(buffers);
    }
}

/// All sessions.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    by_secret: Mutex<HashMap<Secret, Arc<Session>>>,
    numbers: AtomicU64,
}

impl Sessions {
    /// Opens a session; it ends when `node_stops` does, at the latest.
    pub(super) fn open(
        &self,
        peer: Peer,
        client: &str,
        node_stops: &CancellationToken,
    ) -> Result<Arc<Session>> {
        let mut client = client.to_owned();
        let end = (0..=CLIENT_NAME_BYTES_MAX.min(client.len())).rev();
        client.truncate(
            end.into_iter()
                .find(|end| client.is_char_boundary(*end))
                .unwrap_or(0),
        );
        client.retain(|character| !character.is_control());
        let mut secret = Secret::default();
        random(&mut secret)?;
        let session = Arc::new(Session {
            number: self.numbers.fetch_add(1, Ordering::Relaxed) + 1,
            secret,
            peer,
            client,
            ended: node_stops.child_token(),
            leased_bytes: AtomicU64::new(0),
            regions: Mutex::default(),
            buffers: Mutex::default(),
            writes: Mutex::default(),
            plans: Mutex::default(),
            saves: Mutex::default(),
        });
        self.by_secret.lock().insert(secret, Arc::clone(&session));
        Ok(session)
    }

    /// The session with this secret, for another connection of the same user.
    pub(super) fn join(&self, secret: &Secret, peer: Peer) -> Result<Arc<Session>> {
        let session = self.by_secret.lock().get(secret).map(Arc::clone);
        session
            .filter(|session| session.peer.uid == peer.uid)
            .ok_or_else(|| {
                let message = "there is no such session (any more); open a new one";
                Error::new(Kind::NotFound, message)
            })
    }

    /// Ends a session. Its leases are the caller's business.
    pub(super) fn close(&self, session: &Session) {
        self.by_secret.lock().remove(&session.secret);
        session.ended.cancel();
        session.clear();
    }

    pub(super) fn count(&self) -> u64 {
        self.by_secret.lock().len() as u64
    }
}

/// Fills bytes that nobody can guess.
pub(super) fn random(bytes: &mut [u8]) -> Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
            .map_err(|why| Error::io("the kernel gives no random bytes", why.into()))?;
    }
    Ok(())
}
