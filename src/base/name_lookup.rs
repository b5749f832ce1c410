//! Look-ups of host names by the resolver of the system, which blocks a thread and can't be interrupted.
//!
//! Each look-up has a thread of its own, which holds a slot until it ends. A name server that does not answer therefore delays only
//! look-ups of the same kind: not the blocking tasks of the runtime, and not the end of the process.

use std::{
    collections::HashMap,
    io,
    net::{SocketAddr, ToSocketAddrs as _},
    sync::{Arc, LazyLock, Weak},
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::timeout,
};

/// Maximum number of concurrent look-ups of configured names.
const CONFIGURED: usize = 64;

/// Maximum time that a caller waits for a look-up. The look-up itself may take longer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of callers of an owner that have or wait for a slot, for each slot.
const CALLERS: usize = 16;

/// Blocking look-up of the addresses of a name, with port 0.
type Lookup = dyn Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// Result of a look-up, for all who wait for it.
type Found = Option<Result<Arc<[SocketAddr]>, Arc<io::Error>>>;

/// Look-ups of one kind, with slots in total and for each owner. Concurrent callers with the same name share a look-up.
pub(crate) struct NameLookups {
    lookup: Arc<Lookup>,
    total: Slots,
    per_owner: usize,
    /// Maximum time that a caller waits for a slot.
    slot_timeout: Duration,
    owners: Mutex<HashMap<Arc<str>, Weak<Semaphore>>>,
    running: Mutex<HashMap<Box<str>, watch::Receiver<Found>>>,
}

/// Semaphore, and the number of its permits.
type Slots = (Arc<Semaphore>, usize);

/// Slot of a look-up in total, and that of its owner.
pub(crate) type Slot = [OwnedSemaphorePermit; 2];

/// All slots are in use by look-ups that take long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Busy {
    /// Slots of all owners.
    #[error("{0} look-ups of host names are pending")]
    Total(usize),
    /// Slots of one owner.
    #[error("{0} of your look-ups of host names are pending")]
    Owner(usize),
}

impl NameLookups {
    /// Creates the look-ups by the resolver of the system, with this many slots in total and for each owner, for which callers wait
    /// at most this long.
    pub(crate) fn new(total: usize, per_owner: usize, slot_timeout: Duration) -> Arc<Self> {
        Self::with(|name| Ok((name, 0).to_socket_addrs()?.collect()), total, per_owner, slot_timeout)
    }

    fn with(
        lookup: impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
        total: usize,
        per_owner: usize,
        slot_timeout: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            lookup: Arc::new(lookup),
            total: (Arc::new(Semaphore::new(total)), total),
            per_owner,
            slot_timeout,
            owners: Mutex::default(),
            running: Mutex::default(),
        })
    }

    /// Waits a moment for a slot of an owner.
    ///
    /// # Errors
    /// All slots remain in use, or too many callers wait for them.
    pub(crate) async fn slot(&self, owner: &Arc<str>) -> Result<Slot, Busy> {
        let acquire = async |slots: Arc<Semaphore>| timeout(self.slot_timeout, slots.acquire_owned()).await.ok()?.ok();
        let of_owner = self.slots_of(owner);
        // Each permit and each waiting caller has a reference.
        if Arc::strong_count(&of_owner) > self.per_owner.saturating_mul(CALLERS) {
            return Err(Busy::Owner(self.per_owner));
        }
        // First, so that an owner with many look-ups does not wait for slots of the others.
        let owner = acquire(of_owner).await.ok_or(Busy::Owner(self.per_owner))?;
        let total = acquire(Arc::clone(&self.total.0)).await.ok_or(Busy::Total(self.total.1))?;
        Ok([total, owner])
    }

    fn slots_of(&self, owner: &Arc<str>) -> Arc<Semaphore> {
        let mut owners = self.owners.lock();
        if let Some(slots) = owners.get(owner).and_then(Weak::upgrade) {
            return slots;
        }
        // Those of owners without look-ups.
        owners.retain(|_, slots| slots.strong_count() > 0);
        let slots = Arc::new(Semaphore::new(self.per_owner));
        owners.insert(Arc::clone(owner), Arc::downgrade(&slots));
        slots
    }

    /// Returns the addresses of a name, with this port.
    ///
    /// # Errors
    /// The name does not resolve in time. The inner error: there is no slot.
    pub(crate) async fn resolve(
        self: &Arc<Self>,
        owner: &Arc<str>,
        name: &str,
        port: u16,
    ) -> Result<io::Result<Vec<SocketAddr>>, Busy> {
        let running = self.running.lock().get(name).cloned();
        let mut found = match running {
            Some(found) => found,
            None => self.start(self.slot(owner).await?, name),
        };
        let found = timeout(TIMEOUT, found.wait_for(Option::is_some)).await;
        let found = found.ok().and_then(|found| found.ok()?.clone());
        Ok(match found {
            Some(Ok(addresses)) => Ok(addresses.iter().map(|address| with_port(*address, port)).collect()),
            Some(Err(error)) => Err(io::Error::new(error.kind(), error)),
            None => Err(io::Error::new(io::ErrorKind::TimedOut, "the name server does not answer")),
        })
    }

    /// Starts a look-up, unless another one for the name runs.
    fn start(self: &Arc<Self>, slot: Slot, name: &str) -> watch::Receiver<Found> {
        let mut running = self.running.lock();
        if let Some(found) = running.get(name) {
            return found.clone();
        }
        let (sender, receiver) = watch::channel(None);
        running.insert(name.into(), receiver.clone());
        drop(running);
        let (lookups, looked_up) = (Arc::clone(self), name.to_owned());
        // Detached: a process that ends does not wait for it.
        let started = thread::Builder::new().name("name-lookup".to_owned()).spawn(move || {
            let found = (lookups.lookup)(&looked_up);
            lookups.running.lock().remove(&*looked_up);
            drop(slot);
            sender.send_replace(Some(found.map(Into::into).map_err(Arc::new)));
        });
        if started.is_err() {
            // The sender is dropped, which ends the wait.
            self.running.lock().remove(name);
        }
        receiver
    }
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// Look-ups of names in the configuration, and in documents of its servers. Names of callers have others.
static CONFIGURED_NAMES: LazyLock<Arc<NameLookups>> =
    LazyLock::new(|| NameLookups::new(CONFIGURED, CONFIGURED, TIMEOUT));

