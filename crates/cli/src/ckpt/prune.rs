//! `forebay ckpt prune` and `forebay ckpt rm`: removing steps, and what nobody needs any more.
//!
//! Without `--yes` nothing is removed, only said. A step that stays never loses what it reuses of one that
//! goes.

use std::collections::BTreeSet;
use std::time::SystemTime;

use anyhow::anyhow;
use forebay_checkpoint::retention::Policy;
use forebay_checkpoint_client::{PruneOptions, PruneSelection, Pruned};
use forebay_core::{Clock as _, SystemClock, format_bytes};
use serde::Serialize;

use super::args::{PruneArgs, ReallyArgs, RmArgs};
use super::open::Run;
use crate::blocking::Context;
use crate::embedded::Access;
use crate::exit::{Exit, Outcome};
use crate::output::counted;

#[derive(Serialize)]
struct Facts<'a> {
    dry_run: bool,
    removed: Vec<u64>,
    /// Steps that a save under way builds on; they go next time.
    in_use: Vec<u64>,
    kept: &'a [u64],
    files: usize,
    bytes: u64,
}

pub(crate) fn prune(args: &PruneArgs, context: &Context) -> Outcome {
    if args.run.step.is_some() {
        return Err(Exit::usage(anyhow!(
            "prune takes a run, not a step; remove one step by forebay ckpt rm {}",
            args.run.typed
        )));
    }
    let age_ms_min = u64::try_from(args.age.0.as_millis()).unwrap_or(u64::MAX);
    let selection = PruneSelection::ByPolicy(Policy {
        keep_last: args.keep_last,
        keep_every: args.keep_every,
    });
    let node = args.node.node.as_deref();
    remove_some(&args.run.run, node, selection, age_ms_min, &args.really, context)
}

pub(crate) fn remove(args: &RmArgs, context: &Context) -> Outcome {
    let run = args.steps.first().map_or("", |first| first.run.as_str());
    let mut steps = BTreeSet::new();
    for name in &args.steps {
        let Some(step) = name.step else {
            return Err(Exit::usage(anyhow!(
                "{} names no step; write RUN@STEP, and forebay rm -r to remove a whole run",
                name.typed
            )));
        };
        if !name.run.is_empty() && name.run != run {
            return Err(Exit::usage(anyhow!(
                "steps of one run at a time, please: {}",
                name.typed
            )));
        }
        steps.insert(step);
    }
    let selection = PruneSelection::Steps(steps);
    // What crashes left is not what was asked for: only a prune collects it.
    remove_some(
        run,
        args.node.node.as_deref(),
        selection,
        u64::MAX,
        &args.really,
        context,
    )
}

fn remove_some(
    run: &str,
    node: Option<&str>,
    selection: PruneSelection,
    age_ms_min: u64,
    really: &ReallyArgs,
    context: &Context,
) -> Outcome {
    let is_dry_run = !really.yes;
    let access = if is_dry_run { Access::Read } else { Access::Write };
    let run = Run::open(run, node, access, context)?;
    let now = SystemClock::new().wall().duration_since(SystemTime::UNIX_EPOCH);
    let now_ms = now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
    let pruned = run.root.prune(&PruneOptions {
        selection,
        age_ms_min,
        now_ms,
        is_dry_run,
    })?;
    tell(&pruned, really, context);
    if is_dry_run && !really.dry_run && !(pruned.commits.is_empty() && pruned.files.is_empty()) {
        return Err(Exit::usage(anyhow!(
            "nothing was removed; add --yes to do it, or --dry-run to only look"
        )));
    }
    Ok(())
}

fn tell(pruned: &Pruned, really: &ReallyArgs, context: &Context) {
    let steps = |commits: &[forebay_checkpoint::manifest::StepRef]| -> Vec<u64> {
        let steps: BTreeSet<u64> = commits.iter().map(|commit| commit.step).collect();
        steps.into_iter().collect()
    };
    let facts = Facts {
        dry_run: !really.yes,
        removed: steps(&pruned.commits),
        in_use: steps(&pruned.in_use),
        kept: &pruned.kept,
        files: pruned.files.len(),
        bytes: pruned.bytes,
    };
    let output = context.output;
    output.data(&facts);
    let verb = if facts.dry_run { "would remove" } else { "removed" };
    for step in &facts.removed {
        output.say(format!("{verb} step {step}"));
    }
    for step in &facts.in_use {
        output.say(format!(
            "step {step} stays for now: a save under way builds on it"
        ));
    }
    output.say(format!(
        "{verb} {}, {}; {}",
        counted(facts.files, "file", "files"),
        format_bytes(facts.bytes),
        counted(facts.kept.len(), "step stays", "steps stay")
    ));
}
