//! The list of a part of a dataset, as `forebay dataset split` writes it and a dataset takes it: sample
//! numbers, or names of shards.
//!
//! Two lines of comment say what it is and which data it is of (docs/formats/dataset-pack.md); numbers mean
//! nothing for other data, so a list without them is refused, and so is one of other shards or versions.
//! Limits: [`PART_BYTES_MAX`] of text.

use std::fmt::Write as _;

use forebay_core::{Error, Kind, Result};

use crate::order::{Fingerprint, Subset};

/// The longest list that is read: some hundred million samples.
pub const PART_BYTES_MAX: usize = 1 << 30;

const TITLE: &str = "# forebay split v1: ";
const DATA: &str = "# dataset ";

/// Samples that a list names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Members {
    /// Sample numbers, ascending.
    Samples(Vec<u64>),
    /// Names of shards, as the index has them.
    Shards(Vec<String>),
}

/// A part of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartList {
    /// Its name.
    pub name: String,
    /// The dataset that it is of.
    pub fingerprint: Fingerprint,
    /// Its samples.
    pub members: Members,
}

impl PartList {
    /// The list as text; `how` says how it came about.
    #[must_use]
    pub fn to_text(&self, how: &str) -> String {
        let what = match self.members {
            Members::Samples(_) => "samples",
            Members::Shards(_) => "shards",
        };
        let mut text = format!(
            "{TITLE}{what} of {}\n{DATA}{} {how}\n",
            self.name, self.fingerprint
        );
        let mut line =
            |member: &dyn std::fmt::Display| writeln!(text, "{member}").expect("a string takes all");
        match &self.members {
            Members::Samples(numbers) => numbers.iter().for_each(|number| line(number)),
            Members::Shards(names) => names.iter().for_each(|name| line(name)),
        }
        text
    }

    /// Reads a list. Errors: `InvalidInput`, with the line.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong =
            |message: &str, line: usize| Err(Error::new(Kind::InvalidInput, message).with("line", line + 1));
        if text.len() > PART_BYTES_MAX {
            return Err(Error::new(Kind::InvalidInput, "the list of a part is too long")
                .with("bytes_max", PART_BYTES_MAX));
        }
        let mut lines = text.lines().enumerate();
        let title = lines
            .next()
            .and_then(|(_, line)| line.strip_prefix(TITLE)?.split_once(" of "));
        let data = lines.next().and_then(|(_, line)| line.strip_prefix(DATA));
        let (Some((what, name)), Some(data)) = (title, data) else {
            let message = "this is no list of 'forebay dataset split': its first two lines say what it is and which data it is of";
            return wrong(message, 0);
        };
        let fingerprint = data.split(' ').next().unwrap_or_default().parse()?;
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let members = match what {
            "samples" => {
                let mut numbers: Vec<u64> = Vec::new();
                for (at, line) in lines {
                    match line.trim().parse() {
                        Ok(number) if numbers.last().is_none_or(|last| *last < number) => {
                            numbers.push(number);
                        }
                        Ok(_) => return wrong("the numbers of a part ascend, each once", at),
                        Err(_) => return wrong("a line of the list is no number of a sample", at),
                    }
                }
                Members::Samples(numbers)
            }
            "shards" => Members::Shards(lines.map(|(_, line)| line.to_owned()).collect()),
            _ => return wrong("lists are of samples or of shards", 0),
        };
        Ok(Self {
            name: name.to_owned(),
            fingerprint,
            members,
        })
    }

    /// The samples that it names in a dataset with this fingerprint and these shards: name and sample numbers
    /// of each.
    ///
    /// Errors: `Changed` if it is of other data.
    pub fn subset(
        self,
        fingerprint: Fingerprint,
        shards: impl Iterator<Item = Result<(String, std::ops::Range<u64>)>>,
    ) -> Result<Subset> {
        let changed = || {
            let message = "the list is of another dataset, or of other versions of its shards; divide the data again: forebay dataset split URL";
            Error::new(Kind::Changed, message).with("part", &self.name)
        };
        if self.fingerprint != fingerprint {
            return Err(changed());
        }
        let mut names = match &self.members {
            Members::Samples(numbers) => return Subset::from_sorted(numbers.clone()),
            Members::Shards(names) => names
                .iter()
                .map(String::as_str)
                .collect::<std::collections::HashSet<_>>(),
        };
        let mut numbers = Vec::new();
        for shard in shards {
            let (name, samples) = shard?;
            if names.remove(name.as_str()) {
                numbers.extend(samples);
            }
        }
        if !names.is_empty() {
            return Err(changed());
        }
        Subset::from_sorted(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(members: Members) -> PartList {
        PartList {
            name: "train".into(),
            fingerprint: Fingerprint::of([("a.tar", "1", 3), ("b.tar", "1", 4)]),
            members,
        }
    }

    fn shards() -> impl Iterator<Item = Result<(String, std::ops::Range<u64>)>> {
        [("a.tar".to_owned(), 0..3), ("b.tar".to_owned(), 3..7)]
            .into_iter()
            .map(Ok)
    }

    fn found(part: PartList) -> Vec<u64> {
        let fingerprint = part.fingerprint;
        let subset = part.subset(fingerprint, shards()).unwrap();
        (0..subset.samples())
            .map(|at| subset.sample(at).unwrap())
            .collect()
    }

    #[test]
    fn a_list_is_read_as_it_was_written() {
        for (members, numbers) in [
            (Members::Samples(vec![0, 2, 5]), vec![0, 2, 5]),
            (Members::Shards(vec!["b.tar".into()]), vec![3, 4, 5, 6]),
            (Members::Samples(vec![]), vec![]),
        ] {
            let list = part(members);
            let read = PartList::parse(&list.to_text("seed 7 share 0.5")).unwrap();
            assert_eq!(read, list);
            assert_eq!(found(read), numbers);
        }
    }

    #[test]
    fn a_list_of_other_data_is_refused() {
        let list = part(Members::Samples(vec![1]));
        let other = Fingerprint::of([("a.tar", "2", 3)]);
        assert_eq!(list.subset(other, shards()).unwrap_err().kind(), Kind::Changed);
        let list = part(Members::Shards(vec!["c.tar".into()]));
        let same = list.fingerprint;
        assert_eq!(list.subset(same, shards()).unwrap_err().kind(), Kind::Changed);
    }

    #[test]
    fn what_is_no_list_is_refused_with_its_line() {
        let head = "# forebay split v1: samples of val\n# dataset 00112233445566778899aabbccddeeff seed 0 share 0.1\n";
        assert!(PartList::parse(&format!("{head}\n# a comment\n3\n")).is_ok());
        for (text, why) in [
            (String::new(), "first two lines"),
            ("1\n2\n".into(), "first two lines"),
            (format!("{head}3\n3\n"), "ascend"),
            (format!("{head}3\n-4\n"), "no number"),
            (head.replace("samples", "rows"), "samples or of shards"),
            (head.replace("0011", "xyz"), "hexadecimal"),
        ] {
            let error = PartList::parse(&text).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}
