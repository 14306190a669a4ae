//! Rights of keys: asked by `s3s` after the signature is verified and before the input is read.
//!
//! Every operation is a read or a write. A key needs the bucket in its list, and `ReadWrite` for writes. A
//! request without a signature may only read and list buckets that are switched to public. Operations that
//! name a second bucket (copies) are asked about it as well. What is allowed is then admitted or told to come
//! back (`limits.rs`): whoever is refused has taken nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_core::BucketName;
use http::HeaderMap;
use s3s::access::{S3Access, S3AccessContext};
use s3s::dto::{CopyObjectInput, CopySource, UploadPartCopyInput};
use s3s::path::S3Path;
use s3s::{S3Request, S3Result, s3_error};

use crate::AccessKeys;
use crate::context::RequestContext;
use crate::hosts::HostCheck;
use crate::keys::Access;
use crate::limits::Load;

/// The rules.
#[derive(Debug, Clone)]
pub(crate) struct AccessRules {
    pub(crate) keys: Arc<AccessKeys>,
    pub(crate) public_read: Arc<BTreeSet<BucketName>>,
    /// Finds requests that mean a bucket by their host; none where hosts are understood.
    pub(crate) hosts: Option<Arc<HostCheck>>,
}

/// Effect of an operation on a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Reads objects or lists them; anonymous requests may, where it is public.
    Read,
    /// Reads settings; needs a key.
    ReadConfig,
    /// Changes something.
    Write,
}

/// Operations that read. Whatever is not here counts as a write, so that a new one is never open by mistake.
const READS: [(&str, Class); 34] = [
    ("GetObject", Class::Read),
    ("HeadObject", Class::Read),
    ("HeadBucket", Class::Read),
    ("ListObjects", Class::Read),
    ("ListObjectsV2", Class::Read),
    ("GetObjectAttributes", Class::Read),
    ("GetBucketLocation", Class::Read),
    ("ListBuckets", Class::ReadConfig),
    ("ListObjectVersions", Class::ReadConfig),
    ("ListMultipartUploads", Class::ReadConfig),
    ("ListParts", Class::ReadConfig),
    ("GetObjectTagging", Class::ReadConfig),
    ("GetObjectAcl", Class::ReadConfig),
    ("GetObjectLegalHold", Class::ReadConfig),
    ("GetObjectRetention", Class::ReadConfig),
    ("GetObjectTorrent", Class::ReadConfig),
    ("GetObjectLockConfiguration", Class::ReadConfig),
    ("GetBucketAccelerateConfiguration", Class::ReadConfig),
    ("GetBucketAcl", Class::ReadConfig),
    ("GetBucketCors", Class::ReadConfig),
    ("GetBucketEncryption", Class::ReadConfig),
    ("GetBucketLifecycleConfiguration", Class::ReadConfig),
    ("GetBucketLogging", Class::ReadConfig),
    ("GetBucketNotificationConfiguration", Class::ReadConfig),
    ("GetBucketOwnershipControls", Class::ReadConfig),
    ("GetBucketPolicy", Class::ReadConfig),
    ("GetBucketPolicyStatus", Class::ReadConfig),
    ("GetBucketReplication", Class::ReadConfig),
    ("GetBucketRequestPayment", Class::ReadConfig),
    ("GetBucketTagging", Class::ReadConfig),
    ("GetBucketVersioning", Class::ReadConfig),
    ("GetBucketWebsite", Class::ReadConfig),
    ("GetPublicAccessBlock", Class::ReadConfig),
    ("SelectObjectContent", Class::ReadConfig),
];

/// Operations that write and are there; the rest share one name in logs and metrics.
const WRITES: [&str; 13] = [
    "PutObject",
    "UploadPart",
    "CreateBucket",
    "DeleteBucket",
    "CopyObject",
    "DeleteObject",
    "DeleteObjects",
    "PutObjectTagging",
    "DeleteObjectTagging",
    "CreateMultipartUpload",
    "UploadPartCopy",
    "CompleteMultipartUpload",
    "AbortMultipartUpload",
];

fn classify(op: &str) -> (&'static str, Class) {
    if let Some(found) = READS.iter().find(|(name, _)| *name == op) {
        return *found;
    }
    (
        WRITES
            .iter()
            .find(|name| **name == op)
            .copied()
            .unwrap_or("Other"),
        Class::Write,
    )
}

/// The longest documents. `DeleteObjects` has the limit of S3; a completion of 10,000 parts with a checksum
/// each takes about 2 MiB; all others are small.
const DELETE_BYTES_MAX: u64 = 2 << 20;
const COMPLETE_BYTES_MAX: u64 = 4 << 20;
const DOCUMENT_BYTES_MAX: u64 = 256 << 10;

/// What an operation makes the node hold, for admission. Refuses a document that is too long before it is
/// read.
fn load(op: &'static str, headers: &HeaderMap) -> S3Result<Load> {
    let number = |name: &str| {
        headers
            .get(name)
            .and_then(|length| length.to_str().ok()?.parse().ok())
    };
    let announced: Option<u64> = number("x-amz-decoded-content-length").or_else(|| number("content-length"));
    let bytes_max = match op {
        "PutObject" => return Ok(Load::Object { bytes: announced }),
        "UploadPart" => return Ok(Load::Part { bytes: announced }),
        "CopyObject" => return Ok(Load::COPY),
        "UploadPartCopy" => return Ok(Load::PART_COPY),
        "GetObject" | "HeadObject" => return Ok(Load::Small),
        "DeleteObjects" => DELETE_BYTES_MAX,
        "CompleteMultipartUpload" => COMPLETE_BYTES_MAX,
        _ => DOCUMENT_BYTES_MAX,
    };
    if number("content-length").is_some_and(|bytes| bytes > bytes_max) {
        return Err(s3_error!(
            MaxMessageLengthExceeded,
            "the body of this operation is limited to {bytes_max} bytes"
        ));
    }
    Ok(Load::Document { bytes_max })
}

