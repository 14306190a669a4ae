//! `forebay rm`: one object, or with `--recursive --yes` everything below.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, anyhow};
use futures::{StreamExt, TryStreamExt};

use super::place::Place;
use crate::args::RmArgs;
use crate::exit::{Exit, Outcome};
use crate::output::Output;

pub(crate) async fn run(args: RmArgs, output: Output) -> Outcome {
    let place = Place::open(&args.location, &args.endpoint).await?;
    if !args.recursive {
        // Asked first, so that a typo is an error and not a quiet success.
        place.entry().await?;
        return remove(&place, args.dry_run, output).await;
    }
    if !args.yes && !args.dry_run {
        let message = format!(
            "this removes everything below {}; add --yes to do it or --dry-run to see it",
            place.shown()
        );
        return Err(Exit::usage(anyhow!(message)));
    }
    let removed = AtomicU64::new(0);
    place
        .walk()
        .map(|entry| async {
            remove(&entry?.place, args.dry_run, output).await?;
            removed.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Exit>(())
        })
        .buffer_unordered(args.parallel.into())
        .try_for_each(|()| async { Ok(()) })
        .await?;
    if let (Place::Local(path), false) = (&place, args.dry_run) {
        remove_empty_folders(path);
    }
    if removed.load(Ordering::Relaxed) == 0 {
        return Err(Exit::failure(anyhow!("nothing is there: {}", place.shown())));
    }
    Ok(())
}

async fn remove(place: &Place, is_dry: bool, output: Output) -> Outcome {
    let shown = place.shown();
    if !is_dry {
        match place {
            Place::Local(path) => {
                tokio::fs::remove_file(path)
                    .await
                    .with_context(|| format!("cannot remove {shown}"))?;
            }
            Place::Lake { lake, shown, key } => lake.delete(&Place::object_key(key, shown)?).await?,
        }
    }
    output.data(&serde_json::json!({"location": shown, "removed": !is_dry}));
    output.say(format!(
        "{} {shown}",
        if is_dry { "would remove" } else { "removed" }
    ));
    Ok(())
}

/// Folders that hold nothing any more; one that still does (a link, a new file) stays.
fn remove_empty_folders(path: &std::path::Path) {
    if let Ok(entries) = std::fs::read_dir(path) {
        for entry in entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        {
            remove_empty_folders(&entry.path());
        }
    }
    // Fails if it is not empty, which is what we want.
    let _ = std::fs::remove_dir(path);
}
