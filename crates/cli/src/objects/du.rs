//! `forebay du`: how much lies below.

use forebay_core::format_bytes;
use futures::TryStreamExt;

use super::place::Place;
use crate::args::DuArgs;
use crate::exit::Outcome;
use crate::output::Output;

pub(crate) async fn run(args: DuArgs, output: Output) -> Outcome {
    let place = Place::open(&args.location, &args.endpoint).await?;
    let (mut objects, mut bytes) = (0u64, 0u64);
    if matches!(&place, Place::Local(path) if path.is_file()) {
        (objects, bytes) = (1, place.entry().await?.bytes);
    } else {
        let mut entries = place.walk();
        while let Some(entry) = entries.try_next().await? {
            objects += 1;
            bytes += entry.bytes;
        }
        if objects == 0
            && let Place::Lake { key, .. } = &place
            && !key.is_empty()
        {
            // Not a folder; maybe one object of this name.
            (objects, bytes) = (1, place.entry().await?.bytes);
        }
    }
    output.data(&serde_json::json!({"location": place.shown(), "objects": objects, "bytes": bytes}));
    output.say(format!(
        "{}  {objects} objects  {}",
        format_bytes(bytes),
        place.shown()
    ));
    Ok(())
}
