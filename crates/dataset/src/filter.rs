//! Which samples are wanted: conditions on columns, as pyarrow's `filters` has them.
//!
//! A [`Filter`] holds if all conditions of one of its groups hold. A value that is null, or that cannot be compared, satisfies no condition. Beside values it
//! can be asked about bounds ([`Condition::may_hold`]): the smallest and largest value of many rows tell whether one of them could satisfy it, so that row
//! groups and pages are passed over unread. Dates and times are compared with text in ISO 8601.

use std::cmp::Ordering;

use forebay_core::{Error, Kind, Result};

use crate::index::Value;
use crate::parquet::ValueKind;

/// Conditions of a filter, at most.
const CONDITIONS_MAX: usize = 1024;

/// How a value is compared.
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
            ValueKind::Decimal(_) => Self::Float(std::str::from_utf8(bytes).ok()?.parse().ok()?),
            ValueKind::Date => Self::Int(signed(bytes)?),
            ValueKind::TimestampMs | ValueKind::TimestampUs | ValueKind::TimestampNs => {
                Self::Int(signed(bytes)?)
            }
            ValueKind::Int(_) => Self::Int(signed(bytes)?),
            ValueKind::Bool | ValueKind::Uint(_) => Self::Int(unsigned(bytes)?),
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
            (Self::Text(one), Self::Text(two)) => Some(one.cmp(two)),
            (Self::Bytes(one), Self::Bytes(two)) => Some(one.cmp(two)),
            (Self::Text(one), Self::Bytes(two)) => Some(one.as_bytes().cmp(two)),
            (Self::Bytes(one), Self::Text(two)) => Some(one.as_slice().cmp(two.as_bytes())),
            _ => None,
        }
    }

    /// The same in the terms of a column: a date as days, a time as ticks since 1970.
    fn in_terms_of(&self, kind: ValueKind) -> Result<Self> {
        let per_second = match kind {
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

/// Days since 1970, or ticks if it says how many a second has.
fn ticks(text: &str, per_second: Option<i128>) -> Option<i128> {
    let (date, time) = match text.split_once(['T', ' ']) {
        Some((date, time)) => (date, Some(time)),
        None => (text, None),
    };
    let mut parts = date.splitn(3, '-').map(str::parse::<i128>);
    let mut next = || parts.next()?.ok();
    let (year, month, day) = (next()?, next()?, next()?);
    if !(1..=12).contains(&month) || !(0..=9999).contains(&year) || !(1..=days_of(year, month)).contains(&day)
    {
        return None;
    }
    let year = year - i128::from(month <= 2);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = 365 * year + year / 4 - year / 100 + year / 400 + of_year - 719_468;
    let Some(per_second) = per_second else {
        return time.is_none().then_some(days);
    };
    let (clock, fraction) = time.map_or(("0:0:0", ""), |time| time.split_once('.').unwrap_or((time, "")));
    let mut parts = clock.splitn(3, ':').map(str::parse::<i128>);
    let mut next = || parts.next().unwrap_or(Ok(0)).ok();
    let (hour, minute, second) = (next()?, next()?, next()?);
    if !(0..24).contains(&hour) || !(0..60).contains(&minute) || !(0..60).contains(&second) {
        return None;
    }
    let digits = u32::try_from(fraction.len())
        .ok()
        .filter(|digits| *digits <= 18)?;
    if !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let fraction: i128 = if fraction.is_empty() {
        0
    } else {
        fraction.parse().ok()?
    };
    let (fraction, unit) = (fraction * per_second, 10_i128.pow(digits));
    // Between two ticks of the column lies no time to compare with.
    if fraction % unit != 0 {
        return None;
    }
    let seconds = days * 86_400 + hour * 3_600 + minute * 60 + second;
    Some(seconds * per_second + fraction / unit)
}

/// The days of a month.
fn days_of(year: i128, month: i128) -> i128 {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// One comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Condition {
    /// The column.
    pub column: String,
    /// How.
    pub operator: Operator,
    /// With what; several for `in` and `not in`, else one.
    pub values: Vec<Scalar>,
}

impl Condition {
    /// Whether a value satisfies it.
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
        let kind = |scalar: &Scalar| matches!(scalar, Scalar::Int(_) | Scalar::Float(_));
        self.values.iter().all(|other| kind(other) == kind(value))
    }

    /// Whether some value between these could satisfy it.
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
                *value = value.in_terms_of(kind)?;
            }
        }
        Ok(found)
    }

    /// Whether it holds for a sample with these values.
    pub fn holds(&self, mut value: impl FnMut(&str) -> Option<Scalar>) -> bool {
        self.groups.iter().any(|group| {
            group
                .iter()
                .all(|one| value(&one.column).is_some_and(|value| one.holds(&value)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(operator: &str, values: &[Scalar]) -> Condition {
        Condition {
            column: "x".into(),
            operator: Operator::parse(operator).unwrap(),
            values: values.to_vec(),
        }
    }

    const OPERATORS: [&str; 8] = ["==", "!=", "<", "<=", ">", ">=", "in", "not in"];

    #[test]
    fn bounds_never_pass_over_a_value_that_satisfies() {
        let numbers: Vec<Scalar> = (-2..=2)
            .flat_map(|number| [Scalar::Int(number), Scalar::Float(number as f64 + 0.5)])
            .collect();
        for operator in OPERATORS {
            for other in &numbers {
                let condition = one(operator, std::slice::from_ref(other));
                for value in numbers.iter().filter(|value| condition.holds(value)) {
                    for low in numbers
                        .iter()
                        .filter(|low| low.compare(value) != Some(Ordering::Greater))
                    {
                        for high in numbers
                            .iter()
                            .filter(|high| high.compare(value) != Some(Ordering::Less))
                        {
                            assert!(
                                condition.may_hold(low, high),
                                "{condition:?} {low:?} {value:?} {high:?}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn large_numbers_are_not_rounded() {
        let large = (1_i128 << 53) + 1;
        assert!(!one("==", &[Scalar::Float((1_u64 << 53) as f64)]).holds(&Scalar::Int(large)));
        assert!(one(">", &[Scalar::Float((1_u64 << 53) as f64)]).holds(&Scalar::Int(large)));
    }

    #[test]
    fn what_cannot_be_compared_satisfies_nothing() {
        for operator in OPERATORS {
            assert!(
                !one(operator, &[Scalar::Int(1)]).holds(&Scalar::Text("1".into())),
                "{operator}"
            );
        }
        assert!(one("!=", &[Scalar::Float(1.0)]).holds(&Scalar::Float(f64::NAN)));
        assert!(!one("==", &[Scalar::Float(f64::NAN)]).holds(&Scalar::Float(f64::NAN)));
    }

    #[test]
    fn dates_and_times_are_written_as_iso_8601() {
        for (text, kind, expected) in [
            ("1970-01-02", ValueKind::Date, 1),
            ("2000-02-29", ValueKind::Date, 11_016),
            ("1969-12-31T23:59:59.5", ValueKind::TimestampMs, -500),
            ("1970-01-01 00:01", ValueKind::TimestampUs, 60_000_000),
        ] {
            let found = Scalar::Text(text.into()).in_terms_of(kind).unwrap();
            assert_eq!(found, Scalar::Int(expected), "{text}");
        }
        for text in [
            "yesterday",
            "2020-13-01",
            "2020-01-01T00:00:00",
            "2021-02-29",
            "2020-04-31",
            "1900-02-29",
        ] {
            assert!(
                Scalar::Text(text.into()).in_terms_of(ValueKind::Date).is_err(),
                "{text}"
            );
        }
    }

    #[test]
    fn times_that_no_clock_shows_are_refused() {
        for text in [
            "2020-01-01T24:00:00",
            "2020-01-01T00:60:00",
            "2020-01-01T00:00:60",
            "2020-01-01T-1:00:00",
            "2020-01-01T99999999999999999999999999999999999999:00:00",
            "2020-01-01T00:00:00.+5",
            // Finer than the column: no value could be equal, and < would have to mean <=.
            "2020-01-01T00:00:00.0005",
        ] {
            let found = Scalar::Text(text.into()).in_terms_of(ValueKind::TimestampMs);
            assert!(found.is_err(), "{text} {found:?}");
        }
        let exact = Scalar::Text("1970-01-01T00:00:00.005000".into()).in_terms_of(ValueKind::TimestampMs);
        assert_eq!(exact.unwrap(), Scalar::Int(5));
    }

    #[test]
    fn a_filter_without_conditions_is_refused() {
        assert!(Filter::new(Vec::new()).is_err());
        assert!(Filter::new(vec![Vec::new()]).is_err());
        assert!(Filter::new(vec![vec![one("==", &[Scalar::Int(1), Scalar::Int(2)])]]).is_err());
        assert!(Operator::parse("~").is_err());
    }
}
