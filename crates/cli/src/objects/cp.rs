//! `forebay cp`: one object, or everything below (`forebay-transfer`).
//!
//! Objects that are already there are skipped, so a copy that was interrupted goes on where it was when it is
//! run again. An object that fails does not stop the others; the command then ends with exit code 1 and says
//! how many failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::anyhow;
use forebay_core::Error;
use forebay_transfer::{CopyOutcome, Entry, Observer, OpenLocation, Transfer, TransferOptions};
use indicatif::ProgressBar;

use super::node;
use crate::args::CpArgs;
use crate::exit::{Exit, Outcome};
use crate::output::Output;
use crate::serve::Signals;

pub(crate) async fn run(args: CpArgs, output: Output) -> Outcome {
    let source = node::open(&args.source, &args.endpoint).await?;
    let target = node::open(&args.target, &args.endpoint).await?;
    check(&source, args.recursive)?;
    let printer = Arc::new(Printer {
        bar: output.bar(0),
        is_dry: args.dry_run,
        output,
        failed: AtomicU64::new(0),
        copied: AtomicU64::new(0),
        skipped: AtomicU64::new(0),
    });
    let options = TransferOptions {
        parallel: args.parallel.into(),
        is_forced: args.force,
        is_dry_run: args.dry_run,
    };
    let transfer = Transfer::new(options, Arc::clone(&printer) as Arc<dyn Observer>);
    copy(&transfer, &source, &target, args.recursive).await?;
    printer.bar.finish_and_clear();
    let [copied, skipped, failed] =
        [&printer.copied, &printer.skipped, &printer.failed].map(|count| count.load(Ordering::Relaxed));
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

fn check(source: &OpenLocation, is_recursive: bool) -> Outcome {
    let advice = match (source, is_recursive) {
        (source, false) if source.is_folder() => "is a folder; add --recursive",
        (OpenLocation::Local(path), true) if !path.is_dir() => "is not a folder; leave out --recursive",
        _ => return Ok(()),
    };
    Err(Exit::usage(anyhow!("{} {advice}", source.shown())))
}

/// Copies until all is done, or until somebody wants it to stop.
async fn copy(
    transfer: &Transfer,
    source: &OpenLocation,
    target: &OpenLocation,
    is_recursive: bool,
) -> Outcome {
    let mut signals = Signals::new().map_err(Exit::failure)?;
    let work = async {
        if is_recursive {
            transfer.copy_tree(source, target).await;
            Ok(())
        } else {
            transfer.copy_one(source, target).await
        }
    };
    tokio::pin!(work);
    tokio::select! {
        done = &mut work => done?,
        () = signals.next() => {
            // What is half written is given up in an orderly way; who is in a hurry asks twice.
            transfer.stop();
            tokio::select! {
                done = work => done?,
                () = signals.next() => std::process::exit(130),
            }
        }
    }
    Ok(())
}

/// Prints what a transfer does, and counts it.
struct Printer {
    bar: ProgressBar,
    is_dry: bool,
    output: Output,
    failed: AtomicU64,
    copied: AtomicU64,
    skipped: AtomicU64,
}

impl Observer for Printer {
    fn started(&self, entry: &Entry) {
        self.bar.inc_length(entry.bytes);
        self.bar.set_message(entry.relative.clone());
    }

    fn advanced(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    fn finished(&self, entry: &Entry, target: &OpenLocation, outcome: CopyOutcome) {
        let (count, word) = match outcome {
            CopyOutcome::Copied => (&self.copied, if self.is_dry { "would copy" } else { "copied" }),
            CopyOutcome::Skipped => (&self.skipped, "already there"),
        };
        count.fetch_add(1, Ordering::Relaxed);
        let (from, to) = (entry.location.shown(), target.shown());
        self.output
            .data(&serde_json::json!({"source": from, "target": to, "bytes": entry.bytes, "result": word}));
        self.bar
            .suspend(|| self.output.say(format!("{word} {from} -> {to}")));
    }

    fn failed(&self, error: Error) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        let exit = Exit::from(error);
        self.bar.suspend(|| self.output.error(&exit));
    }
}