/// Returns the addresses of a configured name, with this port.
///
/// # Errors
/// The name does not resolve in time.
pub(crate) async fn resolve(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let found = CONFIGURED_NAMES.resolve(&Arc::from(""), name, port).await;
    found.unwrap_or_else(|busy| Err(io::Error::new(io::ErrorKind::ResourceBusy, busy)))
}

/// Resolver of HTTP clients for configured names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConfiguredNames;

impl Resolve for ConfiguredNames {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            // The client sets the port.
            let addresses: Addrs = Box::new(resolve(name.as_str(), 0).await?.into_iter());
            Ok(addresses)
        })
    }
}

/// Returns the builder of an HTTP client for URLs of configured names. All clients are built with it, except for those of webhooks.
pub(crate) fn http_client() -> reqwest::ClientBuilder {
    reqwest::Client::builder().dns_resolver(Arc::new(ConfiguredNames))
}

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    };

    use super::*;

    /// Look-ups that block for names that begin with `slow` until the sender is dropped, and the number of those that have begun.
    fn blocking(total: usize, per_owner: usize) -> (Arc<NameLookups>, mpsc::Sender<()>, Arc<AtomicUsize>) {
        let (release, released) = mpsc::channel::<()>();
        let (released, begun) = (Mutex::new(released), Arc::<AtomicUsize>::default());
        let count = Arc::clone(&begun);
        let released = Arc::new(released);
        let lookup = move |name: &str| {
            count.fetch_add(1, Ordering::SeqCst);
            if name.starts_with("slow") {
                _ = released.lock().recv();
            }
            Ok(vec![SocketAddr::from(([192, 0, 2, 1], 0))])
        };
        (NameLookups::with(lookup, total, per_owner, Duration::from_millis(500)), release, begun)
    }

    /// Waits for a condition that a thread brings about.
    async fn until(condition: impl Fn() -> bool) {
        while !condition() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn names_that_never_resolve_delay_only_their_owner() {
        let (lookups, release, begun) = blocking(3, 2);
        let (ada, bob): (Arc<str>, Arc<str>) = ("ada".into(), "bob".into());
        let mut waiting = Vec::new();
        for name in ["slow-1", "slow-2"] {
            let (lookups, ada) = (Arc::clone(&lookups), Arc::clone(&ada));
            waiting.push(tokio::spawn(async move { lookups.resolve(&ada, name, 1).await }));
        }
        until(|| begun.load(Ordering::SeqCst) == 2).await;
        // A few callers wait for a slot, and further ones do not.
        let many: Vec<_> = (0..2 * CALLERS).map(|n| format!("slow-3-{n}")).collect();
        let start = tokio::time::Instant::now();
        let refusal = async |name: &String| (lookups.resolve(&ada, name, 1).await.unwrap_err(), start.elapsed());
        let refused = futures::future::join_all(many.iter().map(refusal)).await;
        assert!(refused.iter().all(|(busy, _)| *busy == Busy::Owner(2)));
        assert_eq!(refused.iter().filter(|(_, time)| *time < Duration::from_millis(500)).count(), 2);
        // A name whose look-up is pending needs no slot.
        let shared = timeout(Duration::from_millis(1), lookups.resolve(&ada, "slow-1", 1)).await;
        assert!(shared.is_err());
        let found = lookups.resolve(&bob, "quick", 443).await.unwrap().unwrap();
        assert_eq!(found, [SocketAddr::from(([192, 0, 2, 1], 443))]);
        let (third, owner) = (Arc::clone(&lookups), Arc::clone(&bob));
        waiting.push(tokio::spawn(async move { third.resolve(&owner, "slow-3", 1).await }));
        until(|| begun.load(Ordering::SeqCst) == 4).await;
        assert_eq!(lookups.resolve(&bob, "quick", 1).await.unwrap_err(), Busy::Total(3));
        // A caller that has gone does not release the slot: the thread still has it.
        waiting.pop().unwrap().abort();
        assert_eq!(lookups.resolve(&bob, "quick", 1).await.unwrap_err(), Busy::Total(3));
        drop(release);
        for waiting in waiting {
            assert_eq!(waiting.await.unwrap().unwrap().unwrap().len(), 1);
        }
        lookups.resolve(&bob, "quick", 1).await.unwrap().unwrap();
        until(|| lookups.running.lock().is_empty()).await;
    }

    #[tokio::test]
    async fn runtime_ends_while_a_name_does_not_resolve() {
        let (lookups, release, _) = blocking(1, 1);
        let waiting = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let resolved =
                async { timeout(Duration::from_millis(1), lookups.resolve(&"ada".into(), "slow", 1)).await.is_err() };
            runtime.block_on(resolved)
            // Drops the runtime, which waits for its blocking tasks.
        });
        assert!(timeout(Duration::from_secs(30), waiting).await.unwrap().unwrap());
        drop(release);
    }
}
