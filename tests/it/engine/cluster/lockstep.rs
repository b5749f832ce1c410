//! Processes of a simulated cluster: single-threaded runtimes with paused clocks, which run in one virtual time.
//!
//! Tokio does not tell when the next timer of a runtime is due, and a clock that has advanced to it can't be set back. So the
//! processes run one after the other, in a seeded order, up to the next event of the [`Network`], but at most [`MAX_WINDOW`] at a
//! time. A process that sends something stops at once. Events of the network happen at their times, in a seeded order; the clock
//! of a process that has run before may be ahead of them by at most the window, as the clocks of machines are.

use std::{
    collections::{BTreeMap, VecDeque},
    future::Future,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::{Builder, Runtime},
    sync::Notify,
    task::JoinHandle,
    time::{Instant, sleep_until},
};

/// Milliseconds since the start of the simulation.
pub(crate) type Time = u64;

/// Maximum time for which a process runs without regard to the others.
const MAX_WINDOW: Time = 20;

/// Number of lines of the trace that are kept.
const MAX_TRACE: usize = 50_000;

/// Event of the network.
type Event = Box<dyn FnOnce() + Send>;

/// Virtual time, the events that are due, random numbers, and the trace of what has happened.
pub(crate) struct Network(Mutex<State>);

struct State {
    now: Time,
    /// By time, in a random order at the same time. The last number makes the keys unique.
    events: BTreeMap<(Time, u64, u64), Event>,
    added: u64,
    random: u64,
    trace: VecDeque<String>,
    hash: DefaultHasher,
}

impl State {
    /// Returns a random number below `end` (`SplitMix64`).
    fn below(&mut self, end: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }
}

impl Network {
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        let (events, trace, hash) = (BTreeMap::new(), VecDeque::new(), DefaultHasher::new());
        Arc::new(Self(Mutex::new(State { now: 0, events, added: 0, random: seed, trace, hash })))
    }

    pub(crate) fn now(&self) -> Time {
        self.0.lock().now
    }

    /// Returns a random number below `end`.
    pub(crate) fn below(&self, end: u64) -> u64 {
        self.0.lock().below(end)
    }

    /// Adds an event, which happens later than now.
    pub(crate) fn at(&self, time: Time, event: impl FnOnce() + Send + 'static) {
        let mut state = self.0.lock();
        state.added += 1;
        let key = (time.max(state.now + 1), state.below(u64::MAX), state.added);
        state.events.insert(key, Box::new(event));
    }

    /// Adds a line to the trace.
    pub(crate) fn note(&self, line: std::fmt::Arguments<'_>) {
        let mut state = self.0.lock();
        let line = format!("{} {line}", state.now);
        line.hash(&mut state.hash);
        if state.trace.len() == MAX_TRACE {
            state.trace.pop_front();
        }
        state.trace.push_back(line);
    }

    /// Returns the last lines of the trace, and a digest of all of them.
    pub(crate) fn trace(&self) -> (Vec<String>, u64) {
        let state = self.0.lock();
        (state.trace.iter().cloned().collect(), state.hash.finish())
    }

    fn next_event(&self) -> Time {
        self.0.lock().events.first_key_value().map_or(Time::MAX, |((time, ..), _)| *time)
    }

    /// Lets the events up to a time happen.
    fn advance(&self, until: Time) {
        while self.next_event() <= until {
            let event = {
                let mut state = self.0.lock();
                let Some(((time, ..), event)) = state.events.pop_first() else { break };
                state.now = time;
                event
            };
            event();
        }
        self.0.lock().now = until;
    }
}

/// Clock of a process, which the process reads.
#[derive(Clone)]
pub(crate) struct LocalClock {
    start: Instant,
    started: Time,
    /// Notified when the process sends something.
    sent: Arc<Notify>,
}

impl LocalClock {
    pub(crate) fn now(&self) -> Time {
        self.started + u64::try_from(self.start.elapsed().as_millis()).unwrap_or(Time::MAX)
    }

