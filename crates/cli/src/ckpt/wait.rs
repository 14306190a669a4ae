//! `forebay ckpt wait`: until saves are durable.
//!
//! Waits for the saves that the node on this host knows when the command starts. A step that the node does
//! not know (any more) is looked for in the lake.

use std::time::{Duration, Instant};

use anyhow::anyhow;
use forebay_client::SavePhase;
use serde::Serialize;

use super::args::WaitArgs;
use super::open::{Run, known_saves};
use super::saves::Attempt;
use crate::blocking::Context;
use crate::embedded::Access;
use crate::exit::{Exit, Outcome};
use crate::output::counted;

#[derive(Serialize)]
struct Facts {
    durable: Vec<u64>,
    failed: Vec<Failed>,
}

#[derive(Serialize)]
struct Failed {
    step: u64,
    #[serde(rename = "trouble")]
    last_error: String,
}

pub(crate) fn run(args: &WaitArgs, context: &Context) -> Outcome {
    let run = Run::open(&args.step.run, args.node.node.as_deref(), Access::Read, context)?;
    let client = run.root.client();
    let wanted = args.step.step;
    let mut states = known_saves(client.saves(&run.root.to_string()))?;
    states.retain(|state| wanted.is_none_or(|step| step == state.step));
    let end = Instant::now().checked_add(args.timeout.0);
    let mut over = Vec::new();
    for state in states {
        let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        over.push(client.wait_save(&state.id, left)?);
    }
    let attempts = Attempt::all(over);
    let mut facts = Facts {
        durable: Vec::new(),
        failed: Vec::new(),
    };
    for attempt in &attempts {
        match attempt.phase {
            SavePhase::Durable => facts.durable.push(attempt.step),
            _ => facts.failed.push(Failed {
                step: attempt.step,
                last_error: attempt.last_error.clone().unwrap_or_else(|| attempt.state()),
            }),
        }
    }
    // A later attempt makes up for one that failed.
    let durable = facts.durable.clone();
    facts.failed.retain(|failed| !durable.contains(&failed.step));
    if attempts.is_empty()
        && let Some(step) = wanted
    {
        committed(&run, step)?;
        facts.durable.push(step);
    }
    tell(&facts, context)
}

/// A step whose save is not known here is there, or nobody is working on it.
fn committed(run: &Run, step: u64) -> Outcome {
    if run.root.generation(step)?.is_some() {
        return Ok(());
    }
    Err(Exit::failure(anyhow!(
        "step {step} is not committed, and the node at {} knows of no save of it",
        run.root.client().address()
    )))
}

fn tell(facts: &Facts, context: &Context) -> Outcome {
    let output = context.output;
    output.data(facts);
    for step in &facts.durable {
        output.say(format!("step {step} is durable"));
    }
    for failed in &facts.failed {
        output.say(format!("step {} failed: {}", failed.step, failed.last_error));
    }
    if facts.durable.is_empty() && facts.failed.is_empty() {
        output.say("no save is on its way");
    }
    if facts.failed.is_empty() {
        return Ok(());
    }
    Err(Exit::failure(anyhow!(counted(
        facts.failed.len(),
        "save failed",
        "saves failed"
    ))))
}
