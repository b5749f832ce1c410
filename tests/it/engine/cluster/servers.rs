//! Simulation of whole servers that share a store: seeded kills, stops and faults of links while clients send, read and cancel, and
//! a judgement of what the clients have seen. One seed gives one trace.

mod client;
mod judge;
mod monitor;
mod record;
mod schedule;
mod server;

use std::{
    env,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use a2a_service::{
    base::faults::{Fault, Faults},
    clock::Millis,
    store::{
        SharedStore,
        memory::{Cluster, Memory},
    },
};
use futures::FutureExt as _;
use tokio::sync::mpsc;

use self::{
    client::Client,
    monitor::Monitor,
    record::Record,
    schedule::{Disturbance, Kind, Schedule},
    server::{Server, Servers, Worker},
};
use super::{
    START,
    link::{Links, SimLink},
    lockstep::{Network, Processes, Time},
};
use crate::history::StoreContents;

/// Number of servers.
const SERVERS: usize = 3;

/// Number of clients, which run in one process.
const CLIENTS: usize = 4;

/// Time in which clients work and disturbances happen.
const BUSY: Time = 60_000;

/// Time after which everything must have come to rest.
const REST: Time = BUSY + 120_000;

/// Result of a simulation.
struct Outcome {
    errors: Vec<String>,
    trace: (Vec<String>, u64),
    /// Number of events in all logs.
    events: usize,
    /// Time at which everything had come to rest.
    rested: Time,
    /// Longest time until a task with a dead runner had another one.
    takeover: Time,
}

/// Simulated cluster.
struct Simulation {
    seed: u64,
    network: Arc<Network>,
    links: Arc<Links>,
    cluster: Cluster,
    processes: Processes,
    servers: Arc<Servers>,
    /// Link of each server that runs.
    running: Vec<Option<SimLink>>,
    started: u64,
    record: Arc<Record>,
    schedule: Arc<Schedule>,
    resumable: bool,
}

impl Simulation {
    fn new(seed: u64, planted: Faults) -> Self {
        let network = Network::new(seed << 32);
        let clock = Arc::clone(&network);
        let now = move || START + Millis::try_from(clock.now()).unwrap();
        let cluster = Cluster::with_faults(Memory::default(), now, planted);
        let processes = Processes::start(&network, SERVERS + 1);
        let (schedule, resumable) = (Arc::new(Schedule::random(&network)), network.below(4) > 0);
        let (servers, running) = (Arc::<Servers>::default(), vec![None; SERVERS]);
        let (links, record) = (Arc::default(), Arc::default());
        let started = 0;
        Self { seed, network, links, cluster, processes, servers, running, started, record, schedule, resumable }
    }

    /// Starts a server in a process that runs nothing.
    fn start(&mut self, number: usize) {
        self.started += 1;
        let (now, clock) = (self.network.now(), self.processes.clock(number));
        let faults = self.schedule.faults(number, now);
        let link = SimLink::new(&self.network, &self.links, number, clock.clone(), self.cluster.replica(), faults);
        self.running[number] = Some(link.clone());
        let (sender, requests) = mpsc::unbounded_channel();
        self.servers.set(number, Some(sender));
        let skew = if self.network.below(8) == 0 { 300_000 } else { 2000 };
        let wall_clock =
            START + Millis::try_from(now + self.network.below(2 * skew)).unwrap() - Millis::try_from(skew).unwrap();
        self.network.note(format_args!("server {number} starts at {wall_clock}"));
        let worker = Worker {
            resumable: self.resumable,
            server: number,
            clock: clock.clone(),
            record: Arc::clone(&self.record),
        };
        let seed = (self.seed << 32) + (self.started << 22);
        drop(self.processes.spawn(number, Server { link, clock, seed, wall_clock, worker, requests }.serve()));
    }

    /// Begins and ends the disturbances of this time.
    fn disturb(&mut self) {
        let (now, schedule) = (self.network.now(), Arc::clone(&self.schedule));
        for Disturbance { kind, server, from, until } in &schedule.0 {
            match (kind, now) {
                (Kind::Kill, now) if now == *from => {
                    self.running[*server] = None;
                    self.servers.set(*server, None);
                    let connections = self.servers.keep_open();
                    self.processes.kill(*server);
                    drop(connections);
                }
                (Kind::Kill, now) if now == *until => self.start(*server),
                (Kind::Stop, now) if now == *from => self.processes.stop(*server),
                (Kind::Stop, now) if now == *until => self.processes.resume(*server),
                (_, now) if now == *from => {
                    self.network.note(format_args!("{kind:?} at server {server} until {until}"));
                }
                _ => {}
            }
        }
        for server in 0..SERVERS {
            self.links.cut(server, schedule.cut_until(server, now));
            if let Some(link) = &self.running[server] {
                link.set_faults(schedule.faults(server, now));
            }
        }
    }

    fn check(&self, monitor: &mut Monitor) {
        let replicas: Vec<_> = self.running.iter().map(|link| link.as_ref().map(SharedStore::replica)).collect();
        let processes = monitor::Processes { schedule: &self.schedule, replicas: &replicas, now: self.network.now() };
        monitor.check(&self.record, &processes);
    }

    fn run_until(&mut self, end: Time, monitor: &mut Monitor) {
        while self.network.now() < end {
            let now = self.network.now();
            let check = now - now % monitor::INTERVAL + monitor::INTERVAL;
            let next = end.min(check).min(self.schedule.next(now).unwrap_or(Time::MAX));
            self.processes.run_until(next);
            self.disturb();
            if next == check {
                self.check(monitor);
            }
        }
    }

    fn run(mut self) -> Outcome {
        for number in 0..SERVERS {
            self.start(number);
        }
        let mut monitor = Monitor::new(self.cluster.replica());
        let clock = self.processes.clock(SERVERS);
        let client = |number| Client {
            number,
            network: Arc::clone(&self.network),
            clock: clock.clone(),
            servers: Arc::clone(&self.servers),
            record: Arc::clone(&self.record),
            until: BUSY,
        };
        let readers: Vec<_> = (0..CLIENTS).map(client).collect();
        let mut clients: Vec<_> =
            readers.iter().map(|client| self.processes.spawn(SERVERS, client.clone().run())).collect();
        self.run_until(BUSY, &mut monitor);
        let mut unrested = monitor.unrested();
        while (!unrested.is_empty() || clients.iter().any(|client| !client.is_finished())) && self.network.now() < REST
        {
            let next = self.network.now() + 500;
            self.run_until(next, &mut monitor);
            unrested = monitor.unrested();
        }
        let rested = self.network.now();
        for task in unrested {
            self.record.add_error(format!("not at rest after {rested} ms: {task}"));
        }
        for (number, client) in clients.iter_mut().enumerate() {
            match client.now_or_never() {
                Some(Ok(())) => {}
                outcome => self.record.add_error(format!("client {number} has not ended: {outcome:?}")),
            }
        }
        for client in readers {
            drop(self.processes.spawn(SERVERS, client.read_all()));
        }
        self.run_until(rested + 2000, &mut monitor);
        let contents = StoreContents::read_store(monitor.store()).now_or_never().unwrap();
        let seen = self.record.lock();
        let errors = judge::judge(&contents, &seen, &self.schedule, &monitor);
        let (events, takeover) = (judge::count_events(&contents), monitor.takeover);
        Outcome { errors, trace: self.network.trace(), events, rested, takeover }
    }
}

fn simulate(seed: u64, planted: Faults) -> Outcome {
    Simulation::new(seed, planted).run()
}

/// Returns the report of a seed with contradictions.
fn report(seed: u64, outcome: &Outcome) -> String {
    let Outcome { errors, trace: (lines, _), .. } = outcome;
    let end = &lines[lines.len().saturating_sub(100)..];
    format!(
        "seed {seed}: {errors:#?}\nend of the trace: {end:#?}\nrepeat it with the whole trace: \
         SEED={seed} cargo test --test it -- engine::cluster::servers::repeat --ignored --nocapture"
    )
}

/// Number that an environment variable sets.
fn variable(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Runs seeds in two threads, for as long as `progress` returns true. Returns the first one with contradictions.
fn find(seeds: Range<u64>, planted: Faults, progress: impl Fn(&Outcome) -> bool + Sync) -> Option<(u64, Outcome)> {
    let (next, found) = (AtomicU64::new(seeds.start), parking_lot::Mutex::new(None::<(u64, Outcome)>));
    let work = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= seeds.end || found.lock().as_ref().is_some_and(|(earlier, _)| *earlier < seed) {
            return;
        }
        let outcome = simulate(seed, planted);
        let goes_on = progress(&outcome);
        if !outcome.errors.is_empty() {
            let mut found = found.lock();
            if found.as_ref().is_none_or(|(earlier, _)| *earlier > seed) {
                *found = Some((seed, outcome));
            }
        }
        if !goes_on {
            return;
        }
    };
    thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
    found.into_inner()
}

/// Two threads simulate at once, so that nothing depends on what other threads do.
#[test]
fn equal_seeds_have_equal_traces() {
    // The second one has an acquisition that takes effect after its error.
    for seed in [1, 2026] {
        let (first, second) = thread::scope(|scope| {
            let other = scope.spawn(|| simulate(seed, Faults::default()));
            (simulate(seed, Faults::default()), other.join().unwrap())
        });
        for (n, (one, other)) in first.trace.0.iter().zip(&second.trace.0).enumerate() {
            assert_eq!(one, other, "line {n} of the last ones of seed {seed}");
        }
        assert_eq!(first.trace, second.trace, "seed {seed}");
        assert!(first.errors.is_empty(), "{}", report(seed, &first));
    }
}

/// The environment variable `FIRST` sets the first seed, and `SEEDS` their number, or `MINUTES` the time for which seeds run.
#[test]
#[expect(clippy::print_stdout, reason = "measured figures are printed for `--nocapture`")]
#[expect(clippy::disallowed_methods, reason = "seeds run for a time of the machine")]
fn clients_of_disturbed_servers_see_each_event_once() {
    let (first, started, minutes) = (variable("FIRST").unwrap_or(1), Instant::now(), variable("MINUTES"));
    let end = first + variable("SEEDS").unwrap_or(if minutes.is_some() { 1 << 30 } else { 100 });
    let [run, events, takeover, rested] = [const { AtomicU64::new(0) }; 4];
    let progress = |outcome: &Outcome| {
        run.fetch_add(1, Ordering::Relaxed);
        events.fetch_add(u64::try_from(outcome.events).unwrap(), Ordering::Relaxed);
        takeover.fetch_max(outcome.takeover, Ordering::Relaxed);
        rested.fetch_max(outcome.rested, Ordering::Relaxed);
        minutes.is_none_or(|minutes| started.elapsed() < Duration::from_mins(minutes))
    };
    if let Some((seed, outcome)) = find(first..end, Faults::default(), progress) {
        panic!("{}", report(seed, &outcome));
    }
    println!(
        "{run:?} seeds with {events:?} events; longest takeover {takeover:?} ms; last one at rest after {rested:?} ms"
    );
}

/// Planted bugs.
const FAULTS: [Fault; 10] = [
    Fault::CompareOnlySeq,
    Fault::KeepFence,
    Fault::BuryAfterOutage,
    Fault::IgnoreUnreadMail,
    Fault::NeverPoll,
    Fault::ReadFollowerState,
    Fault::KeepFollowerState,
    Fault::AbandonWithoutBurn,
    Fault::IgnoreDuplicates,
    Fault::OverwriteCancel,
];

#[cfg_attr(not(debug_assertions), ignore = "bugs are planted only with debug assertions")]
#[test]
#[expect(clippy::print_stdout, reason = "the number of seeds is printed for `--nocapture`")]
fn each_planted_bug_is_found_within_50_seeds() {
    let found = FAULTS.map(|fault| (fault, find(1..51, Faults::only(fault), |_| true)));
    for (fault, found) in &found {
        let text = found.as_ref().map(|(seed, outcome)| format!("{seed}: {:.300}", outcome.errors.join("; ")));
        println!("{fault:?} is found by seed {text:?}");
    }
    let missing: Vec<_> = found.iter().filter(|(_, found)| found.is_none()).map(|(fault, _)| fault).collect();
    assert!(missing.is_empty(), "not found: {missing:?}");
}

/// Runs the seed of the environment variable `SEED` and prints its trace.
#[test]
#[ignore = "for one seed"]
fn repeat() {
    let seed = variable("SEED").unwrap_or(1);
    let fault = variable("FAULT").map(|number| FAULTS[usize::try_from(number).unwrap()]);
    let outcome = simulate(seed, fault.map_or_else(Faults::default, Faults::only));
    let (errors, (lines, _), rested) = (&outcome.errors, &outcome.trace, outcome.rested);
    panic!("{lines:#?}\n{} events, at rest after {rested} ms: {errors:#?}", outcome.events);
}
