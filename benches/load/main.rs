//! What a call costs a server, beside the floor: processor time per call of ours and of a bare axum or tonic server that
//! sends the same bytes, in the same rounds. `cargo bench --bench load`, on a machine that does nothing else.
//!
//! Servers are processes of their own, on one core; the calls come from another. What is compared is the time that the
//! system says a server has used, over the calls that it has answered: a generator that is slow, or a core that is
//! shared, moves the rate and not the ratio.

#![expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench may fail, and this one reports"
)]

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use self::generate::{Calls, Protocol, Work};

mod generate;
mod servers;

const ROUNDS: usize = 5;
const TIME: Duration = Duration::from_millis(1500);
const WARM: Duration = Duration::from_millis(400);

/// A row of the table.
struct Row {
    name: &'static str,
    protocol: Protocol,
    work: Work,
    connections: usize,
    /// Ours at least, in parts of the floor.
    least: f64,
}

const ROWS: &[Row] = &[
    Row {
        name: "REST send, 16 connections",
        protocol: Protocol::Rest,
        work: Work::Send(64),
        connections: 16,
        least: 0.55,
    },
    Row {
        name: "JSON-RPC send, 16 connections",
        protocol: Protocol::JsonRpc,
        work: Work::Send(64),
        connections: 16,
        least: 0.55,
    },
    Row {
        name: "JSON-RPC send, 64 connections",
        protocol: Protocol::JsonRpc,
        work: Work::Send(64),
        connections: 64,
        least: 0.55,
    },
    Row {
        name: "gRPC send, 16 connections",
        protocol: Protocol::Grpc,
        work: Work::Send(64),
        connections: 16,
        least: 0.70,
    },
    Row {
        name: "JSON-RPC send of 100 kB",
        protocol: Protocol::JsonRpc,
        work: Work::Send(100_000),
        connections: 16,
        least: 0.0,
    },
    Row {
        name: "gRPC send of 100 kB",
        protocol: Protocol::Grpc,
        work: Work::Send(100_000),
        connections: 16,
        least: 0.0,
    },
    Row { name: "JSON-RPC get", protocol: Protocol::JsonRpc, work: Work::Get, connections: 16, least: 0.80 },
    Row { name: "gRPC get", protocol: Protocol::Grpc, work: Work::Get, connections: 16, least: 0.85 },
    Row {
        name: "event of a JSON-RPC stream of 10",
        protocol: Protocol::JsonRpc,
        work: Work::Stream(10),
        connections: 16,
        least: 0.65,
    },
    Row {
        name: "event of a JSON-RPC stream of 1000",
        protocol: Protocol::JsonRpc,
        work: Work::Stream(1000),
        connections: 16,
        least: 0.65,
    },
    Row {
        name: "event of a JSON-RPC stream of 10 000",
        protocol: Protocol::JsonRpc,
        work: Work::Stream(10_000),
        connections: 16,
        least: 0.65,
    },
    Row {
        name: "event of a JSON-RPC burst of 1000",
        protocol: Protocol::JsonRpc,
        work: Work::Burst(1000),
        connections: 16,
        least: 2.0,
    },
    Row {
        name: "event of a gRPC stream of 1000",
        protocol: Protocol::Grpc,
        work: Work::Stream(1000),
        connections: 16,
        least: 0.0,
    },
];

fn main() {
    let arguments: Vec<String> = env::args().skip(1).filter(|it| it != "--bench").collect();
    match arguments.first().map(String::as_str) {
        Some("serve") => servers::run(&arguments[1]),
        Some("calls") => generate::run(&arguments[1..]),
        // `cargo test` runs benches too, and asks for no figures.
        Some("--test") => {}
        wanted => table(wanted.unwrap_or_default()),
    }
}

