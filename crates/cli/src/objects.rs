//! `forebay ls|cp|cat|rm|stat|du`: objects on a node, in a lake, or on this machine.
//!
//! `location.rs` reads what was typed, `place.rs` opens it, `local.rs` knows files, and each verb has a file.
//! `forebay://` goes through a node's S3 front door, so it sees what every S3 client sees.

pub(crate) mod cat;
mod content_type;
pub(crate) mod cp;
mod download;
pub(crate) mod du;
mod local;
pub(crate) mod location;
pub(crate) mod ls;
mod place;
pub(crate) mod rm;
pub(crate) mod stat;
mod transfer;
mod upload;

use std::time::SystemTime;

/// RFC 3339, to the second.
pub(crate) fn timestamp(time: SystemTime) -> String {
    let text = jiff::Timestamp::try_from(time)
        .ok()
        .and_then(|t| t.round(jiff::Unit::Second).ok())
        .map(|t| t.to_string());
    text.unwrap_or_default()
}
