//! `forebay ckpt ls`: the steps of a run, and what is on its way.

use std::time::{Duration, SystemTime};

use forebay_checkpoint_client::StepDetail;
use forebay_client::SavePhase;
use forebay_core::format_bytes;
use serde::Serialize;

use super::args::LsArgs;
use super::open::{Run, known_saves};
use super::saves::Attempt;
use crate::blocking::Context;
use crate::embedded::Access;
use crate::exit::Outcome;
use crate::objects::timestamp;
use crate::output::counted;

/// A step, or a save that is none yet.
#[derive(Serialize)]
struct Row {
    step: u64,
    /// Of the commit; none before it.
    generation: Option<u32>,
    /// `durable`, or how far the save is.
    state: String,
    created: Option<String>,
    /// From the beginning of the save to the commit.
    save_ms: Option<u64>,
    /// Since the save began; of steps that are not durable.
    age_ms: Option<u64>,
    ranks: u32,
    tensors: Option<u64>,
    objects: Option<u64>,
    bytes: u64,
    reused_bytes: u64,
    /// The part of the bytes that was not written again.
    reuse_ratio: f64,
    parent: Option<u64>,
    alarms: u64,
    #[serde(rename = "trouble")]
    last_error: Option<String>,
}

#[derive(Serialize)]
struct Listing<'a> {
    run: &'a str,
    steps: Vec<Row>,
}

pub(crate) fn run(args: &LsArgs, context: &Context) -> Outcome {
    let run = Run::open(&args.run.run, args.node.node.as_deref(), Access::Read, context)?;
    let mut rows: Vec<Row> = run.root.steps_detail()?.iter().map(committed).collect();
    let saves = known_saves(run.root.client().saves(&run.root.to_string()))?;
    let pending = Attempt::all(saves);
    rows.extend(
        pending
            .iter()
            .filter(|attempt| attempt.phase != SavePhase::Durable)
            .map(on_its_way),
    );
    rows.retain(|row| args.run.step.is_none_or(|step| step == row.step));
    rows.sort_by_key(|row| (row.step, row.generation.is_none()));
    if context.output.json {
        context.output.data(&Listing {
            run: &run.shown,
            steps: rows,
        });
        return Ok(());
    }
    show(&rows, context);
    Ok(())
}

fn committed(detail: &StepDetail) -> Row {
    Row {
        step: detail.commit.step,
        generation: Some(detail.commit.generation),
        state: SavePhase::Durable.as_str().into(),
        created: Some(time(detail.created_ms)),
        save_ms: detail.save_ms,
        age_ms: None,
        ranks: detail.world_size,
        tensors: Some(detail.tensors),
        objects: Some(detail.objects),
        bytes: detail.bytes,
        reused_bytes: detail.reused_bytes,
        reuse_ratio: detail.reuse_ratio(),
        parent: detail.parent.map(|parent| parent.step),
        alarms: detail.alarms,
        last_error: None,
    }
}

fn on_its_way(attempt: &Attempt) -> Row {
    Row {
        step: attempt.step,
        generation: None,
        state: attempt.state(),
        created: None,
        save_ms: None,
        age_ms: Some(attempt.age_ms),
        ranks: attempt.world_size,
        tensors: None,
        objects: None,
        bytes: attempt.bytes,
        reused_bytes: attempt.reused_bytes,
        reuse_ratio: attempt.reused_bytes as f64 / attempt.bytes.max(1) as f64,
        parent: None,
        alarms: 0,
        last_error: attempt.last_error.clone(),
    }
}

fn show(rows: &[Row], context: &Context) {
    let output = context.output;
    if rows.is_empty() {
        output.say("no steps");
        return;
    }
    let lines = rows.iter().map(|row| {
        let generation = row.generation.unwrap_or(1);
        let step = match generation {
            1 => row.step.to_string(),
            _ => format!("{} (generation {generation})", row.step),
        };
        let when = row.created.clone().unwrap_or_default();
        let took = row.save_ms.or(row.age_ms).map_or_else(String::new, duration);
        let ranks = row.ranks.to_string();
        let tensors = row.tensors.map_or_else(String::new, |count| count.to_string());
        let reused = match row.reused_bytes {
            0 => String::new(),
            _ => format!("{:.1} %", row.reuse_ratio * 100.0),
        };
        [
            step,
            row.state.clone(),
            when,
            took,
            ranks,
            tensors,
            format_bytes(row.bytes),
            reused,
        ]
    });
    output.table(
        [
            "STEP",
            "STATE",
            "COMMITTED",
            "TOOK",
            "RANKS",
            "TENSORS",
            "SIZE",
            "REUSED",
        ],
        lines,
    );
    for row in rows {
        if row.alarms > 0 {
            output.say(format!(
                "step {}: {} at commit; forebay ckpt show says which",
                row.step,
                counted(row.alarms, "alarm", "alarms")
            ));
        }
        if let Some(last_error) = &row.last_error {
            output.say(format!("step {}: {last_error}", row.step));
        }
    }
}

/// A time as people read it.
pub(crate) fn time(since_1970_ms: u64) -> String {
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(since_1970_ms));
    time.map_or_else(String::new, timestamp)
}

/// Milliseconds as people read them.
pub(crate) fn duration(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..60_000 => format!("{:.1} s", ms as f64 / 1000.0),
        _ => humantime::format_duration(Duration::from_secs(ms / 1000)).to_string(),
    }
}
