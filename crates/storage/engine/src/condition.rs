//! HTTP conditions, decided by pure functions.

use std::time::{Duration, SystemTime};

use crate::ObjectInfo;

/// The conditional headers of a read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conditions {
    /// `If-Match`: ETags without quotes, or `*`.
    pub if_match: Option<Vec<String>>,
    /// `If-None-Match`: ETags without quotes, or `*`.
    pub if_none_match: Option<Vec<String>>,
    /// `If-Modified-Since`.
    pub if_modified_since: Option<SystemTime>,
    /// `If-Unmodified-Since`.
    pub if_unmodified_since: Option<SystemTime>,
}

/// The outcome of the conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    Proceed,
    /// 304.
    NotModified,
    /// 412.
    Failed,
}

impl Conditions {
    /// RFC 9110 order: `If-Match` hides `If-Unmodified-Since`, `If-None-Match` hides `If-Modified-Since`.
    #[must_use]
    pub fn check(&self, info: &ObjectInfo) -> Verdict {
        let names = |etags: &[String]| {
            etags
                .iter()
                .any(|etag| etag == "*" || etag == info.version.as_str())
        };
        // HTTP dates have whole seconds; a finer modification time must not make an object newer than itself.
        let newer_than = |date: SystemTime| whole_seconds(info.modified) > whole_seconds(date);

        let failed = match (&self.if_match, self.if_unmodified_since) {
            (Some(etags), _) => !names(etags),
            (None, Some(date)) => newer_than(date),
            (None, None) => false,
        };
        if failed {
            return Verdict::Failed;
        }
        let unchanged = match (&self.if_none_match, self.if_modified_since) {
            (Some(etags), _) => names(etags),
            (None, Some(date)) => !newer_than(date),
            (None, None) => false,
        };
        if unchanged {
            Verdict::NotModified
        } else {
            Verdict::Proceed
        }
    }
}

fn whole_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs()
}
