//! Commit marker of an entry: proof of its pieces, and the payload of whoever staged them.
//!
//! A digest over everything behind it comes first, then the header as JSON in one line, then the payload. It
//! is replaced as a whole: written beside, synced, renamed.

use std::path::Path;

use forebay_core::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use super::disk::Disk;
use super::name::EntryName;

/// Name of the marker in the folder of an entry.
pub(super) const MARKER: &str = "staged.json";
/// Name of one that is being written.
const FRESH: &str = "staged.json.new";
const FORMAT: &str = "forebay-staging-log";
const VERSION: u32 = 2;
/// Bytes of the largest marker that is read.
const MARKER_BYTES_MAX: u64 = 256 << 20;
/// Hexadecimal digits of a BLAKE3 digest.
const DIGEST_BYTES: usize = 64;

/// One file of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedPiece {
    /// Number in its entry; it names the file.
    pub number: u32,
    /// Bytes.
    pub bytes: u64,
    /// Checksum of these.
    pub crc32c: u32,
}

impl StagedPiece {
    /// Name of the file.
    pub(super) fn file_name(number: u32) -> String {
        format!("piece-{number:05}")
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    entry: String,
    pieces: Vec<StagedPiece>,
    payload_bytes: u64,
}

/// The fields by which a version is told from others.
#[derive(Debug, Serialize, Deserialize)]
struct Version {
    format: String,
    version: u32,
}

#[derive(Debug, Serialize)]
struct Versioned<'a> {
    #[serde(flatten)]
    version: Version,
    #[serde(flatten)]
    header: &'a Header,
}

/// Writes the marker of an entry, in place of one that is there. Blocks.
pub(super) fn write(
    disk: &Disk,
    folder: &Path,
    name: &EntryName,
    pieces: &[StagedPiece],
    payload: &[u8],
) -> Result<()> {
    let header = Header {
        entry: name.to_string(),
        pieces: pieces.to_vec(),
        payload_bytes: payload.len() as u64,
    };
    let fresh = folder.join(FRESH);
    disk.write_synced(&fresh, &encode(&header, payload)?)?;
    disk.rename(&fresh, &folder.join(MARKER))?;
    disk.sync_folder(folder)
}

/// Reads the marker of an entry; `None` if the entry was never sealed. Blocks.
pub(super) fn read(
    disk: &Disk,
    folder: &Path,
    name: &EntryName,
) -> Result<Option<(Vec<StagedPiece>, Vec<u8>)>> {
    let path = folder.join(MARKER);
    let Some(bytes) = disk.read(&path, MARKER_BYTES_MAX)? else {
        return Ok(None);
    };
    decode(&bytes, name)
        .map(Some)
        .map_err(|error| error.with("file", path.display()))
}

fn encode(header: &Header, payload: &[u8]) -> Result<Vec<u8>> {
    let versioned = Versioned {
        version: Version {
            format: FORMAT.into(),
            version: VERSION,
        },
        header,
    };
    let mut body = vec![b'\n'];
    serde_json::to_writer(&mut body, &versioned)
        .map_err(|why| Error::new(Kind::Internal, "a commit marker could not be written").caused_by(why))?;
    body.push(b'\n');
    body.extend_from_slice(payload);
    let mut bytes = blake3::hash(&body).to_hex().as_bytes().to_vec();
    bytes.append(&mut body);
    Ok(bytes)
}

fn decode(bytes: &[u8], name: &EntryName) -> Result<(Vec<StagedPiece>, Vec<u8>)> {
    let damaged = || Error::new(Kind::Corrupt, "a commit marker does not match its checksum");
    let (digest, body) = bytes.split_at_checked(DIGEST_BYTES).ok_or_else(damaged)?;
    if blake3::hash(body).to_hex().as_bytes() != digest {
        return Err(damaged());
    }
    let rest = body.strip_prefix(b"\n").ok_or_else(damaged)?;
    let line_bytes = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
    let (line, rest) = rest.split_at(line_bytes);
    let version: Version = serde_json::from_slice(line).map_err(|why| damaged().caused_by(why))?;
    if version.format != FORMAT || version.version != VERSION {
        let message =
            "a staged entry was written by another version of forebay; start that version to finish it";
        return Err(Error::new(Kind::Unsupported, message)
            .with("format", version.format)
            .with("version", version.version));
    }
    let header: Header = serde_json::from_slice(line).map_err(|why| damaged().caused_by(why))?;
    let payload = rest.strip_prefix(b"\n").ok_or_else(damaged)?;
    if header.entry != name.to_string() || header.payload_bytes != payload.len() as u64 {
        let message = "a commit marker belongs to another entry, or has another payload than it says";
        return Err(Error::new(Kind::Corrupt, message).with("entry", header.entry));
    }
    Ok((header.pieces, payload.to_vec()))
}
