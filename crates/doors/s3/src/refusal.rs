//! An answer that we give without asking `s3s`: overload, bad signatures, CORS.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use s3s::{Body, S3Error, S3ErrorCode};

/// The answer to a request that finds no room, for `s3s` to write.
pub(crate) fn slow_down() -> S3Error {
    let mut answer = S3Error::with_message(
        S3ErrorCode::SlowDown,
        "too much is in flight, in all or of this key or address; try again in a second",
    );
    answer.set_headers(HeaderMap::from_iter([
        // Given headers replace all others, so the content type has to come along.
        (CONTENT_TYPE, HeaderValue::from_static("application/xml")),
        (RETRY_AFTER, HeaderValue::from_static("1")),
    ]));
    answer
}

/// A refused request: status, S3 code, message, and what else belongs into the XML.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) code: &'static str,
    pub(crate) message: String,
    /// More elements of the XML document.
    pub(crate) details: Vec<(&'static str, String)>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            details: Vec::new(),
        }
    }

    pub(crate) fn bad(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    pub(crate) fn denied(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "AccessDenied", message)
    }

    pub(crate) fn not_implemented(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message)
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.details.push((name, value.into()));
        self
    }

    /// The answer as HTTP.
    pub(crate) fn into_response(self) -> Response<Body> {
        let mut xml = String::with_capacity(256);
        xml.push_str("<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error>");
        push_element(&mut xml, "Code", self.code);
        push_element(&mut xml, "Message", &self.message);
        for (name, value) in &self.details {
            push_element(&mut xml, name, value);
        }
        xml.push_str("</Error>");

        let mut response = Response::new(Body::from(Bytes::from(xml)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        for (name, value) in &self.details {
            if *name == "Region"
                && let Ok(value) = HeaderValue::from_str(value)
            {
                headers.insert(HeaderName::from_static("x-amz-bucket-region"), value);
            }
        }
        response
    }
}

/// Appends `<name>text</name>` with the text escaped.
pub(crate) fn push_element(xml: &mut String, name: &str, text: &str) {
    xml.push('<');
    xml.push_str(name);
    xml.push('>');
    for c in text.chars() {
        match c {
            '<' => xml.push_str("&lt;"),
            '>' => xml.push_str("&gt;"),
            '&' => xml.push_str("&amp;"),
            '"' => xml.push_str("&quot;"),
            // Parsers would make a line feed of a carriage return.
            '\r' => xml.push_str("&#13;"),
            '\n' => xml.push_str("&#10;"),
            '\t' => xml.push_str("&#9;"),
            // Other control characters have no place in XML 1.0.
            c if c.is_control() => xml.push('\u{fffd}'),
            c => xml.push(c),
        }
    }
    xml.push_str("</");
    xml.push_str(name);
    xml.push('>');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        let mut xml = String::new();
        push_element(&mut xml, "K", "a<b>&\"\u{1}\r\n\t");
        assert_eq!(xml, "<K>a&lt;b&gt;&amp;&quot;\u{fffd}&#13;&#10;&#9;</K>");
    }

    #[test]
    fn overload_says_when_to_come_back() {
        let busy = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "SlowDown", "later").into_response();
        assert_eq!(busy.headers()[RETRY_AFTER], "1");
        let busy = slow_down();
        assert_eq!(busy.status_code(), Some(StatusCode::SERVICE_UNAVAILABLE));
        assert_eq!(busy.headers().map(|headers| &headers[RETRY_AFTER]).unwrap(), "1");
    }
}
