//! Families of messages: each capability has its own, with a number and a version of its own.
//!
//! A frame names the family and the version of its message. A new capability is a new family: those that do
//! not know it refuse it by its number, and nothing else changes for them. A changed message is a new version
//! of its family: each side refuses the other's by number, and the families that did not change go on.

use forebay_core::{Error, Kind, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Number, version and name of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FamilyId {
    /// Its number in frames. Never given to another family.
    pub number: u16,
    /// Its version: grows with every change of its messages.
    pub version: u16,
    /// Its name, for messages to people.
    pub name: &'static str,
}

impl FamilyId {
    /// Checks the family and the version that a frame names.
    ///
    /// Errors: `Unsupported`, with both families or both versions.
    pub fn expect(&self, number: u16, version: u16) -> Result<()> {
        if number != self.number {
            let message = "the message belongs to another family than the one that is due here; \
                           install the same version of Forebay on both sides";
            return Err(Error::new(Kind::Unsupported, message)
                .with("theirs", number)
                .with("ours", self.number)
                .with("family", self.name));
        }
        if version != self.version {
            let message = "client and node speak different versions of a family of messages; \
                           install the same version of Forebay on both sides";
            return Err(Error::new(Kind::Unsupported, message)
                .with("family", self.name)
                .with("theirs", version)
                .with("ours", self.version));
        }
        Ok(())
    }
}

/// A message that belongs to a family.
pub trait Message: Serialize + DeserializeOwned {
    /// Its family.
    const FAMILY: FamilyId;
}

/// A request of a family. It is answered by exactly one message: an [`Self::Answer`], or a
/// [`crate::Failure`].
pub trait Request: Message {
    /// Answers of the family.
    type Answer: Message;
    /// Names of the requests in the order of their variants, as metrics name them.
    const KINDS: &'static [&'static str];
}
