//! Spoiling the body of a read at an exact byte.

use bytes::{Bytes, BytesMut};
use forebay_core::{Error, Kind, Result};
use futures::stream::try_unfold;
use futures::{StreamExt, TryStreamExt};

use super::{Fault, Gate};
use crate::ByteStream;

/// The body with the fault in it; faults that are not of bodies change nothing.
pub(super) fn spoil(body: ByteStream, fault: Fault, gate: Gate) -> ByteStream {
    match fault {
        Fault::CorruptBody { at_byte } => corrupt(body, at_byte),
        Fault::ShortBody { after_bytes }
        | Fault::StallBody { after_bytes }
        | Fault::Hook { after_bytes, .. } => {
            let spoiled = Spoiled {
                body,
                held: None,
                before_bytes: after_bytes,
                fault: Some(fault),
                gate,
            };
            try_unfold(spoiled, Spoiled::next).boxed()
        }
        Fault::Error(_) | Fault::ErrorAfter(_) | Fault::Stall => body,
    }
}

fn corrupt(body: ByteStream, at_byte: u64) -> ByteStream {
    let mut offset = 0;
    body.map_ok(move |bytes| {
        let start = offset;
        offset += bytes.len() as u64;
        if !(start..offset).contains(&at_byte) {
            return bytes;
        }
        let mut wrong = BytesMut::from(&*bytes);
        wrong[(at_byte - start) as usize] ^= 0x01;
        wrong.freeze()
    })
    .boxed()
}

struct Spoiled {
    body: ByteStream,
    /// Rest of the piece that was cut at the fault.
    held: Option<Bytes>,
    /// Bytes that still come before the fault.
    before_bytes: u64,
    fault: Option<Fault>,
    gate: Gate,
}

impl Spoiled {
    async fn next(mut self) -> Result<Option<(Bytes, Self)>> {
        if self.before_bytes == 0 {
            match self.fault.take() {
                Some(Fault::ShortBody { .. }) => {
                    return Err(Error::new(
                        Kind::Unavailable,
                        "injected fault: the body broke off",
                    ));
                }
                Some(Fault::Hook { hook, .. }) => hook().await,
                Some(_) => self.gate.wait().await,
                None => {}
            }
        }
        let piece = match self.held.take() {
            Some(piece) => Some(piece),
            None => self.body.try_next().await?,
        };
        let Some(mut piece) = piece else { return Ok(None) };
        if self.fault.is_some() && piece.len() as u64 > self.before_bytes {
            self.held = Some(piece.split_off(self.before_bytes as usize));
        }
        self.before_bytes = self.before_bytes.saturating_sub(piece.len() as u64);
        Ok(Some((piece, self)))
    }
}
