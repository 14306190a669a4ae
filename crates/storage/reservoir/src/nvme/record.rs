//! The bytes of the index journal: one file header, then framed records. Pure; see docs/formats/nvme-tier.md.
//!
//! Everything is little endian. A frame is the length of its payload, the CRC32C of length and payload, and
//! the payload. A reader stops at the first frame that is not whole: what follows was never acknowledged.

use std::sync::Arc;

use forebay_core::{BLOCKS_PER_PAGE, BlockMask, BucketName, ObjectKey, PageIndex, Version, crc32c};

use super::space::{RUNS_MAX, Run, SEGMENT_UNITS, UNIT_BYTES};
use crate::{ObjectId, ObjectVersion, PageKey};

/// First bytes of a journal.
pub(crate) const JOURNAL_MAGIC: [u8; 8] = *b"FBYINDEX";
/// First bytes of a segment.
pub(crate) const SEGMENT_MAGIC: [u8; 8] = *b"FBYPAGES";
/// The one version that this build reads and writes.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// Bytes of the header of either file kind that carry meaning.
pub(crate) const HEADER_BYTES: usize = 64;
/// Bytes in front of each payload.
pub(crate) const FRAME_BYTES: usize = 8;
/// No payload is longer.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 8192;
/// An object whose version text is longer is not kept on NVMe.
pub(crate) const VERSION_BYTES_MAX: usize = 4096;

const KIND_OBJECT: u8 = 1;
const KIND_PAGE: u8 = 2;
const KIND_REMOVE_BLOCKS: u8 = 3;
const KIND_REMOVE_OBJECT: u8 = 4;

/// The identity of a store: in the header of each of its files.
pub(crate) type StoreId = [u8; 16];

/// Some blocks of a page and where they lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PageRecord {
    /// The page.
    pub(crate) key: PageKey,
    /// Grows with each record; of two that claim the same units the higher one is right.
    pub(crate) generation: u64,
    /// Blocks that lie in the runs, packed in order.
    pub(crate) stored: BlockMask,
    /// Those of them that may be read.
    pub(crate) live: BlockMask,
    /// Its location.
    pub(crate) runs: Vec<Run>,
    /// CRC32C of each live block, at its block number; zero elsewhere.
    pub(crate) checksums: [u32; BLOCKS_PER_PAGE as usize],
}

/// One record of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    /// The name behind an id; comes before the first page of the object.
    Object(ObjectId, Arc<ObjectVersion>),
    /// Blocks came in.
    Page(PageRecord),
    /// Blocks left.
    RemoveBlocks(PageKey, BlockMask),
    /// All pages of an object left.
    RemoveObject(ObjectId),
}

impl Record {
    /// Appends the framed record.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; FRAME_BYTES]);
        match self {
            Self::Object(id, object) => encode_object(out, id, object),
            Self::Page(page) => encode_page(out, page),
            Self::RemoveBlocks(key, blocks) => {
                out.push(KIND_REMOVE_BLOCKS);
                encode_key(out, key);
                out.extend_from_slice(&blocks.0.to_le_bytes());
            }
            Self::RemoveObject(id) => {
                out.push(KIND_REMOVE_OBJECT);
                out.extend_from_slice(&id.0);
            }
        }
        let payload_bytes = u32::try_from(out.len() - start - FRAME_BYTES).expect("payloads are bounded");
        out[start..start + 4].copy_from_slice(&payload_bytes.to_le_bytes());
        let crc = frame_crc(payload_bytes, &out[start + FRAME_BYTES..]);
        out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads a payload whose frame was whole; `None` if it makes no sense.
    pub(crate) fn decode(payload: &[u8]) -> Option<Self> {
        let mut input = Input(payload);
        let record = match input.u8()? {
            KIND_OBJECT => decode_object(&mut input)?,
            KIND_PAGE => Self::Page(decode_page(&mut input)?),
            KIND_REMOVE_BLOCKS => Self::RemoveBlocks(input.key()?, BlockMask(input.u16()?)),
            KIND_REMOVE_OBJECT => Self::RemoveObject(ObjectId(input.array()?)),
            _ => return None,
        };
        input.0.is_empty().then_some(record)
    }
}

/// CRC32C of a frame: its length, then its payload.
pub(crate) fn frame_crc(payload_bytes: u32, payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&payload_bytes.to_le_bytes()), payload)
}

/// Bytes of the framed record of an object.
pub(crate) fn object_record_bytes(object: &ObjectVersion) -> u64 {
    let text = object.bucket.as_str().len() + object.key.as_str().len() + object.version.as_str().len();
    (FRAME_BYTES + 1 + 16 + 8 + 3 * 2 + text) as u64
}

/// Bytes of the framed record of blocks of a page.
pub(crate) fn page_record_bytes(runs: usize, live: BlockMask) -> u64 {
    (FRAME_BYTES + 1 + 20 + 8 + 2 + 2 + 2 + 12 * runs) as u64 + 4 * u64::from(live.count())
}

