//! Dependencies of an agent, such as an upstream agent or a model: the state of each, from the results of its calls; a circuit breaker;
//! and probes while the dependency is idle or down.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use futures_util::future::BoxFuture;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until, timeout, timeout_at},
};
use url::Url;

use crate::base::{
    clock::after,
    metric,
    retry::{Backoff, jittered},
    sources::Rng,
    trace::{Span, SpanKind, TraceScope},
};

/// Number of connect failures in a row that open the breaker, and the minimum time between the first and the last of them.
const CONNECT_FAILURES: (u32, Duration) = (3, Duration::from_secs(1));

/// Time in which there were only failures, after which the breaker opens.
const FAILING: Duration = Duration::from_secs(10);

/// Time within which failures count as one: those of concurrent turns have the same reason.
const MOMENT: Duration = Duration::from_millis(100);

/// Delays between the probes of a dependency that is down.
const PROBES: Backoff = Backoff { first: Duration::from_secs(1), longest: MAX_WAIT };

/// Maximum duration of a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Minimum interval between two log lines that a dependency is down.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum time that accepted work waits for a dependency that can't be reached, and maximum delay between two probes.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(30);

/// Result of a call to a dependency, or of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutboundResult {
    /// The dependency has answered, also with a failed task or the error of a tool.
    Ok,
    /// There is no connection, or no process.
    Connect,
    /// The dependency did not answer in time.
    Timeout,
    /// HTTP status that is no success.
    Status(u16),
    /// The response is none of the protocol.
    Protocol,
    /// The dependency asks to wait for this long (429).
    RateLimited(Duration),
}

impl OutboundResult {
    /// Returns the result of a response with an HTTP status, and the time to wait that it asks for.
    pub(crate) fn of_status(status: u16, retry_after: Option<Duration>) -> Self {
        match status {
            200..=399 => Self::Ok,
            429 => Self::RateLimited(retry_after.unwrap_or_default()),
            _ => Self::Status(status),
        }
    }

    /// Label in metrics and logs.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::Status(500..) => "status_5xx",
            Self::Status(_) | Self::RateLimited(_) => "status_4xx",
            Self::Protocol => "protocol",
        }
    }

    /// Returns true if the dependency can't do its work. One that rejects a call can.
    fn is_failure(self) -> bool {
        matches!(self, Self::Connect | Self::Timeout | Self::Protocol | Self::Status(502..=504))
    }
}

/// Availability of a dependency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Availability {
    /// Not used yet.
    #[default]
    Unknown,
    /// The last call or probe got an answer.
    Up,
    /// The last call or probe failed.
    Down,
}

/// State of a circuit breaker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Breaker {
    /// Work is accepted.
    #[default]
    Closed,
    /// New work is refused until a probe succeeds.
    Open,
    /// A probe has succeeded: the next call closes the breaker, or opens it again.
    HalfOpen,
}

/// Function that probes a dependency, without the credentials of callers.
type Probe = Box<dyn Fn() -> BoxFuture<'static, OutboundResult> + Send + Sync>;

/// Something that an agent needs for its turns. Clones share their state.
#[derive(Clone)]
pub struct Dependency(Arc<Shared>);

struct Shared {
    peer: Box<str>,
    /// Noun for people: `the upstream agent`.
    subject: Box<str>,
    /// Host and port, if the dependency has a URL.
    address: Option<Box<str>>,
    /// Name of the agent, if the server has several. Set when the probes start.
    agent: OnceLock<Option<Arc<str>>>,
    probe: Option<Probe>,
    /// The probe only connects: it proves nothing after failures of another kind.
    only_connects: bool,
    /// State. Changes of availability and breaker wake those that wait for them.
    state: watch::Sender<DependencyState>,
}

