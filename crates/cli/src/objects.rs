//! `forebay ls|cp|cat|rm|stat|du`: objects on a node, in a lake, or on this machine.
//!
//! `location.rs` reads what was typed, `node.rs` opens it, and each verb has a file; the work itself is
//! `forebay-transfer`. `forebay://` goes through the socket of a node on this host if there is one, else
//! through a node's S3 endpoint; both show the same.

pub(crate) mod cat;
pub(crate) mod cp;
pub(crate) mod du;
pub(crate) mod location;
pub(crate) mod ls;
pub(crate) mod node;
pub(crate) mod rm;
pub(crate) mod stat;

use std::time::SystemTime;

/// RFC 3339, cut to the second: headers, listings and sockets say a time with different precision.
pub(crate) fn timestamp(time: SystemTime) -> String {
    let age = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| String::new(), |time| time.to_string())
}