/// The header of a journal (`magic` of either kind) with its file number.
pub(crate) fn encode_header(magic: [u8; 8], store: StoreId, number: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&magic);
    header[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&(UNIT_BYTES as u32).to_le_bytes());
    header[16..32].copy_from_slice(&store);
    header[32..40].copy_from_slice(&number.to_le_bytes());
    header[40..48].copy_from_slice(&SEGMENT_UNITS.to_le_bytes());
    let crc = crc32c::crc32c(&header[..HEADER_BYTES - 4]);
    header[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Why a file is not one of ours.
pub(crate) fn check_header(
    header: &[u8],
    magic: [u8; 8],
    store: Option<StoreId>,
    number: u64,
) -> Result<StoreId, &'static str> {
    if header.len() < HEADER_BYTES || header[..8] != magic {
        return Err("it is not a file of the nvme tier");
    }
    if header[8..12] != FORMAT_VERSION.to_le_bytes() {
        return Err("it has a format version that this build does not know");
    }
    let crc = crc32c::crc32c(&header[..HEADER_BYTES - 4]);
    if header[HEADER_BYTES - 4..HEADER_BYTES] != crc.to_le_bytes() {
        return Err("its header is damaged");
    }
    let mut found = [0; 16];
    found.copy_from_slice(&header[16..32]);
    if store.is_some_and(|store| store != found) {
        return Err("it belongs to another store");
    }
    if header[..HEADER_BYTES] != encode_header(magic, found, number) {
        return Err("its header does not fit its name or this build");
    }
    Ok(found)
}

fn encode_object(out: &mut Vec<u8>, id: &ObjectId, object: &ObjectVersion) {
    out.push(KIND_OBJECT);
    out.extend_from_slice(&id.0);
    out.extend_from_slice(&object.bytes.to_le_bytes());
    for text in [
        object.bucket.as_str(),
        object.key.as_str(),
        object.version.as_str(),
    ] {
        let bytes = u16::try_from(text.len()).expect("names and versions were checked to be short");
        out.extend_from_slice(&bytes.to_le_bytes());
        out.extend_from_slice(text.as_bytes());
    }
}

fn decode_object(input: &mut Input<'_>) -> Option<Record> {
    let id = ObjectId(input.array()?);
    let bytes = input.u64()?;
    let bucket = BucketName::new(input.text()?).ok()?;
    let key = ObjectKey::new(input.text()?).ok()?;
    let version = Version::new(input.text()?);
    let object = ObjectVersion {
        bucket,
        key,
        version,
        bytes,
        domain: crate::TrustDomain::DEFAULT, // Not kept: the configuration says it, and nobody maps these.
    };
    (ObjectId::of(&object) == id).then(|| Record::Object(id, Arc::new(object)))
}

fn encode_key(out: &mut Vec<u8>, key: &PageKey) {
    out.extend_from_slice(&key.object.0);
    out.extend_from_slice(&key.page.0.to_le_bytes());
}

fn encode_page(out: &mut Vec<u8>, page: &PageRecord) {
    out.push(KIND_PAGE);
    encode_key(out, &page.key);
    out.extend_from_slice(&page.generation.to_le_bytes());
    out.extend_from_slice(&page.stored.0.to_le_bytes());
    out.extend_from_slice(&page.live.0.to_le_bytes());
    out.extend_from_slice(&(page.runs.len() as u16).to_le_bytes());
    for run in &page.runs {
        out.extend_from_slice(&(run.segment() as u32).to_le_bytes());
        out.extend_from_slice(&((run.start % SEGMENT_UNITS) as u32).to_le_bytes());
        out.extend_from_slice(&(run.units as u32).to_le_bytes());
    }
    for block in page.live.blocks() {
        out.extend_from_slice(&page.checksums[block as usize].to_le_bytes());
    }
}

fn decode_page(input: &mut Input<'_>) -> Option<PageRecord> {
    let key = input.key()?;
    let generation = input.u64()?;
    let (stored, live) = (BlockMask(input.u16()?), BlockMask(input.u16()?));
    let count = usize::from(input.u16()?);
    if count == 0 || count > RUNS_MAX || live.is_empty() || !stored.contains(live) {
        return None;
    }
    let mut runs = Vec::with_capacity(count);
    for _ in 0..count {
        let (segment, unit, units) = (
            u64::from(input.u32()?),
            u64::from(input.u32()?),
            u64::from(input.u32()?),
        );
        if unit >= SEGMENT_UNITS {
            return None;
        }
        runs.push(Run {
            start: segment * SEGMENT_UNITS + unit,
            units,
        });
    }
    let mut checksums = [0; BLOCKS_PER_PAGE as usize];
    for block in live.blocks() {
        checksums[block as usize] = input.u32()?;
    }
    Some(PageRecord {
        key,
        generation,
        stored,
        live,
        runs,
        checksums,
    })
}

/// The rest of a payload.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Option<&'a str> {
        let bytes = usize::from(self.u16()?);
        std::str::from_utf8(self.take(bytes)?).ok()
    }

    fn key(&mut self) -> Option<PageKey> {
        Some(PageKey {
            object: ObjectId(self.array()?),
            page: PageIndex(self.u32()?),
        })
    }
}

#[cfg(test)]
mod tests;
