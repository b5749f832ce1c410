//! The rows of durability: what a store in a file costs beside one in memory, in the same rounds, and what a file that has
//! much in it still does in time.

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
    measure::{Found, Settings, Setup},
    process::Server,
    rows::{Row, ServiceHandle},
    work::{Protocol, Work},
};

/// What is measured. The column of the floor has what it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    /// Calls a second on two cores, over those of a store in memory.
    Rate(&'static str),
    /// How long half of the calls take at most, over the same in memory.
    Wait(&'static str),
    /// How long one in a hundred takes, in milliseconds.
    Tail(&'static str),
    /// Calls a second on two cores, over those of the official Rust SDK in memory.
    Peer(&'static str),
    /// Bytes that an event writes to the log of SQLite, over one of a stream of ten.
    Written,
    /// How long half of the calls take at most, in milliseconds, where there are so many tasks.
    ContextRef(u64),
    /// How long it takes until a server answers that it is ready, in milliseconds, where there are so many tasks, and so
    /// many of them ran.
    Ready(u64, u64),
    /// By how many MiB memory grows while there come to be so many tasks, after the first tenth of them.
    Soak(u64),
}

/// Every row, in the order of the table.
pub(crate) fn rows() -> Vec<Row> {
    use Protocol::{Grpc, JsonRpc, Rest};
    let mut rows = Vec::new();
    let mut add = |name: String, protocol: Protocol, work, connections, figure, bound| {
        let (name, figure) = (format!("durable {protocol} {name}"), crate::rows::Figure::Durable(figure));
        rows.push(Row { name, protocol, work, connections, figure, bound });
    };
    for durability in ["process", "power"] {
        let asked = |it| if durability == "process" { it } else { ServiceHandle::None };
        for it in [Rest, JsonRpc, Grpc] {
            for (connections, bound) in [(1, ServiceHandle::None), (64, ServiceHandle::Ratio(0.5))] {
                let name = format!("send ({durability}), {connections} connections, calls a second beside memory");
                add(name, it, Work::Send(64), connections, Figure::Rate(durability), asked(bound));
            }
            let name = format!("send ({durability}), 1 connection, p50 over that in memory");
            add(name, it, Work::Send(64), 1, Figure::Wait(durability), asked(ServiceHandle::Most(3.0)));
            let name = format!("send ({durability}), 64 connections, p99 ms");
            add(name, it, Work::Send(64), 64, Figure::Tail(durability), asked(ServiceHandle::Most(10.0)));
        }
    }
    for it in [Rest, JsonRpc, Grpc] {
        let name = "send (process), 64 connections, calls a second beside the official Rust SDK in memory".into();
        add(name, it, Work::Send(64), 64, Figure::Peer("process"), ServiceHandle::Ratio(1.0));
    }
    for (chunks, bound) in [(1000, ServiceHandle::None), (10_000, ServiceHandle::Most(1.5))] {
        let name = format!("stream of {chunks}, bytes written for an event over those of a stream of 10");
        add(name, Rest, Work::Paced(chunks), 1, Figure::Written, bound);
    }
    for tasks in [100_000, 1_000_000] {
        add(
            format!("send among {tasks} tasks, ms"),
            Rest,
            Work::Send(64),
            1,
            Figure::ContextRef(tasks),
            ServiceHandle::None,
        );
        for (state, of) in [(0, "all"), (3, "completed"), (4, "the few failed")] {
            let name = format!("list of 50 of {of} among {tasks} tasks, ms");
            add(name, Rest, Work::List(state), 1, Figure::ContextRef(tasks), ServiceHandle::Most(1.0));
        }
        let name = format!("list of 50 of a context among {tasks} tasks, ms");
        add(name, Rest, Work::ListContext, 1, Figure::ContextRef(tasks), ServiceHandle::Most(5.0));
    }
    add("replay of 10000 events, ms".into(), Rest, Work::Replay(10_000), 1, Figure::ContextRef(0), ServiceHandle::None);
    let ready = "ready with 100000 tasks, 1000 of which ran, ms".into();
    add(ready, Rest, Work::Get, 1, Figure::Ready(100_000, 1000), ServiceHandle::Most(200.0));
    let soak = "memory over 1000000 finished tasks, MiB more than over 100000".into();
    add(soak, JsonRpc, Work::Send(64), 64, Figure::Soak(1_000_000), ServiceHandle::Most(16.0));
    rows
}

/// In the first half second of a file its log and its cache come to their size; what is told of it is how it goes on.
const LONG: u64 = 1000;

pub(crate) fn measure(row: &Row, figure: Figure, settings: &Settings) -> Found {
    let is_long = matches!(figure, Figure::Rate(_) | Figure::Peer(_) | Figure::Tail(_));
    let millis = if is_long { settings.millis.max(LONG) } else { settings.millis }.to_string();
    let setup = Setup { row, floor: false, kind: None, cores: ("0,1", "0,1"), until: &millis };
    let rounds = || 0..settings.rounds;
    // In memory, and in a file that is new, one after the other.
    let beside = |durability: &str, of: &dyn Fn(&Report) -> f64| -> (Vec<f64>, Vec<f64>) {
        let both = |_| {
            let memory = of(&setup.run());
            let place = Place::new();
            (memory, of(&place.run(setup, durability)))
        };
        rounds().map(both).unzip()
    };
    match figure {
        Figure::Rate(durability) => {
            let (memory, file) = beside(durability, &|it| it.calls as f64 / it.seconds);
            compared(memory, file, |memory, file| file / memory)
        }
        Figure::Wait(durability) => {
            let (memory, file) = beside(durability, &|it| it.p50);
            let over: Vec<f64> = memory.iter().zip(&file).map(|it| it.1 / it.0).collect();
            let notes =
                vec![format!("{:.2} ms, and {:.2} in memory", Spread::of(file).median, Spread::of(memory).median)];
            Found { notes, ..Found::ours(over) }
        }
        Figure::Tail(durability) => {
            let tail = |_| Place::new().run(setup, durability).p99;
            Found::ours(rounds().map(tail).collect())
        }
        Figure::Peer(durability) => {
            let Some(program) = peer() else {
                let notes = vec!["benches/peer/build makes the program that it is compared with".to_owned()];
                return Found { notes, ..Found::ours(vec![f64::NAN]) };
            };
            let both = |_| {
                let server = Server::of(&program, "0,1");
                let peer = setup.calls(&server);
                drop(server);
                let ours = Place::new().run(setup, durability);
                (peer.calls as f64 / peer.seconds, ours.calls as f64 / ours.seconds)
            };
            let (peers, all) = rounds().map(both).unzip();
            compared(peers, all, |peer, ours| ours / peer)
        }
        Figure::Written => {
            let short = Row { work: Work::Paced(10), name: String::new(), ..*row };
            let over = |_| written(setup) / written(Setup { row: &short, ..setup });
            Found::ours(rounds().map(over).collect())
        }
        Figure::ContextRef(tasks) => {
            let place = Place::filled(tasks, 0);
            let kind = place.kind("process");
            let setup = Setup { kind: Some(&kind), cores: ("0", "1"), ..setup };
            let server = setup.server();
            Found::ours(rounds().map(|_| setup.calls(&server).p50).collect())
        }
        Figure::Ready(tasks, ran) => {
            let ready = |_| {
                let place = Place::filled(tasks, ran).copied();
                let kind = place.kind("process");
                let start = now();
                let server = Server::start(&kind, "0,1");
                ready(&server.addr);
                start.elapsed().as_secs_f64() * 1e3
            };
            Found::ours((0..settings.rounds.min(5)).map(ready).collect())
        }
        Figure::Soak(tasks) => {
            let place = Place::new();
            let kind = place.kind("process");
            let setup = Setup { kind: Some(&kind), ..setup };
            let server = setup.server();
            let fill = |count: u64| drop(Setup { until: &format!("#{count}"), ..setup }.calls(&server));
            fill(tasks / 10);
            let before = server.resident();
            fill(tasks / 10 * 9);
            let after = server.resident();
            let mut found = Found::ours(vec![(after - before) / f64::from(1 << 20)]);
            found.notes.push(format!("{:.0} MiB in the end", after / f64::from(1 << 20)));
            found
        }
    }
}

fn compared(others: Vec<f64>, all: Vec<f64>, ratio: impl Fn(f64, f64) -> f64) -> Found {
    let ratio = Spread::of(others.iter().zip(&all).map(|it| ratio(*it.0, *it.1)).collect());
    Found { floor: Some(Spread::of(others)), ratio: Some(ratio), ..Found::ours(all) }
}

/// Bytes that come to the log of SQLite for an event. It begins anew once it is long; before that, they are how long it is.
fn written(setup: Setup<'_>) -> f64 {
    const EVENTS: u64 = 10_000;
    let streams = EVENTS.div_ceil(setup.row.work.parts()).min(50);
    let place = Place::new();
    let kind = place.kind("process");
    let server = Setup { kind: Some(&kind), ..setup }.server();
    let log = || fs::metadata(place.file().with_extension("db-wal")).map_or(0, |it| it.len());
    let before = log();
    let calls = Setup { until: &format!("#{streams}"), ..setup }.calls(&server).calls;
    let bytes = log() - before;
    assert!(bytes < 16 << 20, "the log may have begun anew");
    bytes as f64 / (calls * setup.row.work.parts()) as f64
}

#[expect(clippy::disallowed_methods, reason = "this is no runtime, and no test")]
fn now() -> Instant {
    Instant::now()
}

/// Returns when a server says that it is ready.
fn ready(addr: &str) {
    loop {
        let mut socket = TcpStream::connect(addr).unwrap();
        socket.write_all(b"GET /readyz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
        let mut reply = String::new();
        socket.read_to_string(&mut reply).unwrap();
        if reply.starts_with("HTTP/1.1 200") {
            return;
        }
        #[expect(clippy::disallowed_methods, reason = "nothing else says when it is, and this is no runtime")]
        thread::sleep(Duration::from_millis(1));
    }
}

/// Below `target/`, which is on a disk, as what is measured has to be.
fn target() -> PathBuf {
    env::current_exe().unwrap().ancestors().nth(3).unwrap().to_owned()
}

/// The program that the official SDK is measured by, once it has been built.
fn peer() -> Option<PathBuf> {
    Some(target().join("peer/release/a2a-peer")).filter(|it| it.exists())
}

/// Where a file is. One that is not to be kept goes when this does.
struct Place {
    directory: PathBuf,
    kept: bool,
}

impl Place {
    fn new() -> Self {
        let directory = target().join(format!("durable/{}", std::process::id()));
        // What an earlier one has left.
        drop(fs::remove_dir_all(&directory));
        fs::create_dir_all(&directory).unwrap();
        Self { directory, kept: false }
    }

    /// A file that has so many tasks, some of which ran. It is made once.
    fn filled(tasks: u64, ran: u64) -> Self {
        if tasks == 0 {
            return Self::new();
        }
        let directory = target().join(format!("durable/{tasks}-{ran}"));
        if !directory.join("whole").exists() {
            drop(fs::remove_dir_all(&directory));
            fs::create_dir_all(&directory).unwrap();
            fill(&directory.join("a2a.db"), tasks, ran);
            fs::write(directory.join("whole"), "").unwrap();
        }
        let place = Self { directory, kept: true };
        // One that an older version made is brought to this one before anything is measured.
        drop(Sqlite::open(&place.file(), Options::default()).unwrap());
        place
    }

    /// The same, to be changed.
    fn copied(&self) -> Self {
        let copy = Self::new();
        fs::copy(self.file(), copy.file()).unwrap();
        copy
    }

    fn file(&self) -> PathBuf {
        self.directory.join("a2a.db")
    }

    /// What a server is called that has this file.
    fn kind(&self, durability: &str) -> String {
        format!("{FILE}{durability}:{}", self.file().display())
    }

    /// Calls a new server that has it.
    fn run(&self, setup: Setup<'_>, durability: &str) -> Report {
        Setup { kind: Some(&self.kind(durability)), ..setup }.run()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.kept {
            drop(fs::remove_dir_all(&self.directory));
        }
    }
}

/// What the name of a server begins with that keeps its tasks in a file.
const FILE: &str = "file:";

/// How and where a server of this name keeps its tasks.
pub(crate) fn file(kind: &str) -> Option<(&str, &Path)> {
    let (durability, path) = kind.strip_prefix(FILE)?.split_once(':')?;
    Some((durability, Path::new(path)))
}
