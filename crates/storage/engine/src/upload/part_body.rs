//! The body of a part on its way to the lake.
//!
//! The client's checksums are checked at the end of the body, inside the stream: an error there
//! ends the body early, so the lake does not take the part and keeps an older one of the same number.

use forebay_core::{Error, Kind, Result};
use forebay_lake::ByteStream;
use futures::{StreamExt, stream};
use md5::{Digest, Md5};

/// The same bytes, with the error of `check` at their end if it has one.
pub(super) fn then_check(
    body: ByteStream,
    check: impl FnOnce() -> Result<()> + Send + 'static,
) -> ByteStream {
    let state = (body, Some(check));
    stream::unfold(state, |(mut body, check)| async move {
        let check = check?;
        match body.next().await {
            Some(Ok(bytes)) => Some((Ok(bytes), (body, Some(check)))),
            Some(Err(error)) => Some((Err(error), (body, None))),
            None => check().err().map(|error| (Err(error), (body, None))),
        }
    })
    .boxed()
}

/// The same bytes, with an error at the end if their MD5 is another one.
pub(super) fn check_md5(body: ByteStream, expected: [u8; 16]) -> ByteStream {
    let state = (body, Some(Md5::new()));
    stream::unfold(state, move |(mut body, md5)| async move {
        let mut md5 = md5?;
        match body.next().await {
            Some(Ok(bytes)) => {
                md5.update(&bytes);
                Some((Ok(bytes), (body, Some(md5))))
            }
            Some(Err(error)) => Some((Err(error), (body, None))),
            None if md5.finalize().as_slice() == expected => None,
            None => {
                let error = Error::new(
                    Kind::Checksum,
                    "the part does not have the announced MD5; send it again",
                );
                Some((Err(error), (body, None)))
            }
        }
    })
    .boxed()
}
