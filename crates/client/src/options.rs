//! Options of a client, and the search for its node.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, Kind, Result};
use forebay_net::ClientTls;

/// The environment variable that names the node: a socket path, `http://host:port` or
/// `https://host:port`.
pub(crate) const NODE_VARIABLE: &str = "FOREBAY_NODE";

/// Asked about every 100 ms while a call waits; `true` ends the call with [`Kind::Cancelled`].
pub type Interrupt = Arc<dyn Fn() -> bool + Send + Sync>;

/// Options of a client.
#[derive(Clone)]
pub struct ClientOptions {
    /// A socket path, `http://host:port` or `https://host:port`; `None` takes `FOREBAY_NODE`, else this user's
    /// node on this host.
    pub address: Option<String>,
    /// Time that one call may take.
    pub timeout: Duration,
    /// Time that a call waits for a node to come back that was there before; at most `timeout`.
    pub reconnect_wait: Duration,
    /// Says that somebody wants to stop waiting (Ctrl-C).
    pub interrupt: Option<Interrupt>,
    /// Keys for a remote node; `None` takes them from the environment.
    pub credentials: Option<Credentials>,
    /// Trust and identity towards an `https://` node; what is not said comes from `FOREBAY_CA`,
    /// `FOREBAY_CLIENT_CERT` and `FOREBAY_CLIENT_KEY`.
    pub tls: ClientTls,
    /// Threads that copy one large read, at most.
    pub copy_threads: usize,
    /// Connections of this process to its node, at most; further calls wait.
    pub connections_max: usize,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            address: None,
            timeout: Duration::from_secs(600),
            reconnect_wait: Duration::from_secs(5),
            interrupt: None,
            credentials: None,
            tls: ClientTls::default(),
            copy_threads: 1,
            connections_max: 64,
        }
    }
}

impl fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientOptions")
            .field("address", &self.address)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// Keys of an S3 user of a node.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Access key id.
    pub access_key_id: String,
    /// Secret access key.
    pub secret_access_key: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("access_key_id", &self.access_key_id)
            .finish_non_exhaustive()
    }
}

/// Address of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// A Unix socket on this host.
    Socket(PathBuf),
    /// `host:port` of an S3 endpoint.
    Http(Scheme, String),
}

/// Plain or with TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

impl Address {
    /// Returns what the options, the environment or the rule for the default socket say.
    pub(crate) fn find(options: &ClientOptions) -> Result<Self> {
        let named = match &options.address {
            Some(address) => Some(address.clone()),
            None => std::env::var(NODE_VARIABLE).ok().filter(|text| !text.is_empty()),
        };
        match named {
            Some(text) => Self::parse(&text),
            None => {
                let socket = forebay_core::default_socket();
                forebay_core::check_socket_folder(&socket)?;
                Ok(Self::Socket(socket))
            }
        }
    }

    fn parse(text: &str) -> Result<Self> {
        let wrong = |why: &str| Err(Error::new(Kind::InvalidInput, why).with("address", text));
        let remote = [Scheme::Http, Scheme::Https].into_iter().find_map(|scheme| {
            let rest = text.strip_prefix(scheme.as_str())?.strip_prefix("://")?;
            Some((scheme, rest.trim_end_matches('/')))
        });
        if let Some((scheme, host)) = remote {
            if host.is_empty() || host.contains(['/', '?', '#', '@']) {
                return wrong("the address of a remote node is http://host:port or https://host:port");
            }
            let port_is_there = host
                .rsplit_once(':')
                .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
            let host = if port_is_there {
                host.into()
            } else {
                format!("{host}:{}", scheme.port())
            };
            return Ok(Self::Http(scheme, host));
        }
        match text.strip_prefix("unix:").unwrap_or(text) {
            path if path.is_empty() || path.contains("://") => {
                wrong("the address of a node is a socket path, http://host:port or https://host:port")
            }
            path => Ok(Self::Socket(PathBuf::from(
                path.strip_prefix("//").unwrap_or(path),
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_sockets_or_http() {
        let socket = |text: &str| Address::Socket(PathBuf::from(text));
        let http = |text: &str| Address::Http(Scheme::Http, text.into());
        let https = |text: &str| Address::Http(Scheme::Https, text.into());
        assert_eq!(Address::parse("/run/f.sock").unwrap(), socket("/run/f.sock"));
        assert_eq!(Address::parse("unix:/run/f.sock").unwrap(), socket("/run/f.sock"));
        assert_eq!(
            Address::parse("unix:///run/f.sock").unwrap(),
            socket("/run/f.sock")
        );
        assert_eq!(Address::parse("http://node:9000/").unwrap(), http("node:9000"));
        assert_eq!(Address::parse("http://[::1]:9000").unwrap(), http("[::1]:9000"));
        assert_eq!(Address::parse("http://node").unwrap(), http("node:80"));
        assert_eq!(Address::parse("https://node/").unwrap(), https("node:443"));
        assert_eq!(Address::parse("https://[::1]:9000").unwrap(), https("[::1]:9000"));
        for bad in ["", "http://", "http://a/b", "https://", "https://a@b", "ftp://a"] {
            assert!(Address::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn secrets_do_not_appear_in_logs() {
        let keys = Credentials {
            access_key_id: "id".into(),
            secret_access_key: "hush".into(),
        };
        assert!(!format!("{keys:?}").contains("hush"));
    }
}