impl AccessRules {
    fn allow(&self, who: Option<&str>, bucket: Option<&str>, class: Class) -> S3Result<()> {
        let is_public =
            bucket.is_some_and(|bucket| self.public_read.iter().any(|name| name.as_str() == bucket));
        if class == Class::Read && is_public {
            return Ok(());
        }
        let Some(who) = who else {
            return Err(s3_error!(AccessDenied, "this needs a signed request"));
        };
        let keys = self.keys.snapshot();
        let Some(key) = keys.get(who) else {
            return Err(s3_error!(
                InvalidAccessKeyId,
                "the access key id is not known here"
            ));
        };
        if bucket.is_some_and(|bucket| !key.buckets.contains(bucket)) {
            return Err(s3_error!(
                AccessDenied,
                "this access key has no access to this bucket"
            ));
        }
        if class == Class::Write && key.access == Access::ReadOnly {
            return Err(s3_error!(AccessDenied, "this access key is read-only"));
        }
        Ok(())
    }

    /// Returns whether the key may see the bucket in a list of buckets.
    pub(crate) fn sees(&self, who: Option<&str>, bucket: &str) -> bool {
        self.allow(who, Some(bucket), Class::Read).is_ok()
    }

    fn allow_source<T>(&self, request: &S3Request<T>, source: &CopySource) -> S3Result<()> {
        let CopySource::Bucket { bucket, .. } = source else {
            return Err(s3_error!(
                NotImplemented,
                "copy sources are given as <bucket>/<key>"
            ));
        };
        let who = RequestContext::of(&request.extensions).and_then(|context| context.who());
        self.allow(who.as_deref(), Some(bucket), Class::Read)
    }
}

#[async_trait::async_trait]
impl S3Access for AccessRules {
    async fn check(&self, cx: &mut S3AccessContext<'_>) -> S3Result<()> {
        let (op, class) = classify(cx.s3_op().name());
        let (bucket, key) = match cx.s3_path() {
            S3Path::Root => (None, None),
            S3Path::Bucket { bucket } => (Some(bucket.clone()), None),
            S3Path::Object { bucket, key } => (Some(bucket.clone()), Some(key.clone())),
        };
        let mut who = cx.credentials().map(|credentials| credentials.access_key.clone());
        if let Some(context) = RequestContext::of(cx.extensions_mut()) {
            context.update(|notes| {
                if notes.verified {
                    who.clone_from(&notes.who);
                }
                notes.who.clone_from(&who);
                notes.op = Some(op);
                notes.bucket.clone_from(&bucket);
                notes.key = key;
            });
        }
        self.allow(who.as_deref(), bucket.as_deref(), class)?;
        if let Some(hosts) = &self.hosts {
            hosts.check(cx.headers()).await?;
        }
        let load = load(op, cx.headers())?;
        match RequestContext::of(cx.extensions_mut()) {
            Some(context) => context.admit(load),
            None => Ok(()),
        }
    }

    async fn copy_object(&self, request: &mut S3Request<CopyObjectInput>) -> S3Result<()> {
        self.allow_source(request, &request.input.copy_source)
    }

    async fn upload_part_copy(&self, request: &mut S3Request<UploadPartCopyInput>) -> S3Result<()> {
        self.allow_source(request, &request.input.copy_source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{AccessKey, Buckets};

    fn rules() -> AccessRules {
        let bucket = |name: &str| BucketName::new(name).unwrap();
        let only = Buckets::Only([bucket("data")].into());
        let key = |id: &str, access, buckets| AccessKey {
            id: id.into(),
            secret: "s".into(),
            access,
            buckets,
        };
        AccessRules {
            keys: Arc::new(AccessKeys::new([
                key("reader", Access::ReadOnly, Buckets::All),
                key("writer", Access::ReadWrite, only),
            ])),
            public_read: Arc::new([bucket("open")].into()),
            hosts: None,
        }
    }

    fn allowed(who: Option<&str>, bucket: &str, op: &str) -> bool {
        rules().allow(who, Some(bucket), classify(op).1).is_ok()
    }

    #[test]
    fn read_only_keys_cannot_write() {
        assert!(allowed(Some("reader"), "data", "GetObject"));
        for op in WRITES.iter().chain(&["PutBucketPolicy", "SomethingNew"]) {
            assert!(!allowed(Some("reader"), "data", op), "{op}");
        }
    }

    #[test]
    fn keys_are_confined_to_their_buckets() {
        assert!(allowed(Some("writer"), "data", "PutObject"));
        assert!(!allowed(Some("writer"), "other", "PutObject"));
        assert!(!allowed(Some("writer"), "other", "GetObject"));
        assert!(!allowed(Some("writer"), "other", "CreateBucket"));
    }

    #[test]
    fn strangers_only_read_what_is_public() {
        assert!(allowed(None, "open", "GetObject"));
        assert!(allowed(None, "open", "ListObjectsV2"));
        assert!(!allowed(None, "open", "PutObject"));
        assert!(!allowed(None, "open", "GetBucketPolicy"));
        assert!(!allowed(None, "data", "GetObject"));
        assert!(rules().allow(None, None, Class::ReadConfig).is_err());
    }

    #[test]
    fn a_key_that_is_gone_is_refused() {
        assert!(!allowed(Some("nobody"), "data", "GetObject"));
    }
}
