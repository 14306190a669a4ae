//! Large files that nobody reads soon are written past the page cache.
//!
//! The page cache costs such a writer a copy of every byte into pages that have to be found first, and costs
//! others the pages that make room for them. A direct write takes the bytes where they lie; the disk fetches
//! them itself.
//!
//! Memory, place and length of a direct write are multiples of a block. Bytes that lie so are written from
//! where they are, others are gathered in a buffer first, and the end of the file, less than a block, goes
//! the ordinary way. So does everything where the file system refuses.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, openat};
use rustix::io::Errno;

/// Block size that every common disk and file system takes.
const BLOCK_BYTES: usize = 4 << 10;
/// Bytes that are gathered; few enough to stay in the processor's cache.
const GATHER_BYTES: usize = 1 << 20;
/// Less than this is gathered even if it lies well: a write each would be too many.
const STRAIGHT_BYTES_MIN: usize = 64 << 10;

/// See the top of this file. Appends; nothing is durable before a sync.
#[derive(Debug)]
pub(super) struct Direct {
    /// `None` once the file system has refused.
    file: Option<File>,
    gathered: AlignedBuffer,
    /// Bytes in the file; those gathered come behind them.
    written_bytes: u64,
}

impl Direct {
    /// For an empty file that is expected to get so many bytes.
    pub(super) fn open(ordinary: &File, folder: BorrowedFd<'_>, name: &str, bytes: u64) -> Self {
        let flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(folder, name, flags, Mode::empty()).map(File::from).ok();
        if file.is_some() {
            // Writes that do not make the file longer are cheaper. Where this fails, they are not, or say why
            // they fail.
            let _ = fallocate(ordinary, FallocateFlags::empty(), 0, bytes);
        }
        Self {
            file,
            gathered: AlignedBuffer::new(),
            written_bytes: 0,
        }
    }

    /// Returns whether the file system takes such writes, as far as is known.
    pub(super) fn is_open(&self) -> bool {
        self.file.is_some()
    }

    /// Appends.
    pub(super) fn write(&mut self, ordinary: &File, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.gathered.ends_with_a_block() && lies_well(rest) {
                self.write_gathered(ordinary)?;
                let (straight, behind) = rest.split_at(whole_blocks(rest.len()));
                self.put(ordinary, straight)?;
                rest = behind;
            } else {
                rest = self.gathered.take(rest);
                if self.gathered.is_full() {
                    self.write_gathered(ordinary)?;
                }
            }
        }
        Ok(())
    }

    /// Writes what is left. The file ends here, whatever was expected.
    pub(super) fn finish(&mut self, ordinary: &File) -> io::Result<()> {
        self.write_gathered(ordinary)?;
        ordinary.write_all_at(self.gathered.bytes(), self.written_bytes)?;
        self.written_bytes += self.gathered.bytes().len() as u64;
        self.gathered.clear(self.gathered.bytes().len());
        ordinary.set_len(self.written_bytes)
    }

    /// Writes all blocks that are gathered.
    fn write_gathered(&mut self, ordinary: &File) -> io::Result<()> {
        let mut gathered = std::mem::take(&mut self.gathered);
        let blocks = whole_blocks(gathered.bytes().len());
        let result = self.put(ordinary, &gathered.bytes()[..blocks]);
        gathered.clear(blocks);
        self.gathered = gathered;
        result
    }

    fn put(&mut self, ordinary: &File, bytes: &[u8]) -> io::Result<()> {
        let refused = Some(Errno::INVAL.raw_os_error());
        let result = match &self.file {
            Some(file) => file.write_all_at(bytes, self.written_bytes),
            None => Err(io::Error::from(Errno::INVAL)),
        };
        match result {
            Err(error) if error.raw_os_error() == refused => {
                self.file = None;
                ordinary.write_all_at(bytes, self.written_bytes)?;
            }
            other => other?,
        }
        self.written_bytes += bytes.len() as u64;
        Ok(())
    }
}

/// Returns whether bytes can be written from where they lie, but for less than a block at their end.
fn lies_well(bytes: &[u8]) -> bool {
    bytes.len() >= STRAIGHT_BYTES_MIN && bytes.as_ptr().addr().is_multiple_of(BLOCK_BYTES)
}

