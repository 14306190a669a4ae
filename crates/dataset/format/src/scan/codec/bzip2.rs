//! bzip2, several streams one after the other. Blocks have checksums, so a cut or changed stream is always
//! seen. Memory: 4 MiB.

use bzip2::{Decompress, Status};
use forebay_core::Result;

use super::damaged;

/// A decoder of one file.
#[derive(Default)]
pub(super) struct Bzip2 {
    /// The stream that is being read; `None` between two of them.
    inner: Option<Decompress>,
    streams: u64,
}

impl Bzip2 {
    pub(super) fn is_whole(&self) -> bool {
        self.inner.is_none() && self.streams > 0
    }

    pub(super) fn push(
        &mut self,
        mut bytes: &[u8],
        out: &mut [u8],
        hand_on: &mut impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        loop {
            if self.inner.is_none() && bytes.is_empty() {
                return Ok(());
            }
            let inner = self.inner.get_or_insert_with(|| Decompress::new(false));
            let (read, written) = (inner.total_in(), inner.total_out());
            let status = inner.decompress(bytes, out).map_err(damaged)?;
            let read = usize::try_from(inner.total_in() - read).expect("not more than was given");
            let written = usize::try_from(inner.total_out() - written).expect("not more than there was room");
            bytes = &bytes[read..];
            hand_on(&out[..written])?;
            match status {
                Status::StreamEnd => {
                    self.inner = None;
                    self.streams += 1;
                }
                Status::Ok if read == 0 && written == 0 && !bytes.is_empty() => {
                    return Err(damaged("the decoder is stuck"));
                }
                Status::Ok if bytes.is_empty() && written < out.len() => return Ok(()),
                Status::Ok => {}
                _ => return Err(damaged("the decoder has no memory")),
            }
        }
    }
}
