//! Attributes and conditions as HTTP headers, both ways.
//!
//! User metadata that is not printable ASCII travels as RFC 2047 encoded words, as S3 itself answers with;
//! what looks like one is decoded.

use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use forebay_core::{Error, Kind, ObjectKey, Result, Version};
use http::HeaderMap;
use http::header::{self, HeaderName, HeaderValue};

use super::xml::version;
use crate::{Attributes, ObjectMeta, PutMode, UpdateToken};

const META_PREFIX: &str = "x-amz-meta-";

fn value(name: &str, text: &str) -> Result<HeaderValue> {
    HeaderValue::from_str(text).map_err(|why| {
        Error::new(
            Kind::InvalidInput,
            "an attribute cannot be sent as an HTTP header",
        )
        .with("name", name)
        .caused_by(why)
    })
}

/// Adds attributes to a request.
pub(crate) fn add_attributes(headers: &mut HeaderMap, attributes: &Attributes) -> Result<()> {
    let plain = [
        (header::CONTENT_TYPE, &attributes.content_type),
        (header::CONTENT_ENCODING, &attributes.content_encoding),
        (header::CONTENT_LANGUAGE, &attributes.content_language),
        (header::CONTENT_DISPOSITION, &attributes.content_disposition),
        (header::CACHE_CONTROL, &attributes.cache_control),
    ];
    for (name, text) in plain {
        if let Some(text) = text {
            let value = value(name.as_str(), text)?;
            headers.insert(name, value);
        }
    }
    for (name, text) in &attributes.user {
        let header: HeaderName =
            format!("{META_PREFIX}{name}")
                .parse()
                .map_err(|why: header::InvalidHeaderName| {
                    Error::new(Kind::InvalidInput, "a metadata name cannot be an HTTP header")
                        .with("name", name)
                        .caused_by(why)
                })?;
        headers.insert(header, value(name, &encode_word(text))?);
    }
    Ok(())
}

/// Adds the condition of a write; says what status 412 then means.
pub(crate) fn add_condition(headers: &mut HeaderMap, mode: &PutMode, quotes: Quotes) -> Result<Kind> {
    match mode {
        PutMode::Overwrite => Ok(Kind::PreconditionFailed),
        PutMode::Create => {
            headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static("*"));
            Ok(Kind::AlreadyExists)
        }
        PutMode::Update(token) => {
            let Some(etag) = &token.etag else {
                return Err(Error::new(
                    Kind::InvalidInput,
                    "an update of an S3 object needs the ETag it replaces",
                ));
            };
            headers.insert(header::IF_MATCH, etag_value(etag, quotes)?);
            Ok(Kind::PreconditionFailed)
        }
    }
}

/// Quoting of ETags in requests; old Ceph compares them as text without quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quotes {
    With,
    Without,
}

/// An ETag as a condition.
pub(crate) fn etag_value(etag: &str, quotes: Quotes) -> Result<HeaderValue> {
    match quotes {
        Quotes::With => value("ETag", &format!("\"{etag}\"")),
        Quotes::Without => value("ETag", etag),
    }
}

/// Returns what the head of an answer says about an object of `bytes` bytes.
pub(crate) fn object_meta(key: &ObjectKey, bytes: u64, headers: &HeaderMap) -> Result<ObjectMeta> {
    let version = written_version(headers)?;
    let token = UpdateToken {
        etag: Some(version.to_string()),
        version: None,
    };
    let modified = text(headers, &header::LAST_MODIFIED)
        .and_then(|text| jiff::fmt::rfc2822::parse(&text).ok())
        .map_or(SystemTime::UNIX_EPOCH, |time| time.timestamp().into());
    let mut attributes = Attributes {
        content_type: text(headers, &header::CONTENT_TYPE),
        content_encoding: text(headers, &header::CONTENT_ENCODING),
        content_language: text(headers, &header::CONTENT_LANGUAGE),
        content_disposition: text(headers, &header::CONTENT_DISPOSITION),
        cache_control: text(headers, &header::CACHE_CONTROL),
        ..Attributes::default()
    };
    for (name, value) in headers {
        if let Some(name) = name.as_str().strip_prefix(META_PREFIX) {
            let text = String::from_utf8_lossy(value.as_bytes());
            attributes.user.insert(name.to_owned(), decode_words(&text));
        }
    }
    Ok(ObjectMeta {
        key: key.clone(),
        bytes,
        version,
        modified,
        attributes,
        token,
    })
}

