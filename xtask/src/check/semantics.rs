//! SEMANTICS.md names a test for every promise; this finds the names that lead nowhere, and numbers that two
//! rules have.
//!
//! A reference is `path/file.rs::test_name` or `tests/e2e/test_x.py::test_name` in backticks. The file must
//! exist and hold a function of that name.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::Result;

use super::Finding;
use crate::workspace::Workspace;

const PAGE: &str = "SEMANTICS.md";

pub(super) fn check(workspace: &Workspace) -> Result<Finding> {
    let Ok(page) = fs::read_to_string(workspace.root.join(PAGE)) else {
        return Ok(Finding::Skipped(format!("there is no {PAGE} yet")));
    };
    let references = references(&page);
    if references.is_empty() {
        return Ok(Finding::Broken(vec![format!(
            "{PAGE} names no test: write `file::test_name` in backticks"
        )]));
    }
    let lost = references
        .into_iter()
        .filter_map(|(file, test)| fault(&workspace.root, file, test));
    Ok(Finding::from_lines(lost.chain(numbers_twice(&page)).collect()))
}

/// Numbers of rules that stand more than once: a number means one rule for ever.
fn numbers_twice(page: &str) -> Vec<String> {
    let number = |line: &str| line.split_once(". ")?.0.parse::<u32>().ok();
    let mut seen = BTreeSet::new();
    page.lines()
        .filter_map(number)
        .filter(|number| !seen.insert(*number))
        .map(|number| format!("{PAGE} has two rules {number}; give the newer one the next free number"))
        .collect()
}

/// The `file::test` pairs of a page.
fn references(page: &str) -> Vec<(&str, &str)> {
    let spans = page.split('`').skip(1).step_by(2);
    let pairs = spans.filter_map(|span| span.split_once("::"));
    pairs
        .filter(|(file, _)| {
            Path::new(file)
                .extension()
                .is_some_and(|extension| extension == "rs" || extension == "py")
        })
        .collect()
}

fn fault(root: &Path, file: &str, test: &str) -> Option<String> {
    let Ok(text) = fs::read_to_string(root.join(file)) else {
        return Some(format!("{PAGE} names {file}::{test}, but there is no such file"));
    };
    // A path of modules or a class may stand before the function.
    let name = test.rsplit("::").next().unwrap_or(test);
    (!defines(&text, name)).then(|| format!("{PAGE} names {file}::{test}, but the file has no such test"))
}

fn defines(text: &str, name: &str) -> bool {
    ["fn ", "def "].iter().any(|keyword| {
        text.match_indices(&format!("{keyword}{name}"))
            .any(|(at, found)| text[at + found.len()..].starts_with(['(', '<']))
    })
}

#[cfg(test)]
mod tests {
    use super::{defines, numbers_twice, references};

    #[test]
    fn references_are_file_and_test_in_backticks() {
        let page = "1. Whole. `crates/storage/lake/src/tests.rs::a_claim`, `Kind::Busy`, `tests/e2e/test_x.py::test_y`";
        assert_eq!(
            references(page),
            [
                ("crates/storage/lake/src/tests.rs", "a_claim"),
                ("tests/e2e/test_x.py", "test_y")
            ]
        );
    }

    #[test]
    fn a_number_belongs_to_one_rule() {
        assert_eq!(
            numbers_twice("7. One.\n   - 7. no rule\n8. Two.\n7. Three.").len(),
            1
        );
        assert!(numbers_twice("1. One.\n2. Two.").is_empty());
    }

    #[test]
    fn a_longer_name_is_another_test() {
        assert!(defines("async fn a_claim() {}", "a_claim"));
        assert!(!defines("fn a_claim_too() {}", "a_claim"));
    }
}
