//! Writes a body of unknown size: small ones as one PUT, large ones as parallel parts.
//!
//! Up to 16 MiB are held in memory and written by `finish` in one request. A longer body becomes a multipart
//! upload whose parts are sent while more bytes come in, at most four at once, so a writer holds at most five
//! parts. Part sizes grow with the body so that 10,000 parts are enough for the largest object. Dropping the
//! writer stops its parts and gives the upload up.

use std::mem;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_core::{Error, Kind, ObjectKey, Result};
use md5::{Digest, Md5};
use tokio::task::JoinSet;

use super::S3Lake;
use crate::backend::chunks::{Chunks, failed_already, late_md5};
use crate::etag::{PART_NUMBER_MAX, check_md5};
use crate::{LakeWriter, PartNumber, PartReceipt, PutOptions, PutReceipt, UploadId};

/// The largest body that is written in one request, and the smallest part.
const PART_BYTES_MIN: u64 = 16 << 20;
const PARTS_IN_FLIGHT_MAX: usize = 4;
/// Parts double in size whenever so many were sent: 10,000 parts then hold more than S3's largest object.
const PARTS_PER_SIZE: u64 = 1_000;

/// A body being written.
pub(super) struct S3Writer {
    lake: S3Lake,
    key: ObjectKey,
    options: PutOptions,
    bytes_hint: u64,
    chunks: Chunks,
    /// Only when there is an MD5 to compare with.
    md5: Option<Md5>,
    upload: Option<Upload>,
    has_failed: bool,
}

struct Upload {
    id: UploadId,
    next_number: PartNumber,
    in_flight: JoinSet<Result<PartReceipt>>,
    done: Vec<PartReceipt>,
}

impl S3Writer {
    pub(super) fn new(lake: S3Lake, key: ObjectKey, options: PutOptions, bytes_hint: Option<u64>) -> Self {
        let md5 = options.md5.map(|_| Md5::new());
        let bytes_hint = bytes_hint.unwrap_or(0);
        Self {
            lake,
            key,
            options,
            bytes_hint,
            chunks: Chunks::default(),
            md5,
            upload: None,
            has_failed: false,
        }
    }

    async fn add(&mut self, bytes: Bytes) -> Result<()> {
        if let Some(md5) = &mut self.md5 {
            md5.update(&bytes);
        }
        self.chunks.push(bytes);
        while self.chunks.bytes() > self.part_bytes() {
            let part_bytes = self.part_bytes();
            if self.upload.is_none() {
                let id = self
                    .lake
                    .send_start_upload(&self.key, &self.options.attributes)
                    .await?;
                self.upload = Some(Upload {
                    id,
                    next_number: 1,
                    in_flight: JoinSet::new(),
                    done: Vec::new(),
                });
            }
            let part = self.chunks.take(part_bytes);
            self.send(part).await?;
        }
        Ok(())
    }

    fn part_bytes(&self) -> u64 {
        let sent = self
            .upload
            .as_ref()
            .map_or(0, |upload| u64::from(upload.next_number) - 1);
        part_bytes(self.bytes_hint, sent)
    }

    /// Starts a part; waits while too many are on their way.
    async fn send(&mut self, part: Vec<Bytes>) -> Result<()> {
        let Some(upload) = &mut self.upload else {
            return Err(Error::new(Kind::Internal, "no upload is open"));
        };
        while upload.in_flight.len() >= PARTS_IN_FLIGHT_MAX {
            upload.join_one().await?;
        }
        let number = upload.next_number;
        if number > PART_NUMBER_MAX {
            return Err(Error::new(
                Kind::InvalidInput,
                "the body is larger than an S3 object can be",
            ));
        }
        upload.next_number += 1;
        let (lake, key, id) = (self.lake.clone(), self.key.clone(), upload.id.clone());
        upload
            .in_flight
            .spawn(async move { lake.upload_chunks(&key, &id, number, part).await });
        Ok(())
    }

