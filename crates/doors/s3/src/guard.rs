//! Checks of a request before `s3s` looks at it.
//!
//! `s3s` 0.14 verifies SigV4 but leaves holes that its users have to close: it takes SigV2, any region, the
//! `sts` service and presigned URLs of any age, it lets `x-amz-*` headers through that the signature does not
//! cover (so that a thief of a presigned URL could add some), and it skips signed headers that are not there
//! or are not UTF-8. Everything here only refuses, but for parameters of a presigned URL that stand for a
//! header: they become that header (`amz.rs`). The signature covers them in the query.

use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName};
use http::request::Parts;
use http::{Method, StatusCode};
use percent_encoding::percent_decode_str;

use crate::amz;
use crate::refusal::Refusal;
use crate::xml_digest::is_document;

/// A presigned URL may live this long; the same as at AWS.
const PRESIGN_EXPIRY_SECS_MAX: u64 = 7 * 24 * 3600;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// Headers that decide what a request means and may be there once only.
const UNIQUE_HEADERS: [&str; 6] = [
    "authorization",
    "host",
    "x-amz-date",
    "x-amz-content-sha256",
    "x-amz-decoded-content-length",
    "content-md5",
];

/// The checks and what they are checked against.
#[derive(Debug)]
pub(crate) struct Guard {
    pub(crate) region: String,
    pub(crate) header_bytes_max: usize,
}

/// Form in which a request says who it is from.
enum Claim<'a> {
    Header {
        credential: &'a str,
        signed_headers: Vec<&'a str>,
    },
    Presigned {
        credential: String,
        signed_headers: String,
        expires: Option<String>,
    },
    Anonymous,
}

impl Guard {
    /// Refuses what must not reach `s3s`.
    pub(crate) fn check(&self, parts: &mut Parts) -> Result<(), Refusal> {
        self.check_size(parts)?;
        check_unique(&parts.headers)?;
        check_form_post(parts)?;
        let query = Query::parse(parts.uri.query());
        refuse_session_token(parts, &query)?;
        match claim(&parts.headers, &query)? {
            Claim::Header {
                credential,
                signed_headers,
            } => {
                self.check_scope(credential, "AuthorizationHeaderMalformed")?;
                check_signed_headers(&parts.headers, &signed_headers)?;
                amz::refuse_parameters(query.names())?;
            }
            Claim::Presigned {
                credential,
                signed_headers,
                expires,
            } => {
                self.check_scope(&credential, "AuthorizationQueryParametersError")?;
                check_expiry(expires.as_deref())?;
                let signed_headers: Vec<&str> = signed_headers.split(';').collect();
                check_signed_headers(&parts.headers, &signed_headers)?;
                amz::hoist(query.pairs(), &mut parts.headers)?;
            }
            Claim::Anonymous => {
                refuse_anonymous_overrides(&query)?;
                amz::refuse_parameters(query.names())?;
            }
        }
        let is_document = is_document(&parts.method, parts.uri.query().unwrap_or_default());
        amz::refuse_headers(&parts.method, is_document, &parts.headers)
    }

    fn check_size(&self, parts: &Parts) -> Result<(), Refusal> {
        let line_bytes = parts.uri.path().len() + parts.uri.query().map_or(0, str::len);
        let header_bytes: usize = parts
            .headers
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len() + 4)
            .sum();
        if line_bytes + header_bytes <= self.header_bytes_max {
            return Ok(());
        }
        let message = format!(
            "the request line and headers together are limited to {} bytes",
            self.header_bytes_max
        );
        Err(Refusal::bad("RequestHeaderSectionTooLarge", message))
    }

    /// `id/date/region/s3/aws4_request`; the id may itself contain slashes, so it is read from the end.
    fn check_scope(&self, credential: &str, malformed: &'static str) -> Result<(), Refusal> {
        let mut fields = credential.rsplitn(5, '/');
        let (terminator, service, region) = (fields.next(), fields.next(), fields.next());
        let (Some("aws4_request"), Some(service), Some(region), Some(_date), Some(_id)) =
            (terminator, service, region, fields.next(), fields.next())
        else {
            return Err(Refusal::bad(
                malformed,
                "the credential must be <key id>/<date>/<region>/s3/aws4_request",
            ));
        };
        if service != "s3" {
            return Err(Refusal::bad(
                malformed,
                format!("the credential names service '{service}'; expecting 's3'"),
            ));
        }
        if region != self.region {
            let message = format!("the region '{region}' is wrong; expecting '{}'", self.region);
            return Err(Refusal::bad(malformed, message).with("Region", self.region.clone()));
        }
        Ok(())
    }
}

