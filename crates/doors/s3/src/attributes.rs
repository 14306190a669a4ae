//! HTTP headers of an object ↔ the attributes that a lake keeps, and tags.
//!
//! A lake has no field for `Expires`, so it is kept as user metadata under a reserved name (engine's
//! `metadata_name.rs`).

use forebay_engine::Attributes;
use forebay_engine::{Tag, kept_metadata_name, shown_metadata_name};
use http::StatusCode;
use percent_encoding::percent_decode_str;
use s3s::dto::{Metadata, Timestamp, TimestampFormat};
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};

const EXPIRES_ENTRY: &str = "forebay-expires";

/// S3's limit for names and values of user metadata together.
const METADATA_BYTES_MAX: usize = 2048;

const TAGS_MAX: usize = 10;
const TAG_KEY_CHARS_MAX: usize = 128;
const TAG_VALUE_CHARS_MAX: usize = 256;

/// The headers that a client sends with an object.
#[derive(Debug, Default)]
pub(crate) struct GivenHeaders {
    pub(crate) content_type: Option<String>,
    pub(crate) content_encoding: Option<String>,
    pub(crate) content_language: Option<String>,
    pub(crate) content_disposition: Option<String>,
    pub(crate) cache_control: Option<String>,
    pub(crate) expires: Option<Timestamp>,
    pub(crate) metadata: Option<Metadata>,
}

impl GivenHeaders {
    /// Returns what the lake keeps.
    pub(crate) fn into_attributes(self) -> S3Result<Attributes> {
        let mut user = std::collections::BTreeMap::new();
        let mut metadata_bytes = 0;
        for (name, value) in self.metadata.unwrap_or_default() {
            metadata_bytes += name.len() + value.len();
            user.insert(kept_metadata_name(name), value);
        }
        if metadata_bytes > METADATA_BYTES_MAX {
            return Err(s3_error!(
                MetadataTooLarge,
                "user metadata is limited to {METADATA_BYTES_MAX} bytes"
            ));
        }
        if let Some(expires) = &self.expires {
            user.insert(EXPIRES_ENTRY.to_owned(), http_date(expires)?);
        }
        Ok(Attributes {
            content_type: self.content_type,
            content_encoding: self.content_encoding.as_deref().and_then(without_aws_chunked),
            content_language: self.content_language,
            content_disposition: self.content_disposition,
            cache_control: self.cache_control,
            user,
        })
    }
}

/// `aws-chunked` is how the body travelled, not what the object is.
fn without_aws_chunked(encoding: &str) -> Option<String> {
    let rest: Vec<&str> = encoding
        .split(',')
        .map(str::trim)
        .filter(|one| !one.is_empty() && *one != "aws-chunked")
        .collect();
    (!rest.is_empty()).then(|| rest.join(","))
}

fn http_date(time: &Timestamp) -> S3Result<String> {
    let mut text = Vec::new();
    time.format(TimestampFormat::HttpDate, &mut text)
        .map_err(|error| s3_error!(error, InvalidArgument, "the Expires header is not a date"))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The `Expires` header that was kept, if any.
pub(crate) fn expires(attributes: &Attributes) -> Option<Timestamp> {
    attributes
        .user
        .get(EXPIRES_ENTRY)
        .and_then(|text| Timestamp::parse(TimestampFormat::HttpDate, text).ok())
}

/// User metadata as clients see it, and how many entries a header cannot hold.
pub(crate) fn metadata(attributes: &Attributes) -> (Option<Metadata>, Option<i32>) {
    let visible = attributes
        .user
        .iter()
        .filter_map(|(name, value)| Some((shown_metadata_name(name)?, value)));
    let (fit, misfit): (Vec<_>, Vec<_>) = visible.partition(|(name, value)| fits_a_header(name, value));
    let metadata: Metadata = fit
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.clone()))
        .collect();
    let missing = i32::try_from(misfit.len()).unwrap_or(i32::MAX);
    (
        (!metadata.is_empty()).then_some(metadata),
        (missing > 0).then_some(missing),
    )
}

fn fits_a_header(name: &str, value: &str) -> bool {
    http::header::HeaderName::from_bytes(format!("x-amz-meta-{name}").as_bytes()).is_ok()
        && !value.chars().any(char::is_control)
}

/// The `x-amz-tagging` header: `key=value&key=value`, URL encoded.
pub(crate) fn parse_tagging_header(header: Option<&str>) -> S3Result<Vec<Tag>> {
    let decode = |text: &str| -> S3Result<String> {
        let spaced = text.replace('+', " ");
        let decoded = percent_decode_str(&spaced).decode_utf8();
        Ok(decoded
            .map_err(|error| s3_error!(error, InvalidArgument, "the tags are not UTF-8"))?
            .into_owned())
    };
    let mut tags = Vec::new();
    for pair in header
        .unwrap_or_default()
        .split('&')
        .filter(|pair| !pair.is_empty())
    {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        tags.push(Tag {
            key: decode(key)?,
            value: decode(value)?,
        });
    }
    check_tags(&tags)?;
    Ok(tags)
}

