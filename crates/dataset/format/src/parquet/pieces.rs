//! Pieces of a column chunk as the reader of the `parquet` crate takes them, and what their pages may unpack
//! to.
//!
//! The reader unpacks a page before anybody can ask how large it is, so headers are looked at here first.
//! Most codecs keep to the size in the header; gzip and the frames of LZ4 do not, so a page that could unpack
//! to too much is unpacked once only to be counted, by the decoder that the reader takes.

use std::io::{self, Read};
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Buf, Bytes};
use flate2::read::MultiGzDecoder;
use lz4_flex::frame::FrameDecoder;
use parquet::basic::Compression;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{ChunkReader, Length};

use super::file::part;
use super::limits::{SLAB_BYTES_MAX, TOO_LARGE};
use super::thrift;

/// The most that a byte of deflate unpacks to; of LZ4 it is less.
const DEFLATE_RATIO_MAX: usize = 1032;

/// Pieces of a file that are at hand, each with its offset.
pub struct Pieces(pub Vec<(u64, Bytes)>);

impl Pieces {
    /// Returns how many bytes the page unpacks to that starts at an offset. Errors: if it says or has too
    /// many.
    pub(super) fn unpacked_bytes(&self, start: u64, compression: Compression) -> ParquetResult<usize> {
        let bytes = self.from(start)?;
        let sizes = thrift::page_sizes(&bytes).ok_or_else(thrift::no_header)?;
        let page = bytes.get(sizes.header_bytes..).unwrap_or_default();
        let page = page.get(..sizes.stored_bytes).unwrap_or(page);
        let stored = page.get(sizes.levels_bytes..).unwrap_or_default();
        if sizes.unpacked_bytes > SLAB_BYTES_MAX || unpacks_to_more(stored, compression, SLAB_BYTES_MAX) {
            return Err(ParquetError::General(TOO_LARGE.into()));
        }
        Ok(sizes.unpacked_bytes)
    }

    /// Returns what is at hand from an offset on.
    fn from(&self, start: u64) -> ParquetResult<Bytes> {
        let end = |(first, bytes): &(u64, Bytes)| first + bytes.len() as u64;
        let piece = self.0.iter().find(|piece| piece.0 <= start && start < end(piece));
        let piece = piece.ok_or_else(|| ParquetError::EOF("bytes that were not read".into()))?;
        let length = usize::try_from(end(piece) - start).unwrap_or_default();
        part(&piece.1, piece.0, start, length)
    }
}

impl Length for Pieces {
    fn len(&self) -> u64 {
        let end = |(start, bytes): &(u64, Bytes)| start + bytes.len() as u64;
        self.0.iter().map(end).max().unwrap_or_default()
    }
}

impl ChunkReader for Pieces {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        self.from(start).map(Buf::reader)
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let found = self
            .0
            .iter()
            .find_map(|(first, bytes)| part(bytes, *first, start, length).ok());
        found.ok_or_else(|| ParquetError::EOF("bytes that were not read".into()))
    }
}

/// Returns whether a page unpacks to more than is taken, for those codecs whose reader does not keep to what
/// the header says.
fn unpacks_to_more(page: &[u8], compression: Compression, bytes_max: usize) -> bool {
    if page.len() <= bytes_max / DEFLATE_RATIO_MAX {
        return false;
    }
    let reader: Box<dyn Read + '_> = match compression {
        Compression::GZIP(_) => Box::new(MultiGzDecoder::new(page)),
        Compression::LZ4 => Box::new(FrameDecoder::new(page)),
        _ => return false,
    };
    // What is wrong with it before that, the reader of pages finds out as early.
    let counted = io::copy(&mut reader.take(bytes_max as u64 + 1), &mut io::sink());
    counted.is_ok_and(|bytes| bytes > bytes_max as u64)
}

/// A whole column chunk, of which pages are taken until they are too many.
pub(super) struct Chunk {
    pieces: Pieces,
    compression: Compression,
    unpacked_bytes: AtomicUsize,
}

impl Chunk {
    pub(super) fn new(pieces: Pieces, compression: Compression) -> Self {
        Self {
            pieces,
            compression,
            unpacked_bytes: AtomicUsize::new(0),
        }
    }
}

impl Length for Chunk {
    fn len(&self) -> u64 {
        self.pieces.len()
    }
}

impl ChunkReader for Chunk {
    type T = bytes::buf::Reader<Bytes>;

    /// Returns where a page starts, its reader starts to read.
    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        let page_bytes = self.pieces.unpacked_bytes(start, self.compression)?;
        let before = self.unpacked_bytes.fetch_add(page_bytes, Ordering::Relaxed);
        if before.saturating_add(page_bytes) > SLAB_BYTES_MAX {
            return Err(ParquetError::General(TOO_LARGE.into()));
        }
        self.pieces.get_read(start)
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        self.pieces.get_bytes(start, length)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::write::GzEncoder;
    use lz4_flex::frame::FrameEncoder;

    use super::*;

    /// The header of a page that says so many bytes, unpacked, and stores three.
    fn header(unpacked: [u8; 5]) -> Bytes {
        let mut header = vec![0x15, 0, 0x15];
        header.extend(unpacked);
        header.extend([0x15, 6, 0, b'x', b'y', b'z']);
        header.into()
    }

    #[test]
    fn a_page_that_says_gigabytes_is_refused_before_memory_is_taken() {
        let pieces = Pieces(vec![(4, header([0xfe, 0xff, 0xff, 0xff, 0x0f]))]);
        let error = pieces.unpacked_bytes(4, Compression::SNAPPY).unwrap_err();
        assert!(error.to_string().contains(TOO_LARGE), "{error}");
        let pieces = Pieces(vec![(4, header([0x86, 0x80, 0x80, 0x80, 0]))]);
        assert_eq!(pieces.unpacked_bytes(4, Compression::SNAPPY).unwrap(), 3);
        assert!(pieces.unpacked_bytes(15, Compression::SNAPPY).is_err());
    }

    #[test]
    fn pages_that_are_too_much_together_are_refused() {
        // Two thirds of what is taken.
        let half = header([0xaa, 0xd5, 0xaa, 0xd5, 0x02]);
        let chunk = Chunk::new(Pieces(vec![(0, half.clone()), (100, half)]), Compression::SNAPPY);
        chunk.get_read(0).unwrap();
        assert!(chunk.get_read(100).is_err());
    }

    #[test]
    fn what_unpacks_to_more_than_its_header_says_is_counted() {
        let plain = vec![0; 3 << 20];
        let mut gzip = GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&plain).unwrap();
        let gzip = gzip.finish().unwrap();
        let mut lz4 = FrameEncoder::new(Vec::new());
        lz4.write_all(&plain).unwrap();
        let lz4 = lz4.finish().unwrap();
        let level = parquet::basic::GzipLevel::default();
        for (page, compression) in [(&gzip, Compression::GZIP(level)), (&lz4, Compression::LZ4)] {
            assert!(unpacks_to_more(page, compression, 2 << 20), "{compression:?}");
            assert!(!unpacks_to_more(page, compression, 3 << 20), "{compression:?}");
            // The others keep to their headers.
            assert!(!unpacks_to_more(page, Compression::SNAPPY, 2 << 20));
        }
    }
}
