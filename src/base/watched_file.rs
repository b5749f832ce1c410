//! Files whose content is read again when they change, while a server runs.

use std::{
    fmt::{self, Display},
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    thread,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};

/// Interval at which the files are checked for changes, if their content is used.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum time that a caller waits for the files, which may be on a file system that does not answer.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// Value that is read from files, and read again within a second after they have changed. Files that can't be used, or not be read
/// in time, leave the value as it is.
pub(crate) struct WatchedFiles<T>(Arc<Watched<T>>);

/// Logs the result of a reload.
type Log<T> = dyn Fn(Result<&T, &str>) + Send + Sync;

struct Watched<T> {
    paths: Vec<PathBuf>,
    read: Box<dyn Fn() -> Result<T, String> + Send + Sync>,
    log: Box<Log<T>>,
    current: Mutex<Current<T>>,
}

struct Current<T> {
    value: Arc<T>,
    stamps: Vec<Option<Stamp>>,
    checked: Instant,
    /// Alive while a thread reads the files.
    reading: Weak<()>,
    /// Reason why the files could not be used at the last check.
    failure: Option<String>,
}

/// Metadata of a file that each replacement changes.
#[derive(PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    len: u64,
    #[cfg(unix)]
    inode: u64,
}

impl Stamp {
    fn of(path: &Path) -> io::Result<Self> {
        #[cfg(unix)]
        use std::os::unix::fs::MetadataExt as _;
        let metadata = fs::metadata(path)?;
        Ok(Self {
            modified: metadata.modified().ok(),
            len: metadata.len(),
            #[cfg(unix)]
            inode: metadata.ino(),
        })
    }
}

impl<T: Send + Sync + 'static> WatchedFiles<T> {
    /// Reads the value. `log` is called with the result of each reload, but only once for the same failure. Blocks.
    ///
    /// # Errors
    /// Those of `read`.
    pub(crate) fn open<E: Display>(
        paths: Vec<PathBuf>,
        read: impl Fn() -> Result<T, E> + Send + Sync + 'static,
        log: impl Fn(Result<&T, &str>) + Send + Sync + 'static,
    ) -> Result<Self, E> {
        let stamps = stamps(&paths);
        let value = Arc::new(read()?);
        let current =
            Mutex::new(Current { value, stamps, checked: Instant::now(), reading: Weak::new(), failure: None });
        let read = Box::new(move || read().map_err(|error| error.to_string()));
        Ok(Self(Arc::new(Watched { paths, read, log: Box::new(log), current })))
    }

    /// Returns the value, after a check for changes of the files if the last one is old.
    pub(crate) async fn value(&self) -> Arc<T> {
        let reading = {
            let mut current = self.0.current.lock();
            let is_due = current.checked.elapsed() >= CHECK_INTERVAL && current.reading.strong_count() == 0;
            is_due.then(|| {
                // Others use the current value meanwhile.
                let reading = Arc::new(());
                (current.checked, current.reading) = (Instant::now(), Arc::downgrade(&reading));
                reading
            })
        };
        if let Some(reading) = reading.filter(|_| !self.0.paths.is_empty()) {
            let (watched, (done, ended)) = (Arc::clone(&self.0), oneshot::channel::<()>());
            // Detached, and not one of the runtime: neither its other tasks nor its end wait for the files.
            let read = move || {
                watched.reload();
                drop((reading, done));
            };
            let started = thread::Builder::new().name("file-reload".to_owned()).spawn(read);
            if started.is_err() || timeout(READ_TIMEOUT, ended).await.is_err() {
                self.0.fail("the files can't be read in time");
            }
        }
        self.current()
    }

    /// Returns the value as it was read last.
    pub(crate) fn current(&self) -> Arc<T> {
        Arc::clone(&self.0.current.lock().value)
    }
}

impl<T> Watched<T> {
    /// Reads the files again if they have changed, or could not be used at the last check. Blocks.
    fn reload(&self) {
        let stamps = stamps(&self.paths);
        {
            let current = self.current.lock();
            if current.stamps == stamps && current.failure.is_none() {
                return;
            }
        }
        let read = (self.read)();
        let mut current = self.current.lock();
        current.stamps = stamps;
        match read {
            Ok(value) => {
                let value = Arc::new(value);
                (current.value, current.failure) = (Arc::clone(&value), None);
                drop(current);
                (self.log)(Ok(&value));
            }
            Err(failure) => {
                drop(current);
                self.fail(&failure);
            }
        }
    }