    /// Interrupts the process, because it has added an event.
    pub(crate) fn interrupt(&self) {
        self.sent.notify_one();
    }
}

struct Process {
    runtime: Runtime,
    clock: LocalClock,
    is_stopped: bool,
}

impl Process {
    fn start(now: Time) -> Self {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let start = runtime.block_on(async { Instant::now() });
        Self { runtime, clock: LocalClock { start, started: now, sent: Arc::default() }, is_stopped: false }
    }

    fn now(&self) -> Time {
        let _context = self.runtime.enter();
        self.clock.now()
    }

    /// Runs until a time, or until the process sends something.
    fn run(&self, until: Time) {
        let end = self.clock.start + Duration::from_millis(until - self.clock.started);
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                () = self.clock.sent.notified() => {}
                () = sleep_until(end) => {}
            }
        });
    }
}

/// Processes of a cluster by number. All run in the calling thread.
pub(crate) struct Processes {
    network: Arc<Network>,
    processes: Vec<Option<Process>>,
}

impl Processes {
    pub(crate) fn start(network: &Arc<Network>, count: usize) -> Self {
        let processes = (0..count).map(|_| Some(Process::start(network.now()))).collect();
        Self { network: Arc::clone(network), processes }
    }

    fn process(&mut self, number: usize) -> &mut Process {
        self.processes[number].as_mut().expect("the process was killed")
    }

    pub(crate) fn clock(&mut self, number: usize) -> LocalClock {
        self.process(number).clock.clone()
    }

    /// Spawns a task in a process.
    pub(crate) fn spawn<T: Send + 'static>(
        &mut self,
        number: usize,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.process(number).runtime.spawn(task)
    }

    /// Ends a process as SIGKILL does: drops everything that it runs. Starts it again, with nothing in it.
    pub(crate) fn kill(&mut self, number: usize) {
        self.network.note(format_args!("process {number} killed"));
        self.processes[number] = None;
        self.processes[number] = Some(Process::start(self.network.now()));
    }

    /// Stops a process as SIGSTOP does.
    pub(crate) fn stop(&mut self, number: usize) {
        self.network.note(format_args!("process {number} stopped"));
        self.process(number).is_stopped = true;
    }

    /// Continues a process as SIGCONT does. All timers that were due meanwhile are due at once.
    pub(crate) fn resume(&mut self, number: usize) {
        let now = self.network.now();
        self.network.note(format_args!("process {number} continues"));
        let process = self.process(number);
        process.is_stopped = false;
        let missed = Duration::from_millis(now.saturating_sub(process.now()));
        process.runtime.block_on(tokio::time::advance(missed));
    }

    /// Runs the processes and the events of the network until a time.
    pub(crate) fn run_until(&mut self, time: Time) {
        while self.network.now() < time {
            let now = self.network.now();
            let mut end = time.min(now + MAX_WINDOW).min(self.network.next_event());
            let mut waiting: Vec<&Process> =
                self.processes.iter().flatten().filter(|process| !process.is_stopped).collect();
            while !waiting.is_empty() {
                let next = self.network.below(u64::try_from(waiting.len()).unwrap());
                let process = waiting.swap_remove(usize::try_from(next).unwrap());
                if process.now() < end {
                    process.run(end);
                }
                end = end.min(self.network.next_event());
            }
            self.network.advance(end);
        }
    }

    /// Runs until a task has ended. Returns its output.
    ///
    /// # Panics
    /// The task has not ended by this time, or has panicked.
    pub(crate) fn run_until_done<T>(&mut self, mut task: JoinHandle<T>, latest: Time) -> T {
        use futures::FutureExt as _;
        while !task.is_finished() {
            let now = self.network.now();
            assert!(now < latest, "the task has not ended after {now} ms: {:#?}", self.network.trace().0);
            self.run_until(latest.min(now + 10 * MAX_WINDOW));
        }
        (&mut task).now_or_never().unwrap().unwrap()
    }
}
