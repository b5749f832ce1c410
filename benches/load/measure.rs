//! Measurement of a row: in each round the baseline and then the server, each as a new process.

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

/// Core of the server, core of the generator, and both.
const SERVER: &str = "0";
const CALLS: &str = "1";
const BOTH: &str = "0,1";

/// Warm-up time in milliseconds.
const WARM: u64 = 150;

/// Share of its core above which the generator may be the bottleneck.
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

/// Result of a row.
pub(crate) struct Measured {
    pub(crate) baseline: Option<Spread>,
    pub(crate) server: Spread,
    pub(crate) ratio: Option<Spread>,
    pub(crate) notes: Vec<String>,
}

impl Measured {
    pub(crate) fn of_server(all: Vec<f64>) -> Self {
        Self { baseline: None, server: Spread::of(all), ratio: None, notes: Vec::new() }
    }
}

/// Server to start, its cores, and the limit of the run.
#[derive(Clone, Copy)]
pub(crate) struct Setup<'a> {
    pub(crate) row: &'a Row,
    pub(crate) baseline: bool,
    /// Server kind, if not derived from the row.
    pub(crate) kind: Option<&'a str>,
    pub(crate) cores: (&'static str, &'static str),
    pub(crate) until: &'a str,
}

pub(crate) fn measure(row: &Row, settings: &Settings) -> Measured {
    let millis = settings.millis.to_string();
    let own = Setup { row, baseline: false, kind: None, cores: (SERVER, CALLS), until: &millis };
    let baseline = Setup { baseline: true, ..own };
    let rounds = || 0..settings.rounds;
    match row.figure {
        Figure::Cost => {
            let (mut notes, mut lengths) = (Vec::new(), (0, 0));
            let (baselines, all): (Vec<f64>, Vec<f64>) = rounds()
                .map(|_| {
                    let (baseline, own) = (baseline.run(), own.run());
                    lengths = (baseline.bytes, own.bytes);
                    busy(&mut notes, &baseline, "of the baseline");
                    busy(&mut notes, &own, "of the server");
                    (cost(row, &baseline), cost(row, &own))
                })
                .unzip();
            if lengths.0.abs_diff(lengths.1) * 20 > lengths.1 {
                notes.push(format!("the baseline sends {} bytes and the server {}", lengths.0, lengths.1));
            }
            let ratio = Spread::of(baselines.iter().zip(&all).map(|(baseline, own)| baseline / own).collect());
            Measured { baseline: Some(Spread::of(baselines)), ratio: Some(ratio), notes, ..Measured::of_server(all) }
        }
        Figure::Length => {
            let short = Row { work: Work::Stream(10), connections: 16, name: String::new(), ..*row };
            let few = Setup { row: &short, ..own };
            Measured::of_server(rounds().map(|_| cost(row, &own.run()) / cost(&short, &few.run())).collect())
        }
        Figure::V03 => {
            let now = Row { work: Work::Send(64), name: String::new(), ..*row };
            let current = Setup { row: &now, ..own };
            Measured::of_server(rounds().map(|_| cost(row, &own.run()) / cost(&now, &current.run())).collect())
        }
        Figure::Cores => {
            let growth = |one: Setup<'_>| {
                let two = Setup { cores: (BOTH, BOTH), ..one };
                cost(row, &two.run()) / cost(row, &one.run())
            };
            let (baselines, all) = rounds().map(|_| (growth(baseline), growth(own))).unzip();
            Measured { baseline: Some(Spread::of(baselines)), ..Measured::of_server(all) }
        }
        Figure::Idle => {
            let (baselines, all) = (0..settings.rounds.min(3)).map(|_| (idle(baseline), idle(own))).unzip();
            Measured { baseline: Some(Spread::of(baselines)), ..Measured::of_server(all) }
        }
        Figure::TaskMemory => {
            const TASKS: f64 = 50_000.0;
            let kept = |_| {
                let server = own.server();
                let fill = |count: &str| Setup { until: count, ..own }.calls(&server);
                fill("#2000");
                let before = server.resident();
                let calls = fill(&format!("#{TASKS}")).calls;
                (server.resident() - before) / calls as f64
            };
            Measured::of_server((0..settings.rounds.min(3)).map(kept).collect())
        }
        Figure::Latency(tasks) => {
            let server = own.server();
            // The failed tasks are the oldest, which a list reaches last.
            for (work, count) in [(Work::Fail, "#10".to_owned()), (Work::Send(64), format!("#{tasks}"))] {
                let row = Row { work, connections: 10, name: String::new(), ..*row };
                Setup { row: &row, until: &count, ..own }.calls(&server);
            }
            Measured::of_server(rounds().map(|_| own.calls(&server).p50).collect())
        }
        Figure::Durable(figure) => durable::measure(row, figure, settings),
        Figure::Growing(tasks) => {
            let report = Setup { until: &format!("#{tasks}"), ..own }.run();
            let worst = Spread::of(report.worst);
            let mut result = Measured::of_server(vec![report.p999]);
            let Spread { median, max, .. } = worst;
            result.notes.push(format!("the maximum of each 10000 is {median:.1} in the median, and {max:.1} at most"));
            result
        }
    }
}