defaults! {
    /// State of a dependency at one time.
    #[derive(Clone, Debug)]
    pub(crate) struct DependencyState {
        availability: Availability,
        breaker: Breaker,
        /// Time of the last change between up and down.
        pub(crate) since: Instant = Instant::now(),
        pub(crate) last_success: Option<Instant>,
        /// Number of failures since the last success, the time of the first one, and the last one.
        pub(crate) failures: u64,
        failing_since: Option<Instant>,
        pub(crate) last_error: Option<(OutboundResult, Instant)>,
        /// Connect failures in a row, those of a moment as one: their number, the first and the last one counted.
        connects: Option<(u32, Instant, Instant)>,
        /// Moving average of the time until an answer.
        pub(crate) latency: Option<Duration>,
        limited_until: Option<Instant>,
        calls: usize,
        /// End of the last call or probe.
        active_at: Instant = Instant::now(),
        /// Failed probes in a row, and the time of the next one.
        probes: u32,
        probe_at: Option<Instant>,
        /// New work does not need the dependency.
        is_optional: bool,
        /// Time of the last log line that the dependency is down, and whether the current failure has one.
        logged_at: Option<Instant>,
        is_logged: bool,
    }
}

debug_fields!(Dependency { peer: 0.peer, state: 0.state });

impl Dependency {
    /// Creates a dependency. `peer` is its name in metrics, and `subject` a noun for people, such as `the upstream agent`.
    pub(crate) fn new(peer: impl Into<Box<str>>, subject: impl Into<Box<str>>) -> Self {
        let (peer, subject, agent) = (peer.into(), subject.into(), OnceLock::new());
        Self(Arc::new(Shared {
            peer,
            subject,
            address: None,
            agent,
            probe: None,
            only_connects: false,
            state: watch::Sender::default(),
        }))
    }

