//! Values that people type into a configuration: sizes, periods, consistency.
//!
//! Each is a newtype that reads and writes the text people use (`4GiB`, `5s`, `always`), so that the file,
//! the environment and the flags accept the same words and `config show` prints what can be pasted back. Secrets
//! are `forebay_core::Secret`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use forebay_core::{Error, Kind, Result, format_bytes, parse_bytes};
use forebay_engine::Consistency;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of bytes, typed as `4GiB`, `512MB` or `1048576`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse_bytes(text).map(Self)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rounded text must not come back as another size: whole units or plain bytes.
        for (unit, name) in [
            (1u64 << 40, "TiB"),
            (1 << 30, "GiB"),
            (1 << 20, "MiB"),
            (1 << 10, "KiB"),
        ] {
            if self.0 >= unit && self.0.is_multiple_of(unit) {
                return write!(f, "{}{name}", self.0 / unit);
            }
        }
        write!(f, "{}", self.0)
    }
}

impl Size {
    /// The size rounded for people: `1.5 GiB`.
    #[must_use]
    pub fn rounded(self) -> String {
        format_bytes(self.0)
    }
}

/// A length of time, typed as `5s`, `10m` or `24h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(pub Duration);

impl FromStr for Period {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        humantime::parse_duration(text.trim()).map(Self).map_err(|why| {
            let message = format!("'{text}' is not a length of time; write for example 500ms, 5s or 10m");
            Error::new(Kind::InvalidInput, message).caused_by(why)
        })
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&humantime::format_duration(self.0), f)
    }
}

/// The id of a user of this host, typed as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Uid(pub u32);

impl FromStr for Uid {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        text.trim().parse().map(Self).map_err(|_| {
            let message = format!("'{text}' is not a user id; write a number, as `id -u NAME` prints it");
            Error::new(Kind::InvalidInput, message)
        })
    }
}

/// Freshness of reads, typed as `immutable`, `always` or a length of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Freshness(pub Consistency);

impl FromStr for Freshness {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.trim() {
            "immutable" => Ok(Self(Consistency::Immutable)),
            "always" => Ok(Self(Consistency::Always)),
            other => match humantime::parse_duration(other) {
                Ok(age) if age.is_zero() => Ok(Self(Consistency::Always)),
                Ok(age) => Ok(Self(Consistency::RevalidateAfter(age))),
                Err(_) => {
                    let message =
                        format!("'{other}' is not a consistency; write immutable, always or a time like 5s");
                    Err(Error::new(Kind::InvalidInput, message))
                }
            },
        }
    }
}

impl fmt::Display for Freshness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Consistency::Immutable => f.write_str("immutable"),
            Consistency::Always => f.write_str("always"),
            Consistency::RevalidateAfter(age) => fmt::Display::fmt(&humantime::format_duration(age), f),
        }
    }
}

/// A size or period in a file: text, or a plain number of bytes or seconds.
#[derive(Deserialize)]
#[serde(untagged)]
enum TextOrNumber {
    Text(String),
    Number(u64),
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match TextOrNumber::deserialize(deserializer)? {
            TextOrNumber::Number(bytes) => Ok(Self(bytes)),
            TextOrNumber::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

impl<'de> Deserialize<'de> for Uid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = match TextOrNumber::deserialize(deserializer)? {
            TextOrNumber::Number(number) => number.to_string(),
            TextOrNumber::Text(text) => text,
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

macro_rules! text_serde {
    (write $($type:ident),+) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )+};
    (read $($type:ident),+) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    )+};
}
text_serde!(write Size, Period, Freshness);
text_serde!(read Period, Freshness);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_come_back_as_they_were_written() {
        for bytes in [0, 1, 1023, 1 << 20, (1 << 20) + 1, 4 << 30, 3 << 40] {
            assert_eq!(Size(bytes).to_string().parse::<Size>().unwrap(), Size(bytes));
        }
        assert_eq!(Size(4 << 30).to_string(), "4GiB");
    }

    #[test]
    fn consistency_is_read_in_its_three_forms() {
        assert_eq!(
            "immutable".parse::<Freshness>().unwrap().0,
            Consistency::Immutable
        );
        assert_eq!("always".parse::<Freshness>().unwrap().0, Consistency::Always);
        assert_eq!(
            "5s".parse::<Freshness>().unwrap().0,
            Consistency::RevalidateAfter(Duration::from_secs(5))
        );
        assert_eq!("0s".parse::<Freshness>().unwrap().0, Consistency::Always);
        assert!(
            "sometimes"
                .parse::<Freshness>()
                .unwrap_err()
                .to_string()
                .contains("immutable, always")
        );
    }
}
