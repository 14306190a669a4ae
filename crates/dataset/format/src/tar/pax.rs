//! The records of PAX headers: `<length> <keyword>=<value>\n`, one after the other. Pure; values are
//! borrowed.

use forebay_core::{Error, Kind, Result};

/// Value of one keyword over all records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum PaxValue<T> {
    #[default]
    Nothing,
    /// Its value is empty: what was said before does not count.
    TakenBack,
    Value(T),
}

impl<T: Clone> PaxValue<T> {
    /// This, and where it says nothing, what the global headers say.
    fn over(self, global: &Self) -> Option<T> {
        match (self, global) {
            (Self::Value(value), _) => Some(value),
            (Self::Nothing, Self::Value(value)) => Some(value.clone()),
            (Self::TakenBack, _) | (Self::Nothing, Self::Nothing | Self::TakenBack) => None,
        }
    }
}

/// The records of some headers, as far as they matter here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Pax {
    path: PaxValue<Vec<u8>>,
    link: PaxValue<Vec<u8>>,
    size: PaxValue<u64>,
    sparse: bool,
    sparse_path: PaxValue<Vec<u8>>,
}

/// Values of all records for a member. `None` means that its plain header counts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Extended {
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
        let given = if value.is_empty() {
            PaxValue::TakenBack
        } else {
            PaxValue::Value(value.to_vec())
        };
        match keyword {
            b"path" => self.path = given,
            b"linkpath" => self.link = given,
            b"size" if value.is_empty() => self.size = PaxValue::TakenBack,
            b"size" => self.size = PaxValue::Value(decimal(value).ok_or_else(damaged)?),
            b"GNU.sparse.name" => {
                self.sparse = true;
                self.sparse_path = given;
            }
            _ if keyword.starts_with(b"GNU.sparse.") => self.sparse = true,
            _ => {}
        }
        Ok(())
    }

    /// These records of a member, and where they say nothing, those of the global headers.
    pub(super) fn over(self, global: &Self) -> Extended {
        Extended {
            path: self.path.over(&global.path),
            link: self.link.over(&global.link),
            size: self.size.over(&global.size),
            sparse: self.sparse || global.sparse,
            sparse_path: self.sparse_path.over(&global.sparse_path),
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
        let found = pax.over(&Pax::default());
        assert_eq!(found.path.as_deref(), Some(b"a long name".as_slice()));
        assert_eq!(found.size, Some(1234));
        assert!(!found.sparse);
    }

    #[test]
    fn an_empty_value_takes_a_global_one_back() {
        let global = read(b"10 path=a\n14 linkpath=b\n10 size=5\n").unwrap();
        let found = read(b"8 path=\n8 size=\n").unwrap().over(&global);
        assert_eq!((found.path, found.size), (None, None));
        assert_eq!(found.link.as_deref(), Some(b"b".as_slice()));
        // The next member has it again.
        assert_eq!(Pax::default().over(&global).size, Some(5));
    }

    #[test]
    fn an_empty_value_takes_back_what_the_same_headers_said() {
        let mut pax = read(b"10 path=a\n").unwrap();
        pax.read(b"8 path=\n").unwrap();
        assert_eq!(pax.over(&Pax::default()).path, None);
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
