//! A disk that keeps what was synced, and of the rest what it likes.

use std::{collections::BTreeMap, fs, path::Path};

use super::trace::Call;
use crate::workload::Rng;

/// What a piece of a write that is torn is as long as.
const SECTOR: usize = 512;

/// The files of one directory.
#[derive(Default)]
pub(super) struct Disk {
    directory: String,
    names: BTreeMap<String, usize>,
    /// As they are on the disk, and what has happened to them since, in its order: a file system has a journal of that.
    synced: BTreeMap<String, usize>,
    changes: Vec<(usize, Change)>,
    files: Vec<File>,
}

enum Change {
    Link(String, usize),
    Remove(String),
}

#[derive(Default)]
struct File {
    now: Vec<u8>,
    synced: Vec<u8>,
    /// What was done to it since, by the number of the call.
    pending: Vec<(usize, Piece)>,
}

enum Piece {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

/// What is left when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The process is killed: all that it wrote.
    Killed,
    /// The power fails, and nothing is there that was not synced.
    Forgotten,
    /// The power fails, and some of that is there, in any order, and torn.
    Torn,
}

impl Disk {
    pub(super) fn new(directory: &Path) -> Self {
        Self { directory: directory.display().to_string(), ..Self::default() }
    }

    /// With the files that are there now.
    pub(super) fn of(directory: &Path) -> Self {
        let mut disk = Self::new(directory);
        for it in fs::read_dir(directory).unwrap() {
            let it = it.unwrap();
            let bytes = fs::read(it.path()).unwrap();
            disk.names.insert(it.file_name().into_string().unwrap(), disk.files.len());
            disk.files.push(File { now: bytes.clone(), synced: bytes, pending: Vec::new() });
        }
        disk.synced.clone_from(&disk.names);
        disk
    }

    /// The name of a file that counts: what SQLite shares between connections is made anew, and so is the lock.
    fn name<'a>(&self, path: &'a str) -> Option<&'a str> {
        let name = path.strip_prefix(&self.directory)?.strip_prefix('/')?;
        let made_anew = ["-shm", ".lock"].iter().any(|it| name.ends_with(it));
        (!made_anew).then_some(name)
    }

    fn file(&mut self, path: &str) -> Option<&mut File> {
        let at = *self.names.get(self.name(path)?)?;
        self.files.get_mut(at)
    }

    /// Does what the call of this number did. A sync is of what had begun before it: the calls below `before`. Says
    /// whether anything is different.
    pub(super) fn apply(&mut self, number: usize, call: &Call, before: usize) -> bool {
        match call {
            Call::Create(path) => {
                let Some(name) = self.name(path).filter(|it| !self.names.contains_key(*it)) else { return false };
                self.link(number, name.to_owned(), self.files.len());
                self.files.push(File::default());
            }
            Call::Write(path, at, bytes) => {
                let Some(file) = self.file(path) else { return false };
                file.pending.push((number, Piece::Write(*at, bytes.clone())));
                put(&mut file.now, *at, bytes);
            }
            Call::Truncate(path, length) => {
                let Some(file) = self.file(path) else { return false };
                file.pending.push((number, Piece::Truncate(*length)));
                file.now.resize(*length, 0);
            }
            Call::Sync(path) if *path == self.directory => {
                let late = self.changes.iter().position(|it| it.0 >= before).unwrap_or(self.changes.len());
                for (_, change) in self.changes.drain(..late) {
                    change.apply(&mut self.synced);
                }
            }
            Call::Sync(path) => {
                let Some(file) = self.file(path) else { return false };
                let late = file.pending.iter().position(|it| it.0 >= before).unwrap_or(file.pending.len());
                for (_, piece) in file.pending.drain(..late) {
                    piece.apply(&mut file.synced, usize::MAX);
                }
            }
            Call::Remove(path) => {
                let Some(name) = self.name(path).filter(|it| self.names.contains_key(*it)) else { return false };
                let name = name.to_owned();
                self.names.remove(&name);
                self.changes.push((number, Change::Remove(name)));
            }
            Call::Rename(from, to) => {
                let (Some(from), Some(to)) = (self.name(from), self.name(to)) else { return false };
                let Some(file) = self.names.remove(from) else { return false };
                self.changes.push((number, Change::Remove(from.to_owned())));
                self.link(number, to.to_owned(), file);
            }
            Call::Send(_) => return false,
        }
        true
    }

    fn link(&mut self, number: usize, name: String, file: usize) {
        self.names.insert(name.clone(), file);
        self.changes.push((number, Change::Link(name, file)));
    }

    /// Writes what is left to a directory.
    pub(super) fn left(&self, end: End, into: &Path, rng: &mut Rng) {
        let mut names = if end == End::Killed { self.names.clone() } else { self.synced.clone() };
        if end == End::Torn {
            let some = rng.below(self.changes.len() + 1);
            self.changes.iter().take(some).for_each(|it| it.1.apply(&mut names));
        }
        for (name, file) in names {
            let file = &self.files[file];
            let mut bytes = if end == End::Killed { file.now.clone() } else { file.synced.clone() };
            if end == End::Torn {
                // What is missing of most of them is the last: no run would see it otherwise.
                let likely = rng.below(5);
                for (_, piece) in &file.pending {
                    let sectors = if rng.below(5) <= likely { usize::MAX } else { rng.below(9) * SECTOR };
                    piece.apply(&mut bytes, sectors);
                }
            }
            fs::write(into.join(name), bytes).unwrap();
        }
    }
}

impl Change {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match self {
            Self::Link(name, file) => drop(names.insert(name.clone(), *file)),
            Self::Remove(name) => drop(names.remove(name)),
        }
    }
}

impl Piece {
    /// Does it, but not to more than so many bytes.
    fn apply(&self, file: &mut Vec<u8>, most: usize) {
        match self {
            Self::Write(..) | Self::Truncate(_) if most == 0 => {}
            Self::Write(at, bytes) => put(file, *at, &bytes[..bytes.len().min(most)]),
            Self::Truncate(length) => file.resize(*length, 0),
        }
    }
}

fn put(file: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[at..end].copy_from_slice(bytes);
}
