//! Metadata, listings, deletes and buckets, as S3 has them.
#![expect(
    clippy::needless_pass_by_value,
    reason = "the same calls as those of a node on this host, which sends its arguments away"
)]

use forebay_core::{Error, Kind, Result};
use forebay_wire::objects::{ListRequest, Listed, ListedObject, ObjectStat};
use forebay_wire::{Headers, ObjectName};
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Remote;
use super::request::Request;

const METADATA: &str = "x-amz-meta-";

pub(super) fn path_of(object: &ObjectName) -> String {
    format!("/{}/{}", object.bucket, object.key)
}

pub(super) fn version_of(etag: &str) -> String {
    etag.trim_matches('"').to_owned()
}

impl Remote {
    pub(crate) fn stat(&self, object: ObjectName) -> Result<ObjectStat> {
        let (head, _) = self.document(&Request::new("HEAD", &path_of(&object)))?;
        let missing = || Error::new(Kind::Corrupt, "the node's answer lacks a header");
        let metadata = |(name, value): (&str, &str)| {
            let name = name.strip_prefix(METADATA)?;
            Some((name.to_owned(), value.to_owned()))
        };
        Ok(ObjectStat {
            bytes: head
                .header("content-length")
                .and_then(|value| value.parse().ok())
                .ok_or_else(missing)?,
            version: version_of(head.header("etag").ok_or_else(missing)?),
            modified: head.header("last-modified").and_then(http_seconds).unwrap_or(0),
            headers: Headers::find(|name| head.header(name).map(Into::into)),
            metadata: head.headers().filter_map(metadata).collect(),
        })
    }

    pub(crate) fn list(&self, request: ListRequest) -> Result<Listed> {
        let limit = request.limit.to_string();
        // Sorted by name, as the signature wants it.
        let pairs = [
            ("continuation-token", request.after.as_deref()),
            ("delimiter", request.delimiter.as_deref()),
            ("encoding-type", Some("url")),
            ("list-type", Some("2")),
            ("max-keys", (request.limit > 0).then_some(limit.as_str())),
            ("prefix", Some(request.prefix.as_str())),
        ];
        let pairs: Vec<(&str, &str)> = pairs
            .iter()
            .filter_map(|(name, value)| Some((*name, (*value)?)))
            .collect();
        let path = format!("/{}", request.bucket);
        let (_, body) = self.document(&Request::new("GET", &path).query(&pairs))?;
        let list: ListBody = parse(&body)?;
        let object = |listed: ListedBody| {
            Ok(ListedObject {
                key: decode(&listed.key)?,
                bytes: listed.size,
                version: version_of(&listed.etag),
                modified: listed.last_modified.parse().map_or(0, seconds),
            })
        };
        Ok(Listed {
            objects: list.contents.into_iter().map(object).collect::<Result<_>>()?,
            prefixes: list
                .common_prefixes
                .iter()
                .map(|common| decode(&common.prefix))
                .collect::<Result<_>>()?,
            next: list.next_continuation_token.filter(|_| list.is_truncated),
        })
    }

    pub(crate) fn delete(&self, object: ObjectName) -> Result<()> {
        self.document(&Request::new("DELETE", &path_of(&object)))
            .map(drop)
    }

    pub(crate) fn buckets(&self) -> Result<Vec<String>> {
        let (_, body) = self.document(&Request::new("GET", "/"))?;
        let list: BucketsBody = parse(&body)?;
        Ok(list
            .buckets
            .bucket
            .into_iter()
            .map(|bucket| bucket.name)
            .collect())
    }

    pub(crate) fn create_bucket(&self, name: &str) -> Result<()> {
        match self.document(&Request::new("PUT", &format!("/{name}"))) {
            Err(error) if error.kind() == Kind::AlreadyExists => Ok(()),
            other => other.map(drop),
        }
    }
}

fn seconds(time: Timestamp) -> u64 {
    u64::try_from(time.as_second()).unwrap_or(0)
}

fn http_seconds(text: &str) -> Option<u64> {
    let time = jiff::fmt::rfc2822::DateTimeParser::new()
        .parse_timestamp(text)
        .ok()?;
    Some(seconds(time))
}

pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    let text = str::from_utf8(body).map_err(|why| bad_document().caused_by(why))?;
    quick_xml::de::from_str(text).map_err(|why| bad_document().caused_by(why))
}

fn bad_document() -> Error {
    Error::new(Kind::Corrupt, "the node's answer is no document that we know")
}

fn decode(text: &str) -> Result<String> {
    let spaces = text.replace('+', " ");
    let decoded = percent_encoding::percent_decode_str(&spaces).decode_utf8();
    decoded
        .map(Into::into)
        .map_err(|why| bad_document().caused_by(why))
}

/// `<ListBucketResult>`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ListBody {
    is_truncated: bool,
    next_continuation_token: Option<String>,
    contents: Vec<ListedBody>,
    common_prefixes: Vec<PrefixBody>,
}

/// `<Contents>`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListedBody {
    key: String,
    size: u64,
    #[serde(rename = "ETag", default)]
    etag: String,
    #[serde(default)]
    last_modified: String,
}

/// `<CommonPrefixes>`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PrefixBody {
    prefix: String,
}

/// `<ListAllMyBucketsResult>`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct BucketsBody {
    buckets: BucketList,
}

/// `<Buckets>`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct BucketList {
    bucket: Vec<BucketBody>,
}

/// `<Bucket>`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct BucketBody {
    name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_is_understood() {
        let xml = b"<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>true</IsTruncated>\
            <NextContinuationToken>abc</NextContinuationToken><Contents><Key>a%20b</Key><Size>7</Size><ETag>&quot;e&quot;</ETag>\
            <LastModified>1970-01-01T00:00:05.000Z</LastModified></Contents><CommonPrefixes><Prefix>p%2F</Prefix></CommonPrefixes>\
            </ListBucketResult>";
        let list: ListBody = parse(xml).unwrap();
        assert!(list.is_truncated);
        assert_eq!(decode(&list.contents[0].key).unwrap(), "a b");
        assert_eq!(version_of(&list.contents[0].etag), "e");
        assert_eq!(list.contents[0].last_modified.parse().map_or(0, seconds), 5);
        assert_eq!(decode(&list.common_prefixes[0].prefix).unwrap(), "p/");
    }

    #[test]
    fn buckets_and_none_of_them_are_understood() {
        let some = b"<ListAllMyBucketsResult><Buckets><Bucket><Name>one</Name></Bucket><Bucket><Name>two</Name></Bucket></Buckets></ListAllMyBucketsResult>";
        let list: BucketsBody = parse(some).unwrap();
        assert_eq!(list.buckets.bucket.len(), 2);
        let none: BucketsBody =
            parse(b"<ListAllMyBucketsResult><Buckets/></ListAllMyBucketsResult>").unwrap();
        assert!(none.buckets.bucket.is_empty());
    }

    #[test]
    fn http_dates_are_understood() {
        assert_eq!(http_seconds("Thu, 01 Jan 1970 00:00:09 GMT"), Some(9));
        assert_eq!(http_seconds("yesterday"), None);
    }
}