    /// Sets the probe. `only_connects`: it does not send a request. Has no effect after the first clone.
    pub(crate) fn with_probe<F: Future<Output = OutboundResult> + Send + 'static>(
        mut self,
        only_connects: bool,
        probe: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            let probe: Probe = Box::new(move || Box::pin(probe()));
            (shared.probe, shared.only_connects) = (Some(probe), only_connects);
        }
        self
    }

    /// Sets the address to the host and the port of a URL. Has no effect after the first clone.
    pub(crate) fn at(mut self, url: &str) -> Self {
        if let (Some(shared), Ok(url)) = (Arc::get_mut(&mut self.0), Url::parse(url)) {
            let address = url.host_str().zip(url.port_or_known_default());
            shared.address = address.map(|(host, port)| format!("{host}:{port}").into());
        }
        self
    }

    /// Host and port, if the dependency has a URL.
    pub(crate) fn address(&self) -> Option<&str> {
        self.0.address.as_deref()
    }

    /// Name in metrics.
    pub(crate) fn peer(&self) -> &str {
        &self.0.peer
    }

    /// Noun for people.
    pub(crate) fn subject(&self) -> &str {
        &self.0.subject
    }

    /// Name of the agent, in a server with several.
    pub(crate) fn agent(&self) -> Option<&Arc<str>> {
        self.0.agent.get()?.as_ref()
    }

    /// Returns the state.
    pub(crate) fn state(&self) -> DependencyState {
        self.0.state.borrow().clone()
    }

    /// Changes the state, and tells those that wait for changes.
    fn update(&self, change: impl FnOnce(&mut DependencyState)) {
        self.0.state.send_if_modified(|state| {
            let before = (state.availability, state.breaker);
            change(state);
            state.active_at = Instant::now();
            before != (state.availability, state.breaker)
        });
    }

    /// Begins a call.
    pub(crate) fn begin(&self) -> OutboundCall {
        self.update(|state| state.calls += 1);
        OutboundCall {
            dependency: self.clone(),
            started: Instant::now(),
            is_answered: false,
            result: CANCELED,
            retries: 0,
            span: Span::default(),
        }
    }

    /// Sets whether new work is accepted although the dependency is down.
    pub(crate) fn set_optional(&self, is_optional: bool) {
        self.update(|state| state.is_optional = is_optional);
    }

    /// Returns the time after which new work may be sent again, if it is refused now.
    pub(crate) fn refusal(&self) -> Option<Duration> {
        let state = self.0.state.borrow();
        let next = state.probe_at.map_or(PROBES.first, |at| at.saturating_duration_since(Instant::now()));
        (state.is_open() && !state.is_optional).then(|| next.clamp(PROBES.first, PROBES.longest))
    }

    /// Records the gauges.
    pub(crate) fn record(&self) {
        let (state, agent, peer) = (self.state(), self.agent(), self.peer());
        metric::DEPENDENCY_UP.set(agent, &[peer], u8::from(!state.is_down()));
        let last_success = state.last_success.and_then(|at| SystemTime::now().checked_sub(at.elapsed()));
        if let Some(since) = last_success.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok()) {
            metric::DEPENDENCY_SUCCESS.set(agent, &[peer], since);
        }
        for name in ["closed", "open", "half_open"] {
            metric::DEPENDENCY_BREAKER.set(agent, &[name, peer], u8::from(name == state.breaker()));
        }
    }

    /// Waits until the breaker is not open, at most until this time. Returns false if it is still open.
    pub(crate) async fn wait_while_open(&self, until: Instant) -> bool {
        let mut states = self.0.state.subscribe();
        // The sender is not dropped before.
        timeout_at(until, states.wait_for(|state| !state.is_open())).await.is_ok()
    }

    /// Waits until the dependency is up.
    pub(crate) async fn wait_until_up(&self) {
        // The sender is not dropped before.
        drop(self.0.state.subscribe().wait_for(|state| state.availability == Availability::Up).await);
    }

    /// Starts the probes: while there were no calls for `interval`, unless that is zero, and while the dependency is down. They end
    /// when all clones are dropped. `agent` is the name of the agent, in a server with several.
    pub(crate) fn start_probes(&self, agent: Option<Arc<str>>, interval: Duration) {
        if self.0.agent.set(agent).is_err() || self.0.probe.is_none() {
            return;
        }
        let shared = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            let mut random = Rng::default().next_u64();
            while let Some(dependency) = shared.upgrade().map(Self) {
                let (mut states, due) = (dependency.0.state.subscribe(), dependency.next_probe(interval, random));
                if due <= Instant::now() {
                    dependency.probe().await;
                    random = Rng::default().next_u64();
                    continue;
                }
                drop(dependency);
                // Ends also when the dependency is dropped. There may have been calls then.
                _ = timeout_at(due, states.changed()).await;
            }
        });
    }

    /// Returns the time of the next probe.
    fn next_probe(&self, interval: Duration, random: u64) -> Instant {
        let state = self.0.state.borrow();
        if let Some(at) = state.probe_at {
            return at;
        }
        let now = Instant::now();
        if interval.is_zero() {
            return after(now, Duration::MAX);
        }
        // Between 80 % and 120 %.
        let idle = interval * 2 / 5 + jittered(interval * 4 / 5, random);
        let idle_since = if state.calls > 0 { now } else { state.active_at };
        after(idle_since, idle)
    }

    async fn probe(&self) {
        let Some(probe) = &self.0.probe else { return };
        let result = timeout(PROBE_TIMEOUT, probe()).await.unwrap_or(OutboundResult::Timeout);
        // An answer is enough: a probe may need credentials that it does not have, or a method that the server lacks (501).
        let is_failure = result.is_failure() || (!self.0.only_connects && result == OutboundResult::Status(500));
        self.update(|state| {
            let before = state.breaker;
            let proves_nothing = self.0.only_connects
                && state.is_down()
                && state.last_error.is_some_and(|(error, _)| error != OutboundResult::Connect);
            if is_failure {
                state.probes = state.probes.saturating_add(1);
                self.failed(state, result, &"a probe failed");
                if before != Breaker::Closed {
                    state.breaker = Breaker::Open;
                }
                return;
            }
            if proves_nothing {
                state.schedule_probe();
            } else {
                self.succeeded(state);
            }
            if before == Breaker::Open {
                // Failures count anew, so that a caller whose calls fail does not keep the calls of others away.
                (state.breaker, state.failing_since, state.connects) = (Breaker::HalfOpen, None, None);
            }
        });
    }

    /// Records an answer.
    fn succeeded(&self, state: &mut DependencyState) {
        let now = Instant::now();
        state.last_success = Some(now);
        if state.is_logged {
            let (agent, peer, subject) = (self.agent().map(|agent| &**agent), self.peer(), self.subject());
            let (address, down_s) = (self.address(), state.since.elapsed().as_secs());
            tracing::info!(agent, peer, address, down_s, failures = state.failures, "dependency up: {subject}");
        }
        if state.availability != Availability::Up {
            (state.availability, state.since) = (Availability::Up, now);
        }
        (state.failures, state.failing_since, state.connects) = (0, None, None);
        (state.probes, state.probe_at, state.is_logged) = (0, None, false);
        state.breaker = Breaker::Closed;
    }

    /// Records a failure.
    fn failed(&self, state: &mut DependencyState, result: OutboundResult, cause: &dyn fmt::Display) {
        let now = Instant::now();
        state.failures += 1;
        state.last_error = Some((result, now));
        let failing_since = *state.failing_since.get_or_insert(now);
        state.connects = match state.connects {
            _ if result != OutboundResult::Connect => None,
            None => Some((1, now, now)),
            Some((count, first, last)) if now.saturating_duration_since(last) < MOMENT => Some((count, first, last)),
            Some((count, first, _)) => Some((count.saturating_add(1), first, now)),
        };
        if !state.is_down() {
            (state.availability, state.since) = (Availability::Down, now);
            (state.probes, state.probe_at) = (0, None);
        }
        state.schedule_probe();
        let (count, time) = CONNECT_FAILURES;
        let is_unreachable = state
            .connects
            .is_some_and(|(connects, first, _)| connects >= count && now.saturating_duration_since(first) >= time);
        let fails = now.saturating_duration_since(failing_since) >= FAILING
            || state.breaker == Breaker::HalfOpen && result == OutboundResult::Connect;
        // Only a probe closes it again.
        if (is_unreachable || fails) && self.0.probe.is_some() && self.0.agent.get().is_some() {
            state.breaker = Breaker::Open;
        }
        if !state.is_logged && state.logged_at.is_none_or(|at| now.saturating_duration_since(at) >= LOG_INTERVAL) {
            (state.logged_at, state.is_logged) = (Some(now), true);
            let (agent, peer, subject) = (self.agent().map(|agent| &**agent), self.peer(), self.subject());
            let (address, reason) = (self.address(), result.label());
            tracing::warn!(agent, peer, address, reason, error.cause = %cause, "dependency down: {subject}");
        }
    }
}

