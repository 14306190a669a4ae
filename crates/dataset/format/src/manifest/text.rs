//! The lines of `SHA256SUMS`, as coreutils writes and reads them.
//!
//! A line is 64 hexadecimal digits, a space, a space (text) or `*` (binary), the name. If the name has a
//! backslash, a line feed or a carriage return, they are written `\\`, `\n`, `\r` and the line starts with a
//! backslash. Lines that start with `#` are comments. Where `sha256sum -c` warns about a line and goes on, we
//! refuse: a line that cannot be read may be the one that matters.

use forebay_core::{Error, Kind, Result};

use super::digest::Digest;

const DIGITS: usize = 64;

/// The line of a file, with its end.
pub(super) fn line(name: &str, digest: &Digest) -> String {
    if !name.contains(['\\', '\n', '\r']) {
        return format!("{digest}  {name}\n");
    }
    let mut escaped = String::with_capacity(name.len() + 8);
    for character in name.chars() {
        match character {
            '\\' => escaped.push_str("\\\\"),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            other => escaped.push(other),
        }
    }
    format!("\\{digest}  {escaped}\n")
}

/// The lines that are not comments, with their numbers from 1.
pub(super) fn lines(text: &[u8]) -> impl Iterator<Item = Result<(usize, &str)>> {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let lines = text.split(|byte| *byte == b'\n').enumerate();
    lines
        .filter(move |(_, line)| !line.starts_with(b"#") && !text.is_empty())
        .map(|(index, line)| {
            let line = std::str::from_utf8(line).map_err(|_| {
                Error::new(Kind::InvalidInput, "names in a manifest must be UTF-8").with("line", index + 1)
            })?;
            Ok((index + 1, line))
        })
}

/// The name and the digest of a line.
pub(super) fn parse_line(line: &str) -> Result<(String, Digest)> {
    let (escaped, line) = match line.strip_prefix('\\') {
        Some(rest) => (true, rest),
        None => (false, line),
    };
    let (digest, rest) = line.split_at_checked(DIGITS).ok_or_else(malformed)?;
    let digest: Digest = digest.parse().map_err(|_| malformed())?;
    let name = rest
        .strip_prefix("  ")
        .or_else(|| rest.strip_prefix(" *"))
        .ok_or_else(malformed)?;
    if name.contains('\r') {
        return Err(Error::new(
            Kind::InvalidInput,
            "the manifest has the line ends of Windows: convert it with dos2unix",
        ));
    }
    let name = if escaped { unescape(name)? } else { name.to_owned() };
    Ok((name, digest))
}

fn unescape(name: &str) -> Result<String> {
    let mut plain = String::with_capacity(name.len());
    let mut characters = name.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            plain.push(character);
            continue;
        }
        plain.push(match characters.next() {
            Some('\\') => '\\',
            Some('n') => '\n',
            Some('r') => '\r',
            _ => return Err(malformed()),
        });
    }
    Ok(plain)
}

fn malformed() -> Error {
    Error::new(
        Kind::InvalidInput,
        "this is no line of SHA256SUMS: 64 hexadecimal digits, two spaces, name",
    )
}
