//! The XML that S3 speaks, as far as a lake needs it.

use std::time::SystemTime;

use forebay_core::{Error, Kind, ObjectKey, Result, Version};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::{ListedObject, PartNumber, PartReceipt};

/// `<Error>`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct ErrorBody {
    pub(crate) code: String,
    pub(crate) message: String,
}

/// `<ListBucketResult>` of ListObjectsV2.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct ListBody {
    pub(crate) is_truncated: bool,
    pub(crate) next_continuation_token: Option<String>,
    pub(crate) encoding_type: Option<String>,
    pub(crate) contents: Vec<ListedBody>,
    pub(crate) common_prefixes: Vec<PrefixBody>,
}

/// `<Contents>`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ListedBody {
    key: String,
    size: u64,
    #[serde(rename = "ETag")]
    etag: String,
    last_modified: String,
}

/// `<CommonPrefixes>`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct PrefixBody {
    prefix: String,
}

impl ListBody {
    fn decode(&self, text: &str) -> Result<String> {
        if self.encoding_type.as_deref() != Some("url") {
            return Ok(text.to_owned());
        }
        let spaces = text.replace('+', " ");
        let decoded = percent_encoding::percent_decode_str(&spaces).decode_utf8();
        decoded
            .map(std::borrow::Cow::into_owned)
            .map_err(|why| bad_answer("a listed key is not UTF-8").caused_by(why))
    }

    /// The objects of this page.
    pub(crate) fn objects(&self) -> Result<Vec<ListedObject>> {
        let object = |listed: &ListedBody| {
            Ok(ListedObject {
                key: ObjectKey::new(&self.decode(&listed.key)?)?,
                bytes: listed.size,
                version: version(&listed.etag),
                modified: parse_time(&listed.last_modified)?,
            })
        };
        self.contents
            .iter()
            .filter(|listed| !is_bare_folder(&listed.key, &listed.etag))
            .map(object)
            .collect()
    }

    /// The common prefixes of this page.
    pub(crate) fn prefixes(&self) -> Result<Vec<String>> {
        self.common_prefixes
            .iter()
            .map(|prefix| self.decode(&prefix.prefix))
            .collect()
    }
}

/// Returns whether this is a folder that some server shows as an object though nobody wrote one (SeaweedFS).
pub(crate) fn is_bare_folder(key: &str, etag: &str) -> bool {
    let etag = etag.trim_matches('"');
    (key.ends_with('/') || key.ends_with("%2F")) && (etag.is_empty() || etag.ends_with("-0"))
}

/// `<InitiateMultipartUploadResult>`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct UploadBody {
    pub(crate) upload_id: String,
}

/// `<ListMultipartUploadsResult>`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct UploadsBody {
    pub(crate) is_truncated: bool,
    pub(crate) next_key_marker: Option<String>,
    pub(crate) next_upload_id_marker: Option<String>,
    pub(crate) upload: Vec<OpenUploadBody>,
}

/// `<Upload>`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct OpenUploadBody {
    pub(crate) key: String,
    pub(crate) upload_id: String,
    pub(crate) initiated: String,
}

/// `<ListPartsResult>`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct PartsBody {
    pub(crate) is_truncated: bool,
    pub(crate) next_part_number_marker: Option<String>,
    pub(crate) part: Vec<PartBody>,
}

/// `<Part>`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct PartBody {
    pub(crate) part_number: PartNumber,
    #[serde(rename = "ETag")]
    pub(crate) etag: String,
    pub(crate) size: u64,
}

/// `<CompleteMultipartUploadResult>`, `<CopyObjectResult>` and `<CopyPartResult>`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct WrittenBody {
    #[serde(rename = "ETag")]
    pub(crate) etag: Option<String>,
    #[serde(rename = "LastModified")]
    last_modified: Option<String>,
}

impl WrittenBody {
    pub(crate) fn modified(&self) -> Option<SystemTime> {
        self.last_modified
            .as_deref()
            .and_then(|text| parse_time(text).ok())
    }
}

/// Reads an answer.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    let text =
        std::str::from_utf8(body).map_err(|why| bad_answer("the answer is not UTF-8").caused_by(why))?;
    quick_xml::de::from_str(text)
        .map_err(|why| bad_answer("the answer is not the XML it should be").caused_by(why))
}

/// The error in an answer, which some requests carry under status 200.
pub(crate) fn error_in(body: &[u8]) -> Option<ErrorBody> {
    let text = std::str::from_utf8(body).ok()?;
    let start = text.find("<Error>").or_else(|| text.find("<Error "))?;
    // Only as the root element: what stands before it may be the declaration, never another element.
    let is_root = !text[..start]
        .bytes()
        .zip(text[..start].bytes().skip(1))
        .any(|(a, b)| a == b'<' && b != b'?');
    if is_root {
        quick_xml::de::from_str(text).ok()
    } else {
        None
    }
}

/// The body of a complete request.
pub(crate) fn complete_request(parts: &[PartReceipt]) -> String {
    let mut text =
        String::from("<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    for part in parts {
        let etag = quick_xml::escape::escape(&part.etag);
        text.push_str(&format!(
            "<Part><PartNumber>{}</PartNumber><ETag>\"{etag}\"</ETag></Part>",
            part.number
        ));
    }
    text.push_str("</CompleteMultipartUpload>");
    text
}

/// A version from an ETag, weak or strong.
pub(crate) fn version(etag: &str) -> Version {
    Version::new(etag.strip_prefix("W/").unwrap_or(etag))
}

fn parse_time(text: &str) -> Result<SystemTime> {
    let time: Result<jiff::Timestamp, _> = text.parse();
    time.map(SystemTime::from)
        .map_err(|why| bad_answer("a time is not ISO 8601").caused_by(why))
}

fn bad_answer(message: &str) -> Error {
    Error::new(
        Kind::Unavailable,
        format!("cannot understand the lake: {message}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_encoded_page_gives_back_the_real_keys() {
        let page: ListBody = parse(
            br#"<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
            <EncodingType>url</EncodingType><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>
            <Contents><Key>a+b%2B%01</Key><LastModified>2024-01-02T03:04:05.000Z</LastModified><ETag>&quot;e1&quot;</ETag><Size>7</Size></Contents>
            <CommonPrefixes><Prefix>d%2F</Prefix></CommonPrefixes>
            <Contents><Key>z</Key><LastModified>2024-01-02T03:04:05Z</LastModified><ETag>e2</ETag><Size>0</Size></Contents>
            </ListBucketResult>"#,
        )
        .unwrap();
        let objects = page.objects().unwrap();
        assert_eq!(objects[0].key.as_str(), "a b+\u{1}");
        assert_eq!(objects[0].version.as_str(), "e1");
        assert_eq!(objects[1].key.as_str(), "z");
        assert_eq!(page.prefixes().unwrap(), ["d/"]);
        assert!(page.is_truncated);
    }

    #[test]
    fn an_error_under_status_200_is_seen_and_a_result_is_not_one() {
        let body = b"<?xml version=\"1.0\"?>\n<Error><Code>InternalError</Code><Message>x</Message></Error>";
        assert_eq!(error_in(body).unwrap().code, "InternalError");
        assert!(error_in(b"<CopyObjectResult><ETag>&lt;Error&gt;</ETag></CopyObjectResult>").is_none());
    }

    #[test]
    fn garbage_is_an_error_not_a_panic() {
        assert!(parse::<ListBody>(b"<ListBucketResult><Contents>").is_err());
        assert!(parse::<UploadBody>(b"\xff").is_err());
    }
}
