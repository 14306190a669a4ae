//! SigV4 for the load generator: sign once, send many times (a signature holds for 15 minutes).
//!
//! Bodies are `UNSIGNED-PAYLOAD` unless a hash is given. Checked against the servers themselves: nginx
//! ignores the headers, SeaweedFS and Forebay verify every request.

use std::fmt::Write as _;

use anyhow::Result;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::command;

const REGION: &str = "us-east-1";

/// Whose keys, and for which host.
pub(super) struct Signer {
    key: String,
    secret: String,
    host: String,
    stamp: String,
}

impl Signer {
    /// Signs from now on, for at most 15 minutes.
    pub(super) fn new(key: &str, secret: &str, host: &str) -> Result<Self> {
        Ok(Self {
            key: key.to_owned(),
            secret: secret.to_owned(),
            host: host.to_owned(),
            stamp: stamp()?,
        })
    }

    /// The same, from now on.
    pub(super) fn again(&self) -> Result<Self> {
        Self::new(&self.key, &self.secret, &self.host)
    }

    /// A request with its signature in the headers, ready for the socket; a body follows if `body_bytes` is
    /// not 0.
    pub(super) fn request(
        &self,
        method: &str,
        path: &str,
        extra: &[(&str, &str)],
        body: Body<'_>,
    ) -> Result<Vec<u8>> {
        let stamp = &self.stamp;
        let (hash, length) = match body {
            Body::None => ("UNSIGNED-PAYLOAD".to_owned(), 0),
            Body::Unsigned(length) => ("UNSIGNED-PAYLOAD".to_owned(), length),
            Body::Signed(bytes) => (hex(&Sha256::digest(bytes)), bytes.len()),
        };
        let headers = [
            ("host", self.host.as_str()),
            ("x-amz-content-sha256", &hash),
            ("x-amz-date", stamp),
        ];
        let names = headers.map(|(name, _)| name).join(";");
        let listed: String = headers
            .iter()
            .map(|(name, value)| format!("{name}:{value}\n"))
            .collect();
        let canonical = format!("{method}\n{path}\n\n{listed}\n{names}\n{hash}");
        let scope = scope(stamp);
        let signature = self.signature(stamp, &scope, &canonical)?;
        let mut request = format!("{method} {path} HTTP/1.1\r\n");
        for (name, value) in headers.iter().chain(extra) {
            let _ = write!(request, "{name}: {value}\r\n");
        }
        if !matches!(body, Body::None) {
            let _ = write!(request, "content-length: {length}\r\n");
        }
        let _ = write!(
            request,
            "authorization: AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}\r\n\r\n",
            self.key
        );
        Ok(request.into_bytes())
    }

    /// A presigned path for clients that cannot sign.
    pub(super) fn presigned(&self, method: &str, path: &str) -> Result<String> {
        let stamp = &self.stamp;
        let scope = scope(stamp);
        let credential = format!("{}/{scope}", self.key).replace('/', "%2F");
        let query = format!(
            "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={credential}&X-Amz-Date={stamp}\
             &X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
        );
        let canonical = format!(
            "{method}\n{path}\n{query}\nhost:{}\n\nhost\nUNSIGNED-PAYLOAD",
            self.host
        );
        Ok(format!(
            "{path}?{query}&X-Amz-Signature={}",
            self.signature(stamp, &scope, &canonical)?
        ))
    }

    fn signature(&self, stamp: &str, scope: &str, canonical: &str) -> Result<String> {
        let hashed = hex(&Sha256::digest(canonical));
        let text = format!("AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashed}");
        let mut key = keyed(format!("AWS4{}", self.secret).as_bytes(), &stamp.as_bytes()[..8])?;
        for part in [REGION, "s3", "aws4_request"] {
            key = keyed(&key, part.as_bytes())?;
        }
        Ok(hex(&keyed(&key, text.as_bytes())?))
    }
}

/// Body of a request.
#[derive(Clone, Copy)]
pub(super) enum Body<'a> {
    /// Nothing.
    None,
    /// So many bytes that the signature does not cover.
    Unsigned(usize),
    /// These bytes, covered.
    Signed(&'a [u8]),
}

fn scope(stamp: &str) -> String {
    format!("{}/{REGION}/s3/aws4_request", &stamp[..8])
}

/// Now, as SigV4 writes it. Asked of `date`: a calendar is not worth a dependency here.
fn stamp() -> Result<String> {
    Ok(
        command::output(command::clean("date").args(["-u", "+%Y%m%dT%H%M%SZ"]))?
            .trim()
            .to_owned(),
    )
}

fn keyed(key: &[u8], text: &[u8]) -> Result<Vec<u8>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key)?;
    mac.update(text);
    Ok(mac.finalize().into_bytes().to_vec())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
