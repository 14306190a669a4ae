//! The first bytes of a field, safe for a terminal: the value where the format says what it is, else
//! printable text or hexadecimal.

use std::collections::BTreeMap;

use forebay_dataset::mds::{MdsEncoding, MdsValue};
use forebay_dataset::parquet::{ValueKind, parse_encoding, to_text};
use forebay_dataset::tfrecord::{FIELD as RECORD, Feature, decode_example};
use forebay_dataset::tokens::{TokenType, TokenWindows};
use forebay_loader::{Dataset, FieldBytes};

/// Characters of text that are shown.
const TEXT_CHARS_MAX: usize = 48;
/// Bytes that are shown otherwise.
const HEX_BYTES_MAX: usize = 16;

/// Features of a record that are named.
const FEATURES_MAX: usize = 8;
/// Tokens that are shown.
const TOKENS_MAX: usize = 12;

/// Short texts for the fields of a dataset.
pub(crate) struct Previews {
    encodings: BTreeMap<String, String>,
    token: Option<TokenType>,
}

impl Previews {
    pub(crate) fn of(dataset: &Dataset, tokens: Option<&TokenWindows>) -> Self {
        Self {
            encodings: dataset.index().head().meta().encodings.clone(),
            token: tokens.and_then(|tokens| tokens.token),
        }
    }

    /// A field in a few characters.
    pub(crate) fn show(&self, field: &FieldBytes) -> String {
        if field.is_null() {
            return "null".to_owned();
        }
        let name = &**field.name();
        let encoding = self.encodings.get(name).map(String::as_str);
        let value = match (name, encoding, self.token) {
            (_, Some(encoding), _) => row(encoding, field).or_else(|| mds(encoding, field)),
            (RECORD, None, _) => example(field),
            ("tokens", None, Some(token)) => Some(numbers(token, field)),
            _ => None,
        };
        match value {
            Some(value) => cut(&value),
            None => preview(field),
        }
    }
}

/// So many characters that fit on a line.
fn cut(text: &str) -> String {
    let shown: String = text.chars().take(2 * TEXT_CHARS_MAX).collect();
    let more = if shown.len() < text.len() { "…" } else { "" };
    // Quotes are no harm, and JSON is full of them.
    let safe = |one: char| match one {
        '"' | '\'' => one.to_string(),
        one => one.escape_debug().to_string(),
    };
    format!("{}{more}", shown.chars().map(safe).collect::<String>())
}

/// A value of a column of Parquet that is not bytes or text.
fn row(encoding: &str, bytes: &[u8]) -> Option<String> {
    let (kind, lists) = parse_encoding(encoding)?;
    let is_plain = lists == 0 && matches!(kind, ValueKind::Text | ValueKind::Bytes);
    (!is_plain).then(|| to_text(kind, lists > 0, bytes).ok())?
}

/// A number of a column of MDS.
fn mds(encoding: &str, bytes: &[u8]) -> Option<String> {
    match MdsEncoding::parse(encoding).ok()?.decode(bytes).ok()? {
        MdsValue::Int(number) => Some(number.to_string()),
        MdsValue::Uint(number) => Some(number.to_string()),
        MdsValue::Float(number) => Some(number.to_string()),
        MdsValue::Number(number) | MdsValue::Decimal(number) => Some(number.to_owned()),
        MdsValue::Array(array) => Some(format!("{} {:?}", array.dtype, array.shape)),
        MdsValue::Image {
            width, height, mode, ..
        } => Some(format!("{mode} {width}x{height}")),
        _ => None,
    }
}

/// The features of a `tf.train.Example`.
fn example(bytes: &[u8]) -> Option<String> {
    let features = decode_example(bytes)
        .ok()
        .filter(|features| !features.is_empty())?;
    let one = |(name, feature): (&_, &Feature<'_>)| match feature {
        Feature::Empty => format!("{name} empty"),
        Feature::Bytes(all) => format!("{name} bytes[{}]", all.len()),
        Feature::Floats(all) => format!("{name} float[{}]", all.len()),
        Feature::Ints(all) => match all.as_slice() {
            [number] => format!("{name} int64 {number}"),
            all => format!("{name} int64[{}]", all.len()),
        },
    };
    let shown: Vec<String> = features.iter().take(FEATURES_MAX).map(one).collect();
    Some(shown.join(", "))
}

fn numbers(token: TokenType, bytes: &[u8]) -> String {
    let width = token.bytes().max(1) as usize;
    let one = |bytes: &[u8]| {
        let mut wide = [0_u8; 8];
        let length = bytes.len().min(8);
        wide[..length].copy_from_slice(&bytes[..length]);
        u64::from_le_bytes(wide).to_string()
    };
    let shown: Vec<String> = bytes.chunks(width).take(TOKENS_MAX).map(one).collect();
    let more = if bytes.len() > width * TOKENS_MAX {
        " …"
    } else {
        ""
    };
    format!("{}{more}", shown.join(" "))
}

/// A few characters that no terminal takes for a command.
fn preview(bytes: &[u8]) -> String {
    let first = &bytes[..bytes.len().min(4 * TEXT_CHARS_MAX)];
    let is_cut = first.len() < bytes.len();
    let text = match std::str::from_utf8(first) {
        Ok(text) => Some(text),
        // A character that the cut went through is no reason to call it binary.
        Err(why) if is_cut && why.error_len().is_none() => {
            std::str::from_utf8(&first[..why.valid_up_to()]).ok()
        }
        Err(_) => None,
    };
    let is_text = |text: &&str| {
        text.chars()
            .all(|one| !one.is_control() || one.is_ascii_whitespace())
    };
    match text.filter(is_text) {
        Some(text) => {
            let shown: String = text.chars().take(TEXT_CHARS_MAX).collect();
            let more = if shown.len() < bytes.len() { "…" } else { "" };
            format!("\"{}\"{more}", shown.escape_debug())
        }
        None => {
            let shown = &bytes[..bytes.len().min(HEX_BYTES_MAX)];
            let more = if shown.len() < bytes.len() { "…" } else { "" };
            format!("{}{more}", hex::encode(shown))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_comes_through() {
        assert_eq!(preview(b"seven"), "\"seven\"");
        assert_eq!(preview(b""), "\"\"");
        assert_eq!(preview(b"a\nb"), "\"a\\nb\"");
        assert_eq!(preview(b"\x1b[2J"), "1b5b324a");
        assert_eq!(preview(&[0xff; 20]), format!("{}…", "ff".repeat(16)));
        assert_eq!(preview("\u{202e}x".as_bytes()), "\"\\u{202e}x\"");
        let long = "ä".repeat(200);
        assert!(preview(long.as_bytes()).starts_with("\"ää"));
    }
}