/// The ETag of an answer.
pub(crate) fn written_version(headers: &HeaderMap) -> Result<Version> {
    let etag = text(headers, &header::ETAG).filter(|etag| !etag.is_empty());
    let etag = etag.ok_or_else(|| {
        Error::new(
            Kind::Unsupported,
            "the lake gives no ETag, so versions cannot be told apart",
        )
    })?;
    Ok(version(&etag))
}

/// The size that an answer announces.
pub(crate) fn content_length(headers: &HeaderMap) -> Result<u64> {
    text(headers, &header::CONTENT_LENGTH)
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| Error::new(Kind::Unavailable, "the lake's answer has no size"))
}

/// `bytes 3-9/20` as start and total.
pub(crate) fn content_range(headers: &HeaderMap) -> Option<(u64, u64)> {
    let text = text(headers, &header::CONTENT_RANGE)?;
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.trim().parse().ok()?, total.trim().parse().ok()?))
}

fn text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers
        .get(name)
        .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

fn encode_word(text: &str) -> String {
    let is_plain = text.bytes().all(|byte| (0x20..0x7f).contains(&byte)) && text.trim() == text;
    if is_plain {
        text.to_owned()
    } else {
        format!("=?UTF-8?B?{}?=", STANDARD.encode(text))
    }
}

/// Decodes `=?UTF-8?B?…?=` and `=?UTF-8?Q?…?=` words; anything else stays as it is.
fn decode_words(text: &str) -> String {
    let mut decoded = Vec::new();
    for word in text.split(' ') {
        match decode_word(word) {
            Some(bytes) => decoded.extend(bytes),
            None => return text.to_owned(),
        }
    }
    String::from_utf8(decoded).unwrap_or_else(|_| text.to_owned())
}

fn decode_word(word: &str) -> Option<Vec<u8>> {
    let inner = word.strip_prefix("=?")?.strip_suffix("?=")?;
    let mut fields = inner.splitn(3, '?');
    let (charset, encoding, data) = (fields.next()?, fields.next()?, fields.next()?);
    if !charset.eq_ignore_ascii_case("utf-8") {
        return None;
    }
    match encoding {
        "B" | "b" => STANDARD.decode(data).ok(),
        "Q" | "q" => {
            let percent = data.replace('%', "%25").replace('_', " ").replace('=', "%");
            Some(percent_encoding::percent_decode_str(&percent).collect())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_survive_the_way_there_and_back() {
        let mut attributes = Attributes {
            content_type: Some("text/plain".into()),
            ..Attributes::default()
        };
        for (name, text) in [
            ("plain", "a b=c"),
            ("umlaut", "größe 漢"),
            ("blank", " x "),
            ("empty", ""),
        ] {
            attributes.user.insert(name.into(), text.into());
        }
        let mut headers = HeaderMap::new();
        add_attributes(&mut headers, &attributes).unwrap();
        headers.insert(header::ETAG, HeaderValue::from_static("\"e\""));
        let meta = object_meta(&ObjectKey::new("k").unwrap(), 1, &headers).unwrap();
        assert_eq!(meta.attributes, attributes);
        assert_eq!(meta.version.as_str(), "e");
    }

    #[test]
    fn quoted_printable_words_are_understood() {
        assert_eq!(decode_words("=?UTF-8?Q?gr=C3=B6_100%?="), "grö 100%");
        assert_eq!(decode_words("=?UTF-8?B?w7Y=?= =?UTF-8?B?w7Y=?="), "öö");
        assert_eq!(decode_words("=?nonsense"), "=?nonsense");
    }

    #[test]
    fn header_injection_is_refused() {
        let mut attributes = Attributes {
            content_type: Some("a\r\nx-evil: 1".into()),
            ..Attributes::default()
        };
        assert!(add_attributes(&mut HeaderMap::new(), &attributes).is_err());
        attributes.content_type = None;
        attributes.user.insert("bad name".into(), "x".into());
        assert!(add_attributes(&mut HeaderMap::new(), &attributes).is_err());
    }

    #[test]
    fn content_range_gives_start_and_total() {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_RANGE, HeaderValue::from_static("bytes 3-9/20"));
        assert_eq!(content_range(&headers), Some((3, 20)));
        headers.insert(header::CONTENT_RANGE, HeaderValue::from_static("bytes 3-9/*"));
        assert_eq!(content_range(&headers), None);
    }
}
