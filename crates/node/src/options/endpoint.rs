//! Settings of the endpoints: where they listen, and their certificate.

use std::net::{SocketAddr, ToSocketAddrs};

use forebay_core::Result;
use forebay_net::TlsFiles;

use super::{OFF, wrong};
use crate::config::TlsConfig;

/// An address to listen on. A leading `http://` or `https://` is dropped, because the same variable names the endpoint for
/// clients.
pub(super) fn address(text: &str, setting: &'static str) -> Result<Option<SocketAddr>> {
    if text.trim() == OFF {
        return Ok(None);
    }
    let bare = text.trim().trim_end_matches('/');
    let bare = bare.trim_start_matches("http://").trim_start_matches("https://");
    let full = if bare.starts_with(':') {
        format!("0.0.0.0{bare}")
    } else {
        bare.to_owned()
    };
    if let Ok(addr) = full.parse() {
        return Ok(Some(addr));
    }
    let resolved = full.to_socket_addrs().ok().and_then(|mut addrs| addrs.next());
    resolved.map(Some).ok_or_else(|| {
        wrong(
            setting,
            format!("'{text}' is not an address to listen on; write for example 127.0.0.1:9000, or off"),
        )
    })
}

/// The host name in front of which stand the names of buckets.
pub(super) fn domain(text: String) -> Result<String> {
    let is_word = |word: &str| {
        !word.is_empty()
            && word
                .bytes()
                .all(|c| c.is_ascii_alphanumeric() || c == b'-' || c == b'_')
    };
    if text.len() <= 253 && text.split('.').all(is_word) && text.parse::<std::net::IpAddr>().is_err() {
        return Ok(text);
    }
    let message =
        format!("'{text}' is not a host name; write for example s3.lab.example.org, without a port");
    Err(wrong("s3_domain", message))
}

/// The files of the certificate, if there is one. They are read when the node starts.
pub(super) fn tls_files(config: TlsConfig) -> Result<Option<TlsFiles>> {
    match (config.cert, config.key) {
        (Some(cert), Some(key)) => Ok(Some(TlsFiles {
            cert,
            key,
            client_ca: config.client_ca,
        })),
        (None, None) if config.client_ca.is_none() => Ok(None),
        (None, None) => Err(wrong(
            "tls.client_ca",
            "client certificates need TLS; give tls.cert and tls.key too",
        )),
        (Some(_), None) => Err(wrong(
            "tls.key",
            "tls.cert needs its private key; give tls.key too",
        )),
        (None, Some(_)) => Err(wrong(
            "tls.cert",
            "tls.key needs its certificate; give tls.cert too",
        )),
    }
}

/// The value as a file would have it.
pub(super) fn tls_config(files: Option<&TlsFiles>) -> TlsConfig {
    TlsConfig {
        cert: files.map(|files| files.cert.clone()),
        key: files.map(|files| files.key.clone()),
        client_ca: files.and_then(|files| files.client_ca.clone()),
    }
}
