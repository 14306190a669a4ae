//! Brotli (RFC 7932), one stream with a window of at most 16 MiB; the larger windows that are no part of the
//! standard are refused. It has no checksum: what is changed in the middle is seen by the format inside, or
//! by the hashes of an `index.json`.

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use forebay_core::Result;

use super::damaged;

type DecoderState = BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>;

/// A decoder of one stream.
pub(super) struct Brotli {
    state: Box<DecoderState>,
    is_whole: bool,
}

impl Brotli {
    pub(super) fn new() -> Self {
        let alloc = StandardAlloc::default;
        Self {
            state: Box::new(BrotliState::new_strict(alloc(), alloc(), alloc())),
            is_whole: false,
        }
    }

    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    pub(super) fn push(
        &mut self,
        bytes: &[u8],
        out: &mut [u8],
        hand_on: &mut impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let (mut left, mut at, mut total) = (bytes.len(), 0, 0);
        while !self.is_whole {
            let (mut room, mut written) = (out.len(), 0);
            let result = BrotliDecompressStream(
                &mut left,
                &mut at,
                bytes,
                &mut room,
                &mut written,
                out,
                &mut total,
                &mut self.state,
            );
            hand_on(&out[..written])?;
            match result {
                BrotliResult::ResultSuccess => self.is_whole = true,
                BrotliResult::NeedsMoreInput => return Ok(()),
                BrotliResult::NeedsMoreOutput => {}
                BrotliResult::ResultFailure => return Err(damaged("this is not Brotli")),
            }
        }
        if left == 0 {
            return Ok(());
        }
        Err(damaged("there are bytes behind the end of the stream"))
    }
}
