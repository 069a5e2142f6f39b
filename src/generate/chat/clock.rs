//! `strftime`, for templates that tell the model the date. UTC: the standard library knows no time zone.

const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// The last second of the year 9999.
const LAST: u64 = 253_402_300_799;

/// The time `seconds` after 1970, as Python's `strftime` writes it.
pub(super) fn format(seconds: u64, format: &str) -> Result<String, String> {
    if seconds > LAST {
        return Err(format!("strftime_now: {seconds} seconds after 1970 are past the year 9999"));
    }
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let (name, month_name) = (DAYS[(days % 7) as usize], MONTHS[month as usize - 1]);
    let hour12 = (hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(c) = letters.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut code = letters.next();
        let bare = code == Some('-');
        if bare {
            code = letters.next();
        }
        let number = |n: u64, width: usize| if bare { n.to_string() } else { format!("{n:0width$}") };
        out.push_str(&match code {
            Some('Y') => year.to_string(),
            Some('y') => number(year % 100, 2),
            Some('m') => number(month, 2),
            Some('d') => number(day, 2),
            Some('H') => number(hour, 2),
            Some('I') => number(hour12, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('j') => number(days - days_before(year) + 1, 3),
            Some('A') => name.to_string(),
            Some('a') => name[..3].to_string(),
            Some('B') => month_name.to_string(),
            Some('b') => month_name[..3].to_string(),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_string(),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('%') => "%".to_string(),
            other => {
                return Err(format!("strftime_now: `%{}` is not supported", other.map_or(String::new(), String::from)));
            }
        });
    }
    Ok(out)
}

/// Days from 1970 to the first day of a year.
fn days_before(year: u64) -> u64 {
    let leaps = |y: u64| y / 4 - y / 100 + y / 400;
    (year - 1970) * 365 + leaps(year - 1) - leaps(1969)
}

/// Year, month from 1, day from 1.
fn date(days: u64) -> (u64, u64, u64) {
    let mut year = 1970 + days / 366;
    while days_before(year + 1) <= days {
        year += 1;
    }
    let leap = u64::from(days_before(year + 1) - days_before(year) == 366);
    let lengths = [31, 28 + leap, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let (mut month, mut day) = (0, days - days_before(year));
    while day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    (year, month as u64 + 1, day + 1)
}

#[cfg(test)]
mod tests {
    use super::format;

    /// Values of Python's `datetime.fromtimestamp(seconds, UTC).strftime(...)`.
    #[test]
    fn times_are_written_as_in_python() {
        let all = "%A %a %d %-d %B %b %m %-m %Y %y %H:%M:%S %I %p %j %%";
        for (seconds, expected) in [
            (0, "Thursday Thu 01 1 January Jan 01 1 1970 70 00:00:00 12 AM 001 %"),
            (951_782_399, "Monday Mon 28 28 February Feb 02 2 2000 00 23:59:59 11 PM 059 %"),
            (951_827_696, "Tuesday Tue 29 29 February Feb 02 2 2000 00 12:34:56 12 PM 060 %"),
            (1_735_689_599, "Tuesday Tue 31 31 December Dec 12 12 2024 24 23:59:59 11 PM 366 %"),
            (4_107_542_400, "Monday Mon 01 1 March Mar 03 3 2100 00 00:00:00 12 AM 060 %"),
        ] {
            assert_eq!(format(seconds, all).unwrap(), expected);
        }
        assert_eq!(format(86_400 * 40, "%F %T %-H").unwrap(), "1970-02-10 00:00:00 0");
        assert!(format(u64::MAX, "%Y").is_err());
        assert!(format(0, "%Q").unwrap_err().contains("`%Q`"));
    }
}