fn cost(row: &Row, report: &Report) -> f64 {
    // Each connection of a fan-out receives all events.
    report.server * 1e6 / (report.calls * row.work.parts()) as f64
}

fn busy(notes: &mut Vec<String>, report: &Report, whose: &str) {
    let busy = report.own / report.seconds > BUSY;
    let note = format!("the generator {whose} saturates its core");
    if busy && !notes.contains(&note) {
        notes.push(note);
    }
}

/// Memory of a server per waiting connection in KiB.
fn idle(setup: Setup<'_>) -> f64 {
    let server = setup.server();
    // The first calls allocate what later ones reuse.
    let few = Row { work: Work::Stream(10), connections: 16, name: String::new(), ..*setup.row };
    Setup { row: &few, ..setup }.calls(&server);
    let before = server.resident();
    let mut waiting = setup.command(&server).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(waiting.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(!line.is_empty(), "the load generator failed: {}", setup.row.name);
    #[expect(
        clippy::disallowed_methods,
        reason = "the server has no signal for being idle, and this is not in a runtime"
    )]
    thread::sleep(Duration::from_millis(300));
    let grown = server.resident() - before;
    drop(waiting.stdin.take());
    waiting.wait().unwrap();
    grown / 1024.0 / setup.row.connections as f64
}

impl Setup<'_> {
    pub(crate) fn server(self) -> Server {
        if let Some(kind) = self.kind {
            return Server::start(kind, self.cores.0);
        }
        let kind = match (self.baseline, self.row.protocol) {
            // Commits each update separately.
            (false, _) if matches!(self.row.work, Work::Stream(_)) => "server-uncoalesced",
            (false, _) if matches!(self.row.figure, Figure::TaskMemory | Figure::Latency(_) | Figure::Growing(_)) => {
                "server-unlimited"
            }
            (false, _) => "server",
            (true, Protocol::Grpc) => "baseline-grpc",
            (true, Protocol::Rest | Protocol::JsonRpc) => "baseline-http",
        };
        Server::start(kind, self.cores.0)
    }

    fn command(self, server: &Server) -> std::process::Command {
        let Row { protocol, work, connections, .. } = self.row;
        let mut command = pinned(self.cores.1);
        command.args(["calls", &server.addr]);
        let warm = if self.until.starts_with('#') { 0 } else { WARM };
        let arguments: [&dyn std::fmt::Display; 7] =
            [&server.id(), protocol, work, connections, &self.baseline, &warm, &self.until];
        command.args(arguments.map(ToString::to_string));
        command.stderr(Stdio::inherit());
        command
    }

    /// Runs the load generator against a server.
    pub(crate) fn calls(self, server: &Server) -> Report {
        let output = self.command(server).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "the load generator failed: {} {}", self.row.protocol, self.row.work);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Runs the load generator against a new server.
    pub(crate) fn run(self) -> Report {
        let server = self.server();
        self.calls(&server)
    }
}
