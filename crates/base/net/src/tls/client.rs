//! Whom a client trusts, and who it is.
//!
//! Made to survive a fork. A configuration holds no lock (sessions are not resumed, so there is no session
//! cache), and a child may go on using it. A connection must not be shared: both processes would send records
//! under one key and counter. The clients open their own after a fork; aws-lc notices a fork by itself and
//! seeds its random numbers again.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_core::{Error, Kind, Result};
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls_platform_verifier::Verifier;

use super::{ALPN, pem, provider};

/// Trust and identity of a client. Files are read by [`ClientTls::config`], once per client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// Authorities that are trusted instead of the machine's, in a PEM file.
    pub ca: Option<PathBuf>,
    /// Certificate of the client, in a PEM file; only together with the key.
    pub cert: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
}

impl ClientTls {
    /// Fills in from `FOREBAY_CA`, `FOREBAY_CLIENT_CERT` and `FOREBAY_CLIENT_KEY` what was not said.
    #[must_use]
    pub fn or_environment(self) -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|text| !text.is_empty());
        let has_identity = self.cert.is_some() || self.key.is_some();
        let file = |name: &str| variable(name).filter(|_| !has_identity).map(PathBuf::from);
        Self {
            ca: self.ca.or_else(|| variable("FOREBAY_CA").map(PathBuf::from)),
            cert: self.cert.or_else(|| file("FOREBAY_CLIENT_CERT")),
            key: self.key.or_else(|| file("FOREBAY_CLIENT_KEY")),
        }
    }

    /// Reads the files. Without `ca` the authorities of the machine are trusted.
    pub fn config(&self) -> Result<ClientConfig> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|why| Error::new(Kind::Internal, "TLS cannot be configured").caused_by(why))?;
        let builder = match &self.ca {
            Some(ca) => builder.with_root_certificates(pem::authorities(ca)?),
            None => {
                let verifier = Verifier::new(provider()).map_err(|why| {
                    let message = "this machine has no list of trusted authorities; install \
                                   ca-certificates, or give the CA of the node by ca=, --ca or FOREBAY_CA";
                    Error::new(Kind::Unavailable, message).caused_by(why)
                })?;
                builder
                    .dangerous()
                    .with_custom_certificate_verifier(Arc::new(verifier))
            }
        };
        let mut config = match (&self.cert, &self.key) {
            (None, None) => builder.with_no_client_auth(),
            (Some(cert), Some(key)) => {
                pem::warn_if_shared(key);
                builder
                    .with_client_auth_cert(pem::certificates(cert)?, pem::private_key(key)?)
                    .map_err(|why| {
                        pem::wrong(cert, "the client certificate and its key do not belong together")
                            .caused_by(why)
                    })?
            }
            _ => {
                let message = "a client certificate needs its key; give both or none";
                return Err(Error::new(Kind::InvalidInput, message));
            }
        };
        config.resumption = Resumption::disabled();
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(config)
    }
}

/// Returns the name that a node's certificate must have: the host, without the port and brackets around it.
pub fn server_name(host: &str) -> Result<ServerName<'static>> {
    let name = match host.parse::<IpAddr>() {
        Ok(_) => host,
        Err(_) => host.rsplit_once(':').map_or(host, |(host, _)| host),
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(name.to_owned()).map_err(|why| {
        Error::new(Kind::InvalidInput, "this is not the name of a host")
            .with("host", name)
            .caused_by(why)
    })
}
