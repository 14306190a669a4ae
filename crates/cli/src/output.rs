//! Output of a command, answers and progress: tables and bars for people, JSON for programs.

use std::io::{IsTerminal, Write};

use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::exit::Exit;

/// Printer of a command's answers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    /// JSON instead of text.
    pub(crate) json: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// One line of text for people; nothing with `--json`.
    pub(crate) fn say(self, text: impl AsRef<str>) {
        if !self.json {
            print_line(text.as_ref());
        }
    }

    /// One JSON document; nothing without `--json`.
    pub(crate) fn data(self, value: &impl Serialize) {
        if self.json {
            print_line(
                &serde_json::to_string(value).unwrap_or_else(|why| format!("{{\"error\":\"{why}\"}}")),
            );
        }
    }

    /// A table with a head; nothing with `--json`.
    pub(crate) fn table<const N: usize>(self, head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) {
        if self.json {
            return;
        }
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Disabled)
            .set_header(head);
        for row in rows {
            table.add_row(row);
        }
        let text = table.to_string();
        for line in text.lines() {
            print_line(line.strip_prefix(' ').unwrap_or(line).trim_end());
        }
    }

    /// The error of a command, as one line or one JSON document on standard error.
    pub(crate) fn error(self, exit: &Exit) {
        let line = exit.line();
        if self.json {
            let document =
                serde_json::json!({"error": {"message": line, "code": if exit.is_usage { 2 } else { 1 }}});
            eprintln!("{document}");
        } else {
            let (start, end) = if has_colours() {
                ("\x1b[31m", "\x1b[0m")
            } else {
                ("", "")
            };
            eprintln!("{start}error:{end} {line}");
        }
    }

    /// A progress bar in bytes: on a terminal, and never with `--json`.
    pub(crate) fn bar(self, total_bytes: u64) -> ProgressBar {
        let is_shown = !self.json && std::io::stderr().is_terminal();
        let target = if is_shown {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(total_bytes), target);
        let style = ProgressStyle::with_template(
            "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}",
        );
        bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    }
}

/// A number and what it counts, in the form that goes with it.
pub(crate) fn counted(number: impl TryInto<u64>, one: &str, several: &str) -> String {
    match number.try_into() {
        Ok(1) => format!("1 {one}"),
        Ok(number) => format!("{number} {several}"),
        Err(_) => format!("many {several}"),
    }
}

/// Prints a line; a closed pipe ends the program quietly, as it does for other tools, a full disk with an
/// error.
pub(crate) fn print_line(text: &str) {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}") {
        Ok(()) => {}
        Err(why) if why.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(why) => {
            eprintln!("error: cannot write to standard output: {why}");
            std::process::exit(1);
        }
    }
}

/// Returns whether standard error may have colours (<https://no-color.org>).
pub(crate) fn has_colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) && std::io::stderr().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_singular() {
        let ranks = |number: u64| counted(number, "rank", "ranks");
        assert_eq!([ranks(0), ranks(1), ranks(2)], ["0 ranks", "1 rank", "2 ranks"]);
    }
}
