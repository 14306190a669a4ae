//! The pieces of a read that has begun: the first is at hand, the rest comes from the reservoir.
//!
//! A type of its own and no chain of boxed streams, because every small GET makes one. A version that turns
//! out to be gone is no longer believed: the next read asks the lake.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use forebay_core::{Error, Kind, Result};
use forebay_reservoir::{Piece, PieceStream};
use futures::{Stream, StreamExt};

use crate::ObjectInfo;
use crate::freshness::Freshness;

/// The pieces of one version of an object, in order. An error ends the stream.
pub struct ObjectPieces {
    first: Option<Piece>,
    /// `None` for an empty object.
    rest: Option<Rest>,
}

struct Rest {
    pieces: PieceStream,
    info: Arc<ObjectInfo>,
    freshness: Arc<Freshness>,
}

impl ObjectPieces {
    /// Those of an empty object.
    pub(crate) fn none() -> Self {
        Self {
            first: None,
            rest: None,
        }
    }

    /// Those that this stream gives.
    pub(crate) fn of(pieces: PieceStream, info: Arc<ObjectInfo>, freshness: &Arc<Freshness>) -> Self {
        Self {
            first: None,
            rest: Some(Rest {
                pieces,
                info,
                freshness: Arc::clone(freshness),
            }),
        }
    }

    /// The same, with the first piece at hand; its error is the caller's to judge.
    pub(crate) async fn begin(
        mut pieces: PieceStream,
        info: &Arc<ObjectInfo>,
        freshness: &Arc<Freshness>,
    ) -> Result<Self> {
        let first = pieces
            .next()
            .await
            .unwrap_or_else(|| Err(Error::new(Kind::Internal, "a read gave no piece")))?;
        Ok(Self {
            first: Some(first),
            ..Self::of(pieces, Arc::clone(info), freshness)
        })
    }
}

impl Stream for ObjectPieces {
    type Item = Result<Piece>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Piece>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        let Some(rest) = &mut self.rest else {
            return Poll::Ready(None);
        };
        let piece = ready!(rest.pieces.as_mut().poll_next(cx));
        if let Some(Err(error)) = &piece
            && matches!(error.kind(), Kind::Changed | Kind::NotFound)
        {
            rest.freshness.outdate(&rest.info);
        }
        Poll::Ready(piece)
    }
}

impl std::fmt::Debug for ObjectPieces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectPieces").finish_non_exhaustive()
    }
}
