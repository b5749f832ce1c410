//! Values of the configuration that are how much of something: numbers, durations, sizes.

use std::time::Duration;

use super::{Value, brief, quoted};

/// Numbers of things.
macro_rules! number {
    ($($number:ty),*) => { $(
        impl Value for $number {
            const KIND: &'static str = "number";

            fn read(text: &str) -> Result<Self, String> {
                text.parse().map_err(|_| format!("{} is no whole number", brief(text)))
            }

            fn show(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )* };
}

number!(usize, u64);

/// Numbers with units, one after the other: `500ms`, `10s`, `1h30m`.
impl Value for Duration {
    const KIND: &'static str = "duration";

    fn read(text: &str) -> Result<Self, String> {
        let error = || format!("{} is no duration, such as 500ms, 10s, 5m or 1h", brief(text));
        let (mut rest, mut sum) = (text, Self::ZERO);
        while !rest.is_empty() {
            let (number, tail) = split(rest, |it| !it.is_ascii_digit());
            let (unit, tail) = split(tail, |it| it.is_ascii_digit());
            let millis: u64 = match unit {
                "ms" => 1,
                "s" => 1000,
                "m" => 60_000,
                "h" => 3_600_000,
                "d" => 86_400_000,
                _ => return Err(error()),
            };
            let part = number.parse().ok().and_then(|it: u64| it.checked_mul(millis)).ok_or_else(error)?;
            sum = sum.checked_add(Self::from_millis(part)).ok_or_else(error)?;
            rest = tail;
        }
        if text.is_empty() { Err(error()) } else { Ok(sum) }
    }

    fn show(&self) -> Option<String> {
        let millis = self.as_millis();
        let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")];
        let unit = units.into_iter().find(|it| millis > 0 && millis.is_multiple_of(it.0));
        let (size, unit) = unit.unwrap_or(if millis == 0 { (1, "s") } else { (1, "ms") });
        Some(quoted(&format_args!("{}{unit}", millis / size)))
    }
}

/// How long something is kept: no time at all means for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OptionalTimeout(pub(crate) Option<Duration>);

impl Value for OptionalTimeout {
    const KIND: &'static str = Duration::KIND;

    fn read(text: &str) -> Result<Self, String> {
        Duration::read(text).map(|it| Self((!it.is_zero()).then_some(it)))
    }

    fn show(&self) -> Option<String> {
        self.0.unwrap_or_default().show()
    }
}

/// A number of bytes: `1048576`, `64KiB`, `1MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(crate) usize);

impl ByteSize {
    const UNITS: [(&'static str, usize); 7] = [
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
        ("GB", 1_000_000_000),
        ("MB", 1_000_000),
        ("kB", 1000),
        ("B", 1),
    ];
}

impl Value for ByteSize {
    const KIND: &'static str = "size";

    fn read(text: &str) -> Result<Self, String> {
        let (number, unit) = split(text, |it| !it.is_ascii_digit());
        let unit = if unit.is_empty() { "B" } else { unit };
        let unit = Self::UNITS.into_iter().find(|it| it.0 == unit).map(|it| it.1);
        let bytes = unit.and_then(|it| number.parse::<usize>().ok()?.checked_mul(it));
        bytes.map(Self).ok_or_else(|| format!("{} is no size, such as 65536, 64KiB or 1MiB", brief(text)))
    }

    fn show(&self) -> Option<String> {
        let unit = Self::UNITS.into_iter().take(3).find(|it| self.0 > 0 && self.0.is_multiple_of(it.1));
        Some(unit.map_or_else(|| self.0.to_string(), |it| quoted(&format_args!("{}{}", self.0 / it.1, it.0))))
    }
}

/// Splits before the first character that is so.
fn split(text: &str, at: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(at).unwrap_or(text.len()))
}
