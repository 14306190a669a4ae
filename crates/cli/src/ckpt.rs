//! `forebay ckpt …`: list, look into, verify, compare, export, import and remove steps of training runs.
//!
//! One file per verb below `ckpt/`. A run is named as people have it: `forebay://` through a running node, a
//! lake URL or a path through a node inside of this process (`open.rs`); a step of it by `@1000` behind the
//! name. The work is done by `forebay-checkpoint-client`; here are words, tables and exit codes.

pub(crate) mod args;
mod diff;
mod export;
mod import;
mod ls;
mod name;
mod open;
mod prune;
mod saves;
mod show;
mod verify;
mod verify_file;
mod wait;

use crate::blocking::{self, Context};
use crate::exit::Outcome;
use crate::output::Output;
use args::{CkptArgs, CkptVerb};

pub(crate) async fn run(args: CkptArgs, output: Output) -> Outcome {
    blocking::run(output, move |context| verb(args.verb, context)).await
}

fn verb(verb: CkptVerb, context: &Context) -> Outcome {
    match verb {
        CkptVerb::Ls(args) => ls::run(&args, context),
        CkptVerb::Show(args) => show::run(&args, context),
        CkptVerb::Verify(args) => verify::run(&args, context),
        CkptVerb::Diff(args) => diff::run(&args, context),
        CkptVerb::Export(args) => export::run(&args, context),
        CkptVerb::Import(args) => import::run(&args, context),
        CkptVerb::Prune(args) => prune::prune(&args, context),
        CkptVerb::Rm(args) => prune::remove(&args, context),
        CkptVerb::Wait(args) => wait::run(&args, context),
    }
}
