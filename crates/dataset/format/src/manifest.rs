//! `SHA256SUMS`: which bytes a dataset is made of, in a file that `sha256sum -c` understands, and who says
//! so.
//!
//! A [`Manifest`] is a sorted list of names and SHA-256 digests. Whoever reads the objects pushes their bytes
//! through a [`Hasher`] and reports each digest to a [`Check`], which says of every file whether it is as it
//! was, changed, missing or extra. A [`SecretKey`] signs the text of the manifest (ed25519); a [`PublicKey`]
//! that the user trusts verifies it. So poisoned training data is found even if the attacker can write to the
//! lake, manifest included.
//!
//! Nothing here reads files. docs/formats/dataset-manifest.md has the formats.
//!
//! ```
//! use forebay_dataset::manifest::{Hasher, Manifest, Verdict};
//!
//! let digest = |bytes: &[u8]| { let mut hasher = Hasher::new(); hasher.push(bytes); hasher.finish() };
//! let manifest = Manifest::new([("a.tar".to_owned(), digest(b"one")), ("b.tar".to_owned(), digest(b"two"))])?;
//! let text = manifest.to_text();
//!
//! let manifest = Manifest::parse(text.as_bytes())?;
//! let mut check = manifest.check();
//! assert!(matches!(check.found("a.tar", digest(b"one")), Verdict::Same));
//! assert!(matches!(check.found("b.tar", digest(b"owt")), Verdict::Changed { .. }));
//! assert_eq!(check.finish().changed[0].name, "b.tar");
//! # Ok::<(), forebay_core::Error>(())
//! ```

mod check;
mod digest;
mod key;
mod signature;
mod text;

use std::collections::BTreeMap;

use forebay_core::{Error, Kind, Result};

pub use check::{Changed, Check, Extra, Report, Verdict};
pub use digest::{Digest, Hasher};
pub use key::{PublicKey, SecretKey};
pub use signature::{SIGNATURES_MAX, sign, verify};

/// The name of the manifest beside the data.
pub const SUMS_FILE: &str = "SHA256SUMS";
/// The name of its signature.
pub const SIGNATURE_FILE: &str = "SHA256SUMS.sig";
/// A longer name is refused.
pub const NAME_BYTES_MAX: usize = 4096;

/// Names and digests, sorted by the bytes of the names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Manifest {
    entries: BTreeMap<String, Digest>,
}

impl Manifest {
    /// The manifest of these files; names are relative to the folder of the manifest, a `./` before them is
    /// dropped.
    ///
    /// # Errors
    /// `InvalidInput` if a name is empty, too long, comes twice or leads out of the folder.
    pub fn new(entries: impl IntoIterator<Item = (String, Digest)>) -> Result<Self> {
        let mut manifest = Self::default();
        for (name, digest) in entries {
            manifest.add(&name, digest)?;
        }
        Ok(manifest)
    }

    /// Reads the text of a manifest.
    ///
    /// # Errors
    /// `InvalidInput` if it is not what `sha256sum` writes, or for the reasons of [`Manifest::new`]; the
    /// message has the line.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let mut manifest = Self::default();
        for line in text::lines(text) {
            let (number, line) = line?;
            let added = text::parse_line(line).and_then(|(name, digest)| manifest.add(&name, digest));
            added.map_err(|error| error.with("line", number))?;
        }
        Ok(manifest)
    }

    /// The text, byte for byte what `sha256sum` would write for the sorted names.
    #[must_use]
    pub fn to_text(&self) -> String {
        self.entries
            .iter()
            .map(|(name, digest)| text::line(name, digest))
            .collect()
    }

    /// The digest of a file.
    #[must_use]
    pub fn digest(&self, name: &str) -> Option<Digest> {
        self.entries.get(name).copied()
    }

    /// All names and digests, sorted.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (&str, Digest)> {
        self.entries.iter().map(|(name, digest)| (name.as_str(), *digest))
    }

    /// Starts to compare files with this manifest.
    #[must_use]
    pub fn check(&self) -> Check<'_> {
        Check::new(self)
    }

    fn add(&mut self, name: &str, digest: Digest) -> Result<()> {
        let name = name.trim_start_matches("./");
        check_name(name)?;
        if self.entries.contains_key(name) {
            return Err(Error::new(Kind::InvalidInput, "a manifest names each file once").with("name", name));
        }
        self.entries.insert(name.to_owned(), digest);
        Ok(())
    }
}

/// Refuses names that lead out of the folder of the manifest, or that no object can have.
fn check_name(name: &str) -> Result<()> {
    let problem = if name.is_empty() {
        "a manifest cannot name a file without a name"
    } else if name.len() > NAME_BYTES_MAX {
        "a name in a manifest has at most 4096 bytes"
    } else if name.contains('\0') {
        "a name in a manifest cannot contain a zero byte"
    } else if name.starts_with('/') || name.split('/').any(|part| part == "..") {
        "names in a manifest must stay inside its folder"
    } else {
        return Ok(());
    };
    let shown: String = name.chars().take(200).collect();
    Err(Error::new(Kind::InvalidInput, problem).with("name", shown.escape_debug()))
}

#[cfg(test)]
mod tests;
