//! AWS Signature Version 4, the pure part: from what is sent to the `Authorization` header. No I/O, no clock,
//! no HTTP types.
//!
//! Everything that is passed in is signed: method, path and query exactly as they go over the wire, and every
//! header. Deriving a key costs four HMACs, so a [`SigningKey`] can be kept for its day.
//!
//! ```
//! use forebay_sigv4::{SigningKey, CanonicalRequest};
//!
//! let key = SigningKey::new("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "20130524", "us-east-1");
//! let headers = [
//!     ("host", "examplebucket.s3.amazonaws.com"),
//!     ("x-amz-content-sha256", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
//!     ("x-amz-date", "20130524T000000Z"),
//! ];
//! let what = CanonicalRequest { method: "GET", path: "/", query: "max-keys=2&prefix=J", headers: &headers, payload: headers[1].1 };
//! let value = key.authorization("20130524T000000Z", &what);
//! assert!(value.ends_with("Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"));
//! ```
#![forbid(unsafe_code)]

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// Says that the body is not part of the signature.
pub const UNSIGNED_PAYLOAD: &str = "UNSIGNED-PAYLOAD";

/// The signed request, as it goes over the wire.
#[derive(Debug, Clone, Copy)]
pub struct CanonicalRequest<'a> {
    /// `GET` …
    pub method: &'a str,
    /// Percent-encoded.
    pub path: &'a str,
    /// Percent-encoded, sorted, without the question mark.
    pub query: &'a str,
    /// Names in lower case, in any order; `host` and `x-amz-date` among them.
    pub headers: &'a [(&'a str, &'a str)],
    /// The SHA-256 of the body in hex, or [`UNSIGNED_PAYLOAD`].
    pub payload: &'a str,
}

/// The key of one day and region.
#[derive(Clone)]
pub struct SigningKey {
    id: String,
    scope: String,
    key: [u8; 32],
}

impl SigningKey {
    /// Derives it; `day` is `YYYYMMDD`.
    #[must_use]
    pub fn new(id: &str, secret: &str, day: &str, region: &str) -> Self {
        let first = hmac(format!("AWS4{secret}").as_bytes(), day.as_bytes());
        let key = [region, "s3", "aws4_request"]
            .iter()
            .fold(first, |key, step| hmac(&key, step.as_bytes()));
        Self {
            id: id.into(),
            scope: format!("{day}/{region}/s3/aws4_request"),
            key,
        }
    }

    /// The value of the `Authorization` header; `date` is `YYYYMMDDThhmmssZ` of the key's day.
    #[must_use]
    pub fn authorization(&self, date: &str, what: &CanonicalRequest<'_>) -> String {
        let (names, lines) = canonical_headers(what.headers);
        let canonical = format!(
            "{}\n{}\n{}\n{lines}\n{names}\n{}",
            what.method, what.path, what.query, what.payload
        );
        let scope = &self.scope;
        let to_sign = format!(
            "AWS4-HMAC-SHA256\n{date}\n{scope}\n{}",
            sha256_hex(canonical.as_bytes())
        );
        let signature = hex::encode(hmac(&self.key, to_sign.as_bytes()));
        format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
            self.id
        )
    }
}

/// The SHA-256 of a body, in hex.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(message);
    mac.finalize().into_bytes().into()
}

/// The signed header names, and each header on its line, both sorted by name.
fn canonical_headers(headers: &[(&str, &str)]) -> (String, String) {
    let mut sorted: Vec<(&str, String)> = headers
        .iter()
        .map(|(name, value)| {
            (
                *name,
                value.split_ascii_whitespace().collect::<Vec<_>>().join(" "),
            )
        })
        .collect();
    sorted.sort();
    let names: Vec<&str> = sorted.iter().map(|(name, _)| *name).collect();
    let lines = sorted
        .iter()
        .map(|(name, value)| format!("{name}:{value}\n"))
        .collect();
    (names.join(";"), lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    // The examples of "Authenticating Requests: Using the Authorization Header" in the S3 API reference.
    const DATE: &str = "20130524T000000Z";
    const HOST: (&str, &str) = ("host", "examplebucket.s3.amazonaws.com");

    fn signed(what: &CanonicalRequest<'_>) -> String {
        let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
        SigningKey::new("AKIAIOSFODNN7EXAMPLE", secret, "20130524", "us-east-1").authorization(DATE, what)
    }

    #[test]
    fn get_object_has_the_signature_of_the_reference() {
        let payload = sha256_hex(b"");
        let what = CanonicalRequest {
            method: "GET",
            path: "/test.txt",
            query: "",
            headers: &[
                HOST,
                ("range", "bytes=0-9"),
                ("x-amz-content-sha256", &payload),
                ("x-amz-date", DATE),
            ],
            payload: &payload,
        };
        assert_eq!(
            signed(&what),
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
             SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, \
             Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
    }

    #[test]
    fn put_object_has_the_signature_of_the_reference() {
        let payload = sha256_hex(b"Welcome to Amazon S3.");
        let what = CanonicalRequest {
            method: "PUT",
            path: "/test%24file.text",
            query: "",
            headers: &[
                ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
                ("x-amz-date", DATE),
                ("date", "Fri, 24 May 2013 00:00:00 GMT"),
                HOST,
                ("x-amz-content-sha256", &payload),
            ],
            payload: &payload,
        };
        let signed = signed(&what);
        let expected = "Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd";
        assert!(signed.ends_with(expected), "{signed}");
    }
}
