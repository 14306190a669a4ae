//! Decimal numbers as their digits: compared one by one, nothing is rounded and nothing can overflow,
//! whatever scale a column has.

use std::cmp::Ordering;

/// The largest exponent that is read; behind it a number would only be far away.
const EXPONENT_MAX: i64 = 1 << 40;

/// A number as its digits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decimal {
    is_negative: bool,
    /// From the first that is not zero to the last that is not; of zero none.
    digits: Vec<u8>,
    /// Digits before the point: below zero, so many zeros follow it.
    before_point: i64,
}

impl Decimal {
    /// Reads `-12.50`, `3` or `1.5E+3`; `None` if it is no such number.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (number, exponent) = match text.split_once(['e', 'E']) {
            Some((number, exponent)) => (number, exponent.parse::<i64>().ok()?),
            None => (text, 0),
        };
        let unsigned = number.strip_prefix(['-', '+']).unwrap_or(number);
        let (whole, behind) = unsigned.split_once('.').unwrap_or((unsigned, ""));
        let mut digits = [whole, behind].concat().into_bytes();
        let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
        if !is_number || !(-EXPONENT_MAX..=EXPONENT_MAX).contains(&exponent) {
            return None;
        }
        let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
        if zeros == digits.len() {
            return Some(Self::default());
        }
        let before_point = i64::try_from(whole.len()).ok()? - i64::try_from(zeros).ok()? + exponent;
        digits.drain(..zeros);
        while digits.last() == Some(&b'0') {
            digits.pop();
        }
        Some(Self {
            is_negative: number.starts_with('-'),
            digits,
            before_point,
        })
    }

    /// The shortest digits that mean this number, as Python shows them; `None` if it is infinite or NaN.
    #[must_use]
    pub(super) fn of_float(number: f64) -> Option<Self> {
        Self::parse(&format!("{number:e}")).filter(|_| number.is_finite())
    }

    pub(super) fn compare_float(&self, other: f64) -> Option<Ordering> {
        match Self::of_float(other) {
            Some(other) => Some(self.cmp(&other)),
            // Infinite, or NaN.
            None => 0.0.partial_cmp(&other),
        }
    }

    /// Minus one, zero or one.
    fn sign(&self) -> i8 {
        match (self.digits.is_empty(), self.is_negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        }
    }
}

impl From<i128> for Decimal {
    fn from(number: i128) -> Self {
        Self::parse(&number.to_string()).unwrap_or_default()
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        let size = |one: &Self, two: &Self| {
            let order = one.before_point.cmp(&two.before_point);
            order.then_with(|| one.digits.cmp(&two.digits))
        };
        self.sign().cmp(&other.sign()).then_with(|| match self.sign() {
            0 => Ordering::Equal,
            1 => size(self, other),
            _ => size(other, self),
        })
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decimal(text: &str) -> Decimal {
        Decimal::parse(text).unwrap()
    }

    #[test]
    fn digits_are_put_in_order_whatever_their_scale() {
        let sorted = [
            "-1e40",
            "-99999999999999999999999999999999999999",
            "-10.5",
            "-10.25",
            "-0.001",
            "0",
            "1E-300",
            "0.001",
            "0.01",
            "9",
            "9.007199254740992",
            "9.007199254740993",
            "10",
            "99999999999999999999999999999999999998",
            "99999999999999999999999999999999999999",
            "1e38",
        ];
        for (at, one) in sorted.iter().enumerate() {
            for (other_at, other) in sorted.iter().enumerate() {
                assert_eq!(
                    decimal(one).cmp(&decimal(other)),
                    at.cmp(&other_at),
                    "{one} {other}"
                );
            }
        }
    }

    #[test]
    fn one_number_is_equal_however_it_is_written() {
        for (one, other) in [
            ("1.50", "1.5"),
            ("+1500", "1.5E+3"),
            ("-0.00", "0"),
            ("007", "7"),
            (".5", "5e-1"),
            ("0e5", "0"),
        ] {
            assert_eq!(decimal(one), decimal(other));
        }
        assert_eq!(Decimal::of_float(0.1), Some(decimal("0.1")));
        assert_eq!(Decimal::from(i128::MIN), decimal(&i128::MIN.to_string()));
    }

    #[test]
    fn what_is_no_number_is_none() {
        for text in [
            "",
            "-",
            ".",
            "1.2.3",
            "--1",
            "1e",
            "e5",
            "NaN",
            "inf",
            "1e99999999999999",
            "1_0",
            "0x1",
        ] {
            assert_eq!(Decimal::parse(text), None, "{text}");
        }
        assert_eq!(
            decimal("1e300").compare_float(f64::INFINITY),
            Some(Ordering::Less)
        );
        assert_eq!(
            decimal("0").compare_float(f64::NEG_INFINITY),
            Some(Ordering::Greater)
        );
        assert_eq!(decimal("0").compare_float(f64::NAN), None);
    }

    proptest! {
        #[test]
        fn the_order_is_that_of_whole_numbers_of_one_scale(one in any::<i64>(), other in any::<i64>(), scale in 0_u32..20) {
            let scaled = |number: i64| decimal(&format!("{number}e-{scale}"));
            prop_assert_eq!(scaled(one).cmp(&scaled(other)), one.cmp(&other));
        }
    }
}
