//! CORS: which web pages may call the S3 edge from a browser. Off unless origins are configured.
//!
//! Origins are configured for the whole edge, not per bucket. A preflight is answered here and never reaches
//! `s3s`; it says nothing about objects, so it needs no signature.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderValue, ORIGIN, VARY,
};
use http::{Method, Response, StatusCode};
use s3s::Body;

use crate::refusal::Refusal;

const METHODS: &str = "GET, HEAD, PUT, POST, DELETE";
const EXPOSED: &str = "ETag, Content-Length, Content-Range, Last-Modified, x-amz-request-id, x-amz-version-id, \
    x-amz-mp-parts-count, x-amz-tagging-count, x-amz-checksum-crc32, x-amz-checksum-crc32c, \
    x-amz-checksum-crc64nvme, x-amz-checksum-sha1, x-amz-checksum-sha256, x-amz-checksum-type";

/// The origins that are allowed.
#[derive(Debug)]
pub(crate) struct Cors {
    origins: Vec<String>,
}

impl Cors {
    pub(crate) fn new(origins: Vec<String>) -> Self {
        Self { origins }
    }

    fn allowed<'a>(&self, headers: &'a HeaderMap) -> Option<&'a HeaderValue> {
        let origin = headers.get(ORIGIN)?;
        self.origins
            .iter()
            .any(|allowed| allowed == "*" || origin == allowed.as_str())
            .then_some(origin)
    }

    /// The answer to an `OPTIONS` request.
    pub(crate) fn preflight(&self, headers: &HeaderMap) -> Response<Body> {
        let refuse =
            |message: &str| Refusal::new(StatusCode::FORBIDDEN, "AccessForbidden", message).into_response();
        if self.origins.is_empty() {
            return refuse("CORS is not switched on here");
        }
        let method = headers
            .get(ACCESS_CONTROL_REQUEST_METHOD)
            .and_then(|method| method.to_str().ok());
        let method_is_known = method.is_some_and(|method| METHODS.split(", ").any(|known| known == method));
        let Some(origin) = self.allowed(headers).filter(|_| method_is_known) else {
            return refuse("this origin or method is not allowed");
        };
        let mut response = Response::new(Body::empty());
        let out = response.headers_mut();
        out.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        out.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
        out.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("3000"));
        out.insert(VARY, HeaderValue::from_static("Origin"));
        if let Some(asked) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
            out.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
        }
        response
    }

    /// Returns what the answer to an ordinary request must carry, if a page of an allowed origin asked.
    pub(crate) fn answer_headers(&self, method: &Method, headers: &HeaderMap) -> Option<HeaderMap> {
        if self.origins.is_empty() || *method == Method::OPTIONS {
            return None;
        }
        let origin = self.allowed(headers)?;
        let mut out = HeaderMap::new();
        out.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        out.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
        out.insert(VARY, HeaderValue::from_static("Origin"));
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn preflight_of_an_allowed_origin_is_answered() {
        let cors = Cors::new(vec!["https://lab.example".to_owned()]);
        let asked = headers(&[
            ("origin", "https://lab.example"),
            ("access-control-request-method", "PUT"),
            ("access-control-request-headers", "x-amz-date"),
        ]);
        let answer = cors.preflight(&asked);
        assert_eq!(answer.status(), 200);
        assert_eq!(
            answer.headers()[ACCESS_CONTROL_ALLOW_ORIGIN],
            "https://lab.example"
        );
        assert_eq!(answer.headers()[ACCESS_CONTROL_ALLOW_HEADERS], "x-amz-date");
    }

    #[test]
    fn other_origins_and_methods_are_refused() {
        let cors = Cors::new(vec!["https://lab.example".to_owned()]);
        let foreign = headers(&[
            ("origin", "https://evil.example"),
            ("access-control-request-method", "PUT"),
        ]);
        assert_eq!(cors.preflight(&foreign).status(), 403);
        assert!(cors.answer_headers(&Method::GET, &foreign).is_none());
        let odd = headers(&[
            ("origin", "https://lab.example"),
            ("access-control-request-method", "TRACE"),
        ]);
        assert_eq!(cors.preflight(&odd).status(), 403);
    }

    #[test]
    fn cors_is_off_by_default() {
        let cors = Cors::new(Vec::new());
        let asked = headers(&[
            ("origin", "https://lab.example"),
            ("access-control-request-method", "GET"),
        ]);
        assert_eq!(cors.preflight(&asked).status(), 403);
        assert!(cors.answer_headers(&Method::GET, &asked).is_none());
    }
}
