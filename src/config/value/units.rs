//! Quantities in the configuration: numbers, durations, sizes in bytes.

use std::time::Duration;

use super::{Value, brief, quoted};

/// Implements [`Value`] for unsigned integers.
macro_rules! number {
    ($($number:ty),*) => { $(
        impl Value for $number {
            const KIND: &'static str = "number";

            fn read(text: &str) -> Result<Self, String> {
                text.parse().map_err(|_| format!("{} is not a whole number", brief(text)))
            }

            fn show(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )* };
}

number!(usize, u64);

/// Numbers with units, added up: `500ms`, `10s`, `1h30m`.
impl Value for Duration {
    const KIND: &'static str = "duration";

    fn read(text: &str) -> Result<Self, String> {
        let error = || format!("{} is not a duration; write 500ms, 10s, 5m or 1h", brief(text));
        let (mut rest, mut sum) = (text, Self::ZERO);
        while !rest.is_empty() {
            let (number, tail) = split_before(rest, |c| !c.is_ascii_digit());
            let (unit, tail) = split_before(tail, |c| c.is_ascii_digit());
            let millis: u64 = match unit {
                "ms" => 1,
                "s" => 1000,
                "m" => 60_000,
                "h" => 3_600_000,
                "d" => 86_400_000,
                _ => return Err(error()),
            };
            let part = number.parse().ok().and_then(|number: u64| number.checked_mul(millis)).ok_or_else(error)?;
            sum = sum.checked_add(Self::from_millis(part)).ok_or_else(error)?;
            rest = tail;
        }
        if text.is_empty() { Err(error()) } else { Ok(sum) }
    }

    fn show(&self) -> Option<String> {
        let millis = self.as_millis();
        let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")];
        let unit = units.into_iter().find(|(size, _)| millis > 0 && millis.is_multiple_of(*size));
        let (size, unit) = unit.unwrap_or(if millis == 0 { (1, "s") } else { (1, "ms") });
        Some(quoted(&format_args!("{}{unit}", millis / size)))
    }
}

/// Retention time. `None`, written as zero, is unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OptionalTimeout(pub(crate) Option<Duration>);

impl Value for OptionalTimeout {
    const KIND: &'static str = Duration::KIND;

    fn read(text: &str) -> Result<Self, String> {
        Duration::read(text).map(|time| Self((!time.is_zero()).then_some(time)))
    }

    fn show(&self) -> Option<String> {
        self.0.unwrap_or_default().show()
    }
}

/// Size in bytes: `1048576`, `64KiB`, `1MiB`.
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
        let (number, unit) = split_before(text, |c| !c.is_ascii_digit());
        let unit = if unit.is_empty() { "B" } else { unit };
        let factor = Self::UNITS.into_iter().find(|(name, _)| *name == unit).map(|(_, factor)| factor);
        let bytes = factor.and_then(|factor| number.parse::<usize>().ok()?.checked_mul(factor));
        bytes.map(Self).ok_or_else(|| format!("{} is not a size; write 65536, 64KiB or 1MiB", brief(text)))
    }

    fn show(&self) -> Option<String> {
        let mut binary = Self::UNITS.into_iter().take(3);
        let unit = binary.find(|(_, factor)| self.0 > 0 && self.0.is_multiple_of(*factor));
        Some(
            unit.map_or_else(
                || self.0.to_string(),
                |(name, factor)| quoted(&format_args!("{}{name}", self.0 / factor)),
            ),
        )
    }
}

/// Splits before the first character that matches.
fn split_before(text: &str, matches: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(matches).unwrap_or(text.len()))
}
