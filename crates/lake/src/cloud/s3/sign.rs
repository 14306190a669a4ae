//! AWS Signature Version 4 for requests with headers.
//!
//! Everything that is sent is signed: the path and query exactly as they go over the wire, the host and every
//! header we set. The derived signing key is kept for the day, since deriving it costs four HMACs.

use std::sync::Arc;

use aws_lc_rs::{digest, hmac};
use bytes::Bytes;
use forebay_core::{Error, Kind, Result};
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use http::{HeaderMap, Method};
use jiff::Timestamp;
use parking_lot::Mutex;

use crate::cloud::credentials::Keys;

/// Says that the body is not part of the signature.
pub(crate) const UNSIGNED_PAYLOAD: &str = "UNSIGNED-PAYLOAD";

const CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");
const DATE: HeaderName = HeaderName::from_static("x-amz-date");
const SECURITY_TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");

/// What is signed, as it goes over the wire.
pub(crate) struct ToSign<'a> {
    pub(crate) method: &'a Method,
    pub(crate) host: &'a str,
    /// Percent-encoded.
    pub(crate) path: &'a str,
    /// Percent-encoded, sorted, without the question mark.
    pub(crate) query: &'a str,
    /// The SHA-256 of the body in hex, or [`UNSIGNED_PAYLOAD`].
    pub(crate) payload: &'a str,
}

struct DayKey {
    day: String,
    keys: Arc<Keys>,
    key: hmac::Key,
}

/// Signs for one region.
pub(crate) struct Signer {
    region: String,
    day_key: Mutex<Option<DayKey>>,
}

impl Signer {
    pub(crate) fn new(region: String) -> Self {
        Self {
            region,
            day_key: Mutex::new(None),
        }
    }

    /// Adds date, payload hash, token and signature to the headers.
    pub(crate) fn sign(
        &self,
        keys: &Arc<Keys>,
        now: Timestamp,
        what: &ToSign<'_>,
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
        let (names, canonical_headers) = canonical_headers(what.host, headers);
        let canonical = format!(
            "{}\n{}\n{}\n{canonical_headers}\n{names}\n{}",
            what.method, what.path, what.query, what.payload
        );
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let to_sign = format!(
            "AWS4-HMAC-SHA256\n{date}\n{scope}\n{}",
            sha256_hex(&[Bytes::from(canonical)])
        );
        let signature = hex::encode(hmac::sign(&self.key_of(&day, keys), to_sign.as_bytes()));
        let value = format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
            keys.id
        );
        let mut value = header_value(&value)?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
        Ok(())
    }

    fn key_of(&self, day: &str, keys: &Arc<Keys>) -> hmac::Key {
        let mut kept = self.day_key.lock();
        if let Some(kept) = kept
            .as_ref()
            .filter(|kept| kept.day == day && *kept.keys == **keys)
        {
            return kept.key.clone();
        }
        let mut key = hmac::Key::new(hmac::HMAC_SHA256, format!("AWS4{}", keys.secret).as_bytes());
        for step in [day, &self.region, "s3", "aws4_request"] {
            key = hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&key, step.as_bytes()).as_ref());
        }
        *kept = Some(DayKey {
            day: day.to_owned(),
            keys: Arc::clone(keys),
            key: key.clone(),
        });
        key
    }
}

/// The signed header names, and each header on its line, both sorted by name.
fn canonical_headers(host: &str, headers: &HeaderMap) -> (String, String) {
    let mut lines: Vec<(&str, String)> = headers
        .iter()
        .map(|(name, value)| {
            let text = String::from_utf8_lossy(value.as_bytes());
            (
                name.as_str(),
                text.split_ascii_whitespace().collect::<Vec<_>>().join(" "),
            )
        })
        .collect();
    lines.push(("host", host.to_owned()));
    lines.sort();
    let names: Vec<&str> = lines.iter().map(|(name, _)| *name).collect();
    let text = lines
        .iter()
        .map(|(name, value)| format!("{name}:{value}\n"))
        .collect();
    (names.join(";"), text)
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

    fn authorization(what: &ToSign<'_>, headers: &mut HeaderMap) -> String {
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
        let what = ToSign {
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
        let what = ToSign {
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
        let what = ToSign {
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
