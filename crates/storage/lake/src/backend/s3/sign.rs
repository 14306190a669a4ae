//! AWS Signature Version 4 for requests with headers; the signature itself is made by `forebay_sigv4`.
//!
//! Everything that is sent is signed: the path and query exactly as they go over the wire, the host and every
//! header we set. The derived signing key is kept for the day, since deriving it costs four HMACs.

use std::sync::Arc;

use aws_lc_rs::digest;
use bytes::Bytes;
use forebay_core::{Error, Kind, Result};
use forebay_sigv4::SigningKey;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use http::{HeaderMap, Method};
use jiff::Timestamp;
use parking_lot::Mutex;

use crate::backend::s3::credentials::Keys;

pub(crate) use forebay_sigv4::UNSIGNED_PAYLOAD;

const CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");
const DATE: HeaderName = HeaderName::from_static("x-amz-date");
const SECURITY_TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");

/// The signed request, as it goes over the wire.
pub(crate) struct CanonicalRequest<'a> {
    pub(crate) method: &'a Method,
    pub(crate) host: &'a str,
    /// Percent-encoded.
    pub(crate) path: &'a str,
    /// Percent-encoded, sorted, without the question mark.
    pub(crate) query: &'a str,
    /// The SHA-256 of the body in hex, or [`UNSIGNED_PAYLOAD`].
    pub(crate) payload: &'a str,
}

struct DerivedKey {
    day: String,
    keys: Arc<Keys>,
    key: SigningKey,
}

/// Signs for one region.
pub(crate) struct Signer {
    region: String,
    signing_key: Mutex<Option<DerivedKey>>,
}

impl Signer {
    pub(crate) fn new(region: String) -> Self {
        Self {
            region,
            signing_key: Mutex::new(None),
        }
    }

    /// Adds date, payload hash, token and signature to the headers.
    pub(crate) fn sign(
        &self,
        keys: &Arc<Keys>,
        now: Timestamp,
        what: &CanonicalRequest<'_>,
        headers: &mut HeaderMap,
    ) -> Result<()> {
        let date = now.strftime("%Y%m%dT%H%M%SZ").to_string();
        let day = date.split('T').next().unwrap_or_default().to_owned();
        headers.insert(DATE, header_value(&date)?);
        headers.insert(CONTENT_SHA256, header_value(what.payload)?);
        if let Some(token) = &keys.token {
            let mut token = header_value(token)?;
            token.set_sensitive(true);
            headers.insert(SECURITY_TOKEN, token);
        }
        let texts: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name.as_str(), String::from_utf8_lossy(value.as_bytes())))
            .collect();
        let mut signed: Vec<(&str, &str)> = texts.iter().map(|(name, value)| (*name, &**value)).collect();
        signed.push(("host", what.host));
        let what = forebay_sigv4::CanonicalRequest {
            method: what.method.as_str(),
            path: what.path,
            query: what.query,
            headers: &signed,
            payload: what.payload,
        };
        let value = self.key_of(&day, keys).authorization(&date, &what);
        let mut value = header_value(&value)?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
        Ok(())
    }

    fn key_of(&self, day: &str, keys: &Arc<Keys>) -> SigningKey {
        let mut kept = self.signing_key.lock();
        if let Some(kept) = kept
            .as_ref()
            .filter(|kept| kept.day == day && *kept.keys == **keys)
        {
            return kept.key.clone();
        }
        let key = SigningKey::new(&keys.id, &keys.secret, day, &self.region);
        *kept = Some(DerivedKey {
            day: day.to_owned(),
            keys: Arc::clone(keys),
            key: key.clone(),
        });
        key
    }
}

/// The SHA-256 of several pieces in a row, in hex.
pub(crate) fn sha256_hex(chunks: &[Bytes]) -> String {
    let mut context = digest::Context::new(&digest::SHA256);
    for chunk in chunks {
        context.update(chunk);
    }
    hex::encode(context.finish())
}

fn header_value(text: &str) -> Result<HeaderValue> {
    HeaderValue::from_str(text).map_err(|why| {
        Error::new(Kind::InvalidInput, "credentials contain a control character").caused_by(why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example_keys() -> Arc<Keys> {
        Arc::new(Keys {
            id: "AKIAIOSFODNN7EXAMPLE".into(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            token: None,
        })
    }

    fn authorization(what: &CanonicalRequest<'_>, headers: &mut HeaderMap) -> String {
        let now: Timestamp = "2013-05-24T00:00:00Z".parse().unwrap();
        Signer::new("us-east-1".into())
            .sign(&example_keys(), now, what, headers)
            .unwrap();
        headers[AUTHORIZATION].to_str().unwrap().to_owned()
    }

    // The examples of "Authenticating Requests: Using the Authorization Header" in the S3 API reference.

    #[test]
    fn get_object_has_the_signature_of_the_reference() {
        let mut headers = HeaderMap::new();
        headers.insert("range", HeaderValue::from_static("bytes=0-9"));
        let payload = sha256_hex(&[]);
        let what = CanonicalRequest {
            method: &Method::GET,
            host: "examplebucket.s3.amazonaws.com",
            path: "/test.txt",
            query: "",
            payload: &payload,
        };
        assert_eq!(
            authorization(&what, &mut headers),
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
             SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, \
             Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
    }

    #[test]
    fn list_objects_has_the_signature_of_the_reference() {
        let payload = sha256_hex(&[]);
        let what = CanonicalRequest {
            method: &Method::GET,
            host: "examplebucket.s3.amazonaws.com",
            path: "/",
            query: "max-keys=2&prefix=J",
            payload: &payload,
        };
        let signed = authorization(&what, &mut HeaderMap::new());
        assert!(
            signed.ends_with("Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
            "{signed}"
        );
    }

    #[test]
    fn put_object_has_the_signature_of_the_reference() {
        let mut headers = HeaderMap::new();
        headers.insert("date", HeaderValue::from_static("Fri, 24 May 2013 00:00:00 GMT"));
        headers.insert(
            "x-amz-storage-class",
            HeaderValue::from_static("REDUCED_REDUNDANCY"),
        );
        let payload = sha256_hex(&[
            Bytes::from_static(b"Welcome to "),
            Bytes::from_static(b"Amazon S3."),
        ]);
        let what = CanonicalRequest {
            method: &Method::PUT,
            host: "examplebucket.s3.amazonaws.com",
            path: "/test%24file.text",
            query: "",
            payload: &payload,
        };
        let signed = authorization(&what, &mut headers);
        assert!(
            signed.ends_with("Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"),
            "{signed}"
        );
    }
}
