//! The socket of gossip: every datagram carries a keyed tag, and one without it is not read.
//!
//! Layout: `FBG1`, 16 bytes of keyed BLAKE3 over the rest, the message of chitchat. The key is the cluster's;
//! whoever does not have it can neither join nor forge a view. A datagram that is sent again by somebody else
//! says what was true before: heartbeats only grow, so it changes nothing. Datagrams are not encrypted: they
//! say which nodes there are and where.
//!
//! Limits: 65,507 bytes a datagram, as UDP has it; a view of about a thousand nodes.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use chitchat::transport::{Socket, Transport};
use chitchat::{ChitchatMessage, Deserializable, Serializable};
use parking_lot::Mutex;
use tokio::net::UdpSocket;

const MAGIC: &[u8; 4] = b"FBG1";
const TAG_BYTES: usize = 16;
const HEAD_BYTES: usize = MAGIC.len() + TAG_BYTES;
const DATAGRAM_BYTES_MAX: usize = 65_507;
/// Pause after a socket failed, so that one that stays broken does not take a core.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// The secret that members of a cluster share. `Debug` hides it.
#[derive(Clone)]
pub struct GossipKey([u8; 32]);

impl GossipKey {
    /// A secret key.
    #[must_use]
    pub fn new(key: [u8; 32]) -> Self {
        Self(key)
    }

    /// The key of a cluster on loopback that has no keys: it keeps clusters of different names apart and keeps
    /// out nobody else.
    #[must_use]
    pub fn of_name(cluster: &str) -> Self {
        Self(blake3::derive_key(
            "forebay 2026 gossip on loopback",
            cluster.as_bytes(),
        ))
    }

    fn tag(&self, message: &[u8]) -> blake3::Hash {
        blake3::keyed_hash(&self.0, message)
    }

    /// A datagram with its tag.
    fn seal(&self, message: &[u8]) -> Vec<u8> {
        let mut datagram = Vec::with_capacity(HEAD_BYTES + message.len());
        datagram.extend_from_slice(MAGIC);
        datagram.extend_from_slice(&self.tag(message).as_bytes()[..TAG_BYTES]);
        datagram.extend_from_slice(message);
        datagram
    }

    /// The message of a datagram; `None` if its tag is not ours.
    fn open<'a>(&self, datagram: &'a [u8]) -> Option<&'a [u8]> {
        let (tag, message) = datagram.strip_prefix(MAGIC)?.split_at_checked(TAG_BYTES)?;
        let own = self.tag(message);
        // In constant time: every byte is looked at, whichever differs.
        let difference = tag
            .iter()
            .zip(own.as_bytes())
            .fold(0, |all, (a, b)| all | (a ^ b));
        (difference == 0).then_some(message)
    }
}

impl fmt::Debug for GossipKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GossipKey(..)")
    }
}

/// Opens the one socket that it was given.
pub(crate) struct TaggedTransport {
    socket: Mutex<Option<UdpSocket>>,
    key: GossipKey,
    refused: Arc<AtomicU64>,
}

impl TaggedTransport {
    pub(crate) fn new(socket: UdpSocket, key: GossipKey, refused: &Arc<AtomicU64>) -> Self {
        Self {
            socket: Mutex::new(Some(socket)),
            key,
            refused: Arc::clone(refused),
        }
    }
}

#[async_trait]
impl Transport for TaggedTransport {
    async fn open(&self, _: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        let socket = self.socket.lock().take();
        let socket = socket.ok_or_else(|| anyhow::anyhow!("the gossip socket was taken before"))?;
        Ok(Box::new(TaggedSocket {
            socket,
            key: self.key.clone(),
            refused: Arc::clone(&self.refused),
            buffer: vec![0; DATAGRAM_BYTES_MAX].into(),
        }))
    }
}

struct TaggedSocket {
    socket: UdpSocket,
    key: GossipKey,
    /// Datagrams that were not read.
    refused: Arc<AtomicU64>,
    buffer: Box<[u8]>,
}

#[async_trait]
impl Socket for TaggedSocket {
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        let datagram = self.key.seal(&message.serialize_to_vec());
        // An address that cannot be reached now is no broken socket.
        if let Err(error) = self.socket.send_to(&datagram, to).await {
            tracing::debug!(%error, %to, bytes = datagram.len(), "gossip could not be sent");
        }
        Ok(())
    }

    /// The next message of a member. Cancel-safe.
    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        loop {
            let (bytes, from) = match self.socket.recv_from(&mut self.buffer).await {
                Ok(received) => received,
                Err(error) => {
                    tracing::debug!(%error, "gossip could not be received");
                    tokio::time::sleep(RETRY_DELAY).await;
                    continue;
                }
            };
            let message = self.key.open(&self.buffer[..bytes]);
            let message = message.and_then(|mut message| ChitchatMessage::deserialize(&mut message).ok());
            if let Some(message) = message {
                return Ok((from, message));
            }
            self.refused.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%from, bytes, "refused a datagram without the tag of this cluster");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_datagram_with_the_tag_of_the_key_is_opened() {
        let key = GossipKey::new([1; 32]);
        let sealed = key.seal(b"message");
        assert_eq!(key.open(&sealed), Some(&b"message"[..]));
        assert_eq!(GossipKey::new([2; 32]).open(&sealed), None);
        for byte in 0..sealed.len() {
            let mut flipped = sealed.clone();
            flipped[byte] ^= 1;
            assert_eq!(key.open(&flipped), None, "flipped byte {byte}");
            assert_eq!(key.open(&sealed[..byte]), None, "cut at {byte}");
        }
    }

    #[test]
    fn clusters_of_different_names_do_not_hear_each_other() {
        let sealed = GossipKey::of_name("a").seal(b"message");
        assert_eq!(GossipKey::of_name("b").open(&sealed), None);
        assert_eq!(format!("{:?}", GossipKey::of_name("a")), "GossipKey(..)");
    }
}
