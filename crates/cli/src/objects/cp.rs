//! `forebay cp`: one object, or everything below.
//!
//! What is already there (`transfer` says how that is told) is skipped, so a copy that was interrupted goes on where
//! it was when it is run again. An object that fails does not stop the others; the command then ends
//! with exit code 1 and says how many failed.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::anyhow;
use futures::StreamExt;
use indicatif::ProgressBar;

use super::place::{Entry, Place};
use super::transfer::{Done, Transfer};
use crate::args::CpArgs;
use crate::exit::{Exit, Outcome};
use crate::output::Output;
use crate::serve::Signals;

pub(crate) async fn run(args: CpArgs, output: Output) -> Outcome {
    let source = Place::open(&args.source, &args.endpoint).await?;
    let target = Place::open(&args.target, &args.endpoint).await?;
    let copy = Copy {
        transfer: Transfer::new(args.parallel.into(), args.force, output.bar(0)),
        is_dry: args.dry_run,
        output,
        failed: AtomicU64::new(0),
        copied: AtomicU64::new(0),
        skipped: AtomicU64::new(0),
    };
    let mut signals = Signals::new().map_err(Exit::failure)?;
    let work = async {
        if args.recursive {
            copy.everything(&source, &target, args.parallel.into()).await
        } else {
            copy.one(&source, &target).await
        }
    };
    tokio::pin!(work);
    tokio::select! {
        done = &mut work => done?,
        () = signals.next() => {
            // What is half written is given up in an orderly way; who is in a hurry asks twice.
            copy.transfer.stop.cancel();
            tokio::select! {
                done = work => done?,
                () = signals.next() => std::process::exit(130),
            }
        }
    }
    copy.bar().finish_and_clear();
    let [copied, skipped, failed] =
        [&copy.copied, &copy.skipped, &copy.failed].map(|count| count.load(Ordering::Relaxed));
    let verb = if args.dry_run { "would copy" } else { "copied" };
    if args.recursive {
        output.say(format!(
            "{verb} {copied}, already there {skipped}, failed {failed}"
        ));
    }
    match (failed, copied + skipped) {
        (0, 0) => Err(Exit::failure(anyhow!("nothing is there: {}", source.shown()))),
        (0, _) => Ok(()),
        _ => Err(Exit::failure(anyhow!(
            "{failed} objects failed; run the same command again to go on"
        ))),
    }
}

struct Copy {
    transfer: Transfer,
    is_dry: bool,
    output: Output,
    failed: AtomicU64,
    copied: AtomicU64,
    skipped: AtomicU64,
}

impl Copy {
    fn bar(&self) -> &ProgressBar {
        &self.transfer.bar
    }

    async fn one(&self, source: &Place, target: &Place) -> Outcome {
        if source.is_folder() {
            return Err(Exit::usage(anyhow!(
                "{} is a folder; add --recursive",
                source.shown()
            )));
        }
        let entry = source.entry().await?;
        let target = if target.is_folder() {
            target.child(&entry.relative)?
        } else {
            target.clone()
        };
        self.copy(&entry, &target).await
    }

    async fn everything(&self, source: &Place, target: &Place, parallel: usize) -> Outcome {
        if let Place::Local(path) = source
            && !path.is_dir()
        {
            return Err(Exit::usage(anyhow!(
                "{} is not a folder; leave out --recursive",
                path.display()
            )));
        }
        let walk = source.walk().take_until(self.transfer.stop.cancelled());
        walk.for_each_concurrent(parallel, |entry| async {
            let failed = match entry {
                Ok(entry) if entry.relative.is_empty() || entry.relative.ends_with('/') => return,
                Ok(entry) => self.copy_below(&entry, target).await,
                Err(error) => Err(error),
            };
            if let Err(error) = failed {
                self.failed.fetch_add(1, Ordering::Relaxed);
                self.bar().suspend(|| self.output.error(&error));
            }
        })
        .await;
        Ok(())
    }

    async fn copy_below(&self, entry: &Entry, target: &Place) -> Outcome {
        let target = target.child(&entry.relative)?;
        self.copy(entry, &target).await
    }

    async fn copy(&self, entry: &Entry, target: &Place) -> Outcome {
        self.bar().inc_length(entry.bytes);
        self.bar().set_message(entry.relative.clone());
        let done = if self.is_dry {
            self.transfer.look(entry, target).await?
        } else {
            self.transfer.copy(entry, target).await?
        };
        let (count, word) = match done {
            Done::Copied => (&self.copied, if self.is_dry { "would copy" } else { "copied" }),
            Done::Skipped => (&self.skipped, "already there"),
        };
        count.fetch_add(1, Ordering::Relaxed);
        if done == Done::Skipped || self.is_dry {
            self.bar().inc(entry.bytes);
        }
        let (from, to) = (entry.place.shown(), target.shown());
        self.output
            .data(&serde_json::json!({"source": from, "target": to, "bytes": entry.bytes, "result": word}));
        self.bar()
            .suspend(|| self.output.say(format!("{word} {from} -> {to}")));
        Ok(())
    }
}
