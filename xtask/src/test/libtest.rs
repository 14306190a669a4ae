//! Reading what `cargo test -- --show-output` prints, where nextest and its report are missing.
//!
//! Three kinds of lines count: `test NAME ... ok`, the heading `---- NAME stdout ----` before a test's own
//! output, and a line `skipped: reason` below it, which is how a Rust test says that it could not run here.

use std::collections::BTreeMap;

use super::tally::Tally;

/// Adds all tests of a run to the tally; gives how many failed. `suite` stands before each name.
pub(crate) fn count(text: &str, suite: &str, tally: &mut Tally) -> usize {
    // A binary's list of tests comes before their output, and the next binary may have the same names.
    let mut failed = 0;
    for binary in text.split("\nrunning ") {
        let skipped = reasons(binary);
        for (name, outcome) in binary.lines().filter_map(outcome) {
            let shown = format!("{suite} {name}");
            match (outcome, skipped.get(name)) {
                ("ok", Some(reason)) => tally.skip(shown, *reason),
                ("ok", None) => tally.pass(1),
                ("FAILED", _) => {
                    failed += 1;
                    tally.fail(shown);
                }
                _ => tally.skip(shown, "#[ignore] or a doc example that must not run"),
            }
        }
    }
    failed
}

/// The name and the outcome in `test NAME ... OUTCOME`.
fn outcome(line: &str) -> Option<(&str, &str)> {
    let (name, outcome) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    // A doc test is `path - item (line N) - compile ... ok`, a failure may have a time behind it.
    let outcome = outcome.split([' ', ',']).next()?;
    matches!(outcome, "ok" | "FAILED" | "ignored").then_some((name, outcome))
}

/// Why tests could not run, by name.
fn reasons(binary: &str) -> BTreeMap<&str, &str> {
    let mut found = BTreeMap::new();
    let mut of = None;
    for line in binary.lines() {
        if let Some(name) = line
            .strip_prefix("---- ")
            .and_then(|rest| rest.strip_suffix(" stdout ----"))
        {
            of = Some(name);
        } else if let (Some(name), Some(reason)) = (of, line.trim().strip_prefix("skipped: ")) {
            found.insert(name, reason);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
running 3 tests
test a::passes ... ok
test needs_a_server ... ok
test slow ... ignored, takes hours

successes:

---- needs_a_server stdout ----
skipped: FOREBAY_TEST_S3_ENDPOINT is not set

successes:
    a::passes
    needs_a_server

test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s

running 2 tests
test needs_a_server ... ok
test breaks ... FAILED

failures:

---- breaks stdout ----
skipped: not really

failures:
    breaks

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
";

    #[test]
    fn tests_are_counted_by_name_and_outcome() {
        let mut tally = Tally::default();
        assert_eq!(count(TEXT, "rust", &mut tally), 1);
        let text = tally.to_text();
        assert!(text.starts_with("2 passed, [\"rust breaks\"] failed, "), "{text}");
        assert!(
            text.contains("(\"rust needs_a_server\", \"FOREBAY_TEST_S3_ENDPOINT is not set\")"),
            "{text}"
        );
        assert!(text.contains("rust slow"), "{text}");
    }
}
