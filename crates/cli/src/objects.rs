//! `forebay ls|cp|cat|rm|stat|du`: objects on a node, in a lake, or on this machine.
//!
//! `location.rs` reads what was typed, `place.rs` opens it, `local.rs` knows files, and each verb has a file.
//! `forebay://` goes through the socket of a node on this host if there is one, else through a node's S3 front door (`node.rs`); both show the same.

mod aside;
pub(crate) mod cat;
mod content_type;
pub(crate) mod cp;
mod download;
pub(crate) mod du;
mod local;
pub(crate) mod location;
pub(crate) mod ls;
pub(crate) mod node;
mod place;
pub(crate) mod rm;
mod socket_lake;
pub(crate) mod stat;
mod transfer;
mod upload;

use std::time::SystemTime;

pub(crate) use aside::aside;

/// RFC 3339, cut to the second: headers, listings and sockets say a time with different precision.
pub(crate) fn timestamp(time: SystemTime) -> String {
    let age = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| String::new(), |time| time.to_string())
}
