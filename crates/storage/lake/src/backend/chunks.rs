//! The bytes of a body that wait to be sent: they come in chunks of any size and leave in parts of a wanted
//! size, uncopied.

use std::mem;

use bytes::Bytes;
use forebay_core::{Error, Kind, ObjectKey};

/// Chunks in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    waiting: Vec<Bytes>,
    bytes: u64,
}

impl Chunks {
    /// Returns how many bytes wait.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn push(&mut self, chunk: Bytes) {
        self.bytes += chunk.len() as u64;
        self.waiting.push(chunk);
    }

    /// The first `bytes` of what waits, or all of it if it is less.
    pub(super) fn take(&mut self, bytes: u64) -> Vec<Bytes> {
        let mut part = Vec::new();
        let mut missing = bytes;
        let mut rest = mem::take(&mut self.waiting).into_iter();
        for mut chunk in rest.by_ref() {
            if chunk.len() as u64 <= missing {
                missing -= chunk.len() as u64;
                part.push(chunk);
                continue;
            }
            let cut = usize::try_from(missing).expect("less than the chunk's length");
            let head = chunk.split_to(cut);
            if !head.is_empty() {
                part.push(head);
            }
            self.waiting.push(chunk);
            break;
        }
        self.waiting.extend(rest);
        self.bytes = self.bytes.saturating_sub(bytes);
        part
    }

    /// All of it.
    pub(super) fn take_all(&mut self) -> Vec<Bytes> {
        mem::take(self).waiting
    }
}

/// Returns what a writer answers after a write that failed or was cancelled: bytes were lost, so nothing may
/// follow.
pub(super) fn failed_already(key: &ObjectKey) -> Error {
    Error::new(Kind::InvalidInput, "this write has failed already; start again").with("key", key)
}

/// Returns what a writer answers when a long body's MD5 comes too late to be compared.
pub(super) fn late_md5() -> Error {
    Error::new(
        Kind::InvalidInput,
        "the MD5 of a long body must be announced before its first byte",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(parts: &[&'static str]) -> Chunks {
        let mut chunks = Chunks::default();
        for part in parts {
            chunks.push(Bytes::from_static(part.as_bytes()));
        }
        chunks
    }

    fn text(part: &[Bytes]) -> String {
        part.iter().map(|chunk| String::from_utf8_lossy(chunk)).collect()
    }

    #[test]
    fn parts_have_the_wanted_size_however_chunks_lie() {
        for cut in [&["abcdefgh"][..], &["a", "bcd", "efgh"], &["abc", "defgh"]] {
            let mut chunks = chunks(cut);
            assert_eq!(chunks.bytes(), 8);
            assert_eq!(text(&chunks.take(3)), "abc");
            assert_eq!(text(&chunks.take(3)), "def");
            assert_eq!(chunks.bytes(), 2);
            assert_eq!(text(&chunks.take_all()), "gh");
            assert!(chunks.is_empty());
        }
    }

    #[test]
    fn what_is_not_there_is_not_taken() {
        let mut chunks = chunks(&["ab"]);
        assert_eq!(text(&chunks.take(5)), "ab");
        assert_eq!(chunks.bytes(), 0);
    }
}
