//! A list of paths and labels, as people have it: CSV (`path,label`, with or without a header) or JSON lines.

use std::collections::BTreeMap;

use forebay_core::{Error, Kind, Result};
use serde::Deserialize;
use serde_json::Value as Json;

/// Labels by path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest {
    labels: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct ManifestLine {
    path: String,
    label: Json,
}

impl Manifest {
    /// Reads `path,label` lines; a first line that starts with `path` is a header. Quotes are those of RFC
    /// 4180; further columns are passed over. Errors: `InvalidInput`, with the number of the line.
    pub fn csv(text: &str) -> Result<Self> {
        let mut manifest = Self::default();
        let mut rest = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut row = 0_usize;
        while !rest.is_empty() {
            row += 1;
            let fields = csv_row(&mut rest)
                .ok_or_else(|| wrong("a quote of the manifest does not end").with("row", row))?;
            match fields.as_slice() {
                [only] if only.trim().is_empty() => {}
                [first, ..] if row == 1 && first.eq_ignore_ascii_case("path") => {}
                [path, label, ..] => manifest.add(path.clone(), label.clone(), row)?,
                _ => return Err(wrong("a line of the manifest has no label").with("row", row)),
            }
        }
        Ok(manifest)
    }

    /// Reads lines of `{"path": …, "label": …}`; a label is a string, a number or a truth value. Errors:
    /// `InvalidInput`.
    pub fn jsonl(text: &str) -> Result<Self> {
        let mut manifest = Self::default();
        for (row, line) in (1..)
            .zip(text.lines())
            .filter(|(_, line)| !line.trim().is_empty())
        {
            let line: ManifestLine = serde_json::from_str(line).map_err(|why| {
                wrong("a line of the manifest is no {\"path\": …, \"label\": …}")
                    .with("row", row)
                    .caused_by(why)
            })?;
            let label = match line.label {
                Json::String(label) => label,
                Json::Number(number) => number.to_string(),
                Json::Bool(truth) => truth.to_string(),
                _ => return Err(wrong("a label of the manifest is no string and no number").with("row", row)),
            };
            manifest.add(line.path, label, row)?;
        }
        Ok(manifest)
    }

    fn add(&mut self, path: String, label: String, row: usize) -> Result<()> {
        match self.labels.insert(path, label) {
            None => Ok(()),
            Some(_) => Err(wrong("the manifest has a path twice").with("row", row)),
        }
    }

    /// The label of an object.
    #[must_use]
    pub fn label(&self, path: &str) -> Option<&str> {
        self.labels.get(path).map(String::as_str)
    }

    /// All paths, sorted.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.labels.keys().map(String::as_str)
    }
}

fn wrong(message: &str) -> Error {
    Error::new(Kind::InvalidInput, message)
}

/// Takes one row from the front; `None` if a quote does not end.
fn csv_row(text: &mut &str) -> Option<Vec<String>> {
    let mut fields = vec![String::new()];
    let mut chars = text.char_indices().peekable();
    let mut is_quoted = false;
    while let Some((at, char)) = chars.next() {
        let field = fields.last_mut().expect("there is always one");
        match char {
            '"' if is_quoted && chars.next_if(|(_, next)| *next == '"').is_some() => field.push('"'),
            '"' if is_quoted => is_quoted = false,
            '"' if field.is_empty() => is_quoted = true,
            ',' if !is_quoted => fields.push(String::new()),
            '\n' if !is_quoted => {
                if field.ends_with('\r') {
                    field.pop();
                }
                *text = &text[at + 1..];
                return Some(fields);
            }
            _ => field.push(char),
        }
    }
    *text = "";
    (!is_quoted).then_some(fields)
}
