//! Rows about durability: the cost of a store in a file relative to one in memory, and latencies with many stored tasks.

use std::{
    env, fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use a2a_service::store::sqlite::{Options, Sqlite};

use crate::{
    Spread,
    fill::fill,
    generate::Report,
    measure::{Measured, Settings, Setup},
    process::Server,
    rows::{Bound, Row},
    work::{Protocol, Work},
};

/// Measured figure. The value it is compared with is shown in the baseline column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    /// Calls per second on two cores, relative to a store in memory.
    Rate(&'static str),
    /// Median latency, relative to a store in memory.
    Wait(&'static str),
    /// 99th percentile of the latency in milliseconds.
    Tail(&'static str),
    /// Calls per second on two cores, relative to the official Rust SDK in memory.
    Peer(&'static str),
    /// Bytes written to the write-ahead log per event, relative to a stream of ten events.
    Written,
    /// Median latency in milliseconds with this many stored tasks.
    Latency(u64),
    /// Milliseconds from start to readiness, with this many stored tasks of which this many were running.
    Ready(u64, u64),
    /// Growth of memory in MiB while this many tasks are created, after the first tenth of them.
    Soak(u64),
}

/// All rows in the order of the table.
pub(crate) fn rows() -> Vec<Row> {
    use Protocol::{Grpc, JsonRpc, Rest};
    let mut rows = Vec::new();
    let mut add = |name: String, protocol: Protocol, work, connections, figure, bound| {
        let (name, figure) = (format!("durable {protocol} {name}"), crate::rows::Figure::Durable(figure));
        rows.push(Row { name, protocol, work, connections, figure, bound });
    };
    for durability in ["process", "power"] {
        let if_process = |bound| if durability == "process" { bound } else { Bound::None };
        for protocol in [Rest, JsonRpc, Grpc] {
            for (connections, bound) in [(1, Bound::None), (64, Bound::Ratio(0.5))] {
                let name =
                    format!("send ({durability}), {connections} connections, calls per second relative to memory");
                add(name, protocol, Work::Send(64), connections, Figure::Rate(durability), if_process(bound));
            }
            let name = format!("send ({durability}), 1 connection, p50 relative to memory");
            add(name, protocol, Work::Send(64), 1, Figure::Wait(durability), if_process(Bound::Most(3.0)));
            let name = format!("send ({durability}), 64 connections, p99 ms");
            add(name, protocol, Work::Send(64), 64, Figure::Tail(durability), if_process(Bound::Most(10.0)));
        }
    }
    for protocol in [Rest, JsonRpc, Grpc] {
        let name =
            "send (process), 64 connections, calls per second relative to the official Rust SDK in memory".into();
        add(name, protocol, Work::Send(64), 64, Figure::Peer("process"), Bound::Ratio(1.0));
    }
    for (chunks, bound) in [(1000, Bound::None), (10_000, Bound::Most(1.5))] {
        let name = format!("stream of {chunks}, bytes written per event relative to a stream of 10");
        add(name, Rest, Work::Paced(chunks), 1, Figure::Written, bound);
    }
    for tasks in [100_000, 1_000_000] {
        add(format!("send among {tasks} tasks, ms"), Rest, Work::Send(64), 1, Figure::Latency(tasks), Bound::None);
        for (state, of) in [(0, "all"), (3, "completed"), (4, "the few failed")] {
            let name = format!("list of 50 of {of} among {tasks} tasks, ms");
            add(name, Rest, Work::List(state), 1, Figure::Latency(tasks), Bound::Most(1.0));
        }
        let name = format!("list of 50 of a context among {tasks} tasks, ms");
        add(name, Rest, Work::ListContext, 1, Figure::Latency(tasks), Bound::Most(5.0));
    }
    add("replay of 10000 events, ms".into(), Rest, Work::Replay(10_000), 1, Figure::Latency(0), Bound::None);
    let ready = "ready with 100000 tasks, 1000 of them running, ms".into();
    add(ready, Rest, Work::Get, 1, Figure::Ready(100_000, 1000), Bound::Most(200.0));
    let soak = "memory over 1000000 finished tasks, growth in MiB since 100000".into();
    add(soak, JsonRpc, Work::Send(64), 64, Figure::Soak(1_000_000), Bound::Most(16.0));
    rows
}

/// Minimum length of a round in milliseconds: during the first half second a new file reaches its log and cache size.
const MIN_MILLIS: u64 = 1000;

pub(crate) fn measure(row: &Row, figure: Figure, settings: &Settings) -> Measured {
    let is_long = matches!(figure, Figure::Rate(_) | Figure::Peer(_) | Figure::Tail(_));
    let millis = if is_long { settings.millis.max(MIN_MILLIS) } else { settings.millis }.to_string();
    let setup = Setup { row, baseline: false, kind: None, cores: ("0,1", "0,1"), until: &millis };
    let rounds = || 0..settings.rounds;
    // Each round measures the store in memory and then a new file.
    let memory_and_file = |durability: &str, figure: &dyn Fn(&Report) -> f64| -> (Vec<f64>, Vec<f64>) {
        let both = |_| {
            let memory = figure(&setup.run());
            let database = Database::new();
            (memory, figure(&database.run(setup, durability)))
        };
        rounds().map(both).unzip()
    };
    match figure {
        Figure::Rate(durability) => {
            let (memory, file) = memory_and_file(durability, &|report| report.calls as f64 / report.seconds);
            compared(memory, file, |memory, file| file / memory)
        }
        Figure::Wait(durability) => {
            let (memory, file) = memory_and_file(durability, &|report| report.p50);
            let ratios: Vec<f64> = memory.iter().zip(&file).map(|(memory, file)| file / memory).collect();
            let notes =
                vec![format!("{:.2} ms, {:.2} ms in memory", Spread::of(file).median, Spread::of(memory).median)];
            Measured { notes, ..Measured::of_server(ratios) }
        }
        Figure::Tail(durability) => {
            let tail = |_| Database::new().run(setup, durability).p99;
            Measured::of_server(rounds().map(tail).collect())
        }
        Figure::Peer(durability) => {
            let Some(program) = peer() else {
                let notes = vec!["build the peer program with benches/peer/build".to_owned()];
                return Measured { notes, ..Measured::of_server(vec![f64::NAN]) };
            };
            let both = |_| {
                let server = Server::start_program(&program, "0,1");
                let peer = setup.calls(&server);
                drop(server);
                let own = Database::new().run(setup, durability);
                (peer.calls as f64 / peer.seconds, own.calls as f64 / own.seconds)
            };
            let (peers, all) = rounds().map(both).unzip();
            compared(peers, all, |peer, own| own / peer)
        }
        Figure::Written => {
            let short = Row { work: Work::Paced(10), name: String::new(), ..*row };
            let ratio = |_| written(setup) / written(Setup { row: &short, ..setup });
            Measured::of_server(rounds().map(ratio).collect())
        }
        Figure::Latency(tasks) => {
            let database = Database::filled(tasks, 0);
            let kind = database.kind("process");
            let setup = Setup { kind: Some(&kind), cores: ("0", "1"), ..setup };
            let server = setup.server();
            Measured::of_server(rounds().map(|_| setup.calls(&server).p50).collect())
        }
        Figure::Ready(tasks, running) => {
            let ready = |_| {
                let database = Database::filled(tasks, running).copied();
                let kind = database.kind("process");
                let start = now();
                let server = Server::start(&kind, "0,1");
                wait_until_ready(&server.addr);
                start.elapsed().as_secs_f64() * 1e3
            };
            Measured::of_server((0..settings.rounds.min(5)).map(ready).collect())
        }
        Figure::Soak(tasks) => {
            let database = Database::new();
            let kind = database.kind("process");
            let setup = Setup { kind: Some(&kind), ..setup };
            let server = setup.server();
            let fill = |count: u64| drop(Setup { until: &format!("#{count}"), ..setup }.calls(&server));
            fill(tasks / 10);
            let before = server.resident();
            fill(tasks / 10 * 9);
            let after = server.resident();
            let mut result = Measured::of_server(vec![(after - before) / f64::from(1 << 20)]);
            result.notes.push(format!("{:.0} MiB at the end", after / f64::from(1 << 20)));
            result
        }
    }
}

fn compared(others: Vec<f64>, all: Vec<f64>, ratio: impl Fn(f64, f64) -> f64) -> Measured {
    let ratio = Spread::of(others.iter().zip(&all).map(|(other, own)| ratio(*other, *own)).collect());
    Measured { baseline: Some(Spread::of(others)), ratio: Some(ratio), ..Measured::of_server(all) }
}

/// Bytes written to the write-ahead log per event. The log must not be restarted meanwhile, so that its growth is the
/// number of bytes written.
fn written(setup: Setup<'_>) -> f64 {
    const EVENTS: u64 = 10_000;
    let streams = EVENTS.div_ceil(setup.row.work.parts()).min(50);
    let database = Database::new();
    let kind = database.kind("process");
    let server = Setup { kind: Some(&kind), ..setup }.server();
    let log = || fs::metadata(database.file().with_extension("db-wal")).map_or(0, |metadata| metadata.len());
    let before = log();
    let calls = Setup { until: &format!("#{streams}"), ..setup }.calls(&server).calls;
    let bytes = log() - before;
    assert!(bytes < 16 << 20, "the log may have been restarted");
    bytes as f64 / (calls * setup.row.work.parts()) as f64
}

#[expect(clippy::disallowed_methods, reason = "not in a runtime and not in a test")]
fn now() -> Instant {
    Instant::now()
}

/// Waits until a server is ready.
fn wait_until_ready(addr: &str) {
    loop {
        let mut socket = TcpStream::connect(addr).unwrap();
        socket.write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
        let mut reply = String::new();
        socket.read_to_string(&mut reply).unwrap();
        if reply.starts_with("HTTP/1.1 200") {
            return;
        }
        #[expect(clippy::disallowed_methods, reason = "polling is the only way, and this is not in a runtime")]
        thread::sleep(Duration::from_millis(1));
    }
}

/// The `target` directory, which is on a disk.
fn target() -> PathBuf {
    env::current_exe().unwrap().ancestors().nth(3).unwrap().to_owned()
}

/// Program with the official SDK, if it has been built.
fn peer() -> Option<PathBuf> {
    Some(target().join("peer/release/a2a-peer")).filter(|path| path.exists())
}

/// Directory of a database file; deleted on drop unless `kept`.
struct Database {
    directory: PathBuf,
    kept: bool,
}

impl Database {
    fn new() -> Self {
        let directory = target().join(format!("durable/{}", std::process::id()));
        // Removes the files of an earlier process with this id.
        drop(fs::remove_dir_all(&directory));
        fs::create_dir_all(&directory).unwrap();
        Self { directory, kept: false }
    }

    /// Database with this many tasks, some of which are running. Created once and then reused.
    fn filled(tasks: u64, running: u64) -> Self {
        if tasks == 0 {
            return Self::new();
        }
        let directory = target().join(format!("durable/{tasks}-{running}"));
        if !directory.join("whole").exists() {
            drop(fs::remove_dir_all(&directory));
            fs::create_dir_all(&directory).unwrap();
            fill(&directory.join("a2a.db"), tasks, running);
            fs::write(directory.join("whole"), "").unwrap();
        }
        let database = Self { directory, kept: true };
        // Upgrades a file of an older version before the measurement.
        drop(Sqlite::open(&database.file(), Options::default()).unwrap());
        database
    }

    /// Returns a temporary copy.
    fn copied(&self) -> Self {
        let copy = Self::new();
        fs::copy(self.file(), copy.file()).unwrap();
        copy
    }

    fn file(&self) -> PathBuf {
        self.directory.join("a2a.db")
    }

    /// Name of the server kind that uses this file.
    fn kind(&self, durability: &str) -> String {
        format!("{FILE}{durability}:{}", self.file().display())
    }

    /// Runs the calls against a new server that uses this file.
    fn run(&self, setup: Setup<'_>, durability: &str) -> Report {
        Setup { kind: Some(&self.kind(durability)), ..setup }.run()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if !self.kept {
            drop(fs::remove_dir_all(&self.directory));
        }
    }
}

/// Prefix of the names of server kinds with tasks in a file.
const FILE: &str = "file:";

/// Parses the durability and path from the name of a server kind.
pub(crate) fn file(kind: &str) -> Option<(&str, &Path)> {
    let (durability, path) = kind.strip_prefix(FILE)?.split_once(':')?;
    Some((durability, Path::new(path)))
}
