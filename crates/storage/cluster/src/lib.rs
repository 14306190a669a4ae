//! Several nodes, one pool: who they are, which of them owns what.
//!
//! Clean data is a cache, so a wrong or lost owner is slow and never wrong, and nothing here needs agreement.
//! Gossip says who is there ([`Gossip`]); a pure function of that view says who owns a stripe
//! ([`placement`]). What must not fork is decided by create-only writes to the lake, never by gossip.
//!
//! A miss is asked of the owner of the stripe, then of the next, then of the lake (`source.rs`); a request of a
//! peer is answered from this node's own tiers or its own read of the lake, and never forwarded (`server.rs`).
//!
//! Read in this order: [`Member`], [`placement`], [`Membership`], [`Gossip`], `protocol.rs`, `source.rs`,
//! `peers.rs`, `server.rs`.
//!
//! ```
//! use forebay_cluster::{Member, NodeId, placement};
//! use forebay_reservoir::ObjectId;
//!
//! let members: Vec<_> = (1..=3).map(|number| Member::for_test(number, 1000)).collect();
//! let owners = placement::owners(&members, ObjectId([0; 16]), 0, 2);
//! assert_eq!(owners.len(), 2);
//! assert_ne!(owners[0].id, owners[1].id);
//! ```
#![forbid(unsafe_code)]

mod breaker;
mod cluster;
mod gossip;
mod meaning;
mod member;
mod membership;
mod peers;
pub mod placement;
mod protocol;
mod server;
mod source;
mod tagged_socket;
mod who;

pub use cluster::{Cluster, ClusterOptions, ClusterStats};
pub use gossip::{Gossip, GossipOptions};
pub use meaning::BucketMeaning;
pub use member::{Member, MemberState, NodeId, WEIGHT_MAX, WIRE_VERSION};
pub use membership::{FixedMembers, Membership, View};
pub use peers::{Dial, FallbackReason, PeerStats};
pub use server::{PeerStore, SharedBucket, serve_peers};
pub use tagged_socket::GossipKey;
pub use who::who_answers;
