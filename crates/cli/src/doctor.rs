//! `forebay doctor`: looks at the machine and the lake, and says what each finding means.
//!
//! A finding is fine, a note (slower or smaller than it could be) or a problem (something will not work); a
//! problem makes the exit code 1. Machine checks are in `doctor/machine.rs`, the lake's in `doctor/lake.rs`.

use anyhow::anyhow;
use serde::Serialize;

use crate::args::DoctorArgs;
use crate::config::resolve;
use crate::exit::{Exit, Outcome};
use crate::output::Output;

mod lake;
mod machine;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Grade {
    Fine,
    Note,
    Problem,
}

/// One finding.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Finding {
    check: &'static str,
    grade: Grade,
    found: String,
    meaning: String,
}

impl Finding {
    pub(crate) fn new(
        check: &'static str,
        grade: Grade,
        found: impl Into<String>,
        meaning: impl Into<String>,
    ) -> Self {
        Self {
            check,
            grade,
            found: found.into(),
            meaning: meaning.into(),
        }
    }
}

pub(crate) async fn run(args: DoctorArgs, output: Output) -> Outcome {
    let options = resolve(args.settings)?;
    let mut findings = machine::check(&options);
    findings.extend(lake::check(&options).await);
    for finding in &findings {
        output.data(finding);
        let mark = match finding.grade {
            Grade::Fine => "ok  ",
            Grade::Note => "note",
            Grade::Problem => "BAD ",
        };
        output.say(format!("{mark}  {:22} {}", finding.check, finding.found));
        if finding.grade != Grade::Fine {
            output.say(format!("      {:22} {}", "", finding.meaning));
        }
    }
    match findings
        .iter()
        .filter(|finding| finding.grade == Grade::Problem)
        .count()
    {
        0 => Ok(()),
        1 => Err(Exit::failure(anyhow!("1 problem found"))),
        count => Err(Exit::failure(anyhow!("{count} problems found"))),
    }
}
