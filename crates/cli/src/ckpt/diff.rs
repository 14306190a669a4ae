//! `forebay ckpt diff`: which tensors differ between two steps, and by how much.

use anyhow::anyhow;
use forebay_checkpoint_client::{Change, Changed, Compared, Step};
use serde::Serialize;

use super::args::DiffArgs;
use super::open::{self, Run};
use crate::blocking::Context;
use crate::exit::{Exit, Outcome};
use crate::output::counted;

#[derive(Serialize)]
struct Differences<'a> {
    same: bool,
    before: u64,
    after: u64,
    added: &'a [String],
    removed: &'a [String],
    changed: Vec<ChangedFacts<'a>>,
    objects: &'a [String],
    same_tensors: u64,
}

#[derive(Serialize)]
struct ChangedFacts<'a> {
    name: &'a str,
    /// `values`, or `form`: another type or shape.
    what: &'static str,
    elements: Option<u64>,
    changed_elements: Option<u64>,
    /// The largest difference; null where only one of two is a number.
    abs_max: Option<f64>,
    rel_max: Option<f64>,
    before: Option<String>,
    after: Option<String>,
}

pub(crate) fn run(args: &DiffArgs, context: &Context) -> Outcome {
    let node = args.work.node.node.as_deref();
    let (run, before) = open::step(&args.before, node, context)?;
    let (_other, after) = second(args, &run, context)?;
    let bar = context.output.bar(0);
    bar.set_message("comparing");
    let threads = usize::from(args.work.jobs);
    let compared = Compared::of(&before, &after, threads, &|bytes| {
        bar.inc_length(bytes);
        bar.inc(bytes);
    });
    bar.finish_and_clear();
    tell(&compared?, before.manifest().step, after.manifest().step, context);
    Ok(())
}

/// The second step: of the same run if only its number was typed.
fn second(args: &DiffArgs, run: &Run, context: &Context) -> Outcome<(Option<Run>, Step)> {
    if args.after.run.is_empty() || args.after.run == args.before.run {
        return Ok((None, run.step(args.after.step)?));
    }
    if let Ok(step) = args.after.run.parse::<u64>() {
        return Err(Exit::usage(anyhow!(
            "write @{step} for step {step} of the same run"
        )));
    }
    let (other, step) = open::step(&args.after, args.work.node.node.as_deref(), context)?;
    Ok((Some(other), step))
}

fn tell(compared: &Compared, before: u64, after: u64, context: &Context) {
    let output = context.output;
    output.data(&Differences {
        same: compared.is_same(),
        before,
        after,
        added: &compared.added,
        removed: &compared.removed,
        changed: compared.changed.iter().map(facts).collect(),
        objects: &compared.objects,
        same_tensors: compared.same,
    });
    if output.json {
        return;
    }
    for name in &compared.added {
        output.say(format!("added    {}", name.escape_debug()));
    }
    for name in &compared.removed {
        output.say(format!("removed  {}", name.escape_debug()));
    }
    if !compared.changed.is_empty() {
        output.table(
            ["CHANGED", "ELEMENTS", "DIFFER", "LARGEST", "RELATIVE"],
            compared.changed.iter().map(row),
        );
    }
    for name in &compared.objects {
        output.say(format!("object   {} differs", name.escape_debug()));
    }
    output.say(format!(
        "{} changed, {} added, {} removed, {} the same",
        counted(compared.changed.len(), "tensor", "tensors"),
        compared.added.len(),
        compared.removed.len(),
        compared.same
    ));
}

fn form((dtype, shape): &(forebay_checkpoint::Dtype, Vec<u64>)) -> String {
    format!("{dtype} {shape:?}")
}

fn facts(changed: &Changed) -> ChangedFacts<'_> {
    let mut facts = ChangedFacts {
        name: &changed.name,
        what: "values",
        elements: None,
        changed_elements: None,
        abs_max: None,
        rel_max: None,
        before: None,
        after: None,
    };
    match &changed.change {
        Change::Form { before, after } => {
            facts.what = "form";
            facts.before = Some(form(before));
            facts.after = Some(form(after));
        }
        Change::Values(difference) => {
            facts.elements = Some(difference.elements);
            facts.changed_elements = Some(difference.changed);
            facts.abs_max = Some(difference.abs_max).filter(|value| value.is_finite());
            facts.rel_max = Some(difference.rel_max).filter(|value| value.is_finite());
        }
    }
    facts
}

fn row(changed: &Changed) -> [String; 5] {
    let name = changed.name.escape_debug().to_string();
    match &changed.change {
        Change::Form { before, after } => [
            name,
            form(before),
            format!("now {}", form(after)),
            String::new(),
            String::new(),
        ],
        Change::Values(difference) => {
            let share = difference.changed as f64 / difference.elements.max(1) as f64;
            [
                name,
                difference.elements.to_string(),
                format!("{} ({:.2} %)", difference.changed, share * 100.0),
                format!("{:.3e}", difference.abs_max),
                format!("{:.3e}", difference.rel_max),
            ]
        }
    }
}
