//! What a call costs a server, beside the floor: processor time per call of ours and of a bare axum or tonic server that
//! sends the same bytes, in the same rounds; and memory and time where there is much of something. `cargo bench --bench
//! load`, on a machine of two cores that does nothing else. Words behind `--` choose the rows that have all of them.
//!
//! Servers are processes of their own, on one core; the calls come from another. What is compared is the time that the
//! system says a server has used, over the calls that it has answered: a generator that is slow, or a core that is
//! shared, moves the rate and not the ratio.

#![expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::exit,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a bench may fail, and this one reports"
)]

use std::env;

use self::{
    measure::{Settings, measure},
    rows::{Row, ServiceHandle, rows},
};

mod durable;
mod fill;
mod floor;
mod generate;
mod http1;
mod http2;
mod measure;
mod process;
mod rows;
mod servers;
mod work;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).filter(|it| it != "--bench").collect();
    match arguments.first().map(String::as_str) {
        Some("serve") => servers::run(&arguments[1]),
        Some("calls") => generate::run(&arguments[1..]),
        _ => table(arguments),
    }
}

fn table(arguments: Vec<String>) {
    let (mut settings, mut words) = (Settings::default(), Vec::new());
    let mut arguments = arguments.into_iter();
    while let Some(it) = arguments.next() {
        let mut number = || arguments.next().and_then(|it| it.parse().ok()).unwrap_or_else(|| panic!("{it} N"));
        match &*it {
            "--rounds" => settings.rounds = number(),
            "--millis" => settings.millis = number(),
            _ => words.push(it.to_lowercase()),
        }
    }
    let Settings { rounds, millis } = settings;
    println!("Medians of {rounds} rounds of {millis} ms, and the least and the most of them.\n");
    println!("| what | floor | ours | floor over ours | wanted | |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for row in rows() {
        let name = row.name.to_lowercase();
        if words.iter().all(|it| name.contains(&**it)) {
            println!("{}", line(&row, &settings));
        }
    }
}

fn line(row: &Row, settings: &Settings) -> String {
    let Row { name, bound, .. } = row;
    let found = measure(row, settings);
    let floor = found.floor.as_ref().map_or_else(|| "–".to_owned(), Spread::middle);
    let ratio = found.ratio.as_ref().map_or_else(|| "–".to_owned(), Spread::whole);
    let ours = if found.ratio.is_none() { found.ours.whole() } else { found.ours.middle() };
    let (wanted, met) = match *bound {
        ServiceHandle::Ratio(least) => {
            (format!("≥ {least}"), found.ratio.as_ref().is_some_and(|it| it.median >= least))
        }
        ServiceHandle::Most(most) => (format!("≤ {most}"), found.ours.median <= most),
        ServiceHandle::None => ("–".to_owned(), true),
    };
    let mut notes = found.notes;
    if !met {
        notes.insert(0, "missed".to_owned());
    }
    format!("| {name} | {floor} | {ours} | {ratio} | {wanted} | {} |", notes.join("; "))
}

/// What the rounds gave.
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn of(mut all: Vec<f64>) -> Self {
        all.sort_by(f64::total_cmp);
        Self { median: all[all.len() / 2], least: all[0], most: all[all.len() - 1] }
    }

    fn middle(&self) -> String {
        short(self.median)
    }

    fn whole(&self) -> String {
        let Self { median, least, most } = *self;
        if least < most {
            format!("**{}** ({}–{})", short(median), short(least), short(most))
        } else {
            format!("**{}**", short(median))
        }
    }
}

/// Three digits.
fn short(number: f64) -> String {
    match number {
        it if it >= 100.0 => format!("{it:.0}"),
        it if it >= 10.0 => format!("{it:.1}"),
        it => format!("{it:.2}"),
    }
}
