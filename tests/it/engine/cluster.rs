//! Simulation of a cluster: processes in lockstep ([`lockstep`]), each with a link to a store in memory that they share
//! ([`link`]). The tests here check the simulation itself.

pub(crate) mod link;
pub(crate) mod lockstep;
mod servers;

use std::{sync::Arc, time::Duration};

use a2a_service::{
    base::faults::{Fault, Faults},
    clock::Millis,
    pb::v1::TaskState,
    store::{
        Acquired, Commit, IdempotencyRecord, Load, Mail, MailKind, Maintenance as _, Note, Posted, Refused, Renewal,
        SharedStore as _, TaskKey, TaskStore as _,
        memory::{Cluster, Memory},
    },
};
use a2a_store_suite::writer::{TaskWriter, chunk, message, scope, status};
use futures::FutureExt as _;
use tokio::{sync::mpsc, time::timeout};

use self::{
    link::{LinkFaults, Links, SimLink},
    lockstep::{Network, Processes},
};

/// Wall clock at the start of the simulation.
const START: Millis = 1_800_000_000_000;

/// Cluster of processes with their links.
struct Simulation {
    network: Arc<Network>,
    links: Arc<Links>,
    cluster: Cluster,
    processes: Processes,
}

impl Simulation {
    fn new(seed: u64, count: usize, planted: Faults) -> Self {
        let network = Network::new(seed);
        let clock = Arc::clone(&network);
        let now = move || START + Millis::try_from(clock.now()).unwrap();
        let cluster = Cluster::with_faults(Memory::default(), now, planted);
        let processes = Processes::start(&network, count);
        Self { network, links: Arc::default(), cluster, processes }
    }

    /// Adds a replica, which a process uses through a link.
    fn link(&mut self, number: usize, faults: LinkFaults) -> SimLink {
        let clock = self.processes.clock(number);
        SimLink::new(&self.network, &self.links, number, clock, self.cluster.replica(), faults)
    }
}

const LOSSY: LinkFaults = LinkFaults {
    max_delay: 30,
    lost_requests: 100,
    lost_replies: 100,
    late_requests: 50,
    late_commits: 0,
    lost_notes: 300,
    timeout: 200,
};