fn whole_blocks(bytes: usize) -> usize {
    bytes / BLOCK_BYTES * BLOCK_BYTES
}

/// Memory that begins where a block may.
#[derive(Debug, Default)]
struct AlignedBuffer {
    memory: Vec<u8>,
    start: usize,
    filled: usize,
}

impl AlignedBuffer {
    fn new() -> Self {
        let memory = vec![0; GATHER_BYTES + BLOCK_BYTES];
        let start = memory.as_ptr().align_offset(BLOCK_BYTES).min(BLOCK_BYTES);
        Self {
            memory,
            start,
            filled: 0,
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.filled]
    }

    fn is_full(&self) -> bool {
        self.filled == GATHER_BYTES
    }

    fn ends_with_a_block(&self) -> bool {
        self.filled.is_multiple_of(BLOCK_BYTES)
    }

    /// Takes what fits and gives back the rest.
    fn take<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (mine, rest) = bytes.split_at(bytes.len().min(GATHER_BYTES - self.filled));
        let end = self.start + self.filled;
        self.memory[end..end + mine.len()].copy_from_slice(mine);
        self.filled += mine.len();
        rest
    }

    /// Forgets the first bytes, which were written.
    fn clear(&mut self, bytes: usize) {
        let all = self.start + bytes..self.start + self.filled;
        self.memory.copy_within(all, self.start);
        self.filled -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;

    use super::*;

    /// Appends pieces of these lengths, which begin at these places of some memory, and compares the file.
    fn round_trip(pieces: &[(usize, usize)], expected_bytes: u64) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let ordinary = File::create_new(&path).unwrap();
        let there = File::open(folder.path()).unwrap();
        let mut direct = Direct::open(&ordinary, there.as_fd(), "file", expected_bytes);
        let memory: Vec<u8> = (0..6 << 20).map(|place: u32| (place % 251) as u8).collect();
        let first = memory.as_ptr().align_offset(BLOCK_BYTES);
        let mut whole = Vec::new();
        for (start, bytes) in pieces {
            let piece = &memory[first + start..first + start + bytes];
            direct.write(&ordinary, piece).unwrap();
            whole.extend_from_slice(piece);
        }
        direct.finish(&ordinary).unwrap();
        assert!(fs::read(&path).unwrap() == whole, "{pieces:?}");
    }

    #[test]
    fn pieces_of_any_length_at_any_place_come_out_as_they_were() {
        let block = BLOCK_BYTES;
        round_trip(&[], 0);
        round_trip(&[(0, 1)], 1);
        round_trip(&[(0, block), (0, 4 << 20)], (4 << 20) + block as u64);
        round_trip(&[(0, 4 << 20), (4 << 20, 70_001)], 4 << 20);
        round_trip(&[(1, 100), (block, 3 << 20), (7, 2 << 20), (0, 5)], 0);
        round_trip(
            &[(0, STRAIGHT_BYTES_MIN + 1), (block, STRAIGHT_BYTES_MIN), (3, 3)],
            1 << 20,
        );
        round_trip(
            &[(5, GATHER_BYTES), (5, GATHER_BYTES), (0, GATHER_BYTES)],
            3 << 20,
        );
    }

    #[test]
    fn a_file_that_became_shorter_than_expected_ends_where_the_bytes_end() {
        round_trip(&[(0, 100_000)], 5 << 20);
    }

    #[test]
    fn a_file_system_that_refuses_gets_everything_the_ordinary_way() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let ordinary = File::create_new(&path).unwrap();
        let mut direct = Direct {
            // Writing to a file that is open for reading only fails in another way: it must be said.
            file: Some(File::open(&path).unwrap()),
            gathered: AlignedBuffer::new(),
            written_bytes: 0,
        };
        let bytes = vec![7; 2 * GATHER_BYTES + 9];
        assert!(direct.write(&ordinary, &bytes).is_err());
        let mut direct = Direct {
            file: None,
            gathered: AlignedBuffer::new(),
            written_bytes: 0,
        };
        direct.write(&ordinary, &bytes).unwrap();
        direct.finish(&ordinary).unwrap();
        assert!(fs::read(&path).unwrap() == bytes);
    }
}
