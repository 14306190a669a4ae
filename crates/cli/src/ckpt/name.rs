//! Name of a run or a step of it, as people type it: `RUN`, `RUN@1000`, `RUN@latest`, or the folder of the
//! step, `RUN/steps/1000`.

use std::convert::Infallible;
use std::str::FromStr;

/// A run, and maybe one of its steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StepName {
    /// The run as it was typed; empty where only `@STEP` was.
    pub(crate) run: String,
    /// The step; `None` is the newest, or all.
    pub(crate) step: Option<u64>,
    /// All that was typed.
    pub(crate) typed: String,
}

impl FromStr for StepName {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let (run, step) = split(text);
        Ok(Self {
            run: run.to_owned(),
            step,
            typed: text.to_owned(),
        })
    }
}

fn split(text: &str) -> (&str, Option<u64>) {
    if let Some((run, step)) = text.rsplit_once('@') {
        if step == "latest" {
            return (run, None);
        }
        if let Some(step) = number(step) {
            return (run, Some(step));
        }
    }
    let folder = text.trim_end_matches('/');
    if let Some((run, step)) = folder
        .rsplit_once("/steps/")
        .map(|(run, step)| (run, number(step)))
        && step.is_some()
    {
        return (run, step);
    }
    (text, None)
}

fn number(text: &str) -> Option<u64> {
    let is_plain = text.bytes().all(|c| c.is_ascii_digit());
    is_plain.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_steps_are_read() {
        for (typed, run, step) in [
            ("forebay://lake/run-7", "forebay://lake/run-7", None),
            ("forebay://lake/run-7@1000", "forebay://lake/run-7", Some(1000)),
            ("forebay://lake/run-7@latest", "forebay://lake/run-7", None),
            ("forebay://lake/run-7/steps/10/", "forebay://lake/run-7", Some(10)),
            ("runs/me@home", "runs/me@home", None),
            ("runs/me@home@3", "runs/me@home", Some(3)),
            ("runs/steps/x", "runs/steps/x", None),
            ("@20", "", Some(20)),
        ] {
            let name: StepName = typed.parse().unwrap();
            assert_eq!((name.run.as_str(), name.step), (run, step), "{typed}");
        }
    }
}