/// Waits without a notification.
async fn pause(millis: u64) {
    #[expect(clippy::disallowed_methods, reason = "a poll interval of the simulation")]
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

/// Repeats a request until it has a response.
macro_rules! answered {
    ($request:expr) => {
        loop {
            if let Ok(response) = $request.await {
                break response;
            }
        }
    };
}

/// Commits a change, and repeats it until its outcome is known. Returns whether the task is at its position.
async fn commit(link: &SimLink, task: &mut TaskWriter, change: Commit) -> Result<(), Refused> {
    let mut outcomes = answered!(link.commit([change.clone()].into()));
    match outcomes.remove(0) {
        Err(refused) if refused != Refused::Stale(Some(change.position())) => Err(refused),
        Ok(_) | Err(_) => {
            task.record(change);
            Ok(())
        }
    }
}

/// Runs a task: adds its mail to the log, until there were so many.
async fn read_mail(link: SimLink, mut task: TaskWriter, mut notes: mpsc::Receiver<Note>, count: u64) -> TaskWriter {
    let begin = task.next(&link, [status(TaskState::Working, 1)]);
    commit(&link, &mut task, begin).await.unwrap();
    let mut read = 0;
    while read < count {
        drop(timeout(Duration::from_millis(500), notes.recv()).await);
        for (number, mail) in answered!(link.mail(&task.key, read)) {
            let change = task.next(&link, [message(&mail.key)]);
            let record = IdempotencyRecord { key: mail.key, hash: mail.hash, seq: change.row.seq, time: 1 };
            let change = Commit { mail_read: number, sends: vec![record], ..change };
            commit(&link, &mut task, change).await.unwrap();
            read = number;
        }
    }
    task
}

/// Posts messages one after the other, and waits for their events. Returns their sequence numbers.
async fn post_messages(link: SimLink, key: TaskKey, count: u64) -> Vec<u64> {
    let mut seqs = Vec::new();
    for n in 0..count {
        let mail = Mail { kind: MailKind::Message, key: format!("m-{n}").into(), hash: [7; 16], body: "".into() };
        loop {
            match answered!(link.post(&key, &mail)) {
                Posted::To { runner, .. } => break link.wake(Some(runner), Note::Mail(key.clone())),
                Posted::Duplicate { .. } => break,
                Posted::NoRunner => pause(20).await,
                refused @ (Posted::Ended | Posted::Full) => panic!("{refused:?}"),
            }
        }
        let seq = loop {
            match answered!(link.find_send(key.scope(), &mail.key)) {
                Some(outcome) => break outcome.seq,
                None => pause(50).await,
            }
        };
        seqs.push(seq);
    }
    seqs
}

/// Lets a process post messages to another one through bad links. Returns the trace.
fn exchange(seed: u64) -> (Vec<String>, u64) {
    const MESSAGES: u64 = 8;
    let mut simulation = Simulation::new(seed, 2, Faults::default());
    let (reader, sender) = (simulation.link(0, LOSSY), simulation.link(1, LOSSY));
    let task = TaskWriter::new(&scope("ada", ""), "t-1");
    let (key, notes) = (task.key.clone(), reader.notes());
    let read = simulation.processes.spawn(0, read_mail(reader.clone(), task, notes, MESSAGES));
    let posted = simulation.processes.spawn(1, post_messages(sender, key, MESSAGES));
    simulation.links.cut(0, 700);
    let seqs = simulation.processes.run_until_done(posted, 120_000);
    let task = simulation.processes.run_until_done(read, 120_000);
    assert_eq!(seqs, (3..3 + MESSAGES).collect::<Vec<_>>(), "each message is in the log once, in order");
    reader.set_faults(LinkFaults::NONE);
    let checked = simulation.processes.spawn(0, async move { task.check(&reader).await });
    simulation.processes.run_until_done(checked, 130_000).unwrap();
    simulation.network.trace()
}

#[test]
fn processes_exchange_messages_through_links() {
    let traces: Vec<_> = (0..20).map(|seed| (exchange(seed), exchange(seed))).collect();
    for (n, (first, second)) in traces.iter().enumerate() {
        assert_eq!(first, second, "two runs of seed {n}");
        assert!(n == 0 || first.1 != traces[n - 1].0.1, "seeds {n} and {} have the same trace", n - 1);
    }
    let all = traces.iter().flat_map(|(first, _)| &first.0);
    for fate in ["Lost", "ReplyLost", "Late", "is cut off", "loses Mail", "sends Mail"] {
        assert!(all.clone().any(|line| line.contains(fate)), "no link has had the fault {fate}");
    }
}

/// Runs a turn that adds an artifact update every 100 ms, and renews the lease. Returns the error with which another runner
/// ended that.
async fn run_turn(link: SimLink, mut task: TaskWriter) -> (Refused, Renewal) {
    loop {
        let change = task.next(&link, [chunk("a", "x", task.at.seq > 1)]);
        if let Err(refused) = commit(&link, &mut task, change).await {
            return (refused, answered!(link.renew(Load::default())));
        }
        answered!(link.renew(Load::default()));
        pause(100).await;
    }
}

/// Waits until the runner of the task is dead, and adds some updates.
async fn take_over(link: SimLink, mut task: TaskWriter) -> TaskWriter {
    let position = loop {
        pause(500).await;
        answered!(link.renew(Load::default()));
        answered!(link.bury(Duration::from_secs(5)));
        answered!(link.claim(9));
        // Also if the response of the claim was lost.
        if answered!(link.owned(None, 9)).contains(&task.key)
            && let Acquired::Owned(stored) = answered!(link.acquire(&task.key))
        {
            pause(300).await;
            break stored.position;
        }
    };
    task.log = answered!(link.events(&task.key, 0, 1000, usize::MAX));
    let payloads = task.log.iter().filter(|event| event.seq() > 1).filter_map(a2a_service::event::Event::payload);
    let mut copy = task.task.clone();
    payloads.for_each(|payload| a2a_service::task::apply(&mut copy, payload));
    (task.task, task.at) = (copy, position);
    for _ in 0..5 {
        let change = task.next(&link, [chunk("a", "y", true)]);
        commit(&link, &mut task, change).await.unwrap();
        answered!(link.renew(Load::default()));
        pause(100).await;
    }
    task
}

/// Stops the runner of a task until another replica has claimed it, and lets it continue at once. Returns what either runner got:
/// the first one a refusal, and the second one the task.
fn stop_the_runner(seed: u64, planted: Faults) -> (Option<(Refused, Renewal)>, Option<TaskWriter>) {
    let mut simulation = Simulation::new(seed, 2, planted);
    let faults = LinkFaults { late_requests: 0, ..LOSSY };
    let (one, other) = (simulation.link(0, faults), simulation.link(1, faults));
    let (task, observer) = (TaskWriter::new(&scope("ada", ""), "t-1"), simulation.cluster.replica());
    let key = task.key.clone();
    let fence = || observer.load(&key).now_or_never().unwrap().unwrap().unwrap().position.fence;
    let mut first = simulation.processes.spawn(0, run_turn(one, task.clone()));
    let mut second = simulation.processes.spawn(1, take_over(other, task));
    simulation.processes.run_until(3000);
    simulation.processes.stop(0);
    while fence() == 1 {
        let now = simulation.network.now();
        assert!(now < 20_000, "the task was not claimed");
        simulation.processes.run_until(now + 20);
    }
    simulation.processes.resume(0);
    let end = simulation.network.now() + 20_000;
    simulation.processes.run_until(end);
    let refusal = (&mut first).now_or_never().and_then(Result::ok);
    (refusal, (&mut second).now_or_never().and_then(Result::ok))
}

#[test]
fn stopped_runner_is_refused_when_it_continues() {
    for seed in 0..10 {
        let (first, second) = stop_the_runner(seed, Faults::default());
        let (refused, renewal) = first.unwrap();
        assert!(matches!(refused, Refused::Stale(Some(_))), "seed {seed}: {refused:?}");
        assert_eq!(renewal, Renewal::Lost, "seed {seed}");
        assert!(second.is_some(), "seed {seed}");
    }
}

/// With a store that compares only the sequence number, the stopped runner continues, and the new one fails.
#[cfg_attr(not(debug_assertions), ignore = "bugs are planted only with debug assertions")]
#[test]
fn stopped_runner_shows_missing_fences() {
    let found = (0..10).filter(|seed| stop_the_runner(*seed, Faults::only(Fault::CompareOnlySeq)).1.is_none());
    assert!(found.count() > 0, "no seed lets the stopped runner commit");
}

/// Killed processes lose what they run, and their requests may still arrive.
#[test]
fn killed_process_is_replaced() {
    let mut simulation = Simulation::new(1, 2, Faults::default());
    let (one, other) = (simulation.link(0, LinkFaults::NONE), simulation.link(1, LinkFaults::NONE));
    let task = TaskWriter::new(&scope("ada", ""), "t-1");
    let first = simulation.processes.spawn(0, run_turn(one, task.clone()));
    let second = simulation.processes.spawn(1, take_over(other, task));
    simulation.processes.run_until(1000);
    simulation.processes.kill(0);
    let task = simulation.processes.run_until_done(second, 30_000);
    assert!(first.is_finished(), "the process has ended");
    assert!(simulation.network.now() < 8000, "the takeover takes the lease and a poll interval");
    let again = simulation.link(0, LinkFaults::NONE);
    let read = simulation.processes.spawn(0, async move { task.check(&again).await });
    simulation.processes.run_until_done(read, 40_000).unwrap();
}
