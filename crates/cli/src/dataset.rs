//! `forebay dataset …`: index, look into, sign, verify, pack and split datasets.
//!
//! One file per verb below `dataset/`. Names are opened in one place (`open.rs`): a running node for `forebay://`, a node inside of this process for
//! everything else, so that every verb works on both with the same code. The loader and the client block; so a verb runs on one
//! blocking thread, and Ctrl-C sets a flag that all of its waiting looks at.

pub(crate) mod args;
mod cat;
mod head;
mod index;
mod keygen;
mod manifest;
mod open;
mod pack;
mod parallel;
mod preview;
mod split;
mod stat;
mod verify;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::anyhow;
use forebay_client::Interrupt;

use crate::exit::{Exit, Outcome};
use crate::output::Output;
use args::{DatasetArgs, DatasetVerb};

/// What every verb gets: how to print, and how to know that it shall stop.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) output: Output,
    pub(crate) interrupt: Interrupt,
}

pub(crate) async fn run(args: DatasetArgs, output: Output) -> Outcome {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    let context = Context {
        output,
        interrupt: Arc::new(move || seen.load(Ordering::Relaxed)),
    };
    let mut work = tokio::task::spawn_blocking(move || verb(args.verb, &context));
    loop {
        tokio::select! {
            done = &mut work => return done.unwrap_or_else(|why| Err(Exit::failure(why))),
            told = tokio::signal::ctrl_c() => {
                if told.is_err() || stop.swap(true, Ordering::Relaxed) {
                    return Err(Exit::failure(anyhow!("interrupted")));
                }
            }
        }
    }
}

fn verb(verb: DatasetVerb, context: &Context) -> Outcome {
    match verb {
        DatasetVerb::Index(args) => index::run(&args, context),
        DatasetVerb::Stat(args) => stat::run(&args, context),
        DatasetVerb::Head(args) => head::run(&args, context),
        DatasetVerb::Cat(args) => cat::run(&args, context),
        DatasetVerb::Manifest(args) => manifest::run(&args, context),
        DatasetVerb::Verify(args) => verify::run(&args, context),
        DatasetVerb::Keygen(args) => keygen::run(&args, context.output),
        DatasetVerb::Pack(args) => pack::run(&args, context),
        DatasetVerb::Split(args) => split::run(&args, context),
    }
}
