//! Access to the admin API: processes with the token, and nobody's web page.
//!
//! On loopback any local process may read; what changes something needs the token there too, because other
//! users of the host are no less strangers than those of a network. The other danger is a browser: a page
//! could post forms to us (CSRF) or bind its own name to 127.0.0.1 (DNS rebinding). Therefore a `Host` that
//! is not an address or `localhost` is refused on loopback, an `Origin` that is not ourselves is refused
//! always, and whatever changes state has to be sent as JSON, which a page cannot do without asking first,
//! and we never say yes to that.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use forebay_core::{Error, Kind, Result};

use crate::Protection;
use crate::answer::Refusal;

/// Lets a request pass or answers it.
pub(crate) async fn check(
    State(protection): State<Arc<Protection>>,
    request: Request,
    next: Next,
) -> Response {
    let (headers, path) = (request.headers(), request.uri().path());
    if let Err(error) = check_browser(request.method(), headers, &protection) {
        return Refusal(error).into_response();
    }
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let (token, is_open) = match &*protection {
        Protection::Loopback(token) => (token, is_read),
        Protection::Everywhere(token) => (token, is_read && matches!(path, "/healthz" | "/readyz")),
    };
    if !is_open && !bearer(headers).is_some_and(|given| same_secret(given, token.reveal())) {
        let error = Error::new(
            Kind::Denied,
            "this needs the admin token, which keys.toml in the node's data folder has: give the command --data FOLDER or FOREBAY_ADMIN_TOKEN, or send 'Authorization: Bearer …'",
        );
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        return (
            StatusCode::UNAUTHORIZED,
            challenge,
            Refusal(error).into_response().into_body(),
        )
            .into_response();
    }
    next.run(request).await
}

/// Returns whether two secrets are the same, in a time that does not depend on where they differ.
fn same_secret(left: &str, right: &str) -> bool {
    // Hashes have one length and compare in constant time.
    blake3::hash(left.as_bytes()) == blake3::hash(right.as_bytes())
}

fn check_browser(method: &Method, headers: &HeaderMap, protection: &Protection) -> Result<()> {
    let host = text(headers, header::HOST);
    if matches!(protection, Protection::Loopback(_)) && !host.is_some_and(is_local_name) {
        return Err(Error::new(
            Kind::Denied,
            "the admin API on loopback answers only to localhost and addresses",
        ));
    }
    if let Some(origin) = headers.get(header::ORIGIN) {
        let authority = origin
            .to_str()
            .ok()
            .and_then(|text| text.split_once("://"))
            .map(|(_, authority)| authority);
        if authority.is_none() || authority != host {
            return Err(Error::new(
                Kind::Denied,
                "the admin API does not take requests from other web pages",
            ));
        }
    }
    if !matches!(*method, Method::GET | Method::HEAD) {
        let essence = text(headers, header::CONTENT_TYPE)
            .and_then(|kind| kind.split(';').next())
            .map(str::trim);
        if !essence.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json")) {
            return Err(Error::new(
                Kind::InvalidInput,
                "send 'Content-Type: application/json'",
            ));
        }
    }
    Ok(())
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

fn is_local_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|c| c.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok()
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = text(headers, header::AUTHORIZATION)?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_compare_by_content() {
        assert!(same_secret("abc", "abc"));
        assert!(!same_secret("abc", "abcd"));
        assert!(!same_secret("", "a"));
    }

    #[test]
    fn only_addresses_and_localhost_are_local() {
        for host in [
            "127.0.0.1:9001",
            "localhost:9001",
            "localhost",
            "[::1]:9001",
            "10.0.0.1",
        ] {
            assert!(is_local_name(host), "{host}");
        }
        for host in [
            "evil.example:9001",
            "127.0.0.1.evil.example",
            "",
            "localhost.evil.example",
        ] {
            assert!(!is_local_name(host), "{host}");
        }
    }
}
