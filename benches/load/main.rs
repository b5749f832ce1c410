//! Load benchmark: processor time per call, compared with a bare axum or tonic server that sends the same bytes (the
//! baseline), memory and latency. Run `cargo bench --bench load` on an otherwise idle machine with two cores. Arguments
//! after `--` select the rows whose names contain all of them.
//!
//! Servers are separate processes on one core, and the load generator runs on another. The compared figure is the processor
//! time that the system reports for the server, per answered call: a slow generator or a shared core changes the call rate
//! but not the ratio.

#![expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::exit,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a benchmark may panic, and this one prints its results"
)]

use std::env;

use self::{
    measure::{Settings, measure},
    rows::{Bound, Row, rows},
};

mod baseline;
mod durable;
mod fill;
mod generate;
mod http1;
mod http2;
mod measure;
mod process;
mod rows;
mod servers;
mod work;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.first().map(String::as_str) {
        Some("serve") => servers::run(&arguments[1]),
        Some("calls") => generate::run(&arguments[1..]),
        _ => table(arguments),
    }
}

fn table(arguments: Vec<String>) {
    let (mut settings, mut filters) = (Settings::default(), Vec::new());
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let mut number =
            || arguments.next().and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{argument} N"));
        match &*argument {
            "--rounds" => settings.rounds = number(),
            "--millis" => settings.millis = number(),
            _ => filters.push(argument.to_lowercase()),
        }
    }
    let Settings { rounds, millis } = settings;
    println!("Medians (minimum–maximum) of {rounds} rounds of {millis} ms.\n");
    println!("| row | baseline | server | baseline / server | target | |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for row in rows() {
        let name = row.name.to_lowercase();
        if filters.iter().all(|filter| name.contains(&**filter)) {
            println!("{}", line(&row, &settings));
        }
    }
}

fn line(row: &Row, settings: &Settings) -> String {
    let Row { name, bound, .. } = row;
    let result = measure(row, settings);
    let baseline = result.baseline.as_ref().map_or_else(|| "–".to_owned(), Spread::middle);
    let ratio = result.ratio.as_ref().map_or_else(|| "–".to_owned(), Spread::whole);
    let server = if result.ratio.is_none() { result.server.whole() } else { result.server.middle() };
    let (target, met) = match *bound {
        Bound::Ratio(least) => (format!("≥ {least}"), result.ratio.as_ref().is_some_and(|ratio| ratio.median >= least)),
        Bound::Most(most) => (format!("≤ {most}"), result.server.median <= most),
        Bound::None => ("–".to_owned(), true),
    };
    let mut notes = result.notes;
    if !met {
        notes.insert(0, "missed".to_owned());
    }
    format!("| {name} | {baseline} | {server} | {ratio} | {target} | {} |", notes.join("; "))
}

/// Median, minimum and maximum of the rounds.
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(mut all: Vec<f64>) -> Self {
        all.sort_by(f64::total_cmp);
        Self { median: all[all.len() / 2], min: all[0], max: all[all.len() - 1] }
    }

    fn middle(&self) -> String {
        short(self.median)
    }

    fn whole(&self) -> String {
        let Self { median, min, max } = *self;
        if min < max {
            format!("**{}** ({}–{})", short(median), short(min), short(max))
        } else {
            format!("**{}**", short(median))
        }
    }
}

/// Formats a number with three significant digits.
fn short(number: f64) -> String {
    match number {
        number if number >= 100.0 => format!("{number:.0}"),
        number if number >= 10.0 => format!("{number:.1}"),
        number => format!("{number:.2}"),
    }
}