    async fn finish_upload(&mut self, options: &PutOptions) -> Result<PutReceipt> {
        if !self.chunks.is_empty() {
            let rest = self.chunks.take_all();
            self.send(rest).await?;
        }
        let md5 = mem::take(&mut self.md5);
        let Some(upload) = &mut self.upload else {
            return Err(Error::new(Kind::Internal, "no upload is open"));
        };
        while !upload.in_flight.is_empty() {
            upload.join_one().await?;
        }
        match (options.md5, md5) {
            (Some(announced), Some(md5)) => check_md5(Some(announced), md5.finalize().into())?,
            (Some(_), None) => return Err(late_md5()),
            (None, _) => {}
        }
        upload.done.sort_by_key(|part| part.number);
        let receipt = self
            .lake
            .send_complete(&self.key, &upload.id, &upload.done, &options.mode)
            .await?;
        self.upload = None;
        Ok(receipt)
    }
}

impl Upload {
    async fn join_one(&mut self) -> Result<()> {
        match self.in_flight.join_next().await {
            Some(Ok(part)) => self.done.push(part?),
            Some(Err(why)) => {
                return Err(Error::new(Kind::Internal, "a part's task ended early").caused_by(why));
            }
            None => {}
        }
        Ok(())
    }
}

impl Drop for S3Writer {
    fn drop(&mut self) {
        if let Some(upload) = self.upload.take() {
            self.lake.abort_later(self.key.clone(), upload.id);
        }
    }
}

#[async_trait]
impl LakeWriter for S3Writer {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        if self.has_failed {
            return Err(failed_already(&self.key));
        }
        // A write that is cancelled here or fails has lost bytes, so nothing may follow it.
        self.has_failed = true;
        self.add(bytes)
            .await
            .map_err(|error| self.lake.at(error, &self.key))?;
        self.has_failed = false;
        Ok(())
    }

    fn takes_attributes_at_finish(&self) -> bool {
        self.upload.is_none()
    }

    async fn finish(mut self: Box<Self>, options: PutOptions) -> Result<PutReceipt> {
        if self.has_failed {
            return Err(failed_already(&self.key));
        }
        let receipt = if self.upload.is_some() {
            self.finish_upload(&options).await
        } else {
            let chunks = self.chunks.take_all();
            self.lake.put_chunks(&self.key, chunks, &options).await
        };
        receipt.map_err(|error| self.lake.at(error, &self.key))
    }

    async fn abort(mut self: Box<Self>) -> Result<()> {
        let Some(mut upload) = self.upload.take() else {
            return Ok(());
        };
        upload.in_flight.shutdown().await;
        self.lake
            .send_abort(&self.key, &upload.id)
            .await
            .map_err(|error| self.lake.at(error, &self.key))
    }
}

/// The size of the next part after `sent` parts of a body that is expected to have `bytes_hint` bytes.
fn part_bytes(bytes_hint: u64, sent: u64) -> u64 {
    let for_hint = bytes_hint
        .div_ceil(u64::from(PART_NUMBER_MAX) - 1)
        .next_multiple_of(1 << 20);
    let grown = PART_BYTES_MIN << (sent / PARTS_PER_SIZE).min(8);
    // With a good hint all parts have the same size, which some servers insist on.
    if bytes_hint > 0 && sent < for_hint_parts(bytes_hint, for_hint) {
        for_hint.max(PART_BYTES_MIN)
    } else {
        grown.max(for_hint)
    }
}

fn for_hint_parts(bytes_hint: u64, part_bytes: u64) -> u64 {
    bytes_hint.div_ceil(part_bytes.max(PART_BYTES_MIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_parts_hold_the_largest_object() {
        let total: u64 = (0..u64::from(PART_NUMBER_MAX))
            .map(|sent| part_bytes(0, sent))
            .sum();
        assert!(total > 5 << 40, "{total}");
        for hint in [1, 16 << 20, 1 << 40, 5 << 40] {
            let total: u64 = (0..u64::from(PART_NUMBER_MAX))
                .map(|sent| part_bytes(hint, sent))
                .sum();
            assert!(total > hint, "{hint}: {total}");
        }
    }

    #[test]
    fn parts_of_a_known_size_are_equal() {
        let hint = 1 << 40;
        let sizes: Vec<u64> = (0..9_000).map(|sent| part_bytes(hint, sent)).collect();
        assert!(sizes.iter().all(|size| *size == sizes[0]), "{:?}", sizes.last());
    }

    #[test]
    fn a_wrong_hint_does_not_run_out_of_parts() {
        let total: u64 = (0..u64::from(PART_NUMBER_MAX))
            .map(|sent| part_bytes(1, sent))
            .sum();
        assert!(total > 5 << 40, "{total}");
    }
}
