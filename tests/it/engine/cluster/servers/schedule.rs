//! Disturbances of a simulated cluster: kills, stops, and faults of links.

use super::{
    super::{
        link::LinkFaults,
        lockstep::{Network, Time},
    },
    SERVERS,
};

/// Time in which disturbances begin.
const LAST_BEGIN: Time = 52_000;

/// Shortest disturbance after which others may declare a replica dead, because it has missed three renewals, which are 3 s apart.
const MISSED_RENEWALS: Time = 5_900;

/// Kind of a disturbance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The process ends, and is started again later.
    Kill,
    /// The process runs nothing, and continues later.
    Stop,
    /// Nothing arrives at either end of the link.
    Cut,
    /// Requests, responses and notes are lost, delayed, or arrive late.
    Lossy,
    /// Requests, responses and notes are delayed.
    Slow,
    /// Commits get no response, and arrive late.
    LateCommits,
    /// All notes are lost.
    Deaf,
    /// All links are cut: the store is unavailable.
    Outage,
}

/// Kinds of disturbances of a run. Each has some of them, so that less frequent ones are not hidden by others.
const PROFILES: [&[Kind]; 8] = [
    &[Kind::Outage, Kind::Deaf],
    &[Kind::Kill, Kind::Deaf],
    &[Kind::Stop, Kind::Stop, Kind::Slow],
    &[Kind::LateCommits, Kind::LateCommits, Kind::Cut, Kind::Slow],
    &[Kind::Kill, Kind::Stop, Kind::Lossy],
    &[Kind::LateCommits, Kind::Kill, Kind::Deaf],
    &[Kind::Lossy, Kind::Cut, Kind::Stop, Kind::Outage],
    &[Kind::Kill, Kind::Stop, Kind::Cut, Kind::Lossy, Kind::Slow, Kind::LateCommits, Kind::Deaf, Kind::Outage],
];

/// Disturbance of a server, or of all of them.
#[derive(Clone, Debug)]
pub(super) struct Disturbance {
    pub(super) kind: Kind,
    pub(super) server: usize,
    pub(super) from: Time,
    pub(super) until: Time,
}

/// Disturbances of a run.
pub(super) struct Schedule(pub(super) Vec<Disturbance>);

impl Schedule {
    /// Returns a random schedule.
    pub(super) fn random(network: &Network) -> Self {
        let random = |end: usize| usize::try_from(network.below(u64::try_from(end).unwrap())).unwrap();
        let profile = PROFILES[random(PROFILES.len())];
        let (mut all, mut from) = (Vec::<Disturbance>::new(), 1000 + network.below(3000));
        while from < LAST_BEGIN {
            let (kind, server) = (profile[random(profile.len())], random(SERVERS));
            let time = match kind {
                Kind::Kill => 200 + network.below(9000),
                Kind::Stop if network.below(3) == 0 => 1000 + network.below(8000),
                Kind::Stop => 10_000 + network.below(10_000),
                Kind::Cut => 200 + network.below(16_000),
                Kind::Lossy | Kind::Slow | Kind::LateCommits => 4000 + network.below(10_000),
                Kind::Deaf => 5000 + network.below(12_000),
                Kind::Outage => 500 + network.below(16_000),
            };
            let is_busy = |other: &Disturbance| {
                let is_down = matches!(other.kind, Kind::Kill | Kind::Stop);
                other.until > from && (other.kind == kind || is_down || matches!(kind, Kind::Kill | Kind::Stop))
            };
            let until = (from + time).min(60_000);
            if !all.iter().any(|other| other.server == server && is_busy(other)) {
                all.push(Disturbance { kind, server, from, until });
            }
            from += 300 + network.below(6000);
        }
        Self(all)
    }

    /// Returns the disturbances at a time.
    fn active(&self, now: Time) -> impl Iterator<Item = &Disturbance> {
        self.0.iter().filter(move |disturbance| disturbance.from <= now && now < disturbance.until)
    }

    /// Returns the faults of the link of a server.
    pub(super) fn faults(&self, server: usize, now: Time) -> LinkFaults {
        let mut faults = LinkFaults::NONE;
        for disturbance in self.active(now).filter(|disturbance| disturbance.server == server) {
            match disturbance.kind {
                Kind::Lossy => {
                    faults = LinkFaults {
                        max_delay: faults.max_delay.max(40),
                        lost_requests: 80,
                        lost_replies: 100,
                        late_requests: 50,
                        lost_notes: faults.lost_notes.max(300),
                        ..faults
                    }
                }
                Kind::Slow => faults.max_delay = 400,
                Kind::LateCommits => faults.late_commits = 1000,
                Kind::Deaf => faults.lost_notes = 1000,
                Kind::Kill | Kind::Stop | Kind::Cut | Kind::Outage => {}
            }
        }
        faults
    }

    /// Returns the time until which the link of a server is cut. Zero if it is not.
    pub(super) fn cut_until(&self, server: usize, now: Time) -> Time {
        let cuts = self.active(now).filter(|disturbance| {
            disturbance.kind == Kind::Outage || disturbance.kind == Kind::Cut && disturbance.server == server
        });
        cuts.map(|disturbance| disturbance.until).max().unwrap_or(0)
    }

    /// Returns the next time after `now` at which something changes.
    pub(super) fn next(&self, now: Time) -> Option<Time> {
        self.0.iter().flat_map(|disturbance| [disturbance.from, disturbance.until]).filter(|time| *time > now).min()
    }

    /// Returns whether a server was undisturbed from a time on. It may have lost notes.
    pub(super) fn is_calm(&self, server: usize, from: Time, now: Time) -> bool {
        self.0.iter().all(|disturbance| {
            let concerns =
                disturbance.kind == Kind::Outage || disturbance.server == server && disturbance.kind != Kind::Deaf;
            !concerns || disturbance.until <= from || disturbance.from > now
        })
    }

    /// Returns whether others may have taken over the tasks of a server between two times: it was killed, or could not renew its
    /// lease although others could.
    pub(super) fn excuses(&self, server: usize, from: Time, until: Time) -> bool {
        let mut missed = 0;
        for disturbance in self.0.iter().filter(|disturbance| disturbance.server == server) {
            let (begin, end) = (disturbance.from, disturbance.until);
            match disturbance.kind {
                Kind::Kill if from <= begin && begin <= until => return true,
                Kind::Stop | Kind::Cut | Kind::Lossy => {
                    missed += end.min(until).saturating_sub(begin.max(from.saturating_sub(10_000)));
                }
                Kind::Kill | Kind::Slow | Kind::LateCommits | Kind::Deaf | Kind::Outage => {}
            }
        }
        missed >= MISSED_RENEWALS
    }
}
