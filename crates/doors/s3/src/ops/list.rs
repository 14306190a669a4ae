//! `ListObjects` V1 and V2, and `ListObjectVersions` for tools that ask for versions where there are none.
//!
//! All three are one page of the engine's listing, shown differently. Continuation tokens are opaque to
//! clients: base64 of the engine's place in the listing, with a version in front.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use forebay_engine::{ListOptions, ListPage, ListedObject};
use http::Extensions;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::dto::*;
use s3s::{S3Response, S3Result, s3_error};

use super::{Request, Response};
use crate::map;
use crate::operations::Operations;

const KEYS_MAX: i32 = 1000;
const TOKEN_VERSION: &str = "1:";

/// Characters that `encoding-type=url` leaves as they are.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'/')
    .remove(b'*');

/// `ListObjectsV2`.
pub(crate) async fn v2(
    operations: &Operations,
    request: Request<ListObjectsV2Input>,
) -> Response<ListObjectsV2Output> {
    let input = request.input;
    let names = Names::new(input.encoding_type.as_ref())?;
    let continued = input
        .continuation_token
        .as_deref()
        .map(decode_token)
        .transpose()?;
    let asked = Asked {
        bucket: &input.bucket,
        prefix: input.prefix.as_deref(),
        delimiter: input.delimiter.as_deref(),
        after: continued.or_else(|| input.start_after.clone()),
        max_keys: input.max_keys,
    };
    let (page, max_keys) = fetch(operations, asked, &request.extensions).await?;
    let owner = input.fetch_owner.unwrap_or(false).then(map::owner);
    let key_count = i32::try_from(page.objects.len() + page.prefixes.len()).unwrap_or(i32::MAX);
    Ok(S3Response::new(ListObjectsV2Output {
        is_truncated: Some(page.next.is_some()),
        next_continuation_token: page.next.as_deref().map(encode_token),
        key_count: Some(key_count),
        common_prefixes: names.prefixes(&page),
        contents: names.contents(page.objects, owner.as_ref()),
        name: Some(input.bucket),
        prefix: Some(names.show(&input.prefix.unwrap_or_default())),
        max_keys: Some(max_keys),
        continuation_token: input.continuation_token,
        delimiter: input.delimiter.map(|delimiter| names.show(&delimiter)),
        encoding_type: input.encoding_type,
        start_after: input.start_after.map(|after| names.show(&after)),
        request_charged: None,
    }))
}

/// `ListObjects`.
pub(crate) async fn v1(
    operations: &Operations,
    request: Request<ListObjectsInput>,
) -> Response<ListObjectsOutput> {
    let input = request.input;
    let names = Names::new(input.encoding_type.as_ref())?;
    let asked = Asked {
        bucket: &input.bucket,
        prefix: input.prefix.as_deref(),
        delimiter: input.delimiter.as_deref(),
        after: input.marker.clone(),
        max_keys: input.max_keys,
    };
    let (page, max_keys) = fetch(operations, asked, &request.extensions).await?;
    Ok(S3Response::new(ListObjectsOutput {
        is_truncated: Some(page.next.is_some()),
        next_marker: page.next.as_deref().map(|next| names.show(next)),
        common_prefixes: names.prefixes(&page),
        contents: names.contents(page.objects, Some(&map::owner())),
        name: Some(input.bucket),
        prefix: Some(names.show(&input.prefix.unwrap_or_default())),
        marker: Some(names.show(&input.marker.unwrap_or_default())),
        max_keys: Some(max_keys),
        delimiter: input.delimiter.map(|delimiter| names.show(&delimiter)),
        encoding_type: input.encoding_type,
        request_charged: None,
    }))
}

/// `ListObjectVersions`: every object is its own latest version `null`, as in a bucket without versioning.
pub(crate) async fn versions(
    operations: &Operations,
    request: Request<ListObjectVersionsInput>,
) -> Response<ListObjectVersionsOutput> {
    let input = request.input;
    let names = Names::new(input.encoding_type.as_ref())?;
    let asked = Asked {
        bucket: &input.bucket,
        prefix: input.prefix.as_deref(),
        delimiter: input.delimiter.as_deref(),
        after: input.key_marker.clone(),
        max_keys: input.max_keys,
    };
    let (page, max_keys) = fetch(operations, asked, &request.extensions).await?;
    let to_version = |object: &ListedObject| ObjectVersion {
        e_tag: Some(map::etag(object.version.as_str())),
        is_latest: Some(true),
        key: Some(names.show(object.key.as_str())),
        last_modified: Some(map::timestamp(object.modified)),
        owner: Some(map::owner()),
        size: Some(map::size(object.bytes)),
        storage_class: Some(ObjectVersionStorageClass::from_static(
            ObjectVersionStorageClass::STANDARD,
        )),
        version_id: Some("null".to_owned()),
        ..Default::default()
    };
    Ok(S3Response::new(ListObjectVersionsOutput {
        common_prefixes: names.prefixes(&page),
        delimiter: input.delimiter.map(|delimiter| names.show(&delimiter)),
        encoding_type: input.encoding_type,
        is_truncated: Some(page.next.is_some()),
        key_marker: Some(names.show(&input.key_marker.unwrap_or_default())),
        max_keys: Some(max_keys),
        name: Some(input.bucket),
        next_key_marker: page.next.as_deref().map(|next| names.show(next)),
        next_version_id_marker: page.next.as_ref().map(|_| "null".to_owned()),
        prefix: Some(names.show(&input.prefix.unwrap_or_default())),
        version_id_marker: input.version_id_marker,
        versions: Some(page.objects.iter().map(to_version).collect()),
        ..Default::default()
    }))
}