fn claim<'a>(headers: &'a HeaderMap, query: &Query) -> Result<Claim<'a>, Refusal> {
    const V2_REFUSED: &str =
        "signature version 2 is not accepted; use AWS4-HMAC-SHA256 (boto3: Config(signature_version='s3v4'))";
    let presigned =
        query.has("X-Amz-Signature") || query.has("X-Amz-Credential") || query.has("X-Amz-Algorithm");
    if query.has("AWSAccessKeyId") {
        return Err(Refusal::bad("InvalidRequest", V2_REFUSED));
    }
    let Some(authorization) = headers.get(AUTHORIZATION) else {
        return if presigned {
            presigned_claim(query)
        } else {
            Ok(Claim::Anonymous)
        };
    };
    if presigned {
        let message = "use either the Authorization header or the X-Amz-* query parameters, not both";
        return Err(Refusal::bad("InvalidArgument", message));
    }
    let authorization = authorization.to_str().map_err(|_| {
        Refusal::bad(
            "AuthorizationHeaderMalformed",
            "the Authorization header is not plain ASCII",
        )
    })?;
    if authorization.starts_with("AWS ") {
        return Err(Refusal::bad("InvalidRequest", V2_REFUSED));
    }
    let Some(fields) = authorization
        .strip_prefix(ALGORITHM)
        .filter(|rest| rest.starts_with(' '))
    else {
        return Err(Refusal::bad(
            "InvalidArgument",
            format!("only {ALGORITHM} authorization is accepted"),
        ));
    };
    header_claim(fields)
}

fn header_claim(fields: &str) -> Result<Claim<'_>, Refusal> {
    let (mut credential, mut signed_headers) = (None, None);
    for field in fields.split(',') {
        match field.trim().split_once('=') {
            Some(("Credential", value)) if credential.is_none() => credential = Some(value),
            Some(("SignedHeaders", value)) if signed_headers.is_none() => signed_headers = Some(value),
            Some(("Signature", _)) => {}
            _ => return Err(malformed_header()),
        }
    }
    let (Some(credential), Some(signed_headers)) = (credential, signed_headers) else {
        return Err(malformed_header());
    };
    Ok(Claim::Header {
        credential,
        signed_headers: signed_headers.split(';').collect(),
    })
}

fn malformed_header() -> Refusal {
    let message = "the Authorization header must have Credential, SignedHeaders and Signature, each once";
    Refusal::bad("AuthorizationHeaderMalformed", message)
}

fn presigned_claim(query: &Query) -> Result<Claim<'static>, Refusal> {
    if !query.has("X-Amz-Signature") || query.get("X-Amz-Algorithm") != Some(ALGORITHM) {
        let message = format!("a presigned URL needs X-Amz-Algorithm={ALGORITHM} and X-Amz-Signature");
        return Err(Refusal::bad("AuthorizationQueryParametersError", message));
    }
    let (Some(credential), Some(signed_headers)) =
        (query.get("X-Amz-Credential"), query.get("X-Amz-SignedHeaders"))
    else {
        let message = "a presigned URL needs X-Amz-Credential and X-Amz-SignedHeaders, each once";
        return Err(Refusal::bad("AuthorizationQueryParametersError", message));
    };
    Ok(Claim::Presigned {
        credential: credential.to_owned(),
        signed_headers: signed_headers.to_owned(),
        expires: query.get("X-Amz-Expires").map(str::to_owned),
    })
}

fn check_expiry(expires: Option<&str>) -> Result<(), Refusal> {
    match expires.and_then(|text| text.parse::<u64>().ok()) {
        Some(secs) if secs <= PRESIGN_EXPIRY_SECS_MAX => Ok(()),
        _ => {
            let message =
                format!("X-Amz-Expires must be a number of seconds up to {PRESIGN_EXPIRY_SECS_MAX} (a week)");
            Err(Refusal::bad("AuthorizationQueryParametersError", message))
        }
    }
}

