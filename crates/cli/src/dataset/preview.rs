//! The first bytes of a field, safe for a terminal: printable text, or hexadecimal.

/// Characters of text that are shown.
const TEXT_CHARS_MAX: usize = 48;
/// Bytes that are shown otherwise.
const HEX_BYTES_MAX: usize = 16;

/// A few characters that no terminal takes for a command.
pub(crate) fn preview(bytes: &[u8]) -> String {
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
