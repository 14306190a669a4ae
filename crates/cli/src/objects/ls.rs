//! `forebay ls`: one level or everything below.

use anyhow::{Context, anyhow};
use forebay_core::format_bytes;
use forebay_lake::ListOptions;
use forebay_transfer::{Entry, OpenLocation, local, spawn_client_call};
use futures::TryStreamExt;
use serde::Serialize;

use super::location::Location;
use super::node::NodeRoute;
use super::{node, timestamp};
use crate::args::{EndpointArgs, LsArgs};
use crate::bucket;
use crate::exit::{Exit, Outcome};
use crate::output::Output;

/// One line of a listing.
#[derive(Serialize)]
struct ListingRow {
    location: String,
    /// Absent for a folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    modified: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    etag: Option<String>,
}

pub(crate) async fn run(args: LsArgs, output: Output) -> Outcome {
    if args.location == Location::Buckets {
        return buckets(&args.endpoint, output).await;
    }
    let location = node::open(&args.location, &args.endpoint).await?;
    let count = if args.recursive {
        everything(&location, output).await?
    } else {
        one_level(&location, output).await?
    };
    if count == 0
        && !matches!(&location, OpenLocation::Lake { key, .. } if key.is_empty())
        && !is_empty_folder(&location)
    {
        return Err(Exit::failure(anyhow!("nothing is there: {}", location.shown())));
    }
    Ok(())
}

/// All buckets of a node. An S3 endpoint shows those of its key alone, so without a socket the admin API is
/// asked.
async fn buckets(args: &EndpointArgs, output: Output) -> Outcome {
    let names = match node::find(args).await? {
        NodeRoute::Socket(client) => spawn_client_call(move || client.buckets()).await?,
        NodeRoute::S3Endpoint(_) => bucket::names(&args.node).await?,
    };
    for name in names {
        let bucket = folder(format!("forebay://{name}/"));
        output.data(&bucket);
        output.say(&bucket.location);
    }
    Ok(())
}

fn is_empty_folder(location: &OpenLocation) -> bool {
    matches!(location, OpenLocation::Local(path) if path.is_dir())
}

async fn everything(location: &OpenLocation, output: Output) -> Outcome<usize> {
    let mut entries = location.walk();
    let mut count = 0;
    while let Some(entry) = entries.try_next().await? {
        print(object(&entry), output);
        count += 1;
    }
    Ok(count)
}

async fn one_level(location: &OpenLocation, output: Output) -> Outcome<usize> {
    match location {
        OpenLocation::Local(path) => {
            let lines = local_level(path)?;
            let count = lines.len();
            lines.into_iter().for_each(|line| print(line, output));
            Ok(count)
        }
        OpenLocation::Lake { lake, shown, key } => {
            let (mut start_after, mut count) = (None, 0);
            loop {
                let options = ListOptions {
                    prefix: key.clone(),
                    delimiter: Some("/".into()),
                    start_after,
                    limit: 1000,
                };
                let page = lake.list(options).await?;
                count += page.prefixes.len() + page.objects.len();
                for prefix in page.prefixes {
                    print(folder(format!("{shown}{prefix}")), output);
                }
                for found in page.objects {
                    let line = ListingRow {
                        location: format!("{shown}{}", found.key),
                        bytes: Some(found.bytes),
                        modified: Some(timestamp(found.modified)),
                        etag: Some(found.version.to_string()),
                    };
                    print(line, output);
                }
                match page.next {
                    Some(next) => start_after = Some(next),
                    None => return Ok(count),
                }
            }
        }
    }
}

fn local_level(path: &std::path::Path) -> Outcome<Vec<ListingRow>> {
    if !path.is_dir() {
        return Ok(vec![object(&local::entry(path, String::new())?)]);
    }
    let mut lines = Vec::new();
    let entries = std::fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot read {}", path.display()))?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            lines.push(folder(format!("{}/", entry.path().display())));
        } else if let Ok(found) = local::entry(&entry.path(), String::new()) {
            lines.push(object(&found));
        }
    }
    lines.sort_unstable_by(|a, b| a.location.cmp(&b.location));
    Ok(lines)
}

fn folder(location: String) -> ListingRow {
    ListingRow {
        location,
        bytes: None,
        modified: None,
        etag: None,
    }
}

fn object(entry: &Entry) -> ListingRow {
    ListingRow {
        location: entry.location.shown(),
        bytes: Some(entry.bytes),
        modified: Some(timestamp(entry.modified)),
        etag: entry.etag.clone(),
    }
}

fn print(line: ListingRow, output: Output) {
    output.data(&line);
    let bytes = line.bytes.map_or("-".to_owned(), format_bytes);
    output.say(format!(
        "{bytes:>10}  {:20}  {}",
        line.modified.unwrap_or_default(),
        line.location
    ));
}
