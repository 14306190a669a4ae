//! A member of the cluster: one node as the others know it.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use forebay_core::{Error, Kind};

/// Version of what nodes say to each other. Another one is not spoken to.
pub const WIRE_VERSION: u32 = 1;

/// The heaviest weight.
pub const WEIGHT_MAX: u32 = 1_000_000;

/// The identity of a node: the hash of a key that it made at its first start. Written in hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub [u8; 16]);

impl NodeId {
    /// The identity of the node that has this public key.
    #[must_use]
    pub fn of_key(public_key: &[u8]) -> Self {
        let mut id = [0; 16];
        id.copy_from_slice(&blake3::hash(public_key).as_bytes()[..16]);
        Self(id)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({self})")
    }
}

impl FromStr for NodeId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut id = [0; 16];
        hex::decode_to_slice(text, &mut id).map_err(|_| {
            Error::new(Kind::InvalidInput, "a node id has 32 hexadecimal digits").with("node", text)
        })?;
        Ok(Self(id))
    }
}

/// The part that a member takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberState {
    /// Owns stripes and answers.
    Serving,
    /// Is about to stop: owns nothing any more, and still answers.
    Leaving,
}

impl MemberState {
    /// Its word in gossip, in the admin API and on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Leaving => "leaving",
        }
    }

    /// The state of a word; a word that this version does not know owns nothing.
    #[must_use]
    pub fn parse(word: &str) -> Self {
        match word {
            "serving" => Self::Serving,
            _ => Self::Leaving,
        }
    }
}

/// A node as the others know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its identity.
    pub id: NodeId,
    /// The number of its start, higher with each; its document in the lake decides it.
    pub incarnation: u64,
    /// Address at which other nodes reach it, by HTTP and by gossip.
    pub addr: SocketAddr,
    /// Its share of the stripes, against the weights of the others.
    pub weight: u32,
    /// The version that it speaks.
    pub wire: u32,
    /// The part that it takes.
    pub state: MemberState,
}

impl Member {
    /// Returns whether it may own stripes.
    #[must_use]
    pub fn owns(&self) -> bool {
        self.state == MemberState::Serving && self.wire == WIRE_VERSION
    }

    /// A member whose id is one byte, again and again. For tests and examples.
    #[must_use]
    pub fn for_test(number: u8, weight: u32) -> Self {
        Self {
            id: NodeId([number; 16]),
            incarnation: 1,
            addr: SocketAddr::from(([127, 0, 0, number], 9002)),
            weight,
            wire: WIRE_VERSION,
            state: MemberState::Serving,
        }
    }
}
