//! Finds the members of an archive while its bytes come in, in any pieces.
//!
//! The scanner says from which offset on it wants bytes ([`TarScanner::want`]); the caller pushes some that
//! start there or earlier. Contents are never wanted: after a member's header the wish jumps over its bytes.
//! So a caller may hop from header to header with small reads, or push the whole archive as it streams by,
//! and both find the same. Life cycle: `new`, then `want` and `push` until `want` says `End` or `push` fails,
//! then `finish`, which says whether the archive was whole.
//! Limits: one extension header of [`EXTENSION_BYTES_MAX`] is held at most, and memory grows only with bytes
//! that have come, never by what a header claims.

use forebay_core::{Error, Kind, Result};

use super::header::{self, Block, Header, HeaderKind, ParsedBlock};
use super::pax::Pax;
use super::{BLOCK_BYTES, Member, MemberKind};

/// The longest extension header (PAX records, a GNU long name) that is read.
pub const EXTENSION_BYTES_MAX: u64 = 1 << 20;
/// The longest name of a member. A global header names every member that follows it, so a name costs memory
/// and time for each of them.
const NAME_BYTES_MAX: usize = 16 << 10;
/// The longest run of zeros at the end of an archive. Writers fill up records of some kilobytes; more is a hole
/// where members were.
const TRAILER_BYTES_MAX: u64 = 1 << 20;

/// Next need of a scanner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// Bytes from this offset on, at least one.
    From(u64),
    /// Nothing: the archive has ended.
    End,
}

/// The state between two pushes.
#[derive(Debug)]
pub struct TarScanner {
    archive_bytes: u64,
    /// Start of the header or member that is read now.
    at: u64,
    /// The part of it that has come.
    carry: Vec<u8>,
    state: ScannerState,
    global: Pax,
    /// Extension headers that apply to the next member.
    ahead: PendingExtensions,
}

#[derive(Debug, Default)]
struct PendingExtensions {
    header_offset: Option<u64>,
    pax: Pax,
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

/// Part of the archive that is read now.
#[derive(Debug)]
enum ScannerState {
    Header,
    Extension {
        kind: HeaderKind,
        bytes: usize,
    },
    SparseMap {
        header: Header,
    },
    /// The end mark has come, at this offset: zeros up to the end of the archive.
    Trailer {
        begin: u64,
    },
    /// All of the archive has come; `true` if with its end mark.
    End {
        is_marked: bool,
    },
}

impl TarScanner {
    /// For an archive of this size.
    #[must_use]
    pub fn new(archive_bytes: u64) -> Self {
        let is_empty = archive_bytes == 0;
        Self {
            archive_bytes,
            at: 0,
            carry: Vec::new(),
            state: if is_empty {
                ScannerState::End { is_marked: false }
            } else {
                ScannerState::Header
            },
            global: Pax::default(),
            ahead: PendingExtensions::default(),
        }
    }

    /// Returns what is needed next.
    #[must_use]
    pub fn want(&self) -> Want {
        match self.state {
            ScannerState::End { .. } => Want::End,
            _ => Want::From(self.at + self.carry.len() as u64),
        }
    }

    /// Takes bytes of the archive that start at `start`, which is at or before what is wanted, and calls
    /// `each` for every member whose header they complete. What is not wanted of them is passed over.
    pub fn push(
        &mut self,
        start: u64,
        bytes: &[u8],
        mut each: impl FnMut(Member) -> Result<()>,
    ) -> Result<()> {
        let in_archive = self.archive_bytes.saturating_sub(start).min(bytes.len() as u64);
        let bytes = &bytes[..usize::try_from(in_archive).expect("not more than was pushed")];
        let end = start.saturating_add(in_archive);
        while let Want::From(wanted) = self.want() {
            let skipped = wanted.checked_sub(start).ok_or_else(gap)?;
            let available = usize::try_from(skipped)
                .ok()
                .and_then(|skipped| bytes.get(skipped..));
            let available = available.unwrap_or_default();
            if let ScannerState::Trailer { begin } = self.state {
                return self.take_trailer(begin, available);
            }
            let missing = self.needed_bytes() - self.carry.len();
            if available.len() >= missing {
                self.take(&available[..missing], &mut each)?;
                continue;
            }
            if end >= self.archive_bytes {
                return Err(self.stops_in_a_header());
            }
            self.carry.extend_from_slice(available);
            return Ok(());
        }
        Ok(())
    }

    /// Says where the archive has ended, if it was not known before (`u64::MAX` was given to `new`). All its
    /// bytes were pushed.
    pub(crate) fn end_at(&mut self, archive_bytes: u64) -> Result<()> {
        self.archive_bytes = archive_bytes;
        match self.state {
            ScannerState::End { .. } => Ok(()),
            ScannerState::Trailer { begin } => self.take_trailer(begin, &[]),
            ScannerState::Header if self.carry.is_empty() && self.at >= archive_bytes => self.end(),
            _ => Err(self.stops_in_a_header()),
        }
    }

