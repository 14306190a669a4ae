//! Sum of the results of all runners.

/// Counts, and the names behind what did not pass.
#[derive(Default)]
pub(crate) struct Tally {
    passed: usize,
    failed: Vec<String>,
    skipped: Vec<(String, String)>,
}

impl Tally {
    /// So many more passed.
    pub(crate) fn pass(&mut self, count: usize) {
        self.passed += count;
    }

    /// This one failed.
    pub(crate) fn fail(&mut self, name: impl Into<String>) {
        self.failed.push(name.into());
    }

    /// This one did not run, and why.
    pub(crate) fn skip(&mut self, name: impl Into<String>, reason: impl Into<String>) {
        self.skipped.push((name.into(), reason.into()));
    }

    /// Returns whether nothing failed and something ran.
    pub(crate) fn is_good(&self) -> bool {
        self.failed.is_empty() && self.passed > 0
    }

    /// The end of a test run: what was skipped and why, what failed, the totals.
    pub(crate) fn print(&self) {
        println!();
        for (name, reason) in &self.skipped {
            println!("skipped {name}: {reason}");
        }
        for name in &self.failed {
            println!("FAILED {name}");
        }
        println!(
            "{} passed, {} failed, {} skipped",
            self.passed,
            self.failed.len(),
            self.skipped.len()
        );
    }
}

#[cfg(test)]
impl Tally {
    /// Everything in one line.
    pub(crate) fn to_text(&self) -> String {
        format!(
            "{} passed, {:?} failed, {:?} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}
