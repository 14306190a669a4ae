//! Failures: the family that answers a request of any other family that failed.

use forebay_core::{Error, Kind};
use serde::{Deserialize, Serialize};

use crate::{FamilyId, Message};

/// The family of failures.
pub(crate) const FAMILY: FamilyId = FamilyId {
    number: 0,
    version: 1,
    name: "failure",
};

/// An error on its way: kind, message and context survive, the source does not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// [`Kind::as_str`].
    pub kind: String,
    /// The message.
    pub message: String,
    /// Context pairs.
    pub context: Vec<(String, String)>,
}

impl Message for Failure {
    const FAMILY: FamilyId = FAMILY;
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self {
            kind: error.kind().as_str().into(),
            message: error.message().into(),
            context: error
                .context()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let kind = Kind::ALL.into_iter().find(|kind| kind.as_str() == failure.kind);
        let error = Self::new(kind.unwrap_or(Kind::Internal), failure.message);
        failure
            .context
            .into_iter()
            .fold(error, |error, (name, value)| error.with_owned(name, value))
    }
}
