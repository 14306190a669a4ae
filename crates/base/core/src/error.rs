//! The one error type of the workspace: kind + message + context + source.
//!
//! A crate raises an [`Error`] where something goes wrong, adds context where it knows more, and each edge
//! (S3, admin, command line, Python) maps the [`Kind`] once. Errors are logged where they end, never where
//! they pass. Why one type and not one per crate: docs/decisions/0002-one-error-type.md.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Category of an error, as callers branch on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The object, bucket, upload or job does not exist.
    NotFound,
    /// A create-only write found something there already.
    AlreadyExists,
    /// A condition of the caller (If-Match, If-None-Match …) does not hold.
    PreconditionFailed,
    /// The object in the lake was replaced while it was being read.
    Changed,
    /// The caller's input is wrong; trying again will not help.
    InvalidInput,
    /// The asked-for bytes lie past the end of the object.
    OutOfRange,
    /// The credentials are missing, wrong, or do not allow this.
    Denied,
    /// This lake, platform or build cannot do what was asked.
    Unsupported,
    /// A limit of this node is reached; try again later.
    Busy,
    /// The lake asks us to slow down (429, 503).
    Throttled,
    /// The lake or a peer cannot be reached or failed (5xx, connection lost).
    Unavailable,
    /// A deadline passed.
    Timeout,
    /// Bytes do not match their checksum or digest.
    Checksum,
    /// A file or message of ours is damaged or not ours.
    Corrupt,
    /// A disk or budget is full.
    NoSpace,
    /// Two writers collided; one of them has to try again.
    Conflict,
    /// The work was stopped on purpose.
    Cancelled,
    /// A local file or socket operation failed.
    Io,
    /// A bug in Forebay.
    Internal,
}

impl Kind {
    /// Every kind, so that each edge can prove that it maps all of them.
    pub const ALL: [Self; 19] = [
        Self::NotFound,
        Self::AlreadyExists,
        Self::PreconditionFailed,
        Self::Changed,
        Self::InvalidInput,
        Self::OutOfRange,
        Self::Denied,
        Self::Unsupported,
        Self::Busy,
        Self::Throttled,
        Self::Unavailable,
        Self::Timeout,
        Self::Checksum,
        Self::Corrupt,
        Self::NoSpace,
        Self::Conflict,
        Self::Cancelled,
        Self::Io,
        Self::Internal,
    ];

    /// The name used in logs, JSON and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::PreconditionFailed => "precondition_failed",
            Self::Changed => "changed",
            Self::InvalidInput => "invalid_input",
            Self::OutOfRange => "out_of_range",
            Self::Denied => "denied",
            Self::Unsupported => "unsupported",
            Self::Busy => "busy",
            Self::Throttled => "throttled",
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::Checksum => "checksum",
            Self::Corrupt => "corrupt",
            Self::NoSpace => "no_space",
            Self::Conflict => "conflict",
            Self::Cancelled => "cancelled",
            Self::Io => "io",
            Self::Internal => "internal",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error with its kind, a message for a person, context pairs and the source.
///
/// ```
/// use forebay_core::{Error, Kind};
///
/// let error = Error::new(Kind::Checksum, "page checksum mismatch").with("object", "bucket/key").with("page", 3);
/// assert_eq!(error.to_string(), "page checksum mismatch (object: bucket/key, page: 3)");
/// assert!(!error.is_retryable());
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    kind: Kind,
    message: String,
    context: Vec<(Cow<'static, str>, String)>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// Makes an error; the message is lower case, without a full stop, and says what to do where that is
    /// known.
    #[must_use]
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            context: Vec::new(),
            source: None,
        }))
    }

    /// Adds a context pair: which object, which file, which setting.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.0.context.push((name.into(), value.to_string()));
        self
    }

    /// Adds a context pair whose name came over the wire.
    #[must_use]
    pub fn with_owned(mut self, name: String, value: String) -> Self {
        self.0.context.push((name.into(), value));
        self
    }

    /// Keeps the error that caused this one.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// An I/O error on a local file or socket, with its kind taken from the operating system's answer.
    #[must_use]
    pub fn io(message: impl Into<String>, source: std::io::Error) -> Self {
        use std::io::ErrorKind as Os;
        let kind = match source.kind() {
            Os::NotFound => Kind::NotFound,
            Os::PermissionDenied => Kind::Denied,
            Os::StorageFull | Os::QuotaExceeded => Kind::NoSpace,
            Os::TimedOut => Kind::Timeout,
            _ => Kind::Io,
        };
        Self::new(kind, message).caused_by(source)
    }

    /// Returns what went wrong.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The message without context and source.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The context pairs, in the order in which they were added.
    pub fn context(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .context
            .iter()
            .map(|(name, value)| (&**name, value.as_str()))
    }

    /// Returns whether the same call may succeed later without the caller changing anything.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.0.kind,
            Kind::Busy | Kind::Throttled | Kind::Unavailable | Kind::Timeout | Kind::Conflict
        )
    }

    /// A copy for a second waiter on the same work; the source becomes text because it cannot be cloned.
    #[must_use]
    pub fn share(&self) -> Self {
        let source = self.0.source.as_ref().map(|source| source.to_string().into());
        Self(Box::new(Inner {
            kind: self.0.kind,
            message: self.0.message.clone(),
            context: self.0.context.clone(),
            source,
        }))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        for (index, (name, value)) in self.0.context.iter().enumerate() {
            let opening = if index == 0 { " (" } else { ", " };
            write!(f, "{opening}{name}: {value}")?;
        }
        if !self.0.context.is_empty() {
            f.write_str(")")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {self}", self.0.kind)?;
        let mut source = self.source();
        while let Some(cause) = source {
            write!(f, ": {cause}")?;
            source = cause.source();
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|source| &**source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_distinct_names() {
        let names: std::collections::BTreeSet<_> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
        assert_eq!(names.len(), Kind::ALL.len());
    }

    #[test]
    fn full_disk_is_no_space() {
        let error = Error::io(
            "cannot write",
            std::io::Error::from(std::io::ErrorKind::StorageFull),
        );
        assert_eq!(error.kind(), Kind::NoSpace);
    }

    #[test]
    fn shared_error_keeps_kind_message_and_cause() {
        let error = Error::new(Kind::Unavailable, "lake down")
            .with("lake", "s3://x")
            .caused_by("refused");
        assert_eq!(format!("{:?}", error.share()), format!("{error:?}"));
    }
}
