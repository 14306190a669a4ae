//! `Range` headers that S3 ignores and `s3s` refuses.
//!
//! S3 answers a range it does not understand (several ranges, other units, backward ranges) with the whole
//! object. `s3s` has a stricter parser and would answer 400. The header may be covered by the signature, so
//! it cannot be taken away before `s3s` has verified it. This route therefore catches such requests after the
//! first pass has verified them, drops the header together with the signature, and sends the rest through a
//! second service; the verified key goes along in the request's context, which no client can reach.

use http::header::{AUTHORIZATION, RANGE};
use http::uri::PathAndQuery;
use http::{Extensions, HeaderMap, Method, Uri};
use s3s::dto::Range;
use s3s::route::S3Route;
use s3s::service::S3Service;
use s3s::{Body, HttpRequest, S3Request, S3Response, S3Result, s3_error};

use crate::context::RequestContext;

/// Sends requests with a range that is ignored on without it.
pub(crate) struct IgnoredRange {
    /// A service with the same operations and rules, but without this route.
    pub(crate) second: S3Service,
}

/// Returns whether S3 would ignore this header.
pub(crate) fn is_ignored(headers: &HeaderMap) -> bool {
    let Some(range) = headers.get(RANGE) else {
        return false;
    };
    match range.to_str() {
        Ok("") => false,
        Ok(text) => Range::parse(text).is_err(),
        Err(_) => true,
    }
}

/// The URI without the parts of a presigned signature.
fn without_signature(uri: &Uri) -> S3Result<Uri> {
    let query = uri.query().unwrap_or_default();
    let rest: Vec<&str> = query
        .split('&')
        .filter(|pair| !pair.is_empty() && !pair.starts_with("X-Amz-"))
        .collect();
    let target = if rest.is_empty() {
        uri.path().to_owned()
    } else {
        format!("{}?{}", uri.path(), rest.join("&"))
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query =
        Some(PathAndQuery::try_from(target).map_err(|error| s3_error!(error, InvalidURI))?);
    Uri::from_parts(parts).map_err(|error| s3_error!(error, InvalidURI))
}

#[async_trait::async_trait]
impl S3Route for IgnoredRange {
    fn is_match(&self, method: &Method, _: &Uri, headers: &HeaderMap, _: &mut Extensions) -> bool {
        (method == Method::GET || method == Method::HEAD) && is_ignored(headers)
    }

    /// Returns who may do this is decided by the second pass; here only the verified name is kept.
    async fn check_access(&self, request: &mut S3Request<Body>) -> S3Result<()> {
        let Some(context) = RequestContext::of(&request.extensions) else {
            return Err(s3_error!(InternalError, "the request has no context"));
        };
        let who = request
            .credentials
            .as_ref()
            .map(|credentials| credentials.access_key.clone());
        context.update(|notes| {
            notes.verified = true;
            notes.who = who;
        });
        Ok(())
    }

    async fn call(&self, request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let mut again = HttpRequest::new(request.input);
        *again.method_mut() = request.method;
        *again.uri_mut() = without_signature(&request.uri)?;
        *again.headers_mut() = request.headers;
        *again.extensions_mut() = request.extensions;
        again.headers_mut().remove(RANGE);
        again.headers_mut().remove(AUTHORIZATION);
        let answer = self.second.call(again).await.map_err(|error| {
            let mut wrapped = s3_error!(InternalError, "the answer could not be written");
            wrapped.set_source(error.into());
            wrapped
        })?;
        let (parts, body) = answer.into_parts();
        let mut response = S3Response::with_status(body, parts.status);
        response.headers = parts.headers;
        response.extensions = parts.extensions;
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ignored(text: &str) -> bool {
        is_ignored(&HeaderMap::from_iter([(RANGE, text.parse().unwrap())]))
    }

    #[test]
    fn ordinary_ranges_are_left_alone() {
        for range in ["bytes=0-", "bytes=0-0", "bytes=-5", "bytes=7-9", ""] {
            assert!(!ignored(range), "{range}");
        }
    }

    #[test]
    fn ranges_that_s3_ignores_are_caught() {
        for range in [
            "bytes=0-1,3-4",
            "bytes=5-2",
            "items=0-1",
            "bytes",
            "bytes=",
            "bytes=a-b",
            "bytes = 0-1",
        ] {
            assert!(ignored(range), "{range}");
        }
    }

    #[test]
    fn signature_is_taken_out_of_the_uri() {
        let uri: Uri = "/b/k%20x?partNumber=1&X-Amz-Signature=abc&X-Amz-Date=1&versionId=null"
            .parse()
            .unwrap();
        assert_eq!(
            without_signature(&uri).unwrap(),
            "/b/k%20x?partNumber=1&versionId=null"
        );
        let uri: Uri = "/b/k?X-Amz-Signature=abc".parse().unwrap();
        assert_eq!(without_signature(&uri).unwrap(), "/b/k");
    }

    proptest! {
        /// Every header value is either ignored or a range that `s3s` understands; none panics.
        #[test]
        fn any_range_is_odd_or_understood(text in "(bytes=)?[0-9,\\- a-z]{0,30}") {
            prop_assert!(text.is_empty() || ignored(&text) || Range::parse(text.trim()).is_ok());
        }
    }
}
