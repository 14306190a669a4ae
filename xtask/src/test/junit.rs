//! Reading JUnit reports, which both nextest and pytest write.
//!
//! Just the parts we count: each `<testcase>` with `<failure>`, `<error>` or `<skipped>` in it, and a line
//! `skipped: reason` in its output, which is how a Rust test says that it could not run here.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::tally::Tally;

/// Adds a report to the tally. `suite` stands before each name.
pub(crate) fn count(path: &Path, suite: &str, tally: &mut Tally) -> Result<()> {
    let text = fs::read_to_string(path)
        .with_context(|| format!("the test runner left no report at {}", path.display()))?;
    count_text(&text, suite, tally);
    Ok(())
}

fn count_text(text: &str, suite: &str, tally: &mut Tally) {
    for case in text.split("<testcase ").skip(1) {
        let body = case.split("</testcase>").next().unwrap_or(case);
        let opening = body.split('>').next().unwrap_or(body);
        let class = attribute(opening, "classname").unwrap_or_default();
        let name = attribute(opening, "name").unwrap_or_default();
        let name = format!("{suite} {class}::{name}");
        if let Some((_, skipped)) = body.split_once("<skipped") {
            tally.skip(
                name,
                attribute(skipped, "message").unwrap_or_else(|| "no reason given".to_owned()),
            );
        } else if body.contains("<failure") || body.contains("<error") {
            tally.fail(name);
        } else if let Some(reason) = body.lines().find_map(said_skipped) {
            tally.skip(name, reason);
        } else {
            tally.pass(1);
        }
    }
}

fn said_skipped(line: &str) -> Option<String> {
    let line = line.rsplit("<![CDATA[").next().unwrap_or(line);
    let line = line.rsplit("<system-out>").next().unwrap_or(line);
    let line = line.rsplit("<system-err>").next().unwrap_or(line);
    let reason = line.trim().strip_prefix("skipped: ")?;
    Some(unescape(reason.split("</system-").next().unwrap_or(reason)))
}

fn attribute(tag: &str, name: &str) -> Option<String> {
    let (_, rest) = tag.split_once(&format!("{name}=\""))?;
    // `name=` also ends `classname=`: take the one that starts a word.
    if tag
        .split_once(&format!("{name}=\""))
        .is_some_and(|(before, _)| before.ends_with(|c: char| c.is_alphanumeric()))
    {
        return attribute(rest, name);
    }
    Some(unescape(rest.split('"').next()?))
}

fn unescape(text: &str) -> String {
    let text = text
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&apos;", "'");
    text.replace("&#10;", " ")
        .replace("&#xA;", " ")
        .replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_is_counted_once() {
        let report = r#"<testsuite><testcase classname="a" name="ok" time="1"/>
            <testcase classname="a" name="bad"><failure message="x">boom</failure></testcase>
            <testcase classname="a" name="left out"><skipped type="s" message="no &quot;s3cmd&quot;"/></testcase>
            <testcase name="cannot" classname="lake"><system-out>
skipped: FOREBAY_TEST_S3_ENDPOINT is not set
</system-out></testcase></testsuite>"#;
        let mut tally = Tally::default();
        count_text(report, "py", &mut tally);
        let expected = "1 passed, [\"py a::bad\"] failed, [(\"py a::left out\", \"no \\\"s3cmd\\\"\"), \
                        (\"py lake::cannot\", \"FOREBAY_TEST_S3_ENDPOINT is not set\")] skipped";
        assert_eq!(tally.to_text(), expected);
    }
}
