//! Talks to a node's admin API.

use std::time::Duration;

use anyhow::{Context, anyhow};
use forebay_admin::api::Failure;
use forebay_node::keys::KeyFile;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::args::NodeArgs;
use crate::exit::{Exit, Outcome};

/// Longer than the longest wait of the API.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(90);

/// Address of the API if nobody says it.
const ADMIN: &str = "http://127.0.0.1:9001";

/// A connection to one node.
#[derive(Debug)]
pub(crate) struct AdminClient {
    http: reqwest::Client,
    base: String,
    token: Option<String>,
}

impl AdminClient {
    /// Prepares to talk; nothing is sent yet.
    pub(crate) fn new(args: &NodeArgs) -> Outcome<Self> {
        // Reading on loopback needs no token, so a key file that cannot be read is no error here; the node
        // says when one is missing.
        let from_file = || {
            KeyFile::read(&KeyFile::path(&args.data))
                .ok()
                .flatten()?
                .admin_token
        };
        let token = std::env::var("FOREBAY_ADMIN_TOKEN")
            .ok()
            .filter(|text| !text.is_empty())
            .or_else(|| from_file().map(|token| token.reveal().to_owned()));
        let base = endpoint(args.admin.as_deref().unwrap_or(ADMIN))?;
        let builder = reqwest::Client::builder().no_proxy().timeout(ANSWER_TIME_MAX);
        let builder = if base.starts_with("https://") {
            builder.tls_backend_preconfigured(args.tls.client().config().map_err(Exit::usage)?)
        } else {
            builder
        };
        let http = builder.build().context("cannot make an HTTP client")?;
        Ok(Self { http, base, token })
    }

    /// Asks for a page.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Outcome<T> {
        let request = self.http.get(format!("{}{path}", self.base));
        let body = self.send(request).await?;
        self.parse(&body)
    }

    /// Sends a command that has an answer.
    pub(crate) async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Outcome<T> {
        let body = self.post_only(path, body).await?;
        self.parse(&body)
    }

    /// Sends a command.
    pub(crate) async fn post_only(&self, path: &str, body: &impl Serialize) -> Outcome<Vec<u8>> {
        let body = serde_json::to_vec(body).context("cannot write the request")?;
        let request = self.http.post(format!("{}{path}", self.base));
        self.send(request.header("content-type", "application/json").body(body))
            .await
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Outcome<Vec<u8>> {
        let request = match &self.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        };
        let answer = request.send().await.map_err(|why| self.unreachable(&why))?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(|why| self.unreachable(&why))?;
        if status.is_success() {
            return Ok(body.to_vec());
        }
        let failure: Failure = serde_json::from_slice(&body).map_err(|_| self.not_ours(status, &body))?;
        let error = anyhow!(failure.message);
        Err(if failure.kind == "invalid_input" {
            Exit::usage(error)
        } else {
            Exit::failure(error)
        })
    }

    /// An answer that is not of the admin API.
    fn not_ours(&self, status: reqwest::StatusCode, body: &[u8]) -> Exit {
        let advice = if String::from_utf8_lossy(body).contains("This port speaks TLS") {
            "it speaks TLS, so write https://"
        } else {
            "is it a Forebay node?"
        };
        Exit::failure(anyhow!("{} answered {status}; {advice}", self.base))
    }

    fn unreachable(&self, why: &reqwest::Error) -> Exit {
        if let Some(error) = forebay_net::explain(why) {
            return Exit::failure(error.with("address", &self.base));
        }
        let reason = if why.is_timeout() {
            "it does not answer in time"
        } else {
            "nothing answers there"
        };
        Exit::failure(anyhow!(
            "no node at {}: {reason}; start one with 'forebay serve' or give --admin URL",
            self.base
        ))
    }

    fn parse<T: DeserializeOwned>(&self, body: &[u8]) -> Outcome<T> {
        serde_json::from_slice(body).map_err(|why| {
            Exit::failure(anyhow!(
                "{} answered something else than expected: {why}",
                self.base
            ))
        })
    }
}

/// A URL from what people give: `host:port`, `:port` and addresses to listen on are understood too.
pub(crate) fn endpoint(text: &str) -> Outcome<String> {
    let full = match text.trim().trim_end_matches('/') {
        bare if bare.starts_with(':') => format!("http://127.0.0.1{bare}"),
        bare if bare.contains("://") => bare.to_owned(),
        bare => format!("http://{bare}"),
    };
    let local = full
        .replacen("://0.0.0.0", "://127.0.0.1", 1)
        .replacen("://[::]", "://[::1]", 1);
    let is_fine =
        url::Url::parse(&local).is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    if is_fine {
        Ok(local)
    } else {
        Err(Exit::usage(anyhow!(
            "'{text}' is not an endpoint; write for example http://127.0.0.1:9000"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_addresses_become_endpoints() {
        for (text, expected) in [
            ("127.0.0.1:9000", "http://127.0.0.1:9000"),
            ("0.0.0.0:9000", "http://127.0.0.1:9000"),
            (":9000", "http://127.0.0.1:9000"),
            ("https://node.example/", "https://node.example"),
        ] {
            assert_eq!(endpoint(text).unwrap(), expected);
        }
        assert!(endpoint("ftp://x").unwrap_err().is_usage);
    }
}
