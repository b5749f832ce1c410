//! How a row is measured: in rounds, the floor's and ours one after the other, each with servers of its own.

use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
    thread,
    time::Duration,
};

use crate::{
    Spread, durable,
    generate::Report,
    process::{Server, pinned},
    rows::{Figure, Row},
    work::{Protocol, Work},
};

/// The core of a server, that of the calls, and both.
const SERVER: &str = "0";
const CALLS: &str = "1";
const BOTH: &str = "0,1";

/// How long calls are made before any is counted.
const WARM: u64 = 150;

/// A generator that takes more of its core than this may be what is waited for.
const BUSY: f64 = 0.95;

pub(crate) struct Settings {
    pub(crate) rounds: u64,
    pub(crate) millis: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { rounds: 9, millis: 400 }
    }
}

/// What came of a row.
pub(crate) struct Found {
    pub(crate) floor: Option<Spread>,
    pub(crate) ours: Spread,
    pub(crate) ratio: Option<Spread>,
    pub(crate) notes: Vec<String>,
}

impl Found {
    pub(crate) fn ours(all: Vec<f64>) -> Self {
        Self { floor: None, ours: Spread::of(all), ratio: None, notes: Vec::new() }
    }
}

/// Who is called, how, and on which cores.
#[derive(Clone, Copy)]
pub(crate) struct Setup<'a> {
    pub(crate) row: &'a Row,
    pub(crate) floor: bool,
    /// Which server it is, where the row does not tell.
    pub(crate) kind: Option<&'a str>,
    pub(crate) cores: (&'static str, &'static str),
    pub(crate) until: &'a str,
}

pub(crate) fn measure(row: &Row, settings: &Settings) -> Found {
    let millis = settings.millis.to_string();
    let ours = Setup { row, floor: false, kind: None, cores: (SERVER, CALLS), until: &millis };
    let floor = Setup { floor: true, ..ours };
    let rounds = || 0..settings.rounds;
    match row.figure {
        Figure::Cost => {
            let (mut notes, mut lengths) = (Vec::new(), (0, 0));
            let (floors, all): (Vec<f64>, Vec<f64>) = rounds()
                .map(|_| {
                    let (floor, ours) = (floor.run(), ours.run());
                    lengths = (floor.bytes, ours.bytes);
                    busy(&mut notes, &floor, "of the floor");
                    busy(&mut notes, &ours, "of ours");
                    (cost(row, &floor), cost(row, &ours))
                })
                .unzip();
            if lengths.0.abs_diff(lengths.1) * 20 > lengths.1 {
                notes.push(format!("the floor sends {} bytes and ours {}", lengths.0, lengths.1));
            }
            let ratio = Spread::of(floors.iter().zip(&all).map(|it| it.0 / it.1).collect());
            Found { floor: Some(Spread::of(floors)), ratio: Some(ratio), notes, ..Found::ours(all) }
        }
        Figure::Length => {
            let short = Row { work: Work::Stream(10), connections: 16, name: String::new(), ..*row };
            let few = Setup { row: &short, ..ours };
            Found::ours(rounds().map(|_| cost(row, &ours.run()) / cost(&short, &few.run())).collect())
        }
        Figure::Classic => {
            let now = Row { work: Work::Send(64), name: String::new(), ..*row };
            let current = Setup { row: &now, ..ours };
            Found::ours(rounds().map(|_| cost(row, &ours.run()) / cost(&now, &current.run())).collect())
        }
        Figure::Cores => {
            let growth = |one: Setup<'_>| {
                let two = Setup { cores: (BOTH, BOTH), ..one };
                cost(row, &two.run()) / cost(row, &one.run())
            };
            let (floors, all) = rounds().map(|_| (growth(floor), growth(ours))).unzip();
            Found { floor: Some(Spread::of(floors)), ..Found::ours(all) }
        }
        Figure::Idle => {
            let (floors, all) = (0..settings.rounds.min(3)).map(|_| (idle(floor), idle(ours))).unzip();
            Found { floor: Some(Spread::of(floors)), ..Found::ours(all) }
        }
        Figure::Kept => {
            const TASKS: f64 = 50_000.0;
            let kept = |_| {
                let server = ours.server();
                let fill = |count: &str| Setup { until: count, ..ours }.calls(&server);
                fill("#2000");
                let before = server.resident();
                let calls = fill(&format!("#{TASKS}")).calls;
                (server.resident() - before) / calls as f64
            };
            Found::ours((0..settings.rounds.min(3)).map(kept).collect())
        }
        Figure::ContextRef(tasks) => {
            let server = ours.server();
            // The oldest have failed, so that they are found last.
            for (work, count) in [(Work::Fail, "#10".to_owned()), (Work::Send(64), format!("#{tasks}"))] {
                let row = Row { work, connections: 10, name: String::new(), ..*row };
                Setup { row: &row, until: &count, ..ours }.calls(&server);
            }
            Found::ours(rounds().map(|_| ours.calls(&server).p50).collect())
        }
        Figure::Durable(it) => durable::measure(row, it, settings),
        Figure::Growing(tasks) => {
            let report = Setup { until: &format!("#{tasks}"), ..ours }.run();
            let worst = Spread::of(report.worst);
            let mut found = Found::ours(vec![report.p999]);
            let Spread { median, most, .. } = worst;
            found.notes.push(format!("the worst of each 10000 is {median:.1} most often, and {most:.1} at worst"));
            found
        }
    }
}

