//! Names of many shards in one line: ranges, alternatives, unions.
//!
//! `data/{0000..1023}.tar` is 1,024 names with their zeros kept, `{train,val}` two, `a/x.tar::b/y.tar` a
//! union; groups may stand side by side, the last one turns fastest; they do not nest. Expansion is bounded
//! ([`NAMES_MAX`]) before a name is made, so a slip of the finger is an error and not a full memory. A key
//! with braces of its own cannot be written this way; list its folder instead.

use forebay_core::{Error, Kind, Result};

/// Names that one dataset may have.
pub const NAMES_MAX: u64 = 10_000_000;
const UNION: &str = "::";

/// All names that the given ones stand for, in order.
///
/// ```
/// let names = forebay_loader::expand(&["forebay://lake/{train,val}/{08..10}.tar"])?;
/// assert_eq!(names.len(), 6);
/// assert_eq!(names[1], "forebay://lake/train/09.tar");
/// # Ok::<(), forebay_core::Error>(())
/// ```
pub fn expand<S: AsRef<str>>(patterns: &[S]) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for pattern in patterns {
        for one in pattern.as_ref().split(UNION) {
            let parts = parse(one).map_err(|error| error.with("name", one))?;
            let count = parts
                .iter()
                .try_fold(1, |count: u64, part| count.checked_mul(part.count()));
            let total = count.and_then(|count| count.checked_add(names.len() as u64));
            let Some(total) = total.filter(|total| *total <= NAMES_MAX) else {
                let message = "the pattern stands for too many names; give a folder, or split the dataset";
                return Err(Error::new(Kind::InvalidInput, message)
                    .with("name", one)
                    .with("names_max", NAMES_MAX));
            };
            let first = names.len() as u64;
            names.extend((0..total - first).map(|number| name(&parts, number)));
        }
    }
    Ok(names)
}

/// A piece of a pattern.
enum PatternPiece<'a> {
    Text(&'a str),
    /// From, to, digits to fill up to.
    Range(u64, u64, usize),
    Alternatives(Vec<&'a str>),
}

impl PatternPiece<'_> {
    fn count(&self) -> u64 {
        match self {
            Self::Text(_) => 1,
            Self::Range(from, to, _) => (to - from).saturating_add(1),
            Self::Alternatives(all) => all.len() as u64,
        }
    }

    fn write(&self, number: u64, into: &mut String) {
        match self {
            Self::Text(text) => into.push_str(text),
            Self::Range(from, _, digits) => {
                let number = (from + number).to_string();
                into.extend(std::iter::repeat_n('0', digits.saturating_sub(number.len())));
                into.push_str(&number);
            }
            Self::Alternatives(all) => into.push_str(all[number as usize]),
        }
    }
}

fn name(parts: &[PatternPiece<'_>], mut number: u64) -> String {
    let mut digits = vec![0; parts.len()];
    for (digit, part) in digits.iter_mut().zip(parts).rev() {
        *digit = number % part.count();
        number /= part.count();
    }
    let mut text = String::new();
    for (digit, part) in digits.into_iter().zip(parts) {
        part.write(digit, &mut text);
    }
    text
}

fn parse(mut text: &str) -> Result<Vec<PatternPiece<'_>>> {
    let wrong = |why: &str| Err(Error::new(Kind::InvalidInput, why));
    let mut parts = Vec::new();
    if text.is_empty() {
        return wrong("an empty name stands for no shard; remove it");
    }
    while let Some(open) = text.find(['{', '}']) {
        let (before, rest) = text.split_at(open);
        let Some((inside, after)) = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) else {
            return wrong("a brace has no partner; write {0000..0999} or {train,val}");
        };
        if inside.contains('{') {
            return wrong("braces inside braces are not understood; write a union with :: instead");
        }
        parts.push(PatternPiece::Text(before));
        parts.push(group(inside)?);
        text = after;
    }
    parts.push(PatternPiece::Text(text));
    Ok(parts)
}

fn group(inside: &str) -> Result<PatternPiece<'_>> {
    let wrong = |why: &str| Err(Error::new(Kind::InvalidInput, why).with("braces", inside));
    if let Some((from, to)) = inside.split_once("..") {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(from) || !is_number(to) {
            return wrong("a range in braces is two whole numbers: {0000..0999}");
        }
        return match (from.parse(), to.parse()) {
            (Ok(first), Ok(last)) if first <= last => {
                let padded = [from, to]
                    .iter()
                    .any(|text| text.len() > 1 && text.starts_with('0'));
                Ok(PatternPiece::Range(
                    first,
                    last,
                    if padded { from.len().max(to.len()) } else { 0 },
                ))
            }
            (Ok(_), Ok(_)) => wrong("a range in braces goes upwards: {0000..0999}"),
            _ => wrong("the numbers of a range in braces are too large"),
        };
    }
    if !inside.contains(',') {
        return wrong("braces hold a range {0000..0999} or alternatives {train,val}");
    }
    Ok(PatternPiece::Alternatives(inside.split(',').collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_kept_and_the_last_group_turns_fastest() {
        assert_eq!(expand(&["b/{8..10}"]).unwrap(), ["b/8", "b/9", "b/10"]);
        assert_eq!(
            expand(&["b/{08..10}.tar"]).unwrap(),
            ["b/08.tar", "b/09.tar", "b/10.tar"]
        );
        assert_eq!(expand(&["{a,b}/{0..1}"]).unwrap(), ["a/0", "a/1", "b/0", "b/1"]);
        assert_eq!(expand(&["x{,-old}.tar"]).unwrap(), ["x.tar", "x-old.tar"]);
        assert_eq!(expand(&["a{0..0}"]).unwrap(), ["a0"]);
    }

    #[test]
    fn unions_and_lists_are_joined_in_order() {
        let names = expand(&["b/a.tar::b/{0..1}.tar", "b/z.tar"]).unwrap();
        assert_eq!(names, ["b/a.tar", "b/0.tar", "b/1.tar", "b/z.tar"]);
    }

    #[test]
    fn what_is_no_pattern_is_refused_with_advice() {
        for bad in [
            "a{",
            "a}",
            "a{1..}",
            "a{1}",
            "a{2..1}",
            "a{{1..2}}",
            "",
            "a::",
            "a{0..99999999999999999999}",
        ] {
            assert_eq!(
                expand(&[bad]).err().map(|error| error.kind()),
                Some(Kind::InvalidInput),
                "{bad}"
            );
        }
    }

    #[test]
    fn too_many_names_are_refused_before_they_are_made() {
        for bad in ["{0..10000000}", "{0..9999}{0..9999}", "{0..18446744073709551615}"] {
            assert!(
                expand(&[bad]).unwrap_err().message().contains("too many"),
                "{bad}"
            );
        }
    }
}
