//! Manifests and records are parsed, merged and written down off the runtime: one may have 256 MiB, which
//! takes seconds, and clients wait for its threads.
//!
//! Limit: a few at a time in the process, because each takes a multiple of its size in memory meanwhile.

use forebay_checkpoint::Manifest;
use forebay_checkpoint::manifest::Record;
use forebay_core::{Error, Kind, Result};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// Documents at a time.
const AT_ONCE_MAX: usize = 2;

static PERMITS: Semaphore = Semaphore::const_new(AT_ONCE_MAX);

/// Returns what tensors need of a manifest.
pub(super) async fn manifest(bytes: Vec<u8>) -> Result<Manifest> {
    heavy(move || Manifest::decode_tensors(&bytes)).await
}

/// A record.
pub(super) async fn record(bytes: Vec<u8>) -> Result<Record> {
    heavy(move || Record::decode(&bytes)).await
}

/// Does what may take seconds, with a permit. Dropping this does not end work that has begun; the permit
/// ends with it.
pub(super) async fn heavy<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let stopped = || Error::new(Kind::Internal, "the work on a document was stopped");
    let permit = PERMITS.acquire().await.map_err(|why| stopped().caused_by(why))?;
    let done = spawn_blocking(move || {
        let _permit = permit;
        work()
    });
    done.await.map_err(|why| stopped().caused_by(why))?
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;

    use super::*;

    #[tokio::test]
    async fn the_runtime_goes_on_while_a_document_is_worked_on() {
        let (say, heard) = std::sync::mpsc::channel();
        let working = heavy(move || {
            heard
                .recv()
                .map_err(|_| Error::new(Kind::Internal, "nobody spoke"))
        });
        let (worked, ()) = tokio::join!(working, async {
            tokio::task::yield_now().await;
            say.send(7).unwrap();
        });
        assert_eq!(worked.unwrap(), 7);
    }

    #[tokio::test]
    async fn a_few_documents_are_worked_on_at_a_time() {
        static WORKING: AtomicUsize = AtomicUsize::new(0);
        let one = || {
            heavy(|| {
                let now = WORKING.fetch_add(1, Ordering::SeqCst) + 1;
                for _ in 0..1000 {
                    std::thread::yield_now();
                }
                WORKING.fetch_sub(1, Ordering::SeqCst);
                Ok(now)
            })
        };
        for working in join_all((0..16).map(|_| one())).await {
            assert!(working.unwrap() <= AT_ONCE_MAX);
        }
    }
}