    /// Returns an error if the archive was not whole: `want` has said `End`.
    ///
    /// An archive without its end mark may have lost any number of members, and so may one without a byte.
    pub fn finish(&self) -> Result<()> {
        let message = match self.state {
            ScannerState::End { is_marked: true } => return Ok(()),
            _ if self.archive_bytes == 0 => "the archive has no bytes at all; it was not uploaded whole",
            _ => "the archive has no end mark (a block of zeros); it is damaged or was not uploaded whole",
        };
        Err(Error::new(Kind::Corrupt, message).with("offset", self.archive_bytes))
    }

    /// Looks at bytes behind the end mark: they must be zeros, and few.
    fn take_trailer(&mut self, begin: u64, bytes: &[u8]) -> Result<()> {
        if let Some(index) = bytes.iter().position(|byte| *byte != 0) {
            let message = "the archive goes on behind its end mark: it has a hole, or is two archives in one; \
                           pack it again";
            let error = Error::new(Kind::Corrupt, message).with("end_mark", begin);
            return Err(error.with("offset", self.at + index as u64));
        }
        self.at += bytes.len() as u64;
        if self.at - begin > TRAILER_BYTES_MAX {
            let message =
                "the archive ends in more zeros than any writer pads with: it has a hole at its end";
            return Err(Error::new(Kind::Corrupt, message).with("offset", begin));
        }
        if self.at >= self.archive_bytes {
            self.state = ScannerState::End { is_marked: true };
        }
        Ok(())
    }

    fn needed_bytes(&self) -> usize {
        match &self.state {
            ScannerState::Extension { bytes, .. } => *bytes,
            _ => BLOCK_BYTES as usize,
        }
    }

    /// The thing that is read now is complete with these last bytes.
    fn take(&mut self, last: &[u8], each: &mut impl FnMut(Member) -> Result<()>) -> Result<()> {
        let mut whole = std::mem::take(&mut self.carry);
        let thing = if whole.is_empty() {
            last
        } else {
            whole.extend_from_slice(last);
            &whole
        };
        match std::mem::replace(&mut self.state, ScannerState::Header) {
            ScannerState::Header => self.take_header(as_block(thing)?, each),
            ScannerState::Extension { kind, .. } => self.take_extension(kind, thing),
            ScannerState::SparseMap { header } => {
                let goes_on = header::sparse_map_goes_on(as_block(thing)?);
                self.at += BLOCK_BYTES;
                if goes_on {
                    self.state = ScannerState::SparseMap { header };
                    return Ok(());
                }
                self.take_member(header, each)
            }
            ScannerState::Trailer { .. } | ScannerState::End { .. } => Ok(()),
        }
    }

    fn take_header(&mut self, block: &Block, each: &mut impl FnMut(Member) -> Result<()>) -> Result<()> {
        let header = match header::parse(block, self.at)? {
            ParsedBlock::Header(header) => header,
            ParsedBlock::Zero => return self.begin_trailer(),
        };
        self.ahead.header_offset.get_or_insert(self.at);
        self.at += BLOCK_BYTES;
        match header.kind {
            HeaderKind::Pax | HeaderKind::PaxGlobal | HeaderKind::LongName | HeaderKind::LongLink => {
                self.begin_extension(&header)
            }
            HeaderKind::Sparse { more: true } => {
                self.state = ScannerState::SparseMap { header };
                Ok(())
            }
            _ => self.take_member(header, each),
        }
    }

    fn begin_extension(&mut self, header: &Header) -> Result<()> {
        if header.size > EXTENSION_BYTES_MAX {
            let message = "an extension header of the archive is longer than can be read; pack it again with shorter names and no extended attributes";
            let error = Error::new(Kind::Unsupported, message).with("offset", self.at);
            return Err(error
                .with("bytes", header.size)
                .with("bytes_max", EXTENSION_BYTES_MAX));
        }
        if header.size > self.archive_bytes.saturating_sub(self.at) {
            return Err(self.stops_in_a_header());
        }
        let bytes = usize::try_from(header.size).expect("an extension header is not longer than 1 MiB");
        self.state = ScannerState::Extension {
            kind: header.kind,
            bytes,
        };
        Ok(())
    }