fn cost(row: &Row, report: &Report) -> f64 {
    // All that came to each connection is a call of it.
    report.server * 1e6 / (report.calls * row.work.parts()) as f64
}

fn busy(notes: &mut Vec<String>, report: &Report, whose: &str) {
    let busy = report.own / report.seconds > BUSY;
    let note = format!("the calls {whose} take a core");
    if busy && !notes.contains(&note) {
        notes.push(note);
    }
}

/// KiB of a server for each connection that waits.
fn idle(setup: Setup<'_>) -> f64 {
    let server = setup.server();
    // What the first calls make is there already.
    let few = Row { work: Work::Stream(10), connections: 16, name: String::new(), ..*setup.row };
    Setup { row: &few, ..setup }.calls(&server);
    let before = server.resident();
    let mut waiting = setup.command(&server).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(waiting.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(!line.is_empty(), "the calls failed: {}", setup.row.name);
    #[expect(clippy::disallowed_methods, reason = "nothing says that all is quiet, and this is no runtime")]
    thread::sleep(Duration::from_millis(300));
    let grown = server.resident() - before;
    drop(waiting.stdin.take());
    waiting.wait().unwrap();
    grown / 1024.0 / setup.row.connections as f64
}

impl Setup<'_> {
    pub(crate) fn server(self) -> Server {
        if let Some(it) = self.kind {
            return Server::start(it, self.cores.0);
        }
        let kind = match (self.floor, self.row.protocol) {
            // Each event in a write of its own.
            (false, _) if matches!(self.row.work, Work::Stream(_)) => "ours-each",
            (false, _) if matches!(self.row.figure, Figure::Kept | Figure::ContextRef(_) | Figure::Growing(_)) => {
                "ours-all"
            }
            (false, _) => "ours",
            (true, Protocol::Grpc) => "bare-grpc",
            (true, Protocol::Rest | Protocol::JsonRpc) => "bare-http",
        };
        Server::start(kind, self.cores.0)
    }

    fn command(self, server: &Server) -> std::process::Command {
        let Row { protocol, work, connections, .. } = self.row;
        let mut command = pinned(self.cores.1);
        command.args(["calls", &server.addr]);
        let warm = if self.until.starts_with('#') { 0 } else { WARM };
        let words: [&dyn std::fmt::Display; 7] =
            [&server.id(), protocol, work, connections, &self.floor, &warm, &self.until];
        command.args(words.map(ToString::to_string));
        command.stderr(Stdio::inherit());
        command
    }

    /// Makes calls from a process of their own.
    pub(crate) fn calls(self, server: &Server) -> Report {
        let output = self.command(server).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "the calls failed: {} {}", self.row.protocol, self.row.work);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The same of a server that is new.
    pub(crate) fn run(self) -> Report {
        let server = self.server();
        self.calls(&server)
    }
}
