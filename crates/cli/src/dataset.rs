//! `forebay dataset …`: index, look into, sign, verify, pack and split datasets.
//!
//! One file per verb below `dataset/`. Names are opened in one place (`open.rs`): a running node for
//! `forebay://`, a node inside of this process for everything else, so that every verb works on both with the
//! same code. The loader and the client block (`blocking.rs`).

pub(crate) mod args;
mod cat;
mod head;
mod index;
mod keygen;
mod manifest;
mod open;
mod pack;
mod preview;
mod progress;
mod split;
mod stat;
mod verify;

use crate::blocking;
pub(crate) use crate::blocking::Context;
use crate::exit::Outcome;
use crate::output::Output;
use args::{DatasetArgs, DatasetVerb};

pub(crate) async fn run(args: DatasetArgs, output: Output) -> Outcome {
    blocking::run(output, move |context| verb(args.verb, context)).await
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
