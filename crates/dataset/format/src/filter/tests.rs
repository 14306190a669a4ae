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
        .flat_map(|number| {
            let decimal = Decimal::parse(&format!("{number}.30")).unwrap();
            [
                Scalar::Int(number),
                Scalar::Float(number as f64 + 0.5),
                Scalar::Decimal(decimal),
            ]
        })
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
fn decimals_are_compared_by_all_their_digits() {
    let kind = ValueKind::Decimal(2);
    let holds = |row: &str, operator: &str, value: Scalar| {
        let value = value.in_terms_of(kind).unwrap();
        one(operator, &[value]).holds(&Scalar::of_row(kind, row.as_bytes()).unwrap())
    };
    let large = 9_007_199_254_740_993;
    for (row, is_equal) in [("9007199254740993.00", true), ("9007199254740992.00", false)] {
        assert_eq!(holds(row, "==", Scalar::Int(large)), is_equal, "{row}");
        assert_eq!(holds(row, "in", Scalar::Int(large)), is_equal, "{row}");
        assert_eq!(holds(row, "<", Scalar::Int(large)), !is_equal, "{row}");
        assert_eq!(holds(row, "!=", Scalar::Int(large)), !is_equal, "{row}");
        let digits = Scalar::Decimal(Decimal::parse("9007199254740993").unwrap());
        assert_eq!(holds(row, "==", digits), is_equal, "{row}");
    }
    // A number with a fraction means the digits that it is written with.
    assert!(holds("0.10", "==", Scalar::Float(0.1)));
    assert!(holds("-0.10", ">", Scalar::Float(f64::NEG_INFINITY)));
    assert!(!holds("0.10", "<=", Scalar::Float(f64::NAN)));
}

#[test]
fn a_value_of_another_kind_than_its_column_is_refused() {
    let (text, number) = (Scalar::Text("5".into()), Scalar::Int(5));
    let refused = |kind: ValueKind, value: &Scalar| {
        let filter = Filter::new(vec![vec![one("in", std::slice::from_ref(value))]]).unwrap();
        filter.in_terms_of(|_| kind).err().map(|error| error.kind())
    };
    for kind in [
        ValueKind::Bool,
        ValueKind::Int(4),
        ValueKind::Uint(8),
        ValueKind::Float(8),
        ValueKind::Decimal(2),
    ] {
        assert_eq!(refused(kind, &text), Some(Kind::InvalidInput), "{kind:?}");
        assert_eq!(refused(kind, &number), None, "{kind:?}");
    }
    for kind in [ValueKind::Text, ValueKind::Bytes] {
        assert_eq!(refused(kind, &number), Some(Kind::InvalidInput), "{kind:?}");
        assert_eq!(refused(kind, &text), None, "{kind:?}");
    }
    assert_eq!(refused(ValueKind::Date, &Scalar::Text("2020-12-31".into())), None);
}

#[test]
fn numbers_of_16_bits_are_compared() {
    let row = |bits: u16| Scalar::of_row(ValueKind::Float(2), &bits.to_le_bytes()).unwrap();
    let (half, one_and_none) = (row(0x3800), row(0x3c00));
    assert!(!one(">", &[Scalar::Float(0.6)]).holds(&half));
    assert!(one(">", &[Scalar::Float(0.6)]).holds(&one_and_none));
    assert!(one("==", &[Scalar::Int(1)]).holds(&one_and_none));
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
