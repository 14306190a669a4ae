//! Sessions: one per process that uses the node.
//!
//! A process opens a session with its first connection and gets a secret; further connections that name the
//! secret belong to the same session. The session lives as long as its first connection, so the kernel tells
//! the node when a process is dead, however it died: what families hold for it goes, its staging buffers go,
//! and its other connections are closed. Just before a fork the parent opens a session for the child, so a
//! secret is never shared by two processes for long.
//!
//! Limits: sessions are as many as connections; staging buffers are counted here.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use forebay_core::{BucketName, Error, Kind, Result};
use forebay_reservoir::StagingBuffer;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::access::Access;

/// Staging buffers that one session may have at a time.
const BUFFERS_MAX: usize = 1024;
/// Bytes of a client's name that are kept.
const CLIENT_NAME_BYTES_MAX: usize = 128;

/// Secret that opens or joins a session.
pub(crate) type Secret = [u8; 16];

/// Process at the other end of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    pub(crate) pid: i32,
}

/// A process that uses the node.
#[derive(Debug)]
pub struct Session {
    number: u64,
    pub(crate) secret: Secret,
    peer: Peer,
    client: String,
    access: Arc<Access>,
    /// The first connection has ended, or the node stops.
    pub(crate) ended: CancellationToken,
    /// Bytes of the cache that its leases hold.
    leased_bytes: AtomicU64,
    buffers: Mutex<BTreeMap<u64, StagingBuffer>>,
}

impl Session {
    /// Its number, never used twice in one incarnation of the node.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The user that its process runs as.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.peer.uid
    }

    /// Returns whether its process is the node's own, so that one cannot die without the other.
    #[must_use]
    pub fn is_in_this_process(&self) -> bool {
        self.peer.pid == rustix::process::getpid().as_raw_pid()
    }

    /// Its name, for logs.
    #[must_use]
    pub fn client(&self) -> &str {
        &self.client
    }

    /// `Unavailable` when the session has ended or the node stops: nobody would end what is begun for it now.
    /// To be called under the lock that [`crate::Family::on_session_end`] takes.
    pub fn check_open(&self) -> Result<()> {
        if !self.ended.is_cancelled() {
            return Ok(());
        }
        Err(Error::new(
            Kind::Unavailable,
            "the session has ended; connect again",
        ))
    }

    /// Returns whether this user may use the bucket.
    #[must_use]
    pub fn may_use(&self, bucket: &BucketName) -> bool {
        self.access.may_use(self.peer.uid, bucket)
    }

    /// A bucket that this user may use; `Denied` if that is not so.
    pub fn bucket(&self, name: &str) -> Result<BucketName> {
        let bucket = BucketName::new(name)?;
        self.access.check(self.peer.uid, &bucket)?;
        Ok(bucket)
    }

    /// Takes the first bytes of a staging buffer, which is the node's from now on.
    pub fn take_bytes(&self, buffer: u64, bytes: u64) -> Result<Bytes> {
        let Some(found) = self.take_buffer(buffer) else {
            let message = "there is no such buffer; allocate one, and put each only once";
            return Err(Error::new(Kind::NotFound, message).with("buffer", buffer));
        };
        if bytes > found.bytes() {
            let error = Error::new(Kind::InvalidInput, "the object is larger than its buffer");
            return Err(error.with("bytes", bytes).with("buffer_bytes", found.bytes()));
        }
        Ok(found.freeze(bytes))
    }

    /// Counts leased bytes unless that would pass `max`.
    pub(crate) fn charge_within(&self, bytes: u64, max: u64) -> bool {
        let within = |now: u64| now.checked_add(bytes).filter(|sum| *sum <= max);
        self.leased_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, within)
            .is_ok()
    }

    /// Counts leased bytes, whatever the limit: the holder of an adopted lease must be known.
    pub(crate) fn charge(&self, bytes: u64) {
        self.leased_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes back what was counted.
    pub(crate) fn discharge(&self, bytes: u64) {
        self.leased_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Remembers a staging buffer.
    pub(crate) fn add_buffer(&self, buffer: StagingBuffer) -> Result<()> {
        let mut buffers = self.buffers.lock();
        if buffers.len() >= BUFFERS_MAX {
            let error = Error::new(Kind::Busy, "this client has too many buffers; put or free some");
            return Err(error.with("buffers_max", BUFFERS_MAX));
        }
        buffers.insert(buffer.id().0, buffer);
        Ok(())
    }

    pub(crate) fn take_buffer(&self, number: u64) -> Option<StagingBuffer> {
        self.buffers.lock().remove(&number)
    }

    /// A second descriptor of a staging buffer, and the bytes of its memfd.
    pub(crate) fn buffer_descriptor(&self, number: u64) -> Option<Result<(OwnedFd, u64)>> {
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
}

/// All sessions.
#[derive(Debug)]
pub(crate) struct Sessions {
    access: Arc<Access>,
    by_secret: Mutex<HashMap<Secret, Arc<Session>>>,
    numbers: AtomicU64,
}

impl Sessions {
    pub(crate) fn new(access: Arc<Access>) -> Self {
        Self {
            access,
            by_secret: Mutex::default(),
            numbers: AtomicU64::new(0),
        }
    }

    /// Opens a session; it ends when `node_stops` does, at the latest.
    pub(crate) fn open(
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
        random_bytes(&mut secret)?;
        let session = Arc::new(Session {
            number: self.numbers.fetch_add(1, Ordering::Relaxed) + 1,
            secret,
            peer,
            client,
            access: Arc::clone(&self.access),
            ended: node_stops.child_token(),
            leased_bytes: AtomicU64::new(0),
            buffers: Mutex::default(),
        });
        self.by_secret.lock().insert(secret, Arc::clone(&session));
        Ok(session)
    }

    /// The session with this secret, for another connection of the same user.
    pub(crate) fn join(&self, secret: &Secret, peer: Peer) -> Result<Arc<Session>> {
        let session = self.by_secret.lock().get(secret).map(Arc::clone);
        session
            .filter(|session| session.peer.uid == peer.uid)
            .ok_or_else(|| {
                let message = "there is no such session (any more); open a new one";
                Error::new(Kind::NotFound, message)
            })
    }

    /// Ends a session. What families hold for it is the caller's business.
    pub(crate) fn close(&self, session: &Session) {
        self.by_secret.lock().remove(&session.secret);
        session.ended.cancel();
        let buffers = std::mem::take(&mut *session.buffers.lock());
        drop(buffers);
    }

    pub(crate) fn count(&self) -> u64 {
        self.by_secret.lock().len() as u64
    }
}

/// Fills bytes that nobody can guess.
pub fn random_bytes(bytes: &mut [u8]) -> Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
            .map_err(|why| Error::io("the kernel gives no random bytes", why.into()))?;
    }
    Ok(())
}
