//! Comparing what is there with what the manifest says, file by file.
//!
//! Starts with [`Manifest::check`], is told of each file that was hashed, in any order, and ends with a
//! [`Report`]. A file that is told of twice is judged twice and counted once per telling. Memory: one bit of
//! news per entry, and what differs.

use std::collections::BTreeSet;

use forebay_core::{Error, Kind, Result};

use super::{Digest, Manifest};

/// Compares files with a manifest.
#[derive(Debug)]
pub struct Check<'a> {
    manifest: &'a Manifest,
    missing: BTreeSet<&'a str>,
    report: Report,
}

/// Verdict of the manifest on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is as it was.
    Same,
    /// It has other bytes.
    Changed {
        /// The digest in the manifest.
        expected: Digest,
    },
    /// The manifest does not have it.
    Extra,
}

/// A file with other bytes than the manifest says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// Its name.
    pub name: String,
    /// The digest in the manifest.
    pub expected: Digest,
    /// The digest that it has.
    pub found: Digest,
}

/// The result for all files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Number of unchanged files.
    pub same: u64,
    /// Those with other bytes.
    pub changed: Vec<Changed>,
    /// Those that are not there, sorted.
    pub missing: Vec<String>,
    /// Those that the manifest does not have.
    pub extra: Vec<String>,
}

/// Policy for files that the manifest does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extra {
    /// They are not read anyway.
    Ignore,
    /// They are: somebody may have slipped them in.
    Refuse,
}

impl<'a> Check<'a> {
    pub(super) fn new(manifest: &'a Manifest) -> Self {
        let missing = manifest.entries.keys().map(String::as_str).collect();
        Self {
            manifest,
            missing,
            report: Report::default(),
        }
    }

    /// Judges a file that is there.
    pub fn found(&mut self, name: &str, found: Digest) -> Verdict {
        self.missing.remove(name);
        match self.manifest.digest(name) {
            Some(expected) if expected == found => {
                self.report.same += 1;
                Verdict::Same
            }
            Some(expected) => {
                self.report.changed.push(Changed {
                    name: name.to_owned(),
                    expected,
                    found,
                });
                Verdict::Changed { expected }
            }
            None => {
                self.report.extra.push(name.to_owned());
                Verdict::Extra
            }
        }
    }

    /// The result; what nobody told of is missing.
    #[must_use]
    pub fn finish(mut self) -> Report {
        self.report.missing = self.missing.into_iter().map(str::to_owned).collect();
        self.report
    }
}

impl Report {
    /// An error unless all is as the manifest says.
    ///
    /// # Errors
    /// `Checksum` if files are changed, `NotFound` if some are missing, `Changed` if there are extra ones
    /// that are refused.
    pub fn require(&self, extra: Extra) -> Result<()> {
        let error = if let Some(first) = self.changed.first() {
            Error::new(
                Kind::Checksum,
                "files do not have the bytes that the manifest says",
            )
            .with("name", &first.name)
        } else if let Some(first) = self.missing.first() {
            Error::new(Kind::NotFound, "files of the manifest are missing").with("name", first)
        } else if let (Some(first), Extra::Refuse) = (self.extra.first(), extra) {
            Error::new(
                Kind::Changed,
                "there are files that the manifest does not have: remove them or write a new one",
            )
            .with("name", first)
        } else {
            return Ok(());
        };
        Err(error
            .with("changed", self.changed.len())
            .with("missing", self.missing.len())
            .with("extra", self.extra.len()))
    }
}
