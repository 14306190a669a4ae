//! The family of sessions: hello, descriptors of shared memory, readiness.

use serde::{Deserialize, Serialize};

use crate::{FamilyId, Message};

/// The family of sessions.
pub const FAMILY: FamilyId = FamilyId {
    number: 1,
    version: 1,
    name: "session",
};

/// A request of the family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The first message of every connection.
    Hello(Hello),
    /// Asks for the descriptor of a segment or buffer.
    MapSegment {
        /// Its number.
        segment: u64,
    },
    /// Asks whether the node is there and ready.
    Ping,
}

/// An answer of the family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// To `Hello`.
    Welcome(Welcome),
    /// To `MapSegment`; the descriptor lies beside it.
    Segment {
        /// Its size.
        bytes: u64,
    },
    /// To `Ping`.
    Ready,
}

impl Message for Request {
    const FAMILY: FamilyId = FAMILY;
}

impl Message for Answer {
    const FAMILY: FamilyId = FAMILY;
}

impl crate::Request for Request {
    type Answer = Answer;
    const KINDS: &'static [&'static str] = &["hello", "map_segment", "other"];
}

/// Introduction of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// A name for logs: program and process id.
    pub client: String,
    /// The session that this connection belongs to; `None` opens one, which lives as long as this connection.
    pub session: Option<[u8; 16]>,
}

/// Answer to `Hello`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The session; further connections name it. Whoever knows it shares its leases: it is a secret of the
    /// process.
    pub session: [u8; 16],
    /// Incarnation of the node; see [`crate::objects::Handle`].
    pub generation: u64,
    /// The node's version, for messages.
    pub node: String,
    /// `http://host:port` of its S3 endpoint, if it has one.
    pub s3: Option<String>,
}
