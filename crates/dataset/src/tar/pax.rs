//! The records of PAX headers: `<length> <keyword>=<value>\n`, one after the other. Pure; values are borrowed.

use forebay_core::{Error, Kind, Result};

/// What PAX records say about a member, as far as it matters here. `None` means that they say nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Pax {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    /// There are holes: what is stored is not the content.
    pub(super) sparse: bool,
    /// The name of a member with holes; its header has a made-up one.
    pub(super) sparse_path: Option<Vec<u8>>,
}

impl Pax {
    /// Takes the records of one header; later ones win, and an empty value takes an earlier one back.
    pub(super) fn read(&mut self, mut records: &[u8]) -> Result<()> {
        // Some writers pad with NULs.
        while records.first().is_some_and(|byte| *byte != 0) {
            let (keyword, value, rest) = split(records)?;
            self.set(keyword, value)?;
            records = rest;
        }
        Ok(())
    }

    fn set(&mut self, keyword: &[u8], value: &[u8]) -> Result<()> {
        let given = (!value.is_empty()).then(|| value.to_vec());
        match keyword {
            b"path" => self.path = given,
            b"linkpath" => self.link = given,
            b"size" => {
                let size = given.map(|digits| decimal(&digits).ok_or_else(damaged));
                self.size = size.transpose()?;
            }
            b"GNU.sparse.name" => {
                self.sparse = true;
                self.sparse_path = given;
            }
            _ if keyword.starts_with(b"GNU.sparse.") => self.sparse = true,
            _ => {}
        }
        Ok(())
    }

    /// These records, and where they say nothing, those of the global headers.
    pub(super) fn over(self, global: &Self) -> Self {
        Self {
            path: self.path.or_else(|| global.path.clone()),
            link: self.link.or_else(|| global.link.clone()),
            size: self.size.or(global.size),
            sparse: self.sparse || global.sparse,
            sparse_path: self.sparse_path.or_else(|| global.sparse_path.clone()),
        }
    }
}

/// Keyword, value and the rest behind the first record. The length counts all of the record, itself included.
fn split(records: &[u8]) -> Result<(&[u8], &[u8], &[u8])> {
    let space = records.iter().take(20).position(|byte| *byte == b' ');
    let space = space.ok_or_else(damaged)?;
    let length = decimal(&records[..space]).and_then(|length| usize::try_from(length).ok());
    let record = length
        .and_then(|length| records.get(space + 1..length))
        .and_then(|record| record.strip_suffix(b"\n"))
        .ok_or_else(damaged)?;
    let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(damaged)?;
    let rest = &records[space + 1 + record.len() + 1..];
    Ok((&record[..equals], &record[equals + 1..], rest))
}

fn decimal(digits: &[u8]) -> Option<u64> {
    let number = std::str::from_utf8(digits).ok()?.parse::<i64>().ok()?;
    u64::try_from(number).ok()
}

fn damaged() -> Error {
    Error::new(
        Kind::Corrupt,
        "a PAX header of the archive cannot be read; the archive is damaged",
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(records: &[u8]) -> Result<Pax> {
        let mut pax = Pax::default();
        pax.read(records).map(|()| pax)
    }

    #[test]
    fn known_keywords_are_taken_and_others_passed_over() {
        let pax = read(b"20 path=a long name\n13 size=1234\n30 mtime=1700000000.123456789\n\0\0").unwrap();
        assert_eq!(pax.path.as_deref(), Some(b"a long name".as_slice()));
        assert_eq!(pax.size, Some(1234));
        assert!(!pax.sparse);
    }

    #[test]
    fn an_empty_value_takes_a_global_one_back() {
        let mut pax = read(b"10 path=a\n").unwrap();
        pax.read(b"8 path=\n").unwrap();
        assert_eq!(pax.path, None);
    }

    #[test]
    fn wrong_lengths_are_damage() {
        for records in [
            b"99 path=a\n".as_slice(),
            b"8 path=a\n",
            b"path=a\n",
            b"0 path=a\n",
            b"2 \n",
            b"1 \n",
            b"99999999999999999999 path=a\n",
            b"-5 path=a\n",
            b"9 pathaa\n",
            b"11 size=-1\n",
            b"29 size=99999999999999999999\n",
        ] {
            assert_eq!(read(records).unwrap_err().kind(), Kind::Corrupt, "{records:?}");
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
        }

        #[test]
        fn damaged_digits_never_panic(text in "[0-9 =a-z\\n]{0,60}") {
            let _ = read(text.as_bytes());
        }
    }
}
