//! `forebay stat`: everything known about one object.

use std::collections::BTreeMap;

use forebay_core::format_bytes;
use forebay_transfer::OpenLocation;
use serde::Serialize;

use super::{node, timestamp};
use crate::args::StatArgs;
use crate::exit::Outcome;
use crate::output::Output;

#[derive(Serialize)]
struct ObjectFacts {
    location: String,
    bytes: u64,
    modified: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    etag: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<&'static str, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
}

pub(crate) async fn run(args: StatArgs, output: Output) -> Outcome {
    let location = node::open(&args.location, &args.endpoint).await?;
    let entry = location.entry().await?;
    let mut facts = ObjectFacts {
        location: location.shown(),
        bytes: entry.bytes,
        modified: timestamp(entry.modified),
        etag: entry.etag,
        headers: BTreeMap::new(),
        metadata: BTreeMap::new(),
    };
    if let OpenLocation::Lake { lake, shown, key } = &location {
        let attributes = lake
            .head(&OpenLocation::object_key(key, shown)?)
            .await?
            .attributes;
        let headers = [
            ("content-type", attributes.content_type),
            ("content-encoding", attributes.content_encoding),
            ("content-language", attributes.content_language),
            ("content-disposition", attributes.content_disposition),
            ("cache-control", attributes.cache_control),
        ];
        facts.headers = headers
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect();
        facts.metadata = attributes.user;
    }
    output.data(&facts);
    output.say(format!("location  {}", facts.location));
    output.say(format!(
        "size      {} ({} bytes)",
        format_bytes(facts.bytes),
        facts.bytes
    ));
    output.say(format!("modified  {}", facts.modified));
    if let Some(etag) = &facts.etag {
        output.say(format!("etag      {etag}"));
    }
    for (name, value) in &facts.headers {
        output.say(format!("{name}: {value}"));
    }
    for (name, value) in &facts.metadata {
        output.say(format!("x-amz-meta-{name}: {value}"));
    }
    Ok(())
}
