//! Writes to a remote node: one signed `PUT` with a CRC32C that the node compares before the object
//! becomes visible; what is larger than S3 takes at once goes in parts (`multipart.rs`).

use std::sync::Arc;

use forebay_core::{Error, Kind, Result, WriteCondition, crc32c};

use super::Remote;
use super::objects::{path_of, version_of};
use super::request::Request;
use crate::Name;
use crate::client::{PutOptions, PutReceipt};
use crate::stats::add;

/// Limit of S3 for one `PUT`.
const PUT_BYTES_MAX: usize = 5 << 30;

impl Remote {
    /// Writes an object.
    pub(crate) fn put_slice(
        self: &Arc<Self>,
        name: &Name,
        bytes: &[u8],
        options: &PutOptions,
    ) -> Result<PutReceipt> {
        if bytes.len() > PUT_BYTES_MAX {
            let mut write = self.begin_write(name, options, Some(bytes.len() as u64))?;
            write.push(bytes)?;
            return write.finish(options.crc32c);
        }
        let crc32c = options.crc32c.unwrap_or_else(|| crc32c::crc32c(bytes));
        let request = Request::new("PUT", &path_of(&name.to_wire()))
            .header("x-amz-checksum-crc32c", checksum(crc32c))
            .body(bytes)
            .unsigned_body();
        let request = with_condition(with_attributes(request, options), &options.condition);
        let (head, _) = self.document(&request)?;
        add(&self.counters.requests, 1);
        add(&self.counters.written_bytes, bytes.len() as u64);
        let version = head.header("etag").map(version_of);
        Ok(PutReceipt {
            version: version
                .ok_or_else(|| Error::new(Kind::Corrupt, "the node's answer lacks the version"))?,
            bytes: bytes.len() as u64,
        })
    }
}

/// A CRC32C as S3 writes it.
pub(super) fn checksum(crc32c: u32) -> String {
    base64::Engine::encode(&base64::engine::general_purpose::STANDARD, crc32c.to_be_bytes())
}

/// With content type and so on, and user metadata.
pub(super) fn with_attributes<'a>(mut request: Request<'a>, options: &PutOptions) -> Request<'a> {
    for (name, value) in &options.metadata {
        let name = format!("x-amz-meta-{}", name.to_ascii_lowercase());
        request = request.header(name, value.as_str());
    }
    for (name, value) in options.headers.fields() {
        if let Some(value) = value {
            request = request.header(name, value);
        }
    }
    request
}

/// A conditional write is not sent twice: the first may have made the condition false.
pub(super) fn with_condition<'a>(request: Request<'a>, condition: &WriteCondition) -> Request<'a> {
    match condition {
        WriteCondition::None => request,
        WriteCondition::Absent => request.header("if-none-match", "*").once(),
        WriteCondition::Version(version) => request.header("if-match", format!("\"{version}\"")).once(),
    }
}
