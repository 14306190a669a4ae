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
        let mut context: Vec<(String, String)> = error
            .context()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        context.extend(reason_of_system(error).map(|reason| ("reason".into(), reason)));
        Self {
            kind: error.kind().as_str().into(),
            message: error.message().into(),
            context,
        }
    }
}

/// The operating system's own words (disk full, read-only), where it is what failed and they are not said yet.
fn reason_of_system(error: &Error) -> Option<String> {
    if !matches!(error.kind(), Kind::Io | Kind::NoSpace | Kind::Denied) {
        return None;
    }
    let mut cause = std::error::Error::source(error)?;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let reason = cause.to_string();
    (!error.to_string().contains(&reason)).then_some(reason)
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
