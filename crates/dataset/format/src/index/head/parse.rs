//! Reads the header, the table of sections and the row of a shard; every number is compared before it is
//! used.

use std::ops::Range;

use forebay_core::{Error, Kind, Result, crc32c};

use super::{
    Bounds, FORMAT_VERSION, HEADER_BYTES, MAGIC, META_BYTES_MAX, NO_VERSION, PIECE_BYTES, SECTION_BYTES,
    SECTIONS, SHARD_BYTES, Shard,
};
use crate::index::bytes::Cursor;
use crate::index::piece::damaged;
use crate::shard::{Codec, Format, Layout};

/// Fields of the header.
pub(super) struct Header {
    pub(super) samples: u64,
    pub(super) shards: u32,
    pub(super) pieces: u32,
    pub(super) head_bytes: u64,
    pub(super) file_bytes: u64,
    table_crc: u32,
}

pub(super) fn header(bytes: &[u8]) -> Result<Header> {
    if !bytes.starts_with(MAGIC) {
        let message = "this is not a dataset index; build one: forebay dataset index URL";
        return Err(Error::new(Kind::InvalidInput, message));
    }
    let header = bytes.get(..HEADER_BYTES).ok_or_else(damaged)?;
    let mut cursor = Cursor::new(&header[8..]);
    let version = cursor.u32().ok_or_else(damaged)?;
    if version != FORMAT_VERSION {
        let message = "the dataset index is of another version; build it again with this one: forebay dataset index URL";
        let error = Error::new(Kind::Unsupported, message).with("version", version);
        return Err(error.with("supported", FORMAT_VERSION));
    }
    let crc = Cursor::new(&header[60..]).u32().ok_or_else(damaged)?;
    if crc32c::crc32c(&header[..60]) != crc {
        return Err(damaged());
    }
    let mut read = || {
        let sections = cursor.u32()?;
        let header = Header {
            samples: cursor.u64()?,
            shards: cursor.u32()?,
            pieces: cursor.u32()?,
            head_bytes: cursor.u64()?,
            file_bytes: cursor.u64()?,
            table_crc: {
                cursor.u64()?;
                cursor.u32()?
            },
        };
        let fits = sections as usize == SECTIONS.len() && header.head_bytes <= header.file_bytes;
        fits.then_some(header)
    };
    read().ok_or_else(damaged)
}

/// Returns where the sections before the pieces lie, each with its CRC checked: dataset, shards, pieces'
/// table, names.
pub(super) fn sections(bytes: &[u8], header: &Header) -> Result<[Range<usize>; 4]> {
    let table_bytes = SECTIONS.len() * SECTION_BYTES;
    let table = bytes
        .get(HEADER_BYTES..HEADER_BYTES + table_bytes)
        .ok_or_else(damaged)?;
    if crc32c::crc32c(table) != header.table_crc {
        return Err(damaged());
    }
    let mut offset = (HEADER_BYTES + table_bytes) as u64;
    let mut found = Vec::new();
    for (row, expected) in table.chunks_exact(SECTION_BYTES).zip(SECTIONS) {
        let mut cursor = Cursor::new(row);
        let mut read = || Some((cursor.u32()?, cursor.u32()?, cursor.u64()?, cursor.u64()?));
        let (kind, crc, start, length) = read().ok_or_else(damaged)?;
        let end = start
            .checked_add(length)
            .filter(|_| kind == expected && start == offset);
        let end = end.ok_or_else(damaged)?;
        offset = end;
        if found.len() == 4 {
            // The pieces: each has its own CRC.
            let fits = start == header.head_bytes && end == header.file_bytes;
            return match (fits, found.try_into()) {
                (true, Ok(found)) => Ok(found),
                _ => Err(damaged()),
            };
        }
        let expected_bytes = match kind {
            2 => u64::from(header.shards) * SHARD_BYTES as u64,
            3 => u64::from(header.pieces) * PIECE_BYTES as u64,
            _ => length,
        };
        if length != expected_bytes || (kind == 1 && length > META_BYTES_MAX) {
            return Err(damaged());
        }
        let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
        let range = range.map(|(start, end)| start..end).ok_or_else(damaged)?;
        let section = bytes.get(range.clone()).ok_or_else(damaged)?;
        if crc32c::crc32c(section) != crc {
            return Err(damaged());
        }
        found.push(range);
    }
    Err(damaged())
}

/// The row of a shard.
pub(super) fn bounds(row: &[u8]) -> Option<Bounds> {
    let mut cursor = Cursor::new(row);
    cursor.u64()?; // Bytes as they are stored.
    let (stream_bytes, first_sample) = (cursor.u64()?, cursor.u64()?);
    Some(Bounds {
        stream_bytes,
        first_sample,
    })
}

pub(super) fn shard<'a>(row: &'a [u8], names: &'a [u8]) -> Option<Shard<'a>> {
    let mut cursor = Cursor::new(row);
    let (bytes, stream_bytes) = (cursor.u64()?, cursor.u64()?);
    let (first_sample, samples) = (cursor.u64()?, cursor.u64()?);
    let (first_piece, pieces) = (cursor.u32()?, cursor.u32()?);
    let name = text(names, cursor.u32()?, cursor.u32()?)?;
    let (version_offset, version_bytes) = (cursor.u32()?, cursor.u32()?);
    let version = match version_bytes {
        NO_VERSION => None,
        _ => Some(text(names, version_offset, version_bytes)?),
    };
    let (format, codec) = (Format::of_code(cursor.u8()?)?, Codec::of_code(cursor.u8()?)?);
    let layout = match cursor.u8()? {
        0 => Layout::OneObject,
        1 => Layout::ObjectPerSample,
        _ => return None,
    };
    let has_sha256 = match cursor.u8()? {
        0 => false,
        1 => true,
        _ => return None,
    };
    cursor.u32()?;
    let sha256: &[u8; 32] = cursor.take(32)?.try_into().ok()?;
    Some(Shard {
        name,
        version,
        bytes,
        stream_bytes,
        first_sample,
        samples,
        first_piece,
        pieces,
        format,
        codec,
        layout,
        sha256: has_sha256.then_some(sha256),
    })
}

fn text(names: &[u8], offset: u32, bytes: u32) -> Option<&str> {
    let end = (offset as usize).checked_add(bytes as usize)?;
    std::str::from_utf8(names.get(offset as usize..end)?).ok()
}