/// Parameters that the three have in common.
struct Asked<'a> {
    bucket: &'a str,
    prefix: Option<&'a str>,
    delimiter: Option<&'a str>,
    after: Option<String>,
    max_keys: Option<i32>,
}

async fn fetch(
    operations: &Operations,
    asked: Asked<'_>,
    extensions: &Extensions,
) -> S3Result<(ListPage, i32)> {
    let bucket = map::bucket(asked.bucket)?;
    let max_keys = max_keys(asked.max_keys)?;
    if max_keys == 0 {
        // A limit of 0 means something else to the engine; S3 answers an empty page that is the last.
        operations
            .engine
            .head_bucket(&bucket)
            .await
            .map_err(|error| map::failure(&error, extensions))?;
        return Ok((ListPage::default(), 0));
    }
    let options = ListOptions {
        prefix: asked.prefix.unwrap_or_default().to_owned(),
        delimiter: asked
            .delimiter
            .filter(|delimiter| !delimiter.is_empty())
            .map(str::to_owned),
        start_after: asked.after.filter(|after| !after.is_empty()),
        limit: usize::try_from(max_keys).expect("checked to be positive"),
    };
    let page = operations
        .engine
        .list(&bucket, options)
        .await
        .map_err(|error| map::failure(&error, extensions))?;
    Ok((page, max_keys))
}

/// The page size; more than S3 gives is cut, less than nothing is an error.
pub(crate) fn max_keys(asked: Option<i32>) -> S3Result<i32> {
    match asked {
        None => Ok(KEYS_MAX),
        Some(asked) if asked < 0 => Err(s3_error!(InvalidArgument, "the page size must not be negative")),
        Some(asked) => Ok(asked.min(KEYS_MAX)),
    }
}

fn encode_token(next: &str) -> String {
    BASE64.encode(format!("{TOKEN_VERSION}{next}"))
}

fn decode_token(token: &str) -> S3Result<String> {
    let text = BASE64
        .decode(token)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok());
    let next = text.as_deref().and_then(|text| text.strip_prefix(TOKEN_VERSION));
    next.map(str::to_owned)
        .ok_or_else(|| s3_error!(InvalidArgument, "the continuation token provided is incorrect"))
}

/// Encoding of names in a listing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Names {
    is_url: bool,
}

impl Names {
    pub(crate) fn new(encoding: Option<&EncodingType>) -> S3Result<Self> {
        match encoding.map(EncodingType::as_str) {
            None | Some("") => Ok(Self { is_url: false }),
            Some("url") => Ok(Self { is_url: true }),
            Some(_) => Err(s3_error!(InvalidArgument, "the only encoding-type is url")),
        }
    }

    pub(crate) fn show(self, name: &str) -> String {
        if self.is_url {
            utf8_percent_encode(name, PLAIN).to_string()
        } else {
            name.to_owned()
        }
    }

    fn prefixes(self, page: &ListPage) -> Option<Vec<CommonPrefix>> {
        let to_dto = |prefix: &String| CommonPrefix {
            prefix: Some(self.show(prefix)),
        };
        (!page.prefixes.is_empty()).then(|| page.prefixes.iter().map(to_dto).collect())
    }

    fn contents(self, objects: Vec<ListedObject>, owner: Option<&Owner>) -> Option<Vec<Object>> {
        let to_dto = |object: ListedObject| Object {
            e_tag: Some(map::etag(object.version.as_str())),
            key: Some(self.show(object.key.as_str())),
            last_modified: Some(map::timestamp(object.modified)),
            owner: owner.cloned(),
            size: Some(map::size(object.bytes)),
            storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
            ..Default::default()
        };
        (!objects.is_empty()).then(|| objects.into_iter().map(to_dto).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn page_sizes_follow_s3() {
        assert_eq!(max_keys(None).unwrap(), 1000);
        assert_eq!(max_keys(Some(5000)).unwrap(), 1000);
        assert_eq!(max_keys(Some(0)).unwrap(), 0);
        assert!(max_keys(Some(-1)).is_err());
    }

    #[test]
    fn foreign_tokens_are_refused() {
        for token in [
            "",
            "abc",
            "!!!",
            &BASE64.encode("2:x"),
            &BASE64.encode([0xff, 0xfe]),
        ] {
            assert!(decode_token(token).is_err(), "{token}");
        }
    }

    #[test]
    fn names_are_encoded_only_on_request() {
        let url = Names::new(Some(&EncodingType::from_static(EncodingType::URL))).unwrap();
        assert_eq!(url.show("a b/c+d%é"), "a%20b/c%2Bd%25%C3%A9");
        assert_eq!(Names::new(None).unwrap().show("a b"), "a b");
        assert!(Names::new(Some(&EncodingType::from("xml".to_owned()))).is_err());
    }

    proptest! {
        #[test]
        fn tokens_survive_the_way_through_a_client(place in "\\PC{0,60}") {
            prop_assert_eq!(decode_token(&encode_token(&place)).unwrap(), place);
        }

        #[test]
        fn url_names_decode_to_themselves(name in "\\PC{0,60}") {
            let shown = Names { is_url: true }.show(&name);
            let decoded = percent_encoding::percent_decode_str(&shown).decode_utf8().unwrap().into_owned();
            prop_assert_eq!(decoded, name);
            prop_assert!(shown.is_ascii());
        }
    }
}
