//! TLS configuration of both sides: versions 1.2 and 1.3, HTTP/1.1 by ALPN, one crypto provider.
//!
//! Nothing here does I/O on a connection; files are read when a configuration is made. The provider is named
//! in every configuration, never installed for the process: other libraries of a Python process have their
//! own.

mod certificate;
mod client;
mod failure;
mod pem;
mod server;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

pub use certificate::CertificateInfo;
pub use client::{ClientTls, server_name};
pub use failure::explain;
pub use server::{ServerTls, TlsFiles};

/// The protocol that doors and clients speak inside TLS.
const ALPN: &[u8] = b"http/1.1";

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}
