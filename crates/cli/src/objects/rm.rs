//! `forebay rm`: one object, or with `--recursive --yes` everything below.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::anyhow;
use forebay_transfer::OpenLocation;
use futures::{StreamExt, TryStreamExt};

use super::node;
use crate::args::RmArgs;
use crate::exit::{Exit, Outcome};
use crate::output::Output;

pub(crate) async fn run(args: RmArgs, output: Output) -> Outcome {
    let location = node::open(&args.location, &args.endpoint).await?;
    if !args.recursive {
        // Asked first, so that a typo is an error and not a quiet success.
        location.entry().await?;
        return remove(&location, args.dry_run, output).await;
    }
    if !args.yes && !args.dry_run {
        let message = format!(
            "this removes everything below {}; add --yes to do it or --dry-run to see it",
            location.shown()
        );
        return Err(Exit::usage(anyhow!(message)));
    }
    let removed = AtomicU64::new(0);
    location
        .walk()
        .map(|entry| async {
            remove(&entry?.location, args.dry_run, output).await?;
            removed.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Exit>(())
        })
        .buffer_unordered(args.parallel.into())
        .try_for_each(|()| async { Ok(()) })
        .await?;
    if let (OpenLocation::Local(path), false) = (&location, args.dry_run) {
        remove_empty_folders(path);
    }
    if removed.load(Ordering::Relaxed) == 0 {
        return Err(Exit::failure(anyhow!("nothing is there: {}", location.shown())));
    }
    Ok(())
}

async fn remove(location: &OpenLocation, is_dry: bool, output: Output) -> Outcome {
    let shown = location.shown();
    if !is_dry {
        location.remove().await?;
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
