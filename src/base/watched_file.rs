//! Files whose content is read again when they change, while a server runs.

use std::{
    fmt::{self, Display},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Interval at which the files are checked for changes, if their content is used.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Value that is read from files, and read again within a second after they have changed. Files that can't be used leave the
/// value as it is.
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
        let current = Mutex::new(Current { value, stamps, checked: Instant::now(), failure: None });
        let read = Box::new(move || read().map_err(|error| error.to_string()));
        Ok(Self(Arc::new(Watched { paths, read, log: Box::new(log), current })))
    }

    /// Returns the value, after a check for changes of the files if the last one is old.
    pub(crate) async fn value(&self) -> Arc<T> {
        let is_due = {
            let mut current = self.0.current.lock();
            let is_due = current.checked.elapsed() >= CHECK_INTERVAL;
            if is_due {
                // Others use the current value meanwhile.
                current.checked = Instant::now();
            }
            is_due
        };
        if is_due && !self.0.paths.is_empty() {
            let watched = Arc::clone(&self.0);
            drop(tokio::task::spawn_blocking(move || watched.reload()).await);
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
        if let Err(failure) = &read
            && self.current.lock().failure.as_ref() != Some(failure)
        {
            (self.log)(Err(failure));
        }
        let mut current = self.current.lock();
        current.stamps = stamps;
        match read {
            Ok(value) => {
                let value = Arc::new(value);
                (current.value, current.failure) = (Arc::clone(&value), None);
                drop(current);
                (self.log)(Ok(&value));
            }
            Err(failure) => current.failure = Some(failure),
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
}
