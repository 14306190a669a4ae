//! Writes to a node elsewhere: one signed `PUT` with a CRC32C that the node compares before the object becomes visible.

use forebay_core::wire::Condition;
use forebay_core::{Error, Kind, Result};

use super::Remote;
use super::objects::{path_of, version_of};
use super::request::Request;
use crate::Name;
use crate::client::{PutOptions, PutReceipt};
use crate::stats::add;

/// What S3 takes in one `PUT`.
const PUT_BYTES_MAX: usize = 5 << 30;

impl Remote {
    /// Writes an object.
    pub(crate) fn put_slice(&self, name: &Name, bytes: &[u8], options: PutOptions) -> Result<PutReceipt> {
        if bytes.len() > PUT_BYTES_MAX {
            let error = Error::new(
                Kind::Unsupported,
                "an object of more than 5 GiB cannot be put to a node elsewhere at once; use a multipart upload of an S3 client",
            );
            return Err(error.with("bytes", bytes.len()));
        }
        let crc = options.crc32c.unwrap_or_else(|| crc32c::crc32c(bytes));
        let checksum = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, crc.to_be_bytes());
        let names: Vec<(String, String)> = options
            .metadata
            .into_iter()
            .map(|(name, value)| (format!("x-amz-meta-{}", name.to_ascii_lowercase()), value))
            .collect();
        let mut request = Request::new("PUT", &path_of(&name.to_wire()))
            .header("x-amz-checksum-crc32c", checksum)
            .body(bytes)
            .unsigned_body();
        for (name, value) in &names {
            request = request.header(name, value.as_str());
        }
        if let Some(content_type) = options.content_type {
            request = request.header("content-type", content_type);
        }
        request = match &options.condition {
            Condition::None => request,
            Condition::Absent => request.header("if-none-match", "*").once(),
            Condition::Version(version) => request.header("if-match", format!("\"{version}\"")).once(),
        };
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
