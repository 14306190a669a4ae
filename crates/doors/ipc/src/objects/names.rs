//! Requests about names: metadata, listings, buckets, removal. The same engine calls as the S3 endpoint
//! makes.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use forebay_core::{Kind, Result};
use forebay_engine::shown_metadata_name;
use forebay_lake::{Attributes, ListOptions};
use forebay_wire::objects::{Answer, ListRequest, Listed, ListedObject, ObjectStat};
use forebay_wire::{Headers, ObjectName};

use super::Context;

/// Names in one page of a listing, at most: the longest fit a frame.
const LIST_LIMIT_MAX: u32 = 8192;
/// A page of the node's choice.
const LIST_LIMIT_DEFAULT: u32 = 1000;

pub(super) async fn stat(context: Context<'_>, name: &ObjectName) -> Result<Answer> {
    let (bucket, key) = context.object(name)?;
    let info = context.engine()?.head(&bucket, &key).await?;
    Ok(Answer::Stat(ObjectStat {
        bytes: info.bytes,
        version: info.version.as_str().into(),
        modified: unix_seconds(info.modified),
        metadata: shown(&info.attributes.user),
        headers: headers(info.attributes),
    }))
}

fn headers(attributes: Attributes) -> Headers {
    Headers {
        content_type: attributes.content_type,
        content_encoding: attributes.content_encoding,
        content_language: attributes.content_language,
        content_disposition: attributes.content_disposition,
        cache_control: attributes.cache_control,
    }
}

/// The client's own entries, under the client's own names.
fn shown(user: &BTreeMap<String, String>) -> Vec<(String, String)> {
    user.iter()
        .filter_map(|(name, value)| Some((shown_metadata_name(name)?.to_owned(), value.clone())))
        .collect()
}

pub(super) async fn list(context: Context<'_>, request: ListRequest) -> Result<Answer> {
    let bucket = context.bucket(&request.bucket)?;
    let limit = match request.limit {
        0 => LIST_LIMIT_DEFAULT,
        limit => limit.min(LIST_LIMIT_MAX),
    };
    let options = ListOptions {
        prefix: request.prefix,
        delimiter: request.delimiter,
        start_after: request.after,
        limit: limit as usize,
    };
    let page = context.engine()?.list(&bucket, options).await?;
    let objects = page.objects.into_iter().map(|object| ListedObject {
        key: object.key.as_str().into(),
        bytes: object.bytes,
        version: object.version.as_str().into(),
        modified: unix_seconds(object.modified),
    });
    Ok(Answer::Listed(Listed {
        objects: objects.collect(),
        prefixes: page.prefixes,
        next: page.next,
    }))
}

pub(super) async fn delete(context: Context<'_>, name: &ObjectName) -> Result<Answer> {
    let (bucket, key) = context.object(name)?;
    context.engine()?.delete(&bucket, &key).await?;
    Ok(Answer::Done)
}

/// The buckets that this user may use.
pub(super) async fn buckets(context: Context<'_>) -> Result<Answer> {
    let buckets = context.engine()?.list_buckets().await?;
    let names = buckets
        .into_iter()
        .filter(|bucket| context.session.may_use(&bucket.name))
        .map(|bucket| bucket.name.as_str().into());
    Ok(Answer::Buckets(names.collect()))
}

pub(super) async fn create_bucket(context: Context<'_>, name: &str) -> Result<Answer> {
    let bucket = context.bucket(name)?;
    match context.engine()?.create_bucket(&bucket).await {
        Err(error) if error.kind() != Kind::AlreadyExists => Err(error),
        _ => Ok(Answer::Done),
    }
}

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs()
}
