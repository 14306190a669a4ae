//! Names of entries, which are names of folders too.

use std::fmt;

use forebay_core::{Error, Kind, Result};

/// Bytes of each half of a name.
const HALF_BYTES_MAX: usize = 100;

/// Name of an entry: a group, and a member of that group.
///
/// Entries of one group end together, so the bytes of one never make room for another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryName {
    group: String,
    member: String,
}

impl EntryName {
    /// A name of two halves, each of letters, digits, `-` and `_`.
    pub fn new(group: &str, member: &str) -> Result<Self> {
        if is_half(group) && is_half(member) {
            return Ok(Self {
                group: group.to_owned(),
                member: member.to_owned(),
            });
        }
        let message = "the name of a staged entry has letters, digits, - and _, at most 100 in each half";
        Err(Error::new(Kind::InvalidInput, message)
            .with("group", group)
            .with("member", member))
    }

    /// The name that this folder has; `None` if it is not the folder of an entry.
    pub(super) fn parse(folder: &str) -> Option<Self> {
        let (group, member) = folder.split_once('.')?;
        Self::new(group, member).ok()
    }

    pub(super) fn group(&self) -> &str {
        &self.group
    }
}

impl fmt::Display for EntryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.group, self.member)
    }
}

fn is_half(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=HALF_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_plain)
}
