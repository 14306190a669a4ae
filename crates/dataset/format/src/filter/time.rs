//! Dates and times of ISO 8601 as numbers, as columns have them.

/// Days since 1970, or ticks if it says how many a second has.
pub(super) fn ticks(text: &str, per_second: Option<i128>) -> Option<i128> {
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