    /// Records a failure, and logs it unless it is that of the last check.
    fn fail(&self, failure: &str) {
        let previous = self.current.lock().failure.replace(failure.to_owned());
        if previous.as_deref() != Some(failure) {
            (self.log)(Err(failure));
        }
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<Option<Stamp>> {
    paths.iter().map(|path| Stamp::of(path).ok()).collect()
}

impl<T> Clone for WatchedFiles<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for WatchedFiles<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WatchedFiles").field(&self.0.paths).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_files_are_read_again_and_failures_logged_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("number");
        fs::write(&path, "1").unwrap();
        let (logged, modified) = (Arc::new(Mutex::new(Vec::new())), fs::metadata(&path).unwrap().modified().unwrap());
        let read = {
            let path = path.clone();
            move || match fs::read_to_string(&path) {
                Ok(text) => text.parse::<u32>().map_err(|error| error.to_string()),
                Err(error) => Err(error.kind().to_string()),
            }
        };
        let log = {
            let logged = Arc::clone(&logged);
            move |result: Result<&u32, &str>| logged.lock().push(result.copied().map_err(str::to_owned))
        };
        let files = WatchedFiles::open(vec![path.clone()], read, log).unwrap();
        let reload = || {
            files.0.reload();
            (*files.current(), std::mem::take(&mut *logged.lock()))
        };
        assert_eq!(reload(), (1, vec![]));
        // A replacement of equal length and time has another inode.
        #[cfg(unix)]
        {
            let replacement = directory.path().join("replacement");
            fs::write(&replacement, "2").unwrap();
            fs::File::options().write(true).open(&replacement).unwrap().set_modified(modified).unwrap();
            fs::rename(replacement, &path).unwrap();
            assert_eq!(reload(), (2, vec![Ok(2)]));
        }
        // A file of another length at the same time.
        fs::write(&path, "33").unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        assert_eq!(reload(), (33, vec![Ok(33)]));
        fs::write(&path, "no number").unwrap();
        assert_eq!(reload(), (33, vec![Err("invalid digit found in string".to_owned())]));
        assert_eq!(reload(), (33, vec![]), "the same failure is logged once");
        fs::remove_file(&path).unwrap();
        assert_eq!(reload(), (33, vec![Err("entity not found".to_owned())]));
        fs::write(&path, "33").unwrap();
        assert_eq!(reload(), (33, vec![Ok(33)]));
    }

    /// Files that can't be read in time delay one caller, once, and neither the others nor the end of the runtime.
    #[test]
    fn files_that_hang_leave_the_value_as_it_is() {
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (released, reads) = (Mutex::new(released), Arc::new(Mutex::new(0)));
        let logged = Arc::new(Mutex::new(Vec::new()));
        let files = {
            let (reads, logged) = (Arc::clone(&reads), Arc::clone(&logged));
            let read = move || {
                *reads.lock() += 1;
                let count = *reads.lock();
                if count > 1 {
                    _ = released.lock().recv();
                }
                Ok::<_, String>(count)
            };
            let log = move |result: Result<&u32, &str>| logged.lock().push(result.copied().map_err(str::to_owned));
            WatchedFiles::open(vec!["missing".into()], read, log).unwrap()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let age = || {
                let mut current = files.0.current.lock();
                // As after a change of the file.
                (current.checked, current.stamps) = (Instant::now() - CHECK_INTERVAL, Vec::new());
            };
            age();
            assert_eq!(*files.value().await, 1);
            assert_eq!(*logged.lock(), [Err("the files can't be read in time".to_owned())]);
            age();
            let start = Instant::now();
            assert_eq!(*files.value().await, 1);
            assert!(start.elapsed() < READ_TIMEOUT);
        });
        // Waits for the blocking tasks of the runtime.
        drop(runtime);
        assert_eq!(*reads.lock(), 2, "the thread still reads");
        drop(release);
        while *files.current() != 2 {
            thread::yield_now();
        }
    }
}