    fn take_extension(&mut self, kind: HeaderKind, content: &[u8]) -> Result<()> {
        // GNU ends names with a NUL.
        let text = || {
            let end = content
                .iter()
                .position(|byte| *byte == 0)
                .unwrap_or(content.len());
            Some(content[..end].to_vec())
        };
        match kind {
            HeaderKind::Pax => self.ahead.pax.read(content),
            HeaderKind::PaxGlobal => self.global.read(content),
            HeaderKind::LongName => {
                self.ahead.name = text();
                Ok(())
            }
            _ => {
                self.ahead.link = text();
                Ok(())
            }
        }
        .map_err(|error| error.with("offset", self.at))?;
        if kind == HeaderKind::PaxGlobal {
            self.ahead.header_offset = None;
        }
        self.at = self.at.saturating_add(padded(content.len() as u64));
        self.settle()
    }

    /// All headers of a member have come; its bytes start at `self.at`.
    fn take_member(&mut self, header: Header, each: &mut impl FnMut(Member) -> Result<()>) -> Result<()> {
        let ahead = std::mem::take(&mut self.ahead);
        let pax = ahead.pax.over(&self.global);
        let name = pax.sparse_path.or(pax.path).or(ahead.name).unwrap_or(header.name);
        let target = pax.link.or(ahead.link).unwrap_or(header.link);
        let longest = name.len().max(target.len());
        if longest > NAME_BYTES_MAX {
            let message =
                "a name in the archive is longer than can be read; pack it again with shorter names";
            let error = Error::new(Kind::Unsupported, message).with("offset", self.at);
            return Err(error.with("bytes", longest).with("bytes_max", NAME_BYTES_MAX));
        }
        let kind = match header.kind {
            HeaderKind::File if pax.sparse => MemberKind::Sparse,
            HeaderKind::Sparse { .. } => MemberKind::Sparse,
            HeaderKind::File => MemberKind::File,
            HeaderKind::HardLink => MemberKind::HardLink { target },
            HeaderKind::Folder => MemberKind::Folder,
            _ => MemberKind::Other,
        };
        // Links, folders and devices have no bytes, whatever their size field says.
        let has_bytes = !matches!(
            header.kind,
            HeaderKind::HardLink | HeaderKind::Folder | HeaderKind::Bare
        );
        let bytes = if has_bytes {
            pax.size.unwrap_or(header.size)
        } else {
            0
        };
        let left_bytes = self.archive_bytes.saturating_sub(self.at);
        if bytes > left_bytes {
            let message =
                "the archive stops in the middle of a member; it is damaged or was not uploaded whole";
            let error = Error::new(Kind::Corrupt, message).with("member", String::from_utf8_lossy(&name));
            let error = error.with("member_bytes", bytes).with("left_bytes", left_bytes);
            return Err(error.with("offset", self.at));
        }
        let member = Member {
            name,
            kind,
            header_offset: ahead.header_offset.unwrap_or(self.at),
            offset: self.at,
            bytes,
        };
        self.at = self.at.saturating_add(padded(bytes));
        each(member)?;
        self.settle()
    }

    /// The next header is due. Nothing there is fine, as long as nothing was announced.
    fn settle(&mut self) -> Result<()> {
        if self.at >= self.archive_bytes {
            return self.end();
        }
        Ok(())
    }

    fn begin_trailer(&mut self) -> Result<()> {
        if self.ahead.header_offset.is_some() {
            return Err(self.stops_in_a_header());
        }
        let begin = self.at;
        self.at += BLOCK_BYTES;
        self.state = ScannerState::Trailer { begin };
        self.take_trailer(begin, &[])
    }

    fn end(&mut self) -> Result<()> {
        if self.ahead.header_offset.is_some() {
            return Err(self.stops_in_a_header());
        }
        // Every writer fills up the last block too, so more is missing than zeros.
        if self.at > self.archive_bytes {
            let message =
                "the archive stops in the last block of a member; it is damaged or was not uploaded whole";
            return Err(Error::new(Kind::Corrupt, message).with("offset", self.archive_bytes));
        }
        self.state = ScannerState::End { is_marked: false };
        Ok(())
    }

    fn stops_in_a_header(&self) -> Error {
        let (kind, message) = if self.at == 0 {
            (Kind::InvalidInput, "this is not a tar archive: it is too short")
        } else {
            let message =
                "the archive stops in the middle of a header; it is damaged or was not uploaded whole";
            (Kind::Corrupt, message)
        };
        Error::new(kind, message).with("offset", self.archive_bytes)
    }
}

fn as_block(bytes: &[u8]) -> Result<&Block> {
    bytes
        .try_into()
        .map_err(|_| Error::new(Kind::Internal, "a tar block has a wrong size"))
}

fn gap() -> Error {
    Error::new(
        Kind::Internal,
        "bytes of an archive were pushed with a gap before them",
    )
}

/// Contents end at a multiple of the block size. Numbers in headers have 63 bits at most, so this cannot
/// overflow.
fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK_BYTES)
}

#[cfg(test)]
mod tests;