/// The signature must cover the host and every `x-amz-*` header that is there, and nothing that is not.
fn check_signed_headers(headers: &HeaderMap, signed: &[&str]) -> Result<(), Refusal> {
    let is_signed = |name: &str| signed.contains(&name);
    if !is_signed(HOST.as_str()) {
        return Err(unsigned("host"));
    }
    for name in headers.keys().map(HeaderName::as_str) {
        if name.starts_with("x-amz-") && !is_signed(name) {
            return Err(unsigned(name));
        }
    }
    for name in signed {
        let mut values = headers.get_all(*name).iter().peekable();
        if values.peek().is_none() {
            let message =
                format!("the signature covers the header '{name}', but the request does not have it");
            return Err(Refusal::new(
                StatusCode::FORBIDDEN,
                "SignatureDoesNotMatch",
                message,
            ));
        }
        let is_text = |value: &http::HeaderValue| std::str::from_utf8(value.as_bytes()).is_ok();
        if !values.all(is_text) {
            let message = format!("the header '{name}' is not UTF-8");
            return Err(Refusal::bad("InvalidArgument", message));
        }
    }
    Ok(())
}

fn unsigned(name: &str) -> Refusal {
    Refusal::denied("there were headers in the request that its signature does not cover")
        .with("HeadersNotSigned", name)
}

fn check_unique(headers: &HeaderMap) -> Result<(), Refusal> {
    if headers.keys_len() == headers.len() {
        return Ok(()); // Nothing is there twice, as nearly always.
    }
    for name in UNIQUE_HEADERS {
        if headers.get_all(name).iter().nth(1).is_some() {
            return Err(Refusal::bad(
                "InvalidArgument",
                format!("the header '{name}' may be given once only"),
            ));
        }
    }
    Ok(())
}

/// Uploads by HTML form are not there; `s3s` would read the whole form first.
fn check_form_post(parts: &Parts) -> Result<(), Refusal> {
    let is_form = |value: &http::HeaderValue| {
        let value = value.as_bytes();
        let prefix = b"multipart/form-data";
        value.len() >= prefix.len() && value[..prefix.len()].eq_ignore_ascii_case(prefix)
    };
    if parts.method == Method::POST && parts.headers.get(CONTENT_TYPE).is_some_and(is_form) {
        return Err(Refusal::not_implemented(
            "uploads by HTML form (POST object) are not supported; use PUT",
        ));
    }
    Ok(())
}

/// Our keys have no sessions; a token means that somebody sent the credentials of another system.
fn refuse_session_token(parts: &Parts, query: &Query) -> Result<(), Refusal> {
    if parts.headers.contains_key("x-amz-security-token") || query.has("X-Amz-Security-Token") {
        let message = "session tokens are not accepted here; use an access key of this server without AWS_SESSION_TOKEN";
        return Err(Refusal::bad("InvalidToken", message));
    }
    Ok(())
}

fn refuse_anonymous_overrides(query: &Query) -> Result<(), Refusal> {
    if query.names().any(|name| name.starts_with("response-")) {
        let message = "response-* parameters cannot be used with anonymous requests";
        return Err(Refusal::bad("InvalidRequest", message));
    }
    Ok(())
}

/// The query, decoded; a name that is there twice has no value.
struct Query(Vec<(String, String)>);

impl Query {
    fn parse(query: Option<&str>) -> Self {
        let decode = |text: &str| {
            let spaced = text.replace('+', " ");
            percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
        };
        let pairs = query
            .unwrap_or_default()
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                (decode(name), decode(value))
            });
        Self(pairs.collect())
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    fn has(&self, name: &str) -> bool {
        self.names().any(|other| other == name)
    }

    fn get(&self, name: &str) -> Option<&str> {
        let mut values = self
            .0
            .iter()
            .filter(|(other, _)| other == name)
            .map(|(_, value)| value.as_str());
        let value = values.next()?;
        values.next().is_none().then_some(value)
    }
}

#[cfg(test)]
mod tests;
