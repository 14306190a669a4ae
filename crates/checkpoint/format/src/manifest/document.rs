//! Documents as bytes: JSON with a digest of itself.
//!
//! The digest is BLAKE3 of the very bytes in the lake, with its own 64 digits as zeros. So it can be checked
//! without knowing how the JSON was written, and a person can still read and `jq` it.

use forebay_core::{Error, Kind, Result};
use serde::Serialize;

use super::flat::Document;
use super::{Content, Manifest, Record, VERSION};

/// The largest document that is read.
pub const DOCUMENT_BYTES_MAX: u64 = 256 << 20;
const MANIFEST_FORMAT: &str = "forebay-checkpoint";
const RECORD_FORMAT: &str = "forebay-checkpoint-rank";
const DIGEST_DIGITS: usize = 64;
/// Comes right before the digest, which is the last field.
const DIGEST_FIELD: &[u8] = b"\"digest\": \"";

/// Returns who wrote a manifest.
#[must_use]
fn writer() -> String {
    format!("forebay {}", env!("CARGO_PKG_VERSION"))
}

impl Manifest {
    /// A manifest without a digest; [`Manifest::encode`] adds it.
    #[must_use]
    pub fn new(step: u64, generation: u32, attempt: &str, world_size: u32, content: Content) -> Self {
        Self {
            format: MANIFEST_FORMAT.to_owned(),
            version: VERSION,
            step,
            generation,
            attempt: attempt.to_owned(),
            world_size,
            parent: None,
            created_ms: 0,
            writer: writer(),
            content,
            digest: zeros(),
        }
    }

    /// The bytes that are created in the lake, checked.
    pub fn encode(&mut self) -> Result<Vec<u8>> {
        self.digest = zeros();
        self.check()?;
        let (bytes, digest) = sealed(self)?;
        self.digest = digest;
        Ok(bytes)
    }

    /// Reads a manifest, believes nothing.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        Self::checked(opened::<true>(bytes, "manifest")?)
    }

    /// Reads what tensors need of a manifest, believes nothing. Objects, tree, metadata and alarms are
    /// skipped: they are empty, whatever the document has.
    pub fn decode_tensors(bytes: &[u8]) -> Result<Self> {
        Self::checked(opened::<false>(bytes, "manifest")?)
    }

    fn checked<const ALL: bool>(document: Document<ALL>) -> Result<Self> {
        known(&document.format, MANIFEST_FORMAT, document.version)?;
        let manifest = document.manifest()?;
        manifest.check()?;
        Ok(manifest)
    }
}

impl Record {
    /// A record without a digest; [`Record::encode`] adds it.
    #[must_use]
    pub fn new(step: u64, attempt: &str, rank: u32, world_size: u32, content: Content) -> Self {
        Self {
            format: RECORD_FORMAT.to_owned(),
            version: VERSION,
            step,
            attempt: attempt.to_owned(),
            rank,
            world_size,
            content,
            digest: zeros(),
        }
    }

    /// The bytes that are written to the lake, checked.
    pub fn encode(&mut self) -> Result<Vec<u8>> {
        self.digest = zeros();
        self.content.check()?;
        let (bytes, digest) = sealed(self)?;
        self.digest = digest;
        Ok(bytes)
    }

    /// Reads a record, believes nothing.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let document: Document<true> = opened(bytes, "record of a rank")?;
        known(&document.format, RECORD_FORMAT, document.version)?;
        let record = document.record()?;
        record.content.check()?;
        Ok(record)
    }
}

fn zeros() -> String {
    "0".repeat(DIGEST_DIGITS)
}

/// JSON with its digest in place, and the digest.
fn sealed<T: Serialize>(document: &T) -> Result<(Vec<u8>, String)> {
    let unwritable =
        |why: serde_json::Error| Error::new(Kind::Internal, "a document could not be written").caused_by(why);
    let mut bytes = serde_json::to_vec_pretty(document).map_err(unwritable)?;
    bytes.push(b'\n');
    if bytes.len() as u64 > DOCUMENT_BYTES_MAX {
        let message =
            "the manifest would be larger than 256 MiB; save fewer or larger tensors, or less metadata";
        return Err(Error::new(Kind::InvalidInput, message).with("bytes", bytes.len()));
    }
    let place = digest_place(&bytes).ok_or_else(|| Error::new(Kind::Internal, "a document has no digest"))?;
    let digest = blake3::hash(&bytes).to_hex().to_string();
    bytes[place..place + DIGEST_DIGITS].copy_from_slice(digest.as_bytes());
    Ok((bytes, digest))
}

/// Returns what is in a document whose digest is right.
fn opened<const ALL: bool>(bytes: &[u8], what: &'static str) -> Result<Document<ALL>> {
    let damaged = |message: &str| Error::new(Kind::Corrupt, format!("a {what} {message}"));
    if bytes.len() as u64 > DOCUMENT_BYTES_MAX {
        return Err(damaged("is larger than 256 MiB"));
    }
    let place =
        digest_place(bytes).ok_or_else(|| damaged("has no digest at its end: cut off, or not ours"))?;
    let mut hasher = blake3::Hasher::new();
    hasher.update(&bytes[..place]);
    hasher.update(&[b'0'; DIGEST_DIGITS]);
    hasher.update(&bytes[place + DIGEST_DIGITS..]);
    if hasher.finalize().to_hex().as_bytes() != &bytes[place..place + DIGEST_DIGITS] {
        return Err(Error::new(
            Kind::Checksum,
            format!("a {what} does not match its own digest: it is damaged"),
        ));
    }
    serde_json::from_slice(bytes).map_err(|why| damaged("cannot be read").caused_by(why))
}

/// Returns where the digits of the digest begin.
fn digest_place(bytes: &[u8]) -> Option<usize> {
    let tail = bytes
        .len()
        .checked_sub(DIGEST_FIELD.len() + DIGEST_DIGITS + b"\"\n}\n".len())?;
    let place = tail + DIGEST_FIELD.len();
    (bytes[tail..place] == *DIGEST_FIELD && bytes[place + DIGEST_DIGITS..] == *b"\"\n}\n").then_some(place)
}

fn known(format: &str, expected: &str, version: u32) -> Result<()> {
    if format != expected {
        return Err(
            Error::new(Kind::Corrupt, "this document is not what its name says").with("format", format),
        );
    }
    if version != VERSION {
        let message = "this checkpoint was written by another version of forebay; update forebay to read it";
        return Err(Error::new(Kind::Unsupported, message)
            .with("version", version)
            .with("known", VERSION));
    }
    Ok(())
}