impl DependencyState {
    /// `up`, `down`, `rate_limited` or `unknown`.
    pub(crate) fn name(&self) -> &'static str {
        match self.availability {
            Availability::Unknown => "unknown",
            Availability::Up if self.limited_for().is_some() => "rate_limited",
            Availability::Up => "up",
            Availability::Down => "down",
        }
    }

    /// `closed`, `open` or `half_open`. `closed` also if a probe has found the dependency up, and no call has tried it yet.
    pub(crate) fn breaker(&self) -> &'static str {
        match self.breaker {
            Breaker::Open => "open",
            Breaker::HalfOpen if self.is_down() => "half_open",
            Breaker::Closed | Breaker::HalfOpen => "closed",
        }
    }

    /// Time for which the dependency asks not to be called.
    pub(crate) fn limited_for(&self) -> Option<Duration> {
        let left = self.limited_until?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Returns true while the breaker is open.
    pub(crate) fn is_open(&self) -> bool {
        self.breaker == Breaker::Open
    }

    /// Returns true if the last call or probe failed.
    pub(crate) fn is_down(&self) -> bool {
        self.availability == Availability::Down
    }

    /// Returns true if new work needs the dependency, and it has been down for at least this long.
    pub(crate) fn is_down_for(&self, time: Duration) -> bool {
        !self.is_optional && self.is_down() && self.since.elapsed() >= time
    }

    /// Sets the time of the next probe, unless it is set and not over yet.
    fn schedule_probe(&mut self) {
        let now = Instant::now();
        if self.probe_at.is_none_or(|at| at <= now) {
            self.probe_at = Some(now + PROBES.delay(self.probes, Rng::default().next_u64()));
        }
    }
}

