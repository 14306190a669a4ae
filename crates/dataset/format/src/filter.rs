//! Filters of samples: conditions on columns, as pyarrow's `filters` has them.
//!
//! A [`Filter`] holds if all conditions of one of its groups hold. A value that is null, or that cannot be
//! compared, satisfies no condition. Beside values it can be asked about bounds ([`Condition::may_hold`]):
//! the smallest and largest value of many rows tell whether one of them could satisfy it, so that row groups
//! and pages are passed over unread. Dates and times are compared with text in ISO 8601 (`filter/time.rs`),
//! decimal numbers by their digits (`filter/decimal.rs`).

mod decimal;
mod time;

use std::cmp::Ordering;

use forebay_core::{Error, Kind, Result};

pub use decimal::Decimal;
use time::ticks;

use crate::index::Value;
use crate::parquet::{ValueKind, half};

/// Conditions of a filter, at most.
const CONDITIONS_MAX: usize = 1024;

/// A comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// `in`
    In,
    /// `not in`
    NotIn,
}

impl Operator {
    /// The operator of this name.
    pub fn parse(name: &str) -> Result<Self> {
        Ok(match name {
            "==" | "=" => Self::Equal,
            "!=" => Self::NotEqual,
            "<" => Self::Less,
            "<=" => Self::LessOrEqual,
            ">" => Self::Greater,
            ">=" => Self::GreaterOrEqual,
            "in" => Self::In,
            "not in" => Self::NotIn,
            _ => {
                let message = "a filter compares with ==, !=, <, <=, >, >=, in or not in";
                return Err(Error::new(Kind::InvalidInput, message).with("operator", name));
            }
        })
    }
}

/// A value that is compared.
#[derive(Debug, Clone, PartialEq)]
pub enum Scalar {
    /// A whole number, and a truth as 0 or 1.
    Int(i128),
    /// A decimal number, of any length and not rounded.
    Decimal(Decimal),
    /// Another number.
    Float(f64),
    /// A text, a date or a time.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

impl Scalar {
    /// A value of a column of Parquet; `None` if it has a type that is not compared.
    #[must_use]
    pub fn of_row(kind: ValueKind, bytes: &[u8]) -> Option<Self> {
        Some(match kind {
            ValueKind::Text => Self::Text(std::str::from_utf8(bytes).ok()?.to_owned()),
            ValueKind::Bytes => Self::Bytes(bytes.to_vec()),
            ValueKind::Decimal(_) => Self::Decimal(Decimal::parse(std::str::from_utf8(bytes).ok()?)?),
            ValueKind::Date => Self::Int(signed(bytes)?),
            ValueKind::TimestampMs | ValueKind::TimestampUs | ValueKind::TimestampNs => {
                Self::Int(signed(bytes)?)
            }
            ValueKind::Int(_) => Self::Int(signed(bytes)?),
            ValueKind::Bool | ValueKind::Uint(_) => Self::Int(unsigned(bytes)?),
            ValueKind::Float(2) => Self::Float(half(u16::from_le_bytes(bytes.try_into().ok()?))),
            ValueKind::Float(4) => Self::Float(f32::from_le_bytes(bytes.try_into().ok()?).into()),
            ValueKind::Float(8) => Self::Float(f64::from_le_bytes(bytes.try_into().ok()?)),
            ValueKind::Float(_) | ValueKind::Unsupported => return None,
        })
    }

    /// A value of an index; `None` if it is of a kind that is not compared.
    #[must_use]
    pub fn of_index(value: &Value<'_>) -> Option<Self> {
        Some(match value {
            Value::I64(number) => Self::Int((*number).into()),
            Value::F64(number) => Self::Float(*number),
            Value::Text(text) => Self::Text((*text).to_owned()),
        })
    }