/// S3's limits for tags.
pub(crate) fn check_tags(tags: &[Tag]) -> S3Result<()> {
    if tags.len() > TAGS_MAX {
        let mut error = S3Error::with_message(
            S3ErrorCode::Custom("BadRequest".into()),
            format!("object tags cannot be more than {TAGS_MAX}"),
        );
        error.set_status_code(StatusCode::BAD_REQUEST);
        return Err(error);
    }
    for (index, tag) in tags.iter().enumerate() {
        if tag.key.is_empty() || tag.key.chars().count() > TAG_KEY_CHARS_MAX {
            return Err(s3_error!(
                InvalidTag,
                "a tag key must have 1 to {TAG_KEY_CHARS_MAX} characters"
            ));
        }
        if tag.value.chars().count() > TAG_VALUE_CHARS_MAX {
            return Err(s3_error!(
                InvalidTag,
                "a tag value must have at most {TAG_VALUE_CHARS_MAX} characters"
            ));
        }
        if tags[..index].iter().any(|other| other.key == tag.key) {
            return Err(s3_error!(InvalidTag, "two tags have the same key"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn given(name: &str, value: &str) -> GivenHeaders {
        GivenHeaders {
            metadata: Some([(name.to_owned(), value.to_owned())].into()),
            ..GivenHeaders::default()
        }
    }

    #[test]
    fn metadata_over_two_kib_is_too_large() {
        assert!(
            given("name", &"x".repeat(METADATA_BYTES_MAX - 4))
                .into_attributes()
                .is_ok()
        );
        let error = given("name", &"x".repeat(METADATA_BYTES_MAX - 3))
            .into_attributes()
            .unwrap_err();
        assert_eq!(error.code().as_str(), "MetadataTooLarge");
    }

    #[test]
    fn expires_is_kept_and_hidden() {
        let date = "Wed, 21 Oct 2015 07:28:00 GMT";
        let expires_at = Timestamp::parse(TimestampFormat::HttpDate, date).unwrap();
        let headers = GivenHeaders {
            expires: Some(expires_at.clone()),
            ..GivenHeaders::default()
        };
        let attributes = headers.into_attributes().unwrap();
        assert_eq!(expires(&attributes), Some(expires_at));
        assert_eq!(metadata(&attributes), (None, None));
    }

    #[test]
    fn names_like_ours_are_kept_apart_from_ours() {
        for name in [
            "forebay-expires",
            "forebay-extras",
            "forebay-client-x",
            "forebay-",
        ] {
            let attributes = given(name, "theirs").into_attributes().unwrap();
            assert!(!attributes.user.contains_key(name), "{name}");
            assert_eq!(expires(&attributes), None);
            let (shown, missing) = metadata(&attributes);
            assert_eq!(shown.unwrap()[name], "theirs");
            assert_eq!(missing, None);
        }
    }

    #[test]
    fn metadata_that_no_header_can_hold_is_counted() {
        let mut attributes = Attributes::default();
        attributes.user.insert("good".into(), "1".into());
        attributes.user.insert("bad name".into(), "1".into());
        attributes.user.insert("bad-value".into(), "a\nb".into());
        let (shown, missing) = metadata(&attributes);
        assert_eq!((shown.unwrap().len(), missing), (1, Some(2)));
    }

    #[test]
    fn aws_chunked_is_not_kept() {
        assert_eq!(without_aws_chunked("aws-chunked"), None);
        assert_eq!(without_aws_chunked("gzip, aws-chunked").as_deref(), Some("gzip"));
        assert_eq!(without_aws_chunked("gzip").as_deref(), Some("gzip"));
    }

    #[test]
    fn tags_are_decoded_and_limited() {
        let tags = parse_tagging_header(Some("a=1&b%20c=d+e&f")).unwrap();
        let pairs: Vec<_> = tags
            .iter()
            .map(|tag| (tag.key.as_str(), tag.value.as_str()))
            .collect();
        assert_eq!(pairs, [("a", "1"), ("b c", "d e"), ("f", "")]);
        assert_eq!(
            parse_tagging_header(Some("a=1&a=2")).unwrap_err().code().as_str(),
            "InvalidTag"
        );
        assert_eq!(
            parse_tagging_header(Some("=1")).unwrap_err().code().as_str(),
            "InvalidTag"
        );
        let eleven = (0..11).map(|i| format!("k{i}=v")).collect::<Vec<_>>().join("&");
        assert_eq!(
            parse_tagging_header(Some(&eleven)).unwrap_err().code().as_str(),
            "BadRequest"
        );
        let long = format!("{}=v", "k".repeat(129));
        assert_eq!(
            parse_tagging_header(Some(&long)).unwrap_err().code().as_str(),
            "InvalidTag"
        );
        assert!(parse_tagging_header(Some("%ff=1")).is_err());
    }

    proptest! {
        #[test]
        fn any_tagging_header_is_answered(text in "\\PC{0,80}") {
            if let Ok(tags) = parse_tagging_header(Some(&text)) {
                prop_assert!(check_tags(&tags).is_ok());
            }
        }
    }
}
