//! Simulated disk: keeps synced data, and an arbitrary part of the rest.

use std::{collections::BTreeMap, fs, path::Path};

use super::trace::Call;
use crate::workload::Rng;

/// Granularity of torn writes, in bytes.
const SECTOR: usize = 512;

/// Files of one directory.
#[derive(Default)]
pub(super) struct Disk {
    directory: String,
    names: BTreeMap<String, usize>,
    /// Directory entries on the disk, and later changes in order, as in the journal of a file system.
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
    current: Vec<u8>,
    synced: Vec<u8>,
    /// Writes since the last sync, with the number of the call.
    pending: Vec<(usize, Piece)>,
}

enum Piece {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

/// Failure that ends the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The process is killed: every write is kept.
    Killed,
    /// The power fails: only synced data is kept.
    Forgotten,
    /// The power fails: any part of the unsynced data is kept, in any order, with torn writes.
    Torn,
}

impl Disk {
    pub(super) fn new(directory: &Path) -> Self {
        Self { directory: directory.display().to_string(), ..Self::default() }
    }

    /// Starts with the files of a directory.
    pub(super) fn of(directory: &Path) -> Self {
        let mut disk = Self::new(directory);
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let bytes = fs::read(entry.path()).unwrap();
            disk.names.insert(entry.file_name().into_string().unwrap(), disk.files.len());
            disk.files.push(File { current: bytes.clone(), synced: bytes, pending: Vec::new() });
        }
        disk.synced.clone_from(&disk.names);
        disk
    }

    /// Name of a file to simulate: SQLite recreates its shared memory, and the lock is recreated too.
    fn name<'a>(&self, path: &'a str) -> Option<&'a str> {
        let name = path.strip_prefix(&self.directory)?.strip_prefix('/')?;
        let recreated = ["-shm", ".lock"].iter().any(|suffix| name.ends_with(suffix));
        (!recreated).then_some(name)
    }

    fn file(&mut self, path: &str) -> Option<&mut File> {
        let at = *self.names.get(self.name(path)?)?;
        self.files.get_mut(at)
    }

    /// Applies a call. A sync covers the calls that began before it: those below `before`. Returns whether the disk changed.
    pub(super) fn apply(&mut self, number: usize, call: &Call, before: usize) -> bool {
        match call {
            Call::Create(path) => {
                let Some(name) = self.name(path).filter(|name| !self.names.contains_key(*name)) else { return false };
                self.link(number, name.to_owned(), self.files.len());
                self.files.push(File::default());
            }
            Call::Write(path, at, bytes) => {
                let Some(file) = self.file(path) else { return false };
                file.pending.push((number, Piece::Write(*at, bytes.clone())));
                overwrite(&mut file.current, *at, bytes);
            }
            Call::Truncate(path, length) => {
                let Some(file) = self.file(path) else { return false };
                file.pending.push((number, Piece::Truncate(*length)));
                file.current.resize(*length, 0);
            }
            Call::Sync(path) if *path == self.directory => {
                let first_uncovered =
                    self.changes.iter().position(|change| change.0 >= before).unwrap_or(self.changes.len());
                for (_, change) in self.changes.drain(..first_uncovered) {
                    change.apply(&mut self.synced);
                }
            }
            Call::Sync(path) => {
                let Some(file) = self.file(path) else { return false };
                let first_uncovered =
                    file.pending.iter().position(|change| change.0 >= before).unwrap_or(file.pending.len());
                for (_, piece) in file.pending.drain(..first_uncovered) {
                    piece.apply(&mut file.synced, usize::MAX);
                }
            }
            Call::Remove(path) => {
                let Some(name) = self.name(path).filter(|name| self.names.contains_key(*name)) else { return false };
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

    /// Writes the files that remain after the failure to a directory.
    pub(super) fn write_remaining(&self, end: End, into: &Path, rng: &mut Rng) {
        let mut names = if end == End::Killed { self.names.clone() } else { self.synced.clone() };
        if end == End::Torn {
            let count = rng.below(self.changes.len() + 1);
            self.changes.iter().take(count).for_each(|change| change.1.apply(&mut names));
        }
        for (name, file) in names {
            let file = &self.files[file];
            let mut bytes = if end == End::Killed { file.current.clone() } else { file.synced.clone() };
            if end == End::Torn {
                // Mostly the last write is lost: random runs would rarely test that otherwise.
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
    /// Applies the write, up to `max` bytes.
    fn apply(&self, file: &mut Vec<u8>, max: usize) {
        match self {
            Self::Write(..) | Self::Truncate(_) if max == 0 => {}
            Self::Write(at, bytes) => overwrite(file, *at, &bytes[..bytes.len().min(max)]),
            Self::Truncate(length) => file.resize(*length, 0),
        }
    }
}

fn overwrite(file: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[at..end].copy_from_slice(bytes);
}
