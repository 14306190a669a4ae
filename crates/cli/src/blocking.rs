//! Commands that block: one thread for the work, and Ctrl-C as a flag that all of its waiting looks at.
//!
//! The client, the loader and steps block. So such a command runs on one blocking thread; the first Ctrl-C
//! asks it to stop, the second ends the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::anyhow;
use forebay_client::Interrupt;

use crate::exit::{Exit, Outcome};
use crate::output::Output;

/// Context of the work: the printer, and the flag that tells it to stop.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) output: Output,
    pub(crate) interrupt: Interrupt,
}

/// Runs the work to its end, or until it was told twice to stop.
pub(crate) async fn run(output: Output, work: impl FnOnce(&Context) -> Outcome + Send + 'static) -> Outcome {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    let context = Context {
        output,
        interrupt: Arc::new(move || seen.load(Ordering::Relaxed)),
    };
    let mut work = tokio::task::spawn_blocking(move || work(&context));
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