/// Result of a call without an end.
const CANCELED: &str = "canceled";

/// Call of a dependency. Without an end, it counts as canceled.
#[must_use = "a call has an end"]
#[derive(Debug)]
pub struct OutboundCall {
    dependency: Dependency,
    started: Instant,
    /// The dependency has begun to answer. How the answer ends says nothing about its availability.
    is_answered: bool,
    /// Label of the result.
    result: &'static str,
    retries: u64,
    /// Span below that of the turn, if the call has one.
    pub(crate) span: Span,
}

impl OutboundCall {
    /// Begins a span with this name, below that of the turn that makes the call.
    pub(crate) fn traced(mut self, name: String) -> Self {
        self.span = TraceScope::current().start(SpanKind::Client, name);
        if self.retries > 0 {
            self.span.set("http.request.resend_count", self.retries);
        }
        self
    }

    /// Returns the time since the beginning.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Marks a call that repeats a failed one.
    pub(crate) fn repeating(mut self, is_retry: bool) -> Self {
        self.retries = is_retry.into();
        self
    }

    /// Records that the dependency has begun to answer, such as with the head of a response.
    pub(crate) fn answered(&mut self) {
        if !std::mem::replace(&mut self.is_answered, true) {
            let latency = self.started.elapsed();
            self.dependency.update(|state| {
                state.latency = Some(state.latency.map_or(latency, |average| (average * 4 + latency) / 5));
                self.dependency.succeeded(state);
            });
        }
    }

    /// Ends the call.
    pub(crate) fn end(self, result: OutboundResult) {
        self.fail(result, &result.label());
    }

    /// Ends the call with the cause of its result for the log.
    pub(crate) fn fail(mut self, result: OutboundResult, cause: &dyn fmt::Display) {
        if !result.is_failure() {
            self.answered();
        } else if !self.is_answered {
            self.dependency.update(|state| self.dependency.failed(state, result, cause));
        }
        match result {
            OutboundResult::RateLimited(time) => {
                self.dependency.update(|state| state.limited_until = Some(after(Instant::now(), time)));
            }
            OutboundResult::Status(status) => self.span.set("http.response.status_code", status),
            OutboundResult::Ok | OutboundResult::Connect | OutboundResult::Timeout | OutboundResult::Protocol => {}
        }
        if result != OutboundResult::Ok {
            self.span.fail(result.label());
        }
        self.result = result.label();
    }
}

impl Drop for OutboundCall {
    fn drop(&mut self) {
        let dependency = &self.dependency;
        dependency.update(|state| state.calls = state.calls.saturating_sub(1));
        metric::outbound(dependency.agent(), dependency.peer(), self.result, self.elapsed(), self.retries);
        if self.result == CANCELED {
            self.span.set("error.type", CANCELED);
        }
    }
}

/// Attempts of the calls of a turn, which a client reports and repeats.
#[derive(Debug)]
pub struct Attempts {
    dependency: Dependency,
    /// The call is a probe: its only attempt is not one of the turns.
    pub(crate) is_probe: bool,
    has_failed: AtomicBool,
    waiting: Notify,
}

impl Attempts {
    /// Maximum delay between two attempts.
    const BACKOFF: Backoff = Backoff { first: MOMENT, longest: Duration::from_secs(2) };

    /// Creates the attempts of a turn.
    pub(crate) fn new(dependency: Dependency, is_probe: bool) -> Arc<Self> {
        Arc::new(Self { dependency, is_probe, has_failed: AtomicBool::new(false), waiting: Notify::new() })
    }

    /// Begins an attempt. `None` if it is not counted.
    pub(crate) fn begin(&self) -> Option<OutboundCall> {
        let is_retry = self.has_failed.load(Ordering::Relaxed);
        (!self.is_probe).then(|| self.dependency.begin().repeating(is_retry))
    }

    /// Ends an attempt.
    pub(crate) fn end(&self, call: OutboundCall, result: OutboundResult, cause: &dyn fmt::Display) {
        self.has_failed.store(result.is_failure(), Ordering::Relaxed);
        call.fail(result, cause);
    }