fn table(wanted: &str) {
    println!(
        "CPU of one server core per call or event, median of {ROUNDS} rounds; floor over ours (least–most of the rounds)\n"
    );
    println!("| what | floor us | ours us | ratio | at least |");
    println!("| --- | --- | --- | --- | --- |");
    for row in ROWS.iter().filter(|it| it.name.contains(wanted)) {
        let (mut floors, mut ours, mut ratios) = (vec![], vec![], vec![]);
        for _ in 0..ROUNDS {
            let (floor, our) = (measure(row, true), measure(row, false));
            floors.push(floor);
            ours.push(our);
            ratios.push(floor / our);
        }
        let (low, high) = (ratios.iter().copied().fold(f64::MAX, f64::min), ratios.iter().copied().fold(0.0, f64::max));
        let least = if row.least > 0.0 { format!("{:.2}", row.least) } else { "–".to_owned() };
        let Row { name, .. } = row;
        let (floor, our, ratio) = (median(&mut floors), median(&mut ours), median(&mut ratios));
        println!("| {name} | {floor:.2} | {our:.2} | **{ratio:.2}** ({low:.2}–{high:.2}) | {least} |");
    }
    memory(wanted);
}

/// What is kept of a task that has ended, and what a silent subscription takes.
fn memory(wanted: &str) {
    const TASKS: u64 = 50_000;
    if !"memory".contains(wanted) {
        return;
    }
    let server = Server::start("ours");
    let settle = |count: &str| calls(&server, "json-rpc", "send:64", 16, &[("COUNT", count)]);
    settle("2000");
    let before = server.resident();
    settle(&TASKS.to_string());
    println!("\nmemory for each of {TASKS} finished tasks: {} bytes", (server.resident() - before) * 1024 / TASKS);
}

fn median(all: &mut [f64]) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Microseconds of a server's processor for each call, or for each event of a stream.
fn measure(row: &Row, floor: bool) -> f64 {
    let server = Server::start(match (floor, row.protocol) {
        (false, _) => "ours",
        (true, Protocol::Grpc) => "bare-grpc",
        (true, Protocol::Rest | Protocol::JsonRpc) => "bare-http",
    });
    let (protocol, work) = (row.protocol.to_string(), row.work.to_string());
    let run = |time: Duration| {
        calls(&server, &protocol, &work, row.connections, &[("MILLIS", &time.as_millis().to_string())])
    };
    run(WARM);
    let before = server.cpu();
    let calls = run(TIME);
    let used = server.cpu().saturating_sub(before);
    used.as_secs_f64() * 1e6 / (calls.answered * row.work.parts()) as f64
}

/// Makes calls from a process of their own, on the other core.
fn calls(server: &Server, protocol: &str, work: &str, connections: usize, bound: &[(&str, &str)]) -> Calls {
    let mut command = pinned("1");
    command.args(["calls", &server.addr, protocol, work, &connections.to_string()]).envs(bound.iter().copied());
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "the calls failed: {protocol} {work}");
    Calls { answered: String::from_utf8(output.stdout).unwrap().trim().parse().unwrap() }
}

/// This program on one core, where the system can do that.
fn pinned(core: &str) -> Command {
    let program = env::current_exe().unwrap();
    let known = Command::new("taskset").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !known {
        return Command::new(program);
    }
    let mut command = Command::new("taskset");
    command.args(["-c", core]).arg(program);
    command
}

/// A server in a process of its own, until it is dropped.
struct Server {
    child: Child,
    addr: String,
}

impl Server {
    fn start(kind: &str) -> Self {
        let mut child = pinned("0").args(["serve", kind]).stdout(Stdio::piped()).spawn().unwrap();
        let mut addr = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut addr).unwrap();
        Self { child, addr: addr.trim().to_owned() }
    }

    /// User and system time so far.
    fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat[stat.rfind(')').unwrap() + 2..].split(' ').collect();
        // In hundredths of a second, on Linux.
        Duration::from_millis(10 * (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()))
    }

    /// Memory in KiB.
    fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|it| it.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
