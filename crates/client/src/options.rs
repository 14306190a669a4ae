//! How a client is set up, and where it looks for its node.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, Kind, Result};

/// The environment variable that names the node: a socket path, or `http://host:port`.
pub(crate) const NODE_VARIABLE: &str = "FOREBAY_NODE";

/// Asked about every 100 ms while a call waits; `true` ends the call with [`Kind::Cancelled`].
pub type Interrupt = Arc<dyn Fn() -> bool + Send + Sync>;

/// How a client is set up.
#[derive(Clone)]
pub struct ClientOptions {
    /// A socket path or `http://host:port`; `None` takes `FOREBAY_NODE`, else this user's node on this host.
    pub address: Option<String>,
    /// How long one call may take.
    pub timeout: Duration,
    /// How long a call waits for a node to come back that was there before; at most `timeout`.
    pub reconnect_wait: Duration,
    /// Whether somebody wants to stop waiting (Ctrl-C).
    pub interrupt: Option<Interrupt>,
    /// Keys for a node elsewhere; `None` takes them from the environment.
    pub credentials: Option<Credentials>,
    /// Threads that copy one large read, at most.
    pub copy_threads: usize,
    /// Connections of this process to its node, at most; further calls wait.
    pub connections_max: usize,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            address: None,
            timeout: Duration::from_secs(60),
            reconnect_wait: Duration::from_secs(5),
            interrupt: None,
            credentials: None,
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

/// Where the node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// A Unix socket on this host.
    Socket(PathBuf),
    /// `host:port` of an S3 front door.
    Http(String),
}

impl Address {
    /// What the options, the environment or the rule for the default socket say.
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
        if let Some(rest) = text.strip_prefix("http://") {
            let host = rest.trim_end_matches('/');
            if host.is_empty() || host.contains(['/', '?', '#', '@']) {
                return wrong("the address of a node elsewhere is http://host:port");
            }
            let port_is_there = host
                .rsplit_once(':')
                .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
            return Ok(Self::Http(if port_is_there {
                host.into()
            } else {
                format!("{host}:80")
            }));
        }
        if text.starts_with("https://") {
            let error = Error::new(
                Kind::Unsupported,
                "this client does not speak TLS; put the node behind a tunnel and name it by http://host:port",
            );
            return Err(error.with("address", text));
        }
        match text.strip_prefix("unix:").unwrap_or(text) {
            path if path.is_empty() || path.contains("://") => {
                wrong("the address of a node is a socket path or http://host:port")
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
        let http = |text: &str| Address::Http(text.into());
        assert_eq!(Address::parse("/run/f.sock").unwrap(), socket("/run/f.sock"));
        assert_eq!(Address::parse("unix:/run/f.sock").unwrap(), socket("/run/f.sock"));
        assert_eq!(
            Address::parse("unix:///run/f.sock").unwrap(),
            socket("/run/f.sock")
        );
        assert_eq!(Address::parse("http://node:9000/").unwrap(), http("node:9000"));
        assert_eq!(Address::parse("http://[::1]:9000").unwrap(), http("[::1]:9000"));
        assert_eq!(Address::parse("http://node").unwrap(), http("node:80"));
        for bad in ["", "http://", "http://a/b", "https://a", "ftp://a"] {
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