    fn compare(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Int(one), Self::Int(two)) => Some(one.cmp(two)),
            (Self::Float(one), Self::Float(two)) => one.partial_cmp(two),
            (Self::Int(one), Self::Float(two)) => int_and_float(*one, *two),
            (Self::Float(one), Self::Int(two)) => int_and_float(*two, *one).map(Ordering::reverse),
            (Self::Decimal(one), Self::Decimal(two)) => Some(one.cmp(two)),
            (Self::Decimal(one), Self::Int(two)) => Some(one.cmp(&(*two).into())),
            (Self::Int(one), Self::Decimal(two)) => Some(Decimal::from(*one).cmp(two)),
            (Self::Decimal(one), Self::Float(two)) => one.compare_float(*two),
            (Self::Float(one), Self::Decimal(two)) => two.compare_float(*one).map(Ordering::reverse),
            (Self::Text(one), Self::Text(two)) => Some(one.cmp(two)),
            (Self::Bytes(one), Self::Bytes(two)) => Some(one.cmp(two)),
            (Self::Text(one), Self::Bytes(two)) => Some(one.as_bytes().cmp(two)),
            (Self::Bytes(one), Self::Text(two)) => Some(one.as_slice().cmp(two.as_bytes())),
            _ => None,
        }
    }

    /// A number as its digits.
    fn in_digits(&self) -> Option<Decimal> {
        match self {
            Self::Int(number) => Some((*number).into()),
            Self::Float(number) => Decimal::of_float(*number),
            _ => None,
        }
    }

    /// The same in the terms of a column: a date as days, a time as ticks since 1970, numbers for decimals as
    /// digits.
    fn in_terms_of(&self, kind: ValueKind) -> Result<Self> {
        let per_second = match kind {
            ValueKind::Decimal(_) => return Ok(self.in_digits().map_or(self.clone(), Self::Decimal)),
            ValueKind::Date => None,
            ValueKind::TimestampMs => Some(1_000),
            ValueKind::TimestampUs => Some(1_000_000),
            ValueKind::TimestampNs => Some(1_000_000_000),
            _ => return Ok(self.clone()),
        };
        let Self::Text(text) = self else {
            return Ok(self.clone());
        };
        ticks(text, per_second).map(Self::Int).ok_or_else(|| {
            let message = "a date is written as 2020-12-31, a time as 2020-12-31T23:59:59, with no more digits behind the second than the column has";
            Error::new(Kind::InvalidInput, message).with("value", text)
        })
    }

    /// Refuses a value that is of another kind than those of a column: nothing would ever match, and nobody
    /// would know why.
    fn check_against(&self, kind: ValueKind) -> Result<()> {
        let is_number = matches!(self, Self::Int(_) | Self::Float(_) | Self::Decimal(_));
        let message = match kind {
            ValueKind::Text | ValueKind::Bytes if is_number => {
                "the filter compares a column of text with a number; write it as text"
            }
            ValueKind::Bool
            | ValueKind::Int(_)
            | ValueKind::Uint(_)
            | ValueKind::Float(_)
            | ValueKind::Decimal(_)
                if !is_number =>
            {
                "the filter compares a column of numbers with text; write it as a number"
            }
            _ => return Ok(()),
        };
        Err(Error::new(Kind::InvalidInput, message).with("value", format!("{self:?}")))
    }
}

fn int_and_float(int: i128, float: f64) -> Option<Ordering> {
    let near = (int as f64).partial_cmp(&float)?;
    // Numbers above 2^53 may be equal only because they were rounded.
    Some(if near == Ordering::Equal && float.abs() < 1e30 {
        int.cmp(&(float as i128))
    } else {
        near
    })
}

fn unsigned(bytes: &[u8]) -> Option<i128> {
    let mut wide = [0_u8; 16];
    wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(i128::from_le_bytes(wide))
}

fn signed(bytes: &[u8]) -> Option<i128> {
    let fill = if bytes.last()? & 0x80 == 0 { 0 } else { 0xff };
    let mut wide = [fill; 16];
    wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(i128::from_le_bytes(wide))
}

/// One comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Condition {
    /// The column.
    pub column: String,
    /// Its comparison.
    pub operator: Operator,
    /// With what; several for `in` and `not in`, else one.
    pub values: Vec<Scalar>,
}

