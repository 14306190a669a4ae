//! The family of groups: all-gathers between the ranks of a host.

use serde::{Deserialize, Serialize};

use crate::{FamilyId, Message};

/// The family of groups.
pub const FAMILY: FamilyId = FamilyId {
    number: 5,
    version: 1,
    name: "group",
};

/// A request of the family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Exchanges payloads with the other ranks on this host.
    AllGather(AllGather),
}

/// An answer of the family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// To `AllGather`: the payloads of all ranks, in order.
    AllGathered(Vec<Vec<u8>>),
}

impl Message for Request {
    const FAMILY: FamilyId = FAMILY;
}

impl Message for Answer {
    const FAMILY: FamilyId = FAMILY;
}

impl crate::Request for Request {
    type Answer = Answer;
    const KINDS: &'static [&'static str] = &["gather"];
}

/// One rank's payload in an all-gather between the ranks of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllGather {
    /// Names the all-gather: the same on all ranks, another one each time.
    pub key: String,
    /// The rank that gives this.
    pub rank: u32,
    /// Ranks of the all-gather.
    pub size: u32,
    /// Its payload.
    pub payload: Vec<u8>,
    /// Longest wait for the others.
    pub timeout_ms: u32,
}
