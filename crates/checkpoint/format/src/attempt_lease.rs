//! `open.json`: who is writing an attempt, until when, and on which parent.
//!
//! Life cycle: written before the first file of an attempt; a save that goes on after its node was started
//! again makes it longer, never shorter. While its lease lasts nobody collects the attempt, nor files of the
//! parent that it names. So a saver that wants to reuse files of a step writes `open.json` first and looks
//! *then* whether the manifest of that step is still there: whoever prunes removes manifests first and looks
//! *then* for leases. One of the two sees the other.

use forebay_core::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use crate::manifest::{StepRef, VERSION};

const FORMAT: &str = "forebay-checkpoint-open";
/// The largest document that is read.
pub const OPEN_BYTES_MAX: u64 = 64 << 10;
/// Difference that clocks of two hosts may have.
pub const CLOCK_SKEW_MS: u64 = 60_000;

/// The lease of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptLease {
    /// `forebay-checkpoint-open`.
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// The step.
    pub step: u64,
    /// The attempt.
    pub attempt: String,
    /// The step whose files may be reused.
    pub parent: Option<StepRef>,
    /// Beginning, milliseconds since 1970 UTC.
    pub begun_ms: u64,
    /// Latest end, milliseconds since 1970 UTC.
    pub deadline_ms: u64,
    /// Program and version.
    pub writer: String,
}

impl AttemptLease {
    /// A lease from `begun_ms` to `deadline_ms`.
    #[must_use]
    pub fn new(step: u64, attempt: &str, parent: Option<StepRef>, begun_ms: u64, deadline_ms: u64) -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            step,
            attempt: attempt.to_owned(),
            parent,
            begun_ms,
            deadline_ms,
            writer: format!("forebay {}", env!("CARGO_PKG_VERSION")),
        }
    }

    /// This lease in the place of an older one of the same attempt: on the same parent, and nobody gets less
    /// time than was given.
    #[must_use]
    pub fn in_place_of(self, old: &Self) -> Self {
        Self {
            parent: old.parent,
            begun_ms: self.begun_ms.min(old.begun_ms),
            deadline_ms: self.deadline_ms.max(old.deadline_ms),
            ..self
        }
    }

    /// As it lies in the lake.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let unwritable = |why: serde_json::Error| {
            Error::new(Kind::Internal, "a lease could not be written").caused_by(why)
        };
        let mut bytes = serde_json::to_vec_pretty(self).map_err(unwritable)?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// Reads one.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let wrong = |what: &str| Error::new(Kind::Corrupt, format!("the lease of an attempt {what}"));
        if bytes.len() as u64 > OPEN_BYTES_MAX {
            return Err(wrong("is larger than any is"));
        }
        let open: Self =
            serde_json::from_slice(bytes).map_err(|why| wrong("cannot be read").caused_by(why))?;
        if open.format != FORMAT || open.version != VERSION {
            return Err(wrong("was written by another version of forebay; update forebay"));
        }
        Ok(open)
    }

    /// Returns whether the writer may still be at work.
    #[must_use]
    pub fn is_live(&self, now_ms: u64) -> bool {
        now_ms < self.deadline_ms.saturating_add(CLOCK_SKEW_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_reads_back_and_ends() {
        let parent = Some(StepRef {
            step: 3,
            generation: 1,
        });
        let open = AttemptLease::new(7, "a-0000000000000001", parent, 1000, 5000);
        assert_eq!(AttemptLease::decode(&open.encode().unwrap()).unwrap(), open);
        assert!(open.is_live(5000 + CLOCK_SKEW_MS - 1));
        assert!(!open.is_live(5000 + CLOCK_SKEW_MS));
    }

    #[test]
    fn a_renewed_lease_keeps_its_parent_and_never_gets_shorter() {
        let parent = |step| Some(StepRef { step, generation: 1 });
        let old = AttemptLease::new(7, "a-0000000000000001", parent(3), 1000, 5000);
        let longer = AttemptLease::new(7, "a-0000000000000001", parent(4), 4000, 9000).in_place_of(&old);
        assert_eq!(
            (longer.parent, longer.begun_ms, longer.deadline_ms),
            (parent(3), 1000, 9000)
        );
        let shorter = AttemptLease::new(7, "a-0000000000000001", None, 4000, 4500).in_place_of(&old);
        assert_eq!(shorter, old);
    }

    #[test]
    fn what_is_not_a_lease_is_refused() {
        assert!(AttemptLease::decode(b"{}").is_err());
        assert!(AttemptLease::decode(b"").is_err());
        let mut other = AttemptLease::new(7, "a-0000000000000001", None, 0, 0);
        other.version = 2;
        assert!(AttemptLease::decode(&other.encode().unwrap()).is_err());
    }
}
