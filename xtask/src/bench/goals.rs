//! Rows of a page that a script measures: which figure, what it means, what it must reach.
//!
//! A script prints one JSON object per line, `{"name": …, "samples": […]}`; it knows nothing of bars.

use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::measure::Spread;
use super::page::Page;
use crate::command;

/// A line of the table.
pub(super) struct Goal {
    /// The group of the script that measures it.
    pub(super) group: &'static str,
    /// The name of the figure.
    pub(super) figure: &'static str,
    /// Its meaning.
    pub(super) what: &'static str,
    /// The bar in words.
    pub(super) must_reach: &'static str,
    /// The bar.
    pub(super) bar: Bar,
}

/// Bar that a median must reach.
#[derive(Clone, Copy)]
pub(super) enum Bar {
    AtLeast(f64),
    AtMost(f64),
    /// Nothing: the figure is there to be read.
    Reported,
}

impl Bar {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bar) => value >= bar,
            Self::AtMost(bar) => value <= bar,
            Self::Reported => true,
        }
    }
}

/// A goal, for tables of them.
pub(super) const fn goal(
    group: &'static str,
    figure: &'static str,
    what: &'static str,
    must_reach: &'static str,
    bar: Bar,
) -> Goal {
    Goal {
        group,
        figure,
        what,
        must_reach,
        bar,
    }
}

/// A figure that is only shown.
pub(super) const fn shown(group: &'static str, figure: &'static str, what: &'static str) -> Goal {
    goal(group, figure, what, "reported", Bar::Reported)
}

/// Figure that a script measured.
#[derive(Deserialize)]
pub(super) struct Figure {
    name: String,
    samples: Vec<f64>,
}

impl Figure {
    /// Takes what another run measured of the same.
    pub(super) fn join(&mut self, more: Self) {
        self.samples.extend(more.samples);
    }
}

/// Runs a script to its end.
pub(super) fn figures(script: &mut Command) -> Result<Vec<Figure>> {
    let said = command::output(script)?;
    // Libraries may chat on the same stream.
    let lines = said.lines().filter(|line| line.starts_with("{\"name\""));
    let figures: Result<Vec<Figure>, _> = lines.map(serde_json::from_str).collect();
    let figures = figures.with_context(|| format!("the script said: {said}"))?;
    if figures.is_empty() || figures.iter().any(|figure| figure.samples.is_empty()) {
        bail!("the script gave no figure, or one without samples: {said}");
    }
    Ok(figures)
}

/// The groups of some goals, in order, each once.
pub(super) fn groups(goals: &[Goal]) -> Vec<&'static str> {
    let mut groups: Vec<&str> = goals.iter().map(|goal| goal.group).collect();
    groups.dedup();
    groups
}

/// Adds the rows of a group.
pub(super) fn add_rows(page: &mut Page, goals: &[Goal], group: &str, figures: &[Figure]) -> Result<()> {
    for goal in goals.iter().filter(|goal| goal.group == group) {
        let figure = figures.iter().find(|figure| figure.name == goal.figure);
        let figure = figure.with_context(|| format!("the script said nothing of {}", goal.figure))?;
        let spread = Spread::of(&figure.samples);
        match goal.bar {
            Bar::Reported => page.note(goal.what, spread.shown(2)),
            bar => page.row(
                goal.what,
                goal.must_reach,
                spread.shown(2),
                bar.holds(spread.median),
            ),
        }
    }
    Ok(())
}

/// The first lines of the page of a bench: how to do it again, on what it was done.
pub(super) fn opening(again: &str, load: &str, more: &str) -> Result<String> {
    let machine = command::output(command::clean("uname").args(["-srm"]))?;
    let cores = std::thread::available_parallelism()?;
    let commit =
        command::output(command::clean("git").args(["rev-parse", "--short", "HEAD"])).unwrap_or_default();
    Ok(format!(
        "Made by a command; do not edit. To do it again:\n\n\
         ```sh\ncargo xtask bench {again}\n```\n\n\
         Commit {}, {}, {cores} cores shared by clients and node; load average {load} when it began (0 is a quiet machine). Comparisons \
         alternate A-B-B-A; figures are medians with quartiles. {more}\n",
        commit.trim(),
        machine.trim()
    ))
}