    /// Waits after an attempt that found no connection: with backoff, and while the breaker is open, until a probe succeeds. Returns
    /// false if the dependency can't be reached until then.
    pub(crate) async fn wait(&self, retries: u32, until: Instant) -> bool {
        self.waiting.notify_one();
        let delay = Self::BACKOFF.delay(retries, Rng::default().next_u64());
        sleep_until(until.min(Instant::now() + delay)).await;
        Instant::now() < until && self.dependency.wait_while_open(until).await
    }

    /// Waits until a call waits to be repeated.
    pub(crate) async fn waiting(&self) {
        self.waiting.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use tokio::time::advance;

    use super::*;

    /// Lets time pass.
    #[expect(clippy::disallowed_methods, reason = "the clock is paused")]
    async fn pass(seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    /// Dependency whose probe succeeds while the flag is set, and the number of its probes.
    fn probed(only_connects: bool, interval: Duration) -> (Dependency, Arc<AtomicBool>, Arc<AtomicUsize>) {
        let (works, probes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (current, counter) = (Arc::clone(&works), Arc::clone(&probes));
        let dependency = Dependency::new("http", "the endpoint").with_probe(only_connects, move || {
            counter.fetch_add(1, Ordering::Relaxed);
            let works = current.load(Ordering::Relaxed);
            async move { if works { OutboundResult::Ok } else { OutboundResult::Connect } }
        });
        dependency.start_probes(None, interval);
        (dependency, works, probes)
    }

    fn end(dependency: &Dependency, result: OutboundResult) {
        dependency.begin().end(result);
    }

    fn shown(dependency: &Dependency) -> (&'static str, &'static str) {
        let state = dependency.state();
        (state.name(), state.breaker())
    }

    #[tokio::test(start_paused = true)]
    async fn breaker_opens_after_connect_failures_of_a_second_and_closes_by_a_probe() {
        let (dependency, works, _) = probed(false, Duration::ZERO);
        assert_eq!(shown(&dependency), ("unknown", "closed"));
        // Fifty turns that fail at once are one failure.
        for delay in [0, 300, 300] {
            advance(Duration::from_millis(delay)).await;
            (0..50).for_each(|_| end(&dependency, OutboundResult::Connect));
            assert_eq!(shown(&dependency), ("down", "closed"));
        }
        pass(3).await;
        assert_eq!(shown(&dependency), ("down", "open"), "a probe has failed too");
        assert!(dependency.refusal().is_some_and(|after| (1..=30).contains(&after.as_secs())));
        assert!(!dependency.wait_while_open(Instant::now() + Duration::from_mins(1)).await);
        // A late failure of a call, and a canceled one, change nothing.
        drop(dependency.begin());
        end(&dependency, OutboundResult::Connect);
        works.store(true, Ordering::Relaxed);
        let restarted = Instant::now();
        assert!(dependency.wait_while_open(Instant::now() + Duration::from_mins(1)).await);
        assert!(restarted.elapsed() <= Duration::from_secs(30), "{:?}", restarted.elapsed());
        assert_eq!((shown(&dependency), dependency.refusal()), (("up", "closed"), None));
        end(&dependency, OutboundResult::Status(404));
        assert_eq!(shown(&dependency), ("up", "closed"));
    }

    #[tokio::test(start_paused = true)]
    async fn dependency_that_answers_some_calls_is_not_cut_off() {
        let (dependency, works, _) = probed(false, Duration::ZERO);
        works.store(true, Ordering::Relaxed);
        for round in 0..200 {
            advance(Duration::from_millis(200)).await;
            let results =
                [OutboundResult::Connect, OutboundResult::Timeout, OutboundResult::Status(503), OutboundResult::Ok];
            end(&dependency, results[round % 4]);
            assert_eq!(dependency.state().breaker(), "closed", "{round}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failures_only_open_the_breaker_and_a_mere_connection_proves_nothing() {
        let (dependency, works, _) = probed(true, Duration::ZERO);
        works.store(true, Ordering::Relaxed);
        for _ in 0..10 {
            end(&dependency, OutboundResult::Status(503));
            assert_eq!(dependency.state().breaker(), "closed");
            advance(Duration::from_secs(1)).await;
        }
        end(&dependency, OutboundResult::Status(503));
        assert_eq!(dependency.state().breaker(), "open");
        assert!(dependency.wait_while_open(Instant::now() + MAX_WAIT).await);
        assert_eq!(shown(&dependency), ("down", "half_open"));
        // The calls of one caller that fail keep those of others away for seconds only.
        for _ in 0..9 {
            end(&dependency, OutboundResult::Timeout);
            assert_eq!(shown(&dependency), ("down", "half_open"));
            advance(Duration::from_secs(1)).await;
        }
        advance(Duration::from_secs(1)).await;
        end(&dependency, OutboundResult::Timeout);
        assert_eq!(shown(&dependency), ("down", "open"));
        assert!(dependency.wait_while_open(Instant::now() + Duration::from_secs(3)).await);
        end(&dependency, OutboundResult::Connect);
        assert_eq!(shown(&dependency), ("down", "open"));
        assert!(dependency.wait_while_open(Instant::now() + MAX_WAIT).await);
        end(&dependency, OutboundResult::Ok);
        assert_eq!(shown(&dependency), ("up", "closed"));
    }

    #[tokio::test(start_paused = true)]
    async fn probes_run_only_while_idle_or_down_and_end_with_the_dependency() {
        let (dependency, works, probes) = probed(false, Duration::from_secs(30));
        works.store(true, Ordering::Relaxed);
        let count = || probes.load(Ordering::Relaxed);
        for _ in 0..100 {
            pass(10).await;
            end(&dependency, OutboundResult::Ok);
        }
        assert_eq!(count(), 0, "there were calls");
        let call = dependency.begin();
        pass(600).await;
        assert_eq!(count(), 0, "a call is in progress");
        drop(call);
        pass(600).await;
        assert!((16..=25).contains(&count()), "{}", count());
        works.store(false, Ordering::Relaxed);
        pass(45).await;
        assert_eq!(shown(&dependency), ("down", "open"), "found without a call");
        drop(dependency);
        pass(1).await;
        let before = count();
        pass(600).await;
        assert_eq!(count(), before);
    }

    #[tokio::test(start_paused = true)]
    async fn server_without_the_method_of_a_probe_is_up() {
        for (status, expected) in [(200, "up"), (401, "up"), (404, "up"), (501, "up"), (500, "down"), (503, "down")] {
            let dependency = Dependency::new("model", "the model endpoint")
                .with_probe(false, move || async move { OutboundResult::of_status(status, None) });
            dependency.start_probes(None, Duration::from_secs(30));
            pass(40).await;
            assert_eq!(dependency.state().name(), expected, "{status}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn optional_and_unprobed_dependencies_refuse_nothing() {
        let (dependency, ..) = probed(false, Duration::ZERO);
        let unprobed = Dependency::new("http", "the endpoint");
        dependency.set_optional(true);
        for _ in 0..10 {
            end(&dependency, OutboundResult::Connect);
            end(&unprobed, OutboundResult::Connect);
            pass(1).await;
        }
        assert_eq!((shown(&dependency), dependency.refusal()), (("down", "open"), None));
        assert_eq!(shown(&unprobed), ("down", "closed"));
        let state = unprobed.state();
        assert!(state.is_down_for(Duration::from_secs(9)) && !state.is_down_for(Duration::from_secs(11)));
    }

    #[tokio::test(start_paused = true)]
    async fn end_of_an_answer_and_a_rate_limit_are_no_outage() {
        let dependency = Dependency::new("model", "the model endpoint");
        let mut call = dependency.begin();
        call.answered();
        call.end(OutboundResult::Protocol);
        assert_eq!(dependency.state().name(), "up");
        end(&dependency, OutboundResult::of_status(429, Some(Duration::from_secs(5))));
        assert_eq!(dependency.state().name(), "rate_limited");
        advance(Duration::from_secs(5)).await;
        assert_eq!(dependency.state().name(), "up");
    }
}
