//! `forebay du`: how much lies below.

use forebay_core::format_bytes;
use forebay_transfer::OpenLocation;
use futures::TryStreamExt;

use super::node;
use crate::args::DuArgs;
use crate::exit::Outcome;
use crate::output::Output;

pub(crate) async fn run(args: DuArgs, output: Output) -> Outcome {
    let location = node::open(&args.location, &args.endpoint).await?;
    let (mut objects, mut bytes) = (0u64, 0u64);
    if matches!(&location, OpenLocation::Local(path) if path.is_file()) {
        (objects, bytes) = (1, location.entry().await?.bytes);
    } else {
        let mut entries = location.walk();
        while let Some(entry) = entries.try_next().await? {
            objects += 1;
            bytes += entry.bytes;
        }
        if objects == 0
            && let OpenLocation::Lake { key, .. } = &location
            && !key.is_empty()
        {
            // Not a folder; maybe one object of this name.
            (objects, bytes) = (1, location.entry().await?.bytes);
        }
    }
    output.data(&serde_json::json!({"location": location.shown(), "objects": objects, "bytes": bytes}));
    output.say(format!(
        "{}  {objects} objects  {}",
        format_bytes(bytes),
        location.shown()
    ));
    Ok(())
}
