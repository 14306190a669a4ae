//! The page that a bench writes: what was asked, what came out, how to do it again.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result};

use crate::workspace::Workspace;

/// One line of the table.
pub(super) struct Row {
    pub(super) what: &'static str,
    pub(super) must_reach: &'static str,
    pub(super) value: String,
    /// `None` for figures that are only reported.
    pub(super) reached: Option<bool>,
}

/// A table of details under the rows.
pub(super) struct Detail {
    pub(super) title: String,
    pub(super) lines: Vec<String>,
}

/// The page as Markdown.
#[derive(Default)]
pub(super) struct Page {
    pub(super) rows: Vec<Row>,
    pub(super) details: Vec<Detail>,
}

impl Page {
    /// Returns whether every row that must reach something does.
    pub(super) fn is_good(&self) -> bool {
        self.rows.iter().all(|row| row.reached != Some(false))
    }

    pub(super) fn row(&mut self, what: &'static str, must_reach: &'static str, value: String, reached: bool) {
        println!(
            "{} {what}: {value} (must reach {must_reach})",
            if reached { "ok  " } else { "MISS" }
        );
        self.rows.push(Row {
            what,
            must_reach,
            value,
            reached: Some(reached),
        });
    }

    pub(super) fn note(&mut self, what: &'static str, value: String) {
        println!("     {what}: {value}");
        self.rows.push(Row {
            what,
            must_reach: "reported",
            value,
            reached: None,
        });
    }

    pub(super) fn detail(&mut self, title: impl Into<String>, lines: Vec<String>) {
        self.details.push(Detail {
            title: title.into(),
            lines,
        });
    }

    /// The whole text.
    pub(super) fn text(&self, title: &str, opening: &str) -> String {
        let mut text = format!(
            "# {title}\n\n{opening}\n| what | must reach | measured | |\n| --- | --- | --- | --- |\n"
        );
        for row in &self.rows {
            let verdict = match row.reached {
                Some(true) => "reached",
                Some(false) => "**missed**",
                None => "",
            };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {verdict} |",
                row.what, row.must_reach, row.value
            );
        }
        for detail in &self.details {
            let _ = write!(text, "\n## {}\n\n{}\n", detail.title, detail.lines.join("\n"));
        }
        text
    }
}
/// Writes a page to its place, or prints it if `only` a part was measured.
pub(super) fn publish(workspace: &Workspace, path: &str, text: &str, only: Option<&str>) -> Result<()> {
    if only.is_some() {
        println!("\n{text}");
        return Ok(());
    }
    fs::write(workspace.root.join(path), text).with_context(|| format!("cannot write {path}"))?;
    println!("wrote {path}");
    Ok(())
}
