//! `forebay ls`: one level or everything below.

use anyhow::{Context, anyhow};
use forebay_core::format_bytes;
use forebay_lake::ListOptions;
use futures::TryStreamExt;
use serde::Serialize;

use super::aside::aside;
use super::location::Location;
use super::node::Way;
use super::place::{Entry, Place};
use super::{local, node, timestamp};
use crate::args::{EndpointArgs, LsArgs};
use crate::bucket;
use crate::exit::{Exit, Outcome};
use crate::output::Output;

/// One line of a listing.
#[derive(Serialize)]
struct Line {
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
    let place = Place::open(&args.location, &args.endpoint).await?;
    let count = if args.recursive {
        everything(&place, output).await?
    } else {
        one_level(&place, output).await?
    };
    if count == 0
        && !matches!(&place, Place::Lake { key, .. } if key.is_empty())
        && !place_is_empty_folder(&place)
    {
        return Err(Exit::failure(anyhow!("nothing is there: {}", place.shown())));
    }
    Ok(())
}

/// All buckets of a node. A front door shows those of its key alone, so without a socket the admin API is asked.
async fn buckets(args: &EndpointArgs, output: Output) -> Outcome {
    let names = match node::find(args).await? {
        Way::Socket(client) => aside(move || client.buckets()).await?,
        Way::FrontDoor(_) => bucket::names(&args.node).await?,
    };
    for name in names {
        let bucket = folder(format!("forebay://{name}/"));
        output.data(&bucket);
        output.say(&bucket.location);
    }
    Ok(())
}

fn place_is_empty_folder(place: &Place) -> bool {
    matches!(place, Place::Local(path) if path.is_dir())
}

async fn everything(place: &Place, output: Output) -> Outcome<usize> {
    let mut entries = place.walk();
    let mut count = 0;
    while let Some(entry) = entries.try_next().await? {
        print(object(&entry), output);
        count += 1;
    }
    Ok(count)
}

async fn one_level(place: &Place, output: Output) -> Outcome<usize> {
    match place {
        Place::Local(path) => {
            let lines = local_level(path)?;
            let count = lines.len();
            lines.into_iter().for_each(|line| print(line, output));
            Ok(count)
        }
        Place::Lake { lake, shown, key } => {
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
                    let line = Line {
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

fn local_level(path: &std::path::Path) -> Outcome<Vec<Line>> {
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

fn folder(location: String) -> Line {
    Line {
        location,
        bytes: None,
        modified: None,
        etag: None,
    }
}

fn object(entry: &Entry) -> Line {
    Line {
        location: entry.place.shown(),
        bytes: Some(entry.bytes),
        modified: Some(timestamp(entry.modified)),
        etag: entry.etag.clone(),
    }
}

fn print(line: Line, output: Output) {
    output.data(&line);
    let bytes = line.bytes.map_or("-".to_owned(), format_bytes);
    output.say(format!(
        "{bytes:>10}  {:20}  {}",
        line.modified.unwrap_or_default(),
        line.location
    ));
}
