//! Bytes to write and bytes that were read.

use bytes::{Bytes, BytesMut};
use forebay_core::Result;
use forebay_lake::ByteStream;
use futures::TryStreamExt;

/// So many bytes that differ from place to place and from seed to seed, the same on every run.
#[must_use]
pub fn patterned(bytes: usize, seed: u64) -> Bytes {
    let mut random = fastrand::Rng::with_seed(seed ^ 0x5eed);
    let mut body = vec![0; bytes];
    random.fill(&mut body);
    body.into()
}

/// All bytes of a body, or the error that ended it.
pub async fn read_all(body: ByteStream) -> Result<Bytes> {
    let whole = body.try_fold(BytesMut::new(), |mut whole, bytes| async move {
        whole.extend_from_slice(&bytes);
        Ok(whole)
    });
    Ok(whole.await?.freeze())
}