impl Condition {
    /// Returns whether a value satisfies it.
    #[must_use]
    pub fn holds(&self, value: &Scalar) -> bool {
        let each = || self.values.iter().map(|other| value.compare(other));
        let first = || each().next().flatten();
        match self.operator {
            Operator::Equal => first() == Some(Ordering::Equal),
            // NaN is not equal to anything, also not to itself.
            Operator::NotEqual => first() != Some(Ordering::Equal) && self.is_comparable(value),
            Operator::Less => first() == Some(Ordering::Less),
            Operator::LessOrEqual => matches!(first(), Some(Ordering::Less | Ordering::Equal)),
            Operator::Greater => first() == Some(Ordering::Greater),
            Operator::GreaterOrEqual => matches!(first(), Some(Ordering::Greater | Ordering::Equal)),
            Operator::In => each().any(|found| found == Some(Ordering::Equal)),
            Operator::NotIn => {
                !each().any(|found| found == Some(Ordering::Equal)) && self.is_comparable(value)
            }
        }
    }

    fn is_comparable(&self, value: &Scalar) -> bool {
        let kind = |scalar: &Scalar| matches!(scalar, Scalar::Int(_) | Scalar::Float(_) | Scalar::Decimal(_));
        self.values.iter().all(|other| kind(other) == kind(value))
    }

    /// Returns whether some value between these could satisfy it.
    #[must_use]
    pub fn may_hold(&self, low: &Scalar, high: &Scalar) -> bool {
        use Ordering::{Equal, Greater, Less};
        let between =
            |value: &Scalar| low.compare(value) != Some(Greater) && high.compare(value) != Some(Less);
        let Some(first) = self.values.first() else {
            return self.operator == Operator::NotIn;
        };
        match self.operator {
            Operator::Equal => between(first),
            Operator::In => self.values.iter().any(between),
            Operator::Less => !matches!(low.compare(first), Some(Equal | Greater)),
            Operator::LessOrEqual => low.compare(first) != Some(Greater),
            Operator::Greater => !matches!(high.compare(first), Some(Equal | Less)),
            Operator::GreaterOrEqual => high.compare(first) != Some(Less),
            // Bounds leave out NaN, which is not equal to anything.
            Operator::NotEqual | Operator::NotIn => true,
        }
    }
}

/// Conditions, of which all of one group must hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Filter {
    groups: Vec<Vec<Condition>>,
}

impl Filter {
    /// Holds if all conditions of one of these groups hold.
    ///
    /// Errors: `InvalidInput` if there is no condition, or too many.
    pub fn new(groups: Vec<Vec<Condition>>) -> Result<Self> {
        let conditions: usize = groups.iter().map(Vec::len).sum();
        if groups.is_empty() || groups.iter().any(Vec::is_empty) || conditions > CONDITIONS_MAX {
            let message = "a filter has between 1 and 1024 conditions, and none of its groups is empty";
            return Err(Error::new(Kind::InvalidInput, message).with("conditions", conditions));
        }
        let one = |condition: &Condition| {
            matches!(condition.operator, Operator::In | Operator::NotIn) || condition.values.len() == 1
        };
        match groups.iter().flatten().find(|condition| !one(condition)) {
            None => Ok(Self { groups }),
            Some(condition) => {
                let message = "only in and not in compare with several values";
                Err(Error::new(Kind::InvalidInput, message).with("column", &condition.column))
            }
        }
    }

    /// The groups.
    #[must_use]
    pub fn groups(&self) -> &[Vec<Condition>] {
        &self.groups
    }

    /// The columns that it asks for, each once.
    #[must_use]
    pub fn columns(&self) -> Vec<&str> {
        let mut columns: Vec<&str> = self
            .groups
            .iter()
            .flatten()
            .map(|one| one.column.as_str())
            .collect();
        columns.sort_unstable();
        columns.dedup();
        columns
    }

    /// The same with dates and times in the terms of their columns.
    pub fn in_terms_of(&self, kind: impl Fn(&str) -> ValueKind) -> Result<Self> {
        let mut found = self.clone();
        for condition in found.groups.iter_mut().flatten() {
            let kind = kind(&condition.column);
            for value in &mut condition.values {
                let named = |error: Error| error.with("column", &condition.column);
                *value = value.in_terms_of(kind).map_err(named)?;
                value.check_against(kind).map_err(named)?;
            }
        }
        Ok(found)
    }

    /// Returns whether it holds for a sample with these values.
    pub fn holds(&self, mut value: impl FnMut(&str) -> Option<Scalar>) -> bool {
        self.groups.iter().any(|group| {
            group
                .iter()
                .all(|one| value(&one.column).is_some_and(|value| one.holds(&value)))
        })
    }
}

#[cfg(test)]
mod tests;
