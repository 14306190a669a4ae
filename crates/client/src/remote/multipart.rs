//! Writes in parts to a remote node: a multipart upload of S3, each part with a CRC32C that the node
//! compares.
//!
//! Life cycle: begun with the first part → parts in order → completed, under the caller's condition, or
//! aborted. A client that dies in between leaves an upload that nobody sees; the lake's own rule for
//! unfinished uploads removes it, as for every S3 client.

use std::fmt::Write as _;
use std::sync::Arc;

use forebay_core::{Error, Kind, Result, WriteCondition, crc32c};
use serde::Deserialize;

use super::Remote;
use super::objects::{parse, path_of, version_of};
use super::put::{checksum, with_attributes, with_condition};
use super::request::{Request, failure_in};
use crate::Name;
use crate::client::{PutOptions, PutReceipt};
use crate::stats::add;

/// The smallest part but the last.
pub(crate) const PART_BYTES_MIN: usize = 16 << 20;
/// Parts of one upload, at most.
const PARTS_MAX: u64 = 10_000;
/// Parts double in size whenever so many were sent: 10,000 then hold more than S3's largest object.
const PARTS_PER_SIZE: usize = 1_000;

/// An open upload. Dropping it gives it up.
pub(crate) struct RemoteWrite {
    remote: Arc<Remote>,
    path: String,
    upload: String,
    condition: WriteCondition,
    bytes_hint: u64,
    etags: Vec<String>,
    sent_bytes: u64,
    crc32c: u32,
    process: u32,
    has_ended: bool,
}

impl Remote {
    /// Opens a multipart upload.
    pub(crate) fn begin_write(
        self: &Arc<Self>,
        name: &Name,
        options: &PutOptions,
        bytes: Option<u64>,
    ) -> Result<RemoteWrite> {
        let path = path_of(&name.to_wire());
        let request = Request::new("POST", &path).query(&[("uploads", "")]).once();
        let (_, body) = self.document(&with_attributes(request, options))?;
        let begun: BegunBody = parse(&body)?;
        Ok(RemoteWrite {
            remote: Arc::clone(self),
            path,
            upload: begun.upload_id,
            condition: options.condition.clone(),
            bytes_hint: bytes.unwrap_or(0),
            etags: Vec::new(),
            sent_bytes: 0,
            crc32c: 0,
            process: std::process::id(),
            has_ended: false,
        })
    }
}

impl RemoteWrite {
    /// Returns how large the next part is.
    pub(crate) fn part_bytes(&self) -> usize {
        let grown = PART_BYTES_MIN << (self.etags.len() / PARTS_PER_SIZE).min(8);
        let for_hint = self.bytes_hint.div_ceil(PARTS_MAX - 1);
        grown.max(usize::try_from(for_hint).unwrap_or(usize::MAX))
    }

    /// Adds bytes; each call but the last brings at least one whole part.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let (part, rest) = bytes.split_at(bytes.len().min(self.part_bytes()));
            self.push_part(part)?;
            bytes = rest;
        }
        Ok(())
    }

    fn push_part(&mut self, part: &[u8]) -> Result<()> {
        let crc32c = crc32c::crc32c(part);
        let number = (self.etags.len() + 1).to_string();
        let query = [("partNumber", number.as_str()), ("uploadId", &self.upload)];
        let request = Request::new("PUT", &self.path)
            .query(&query)
            .header("x-amz-checksum-crc32c", checksum(crc32c))
            .body(part)
            .unsigned_body();
        let (head, _) = self.remote.document(&request)?;
        let etag = head.header("etag").ok_or_else(no_version)?;
        self.etags.push(version_of(etag));
        self.sent_bytes += part.len() as u64;
        self.crc32c = crc32c::crc32c_combine(self.crc32c, crc32c, part.len());
        add(&self.remote.counters.requests, 1);
        Ok(())
    }

    /// Makes the object visible if its checksum is what the caller expects.
    pub(crate) fn finish(mut self, crc32c: Option<u32>) -> Result<PutReceipt> {
        if let Some(expected) = crc32c.filter(|expected| *expected != self.crc32c) {
            let message = "the bytes do not match their checksum; nothing was written";
            let error = Error::new(Kind::Checksum, message).with("found", self.crc32c);
            return Err(error.with("expected", expected));
        }
        let body = complete_body(&self.etags);
        let request = Request::new("POST", &self.path)
            .query(&[("uploadId", &self.upload)])
            .body(body.as_bytes())
            .once();
        let (_, answer) = self.remote.document(&with_condition(request, &self.condition))?;
        // The answer may start before the lake has decided, so that a failure comes as a document.
        if let Some(failure) = failure_in(&answer) {
            return Err(failure);
        }
        let completed: CompletedBody = parse(&answer)?;
        self.has_ended = true;
        add(&self.remote.counters.written_bytes, self.sent_bytes);
        Ok(PutReceipt {
            version: version_of(&completed.etag),
            bytes: self.sent_bytes,
        })
    }

    /// Gives it up and waits until nothing is left of it.
    pub(crate) fn abort(mut self) -> Result<()> {
        self.has_ended = true;
        self.give_up()
    }

    fn give_up(&self) -> Result<()> {
        let request = Request::new("DELETE", &self.path).query(&[("uploadId", &self.upload)]);
        match self.remote.document(&request) {
            Err(error) if error.kind() == Kind::NotFound => Ok(()),
            other => other.map(drop),
        }
    }
}

impl Drop for RemoteWrite {
    fn drop(&mut self) {
        // A forked child must not end the upload of its parent.
        if !self.has_ended
            && self.process == std::process::id()
            && let Err(error) = self.give_up()
        {
            tracing::debug!(%error, path = self.path, "an abandoned upload left something behind");
        }
    }
}

fn complete_body(etags: &[String]) -> String {
    let mut body = String::from("<CompleteMultipartUpload>");
    for (number, etag) in (1..).zip(etags) {
        let etag = quick_xml::escape::escape(etag);
        let _ = write!(
            body,
            "<Part><PartNumber>{number}</PartNumber><ETag>\"{etag}\"</ETag></Part>"
        );
    }
    body.push_str("</CompleteMultipartUpload>");
    body
}

fn no_version() -> Error {
    Error::new(Kind::Corrupt, "the node's answer lacks the version")
}

/// `<InitiateMultipartUploadResult>`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct BegunBody {
    upload_id: String,
}

/// `<CompleteMultipartUploadResult>`.
#[derive(Debug, Deserialize)]
struct CompletedBody {
    #[serde(rename = "ETag")]
    etag: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_upload_names_its_parts_in_order() {
        assert_eq!(
            complete_body(&["a".into(), "b&c".into()]),
            "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>\"a\"</ETag></Part>\
             <Part><PartNumber>2</PartNumber><ETag>\"b&amp;c\"</ETag></Part></CompleteMultipartUpload>"
        );
    }
}
