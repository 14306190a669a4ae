//! The names of a lake's operations, for counting and for faults.

use std::fmt;

/// One operation of a [`Lake`](crate::Lake); a write by [`LakeWriter`](crate::LakeWriter) is a `Put`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// `head`.
    Head,
    /// `get`.
    Get,
    /// `put`, and a writer from its first byte to `finish`.
    Put,
    /// `delete`.
    Delete,
    /// `copy`.
    Copy,
    /// `list`, one page.
    List,
    /// `start_upload`.
    StartUpload,
    /// `upload_part`.
    UploadPart,
    /// `complete_upload`.
    CompleteUpload,
    /// `abort_upload`.
    AbortUpload,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Self; 10] = [
        Self::Head,
        Self::Get,
        Self::Put,
        Self::Delete,
        Self::Copy,
        Self::List,
        Self::StartUpload,
        Self::UploadPart,
        Self::CompleteUpload,
        Self::AbortUpload,
    ];

    /// The name in logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Head => "head",
            Self::Get => "get",
            Self::Put => "put",
            Self::Delete => "delete",
            Self::Copy => "copy",
            Self::List => "list",
            Self::StartUpload => "start_upload",
            Self::UploadPart => "upload_part",
            Self::CompleteUpload => "complete_upload",
            Self::AbortUpload => "abort_upload",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
