//! Files of a turn: those that its messages contain, for the command to read, and those that the command writes as artifacts.

use std::{
    collections::HashSet,
    ffi::CString,
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::{fd::OwnedFd, unix::fs::PermissionsExt as _},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, Dir, FileType, Mode, OFlags, mkdirat, openat},
    io::Errno,
};
use tempfile::TempDir;
use tokio::task::spawn_blocking;

use super::{Content, Error, Message, Part, Stopped, Turn, Updates};
use crate::protocol::message::file_name::{media_type_of, safe_name, unique_name};

/// Maximum number of files that a command can write as artifacts in a turn.
const MAX_OUTPUTS: usize = 100;

/// Beginning of the names of directories of turns.
pub(super) const PREFIX: &str = "a2a-turn-";

/// Flags to open a directory, and no link to one.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Directories of a turn, which are deleted when the turn has ended.
pub(super) struct TurnFiles {
    temporary: Option<TempDir>,
    /// Directory with the files of the messages.
    pub(super) input: PathBuf,
    /// Directory for files that become artifacts.
    pub(super) output: PathBuf,
    /// The output directory. It stays the same if the command replaces its path.
    outputs: OwnedFd,
    /// Paths of the files of the messages, in their order.
    pub(super) paths: Vec<String>,
}

impl TurnFiles {
    /// Writes the files of the messages of a turn into a new directory, whose name begins with `prefix`. Only the user of this
    /// process can read it.
    pub(super) async fn create(turn: &Turn, prefix: &str) -> io::Result<Self> {
        let contents: Vec<_> = turn.messages().flat_map(|message| &message.parts).filter_map(file).collect();
        let prefix = prefix.to_owned();
        spawn_blocking(move || Self::write(&contents, &prefix)).await.map_err(io::Error::other)?
    }

    fn write(contents: &[(String, Vec<u8>)], prefix: &str) -> io::Result<Self> {
        let owner_only = fs::Permissions::from_mode(0o700);
        let temporary = tempfile::Builder::new().prefix(prefix).permissions(owner_only).tempdir()?;
        let (input, output) = (temporary.path().join("input"), temporary.path().join("output"));
        // Commands of other turns run at the same time, and may replace paths.
        let parent = openat(CWD, temporary.path(), DIRECTORY, Mode::empty())?;
        let directory = |name: &str| {
            mkdirat(&parent, name, Mode::RWXU)?;
            openat(&parent, name, DIRECTORY, Mode::empty())
        };
        let (inputs, outputs) = (directory("input")?, directory("output")?);
        let mut names = HashSet::new();
        let mut paths = Vec::with_capacity(contents.len());
        for (name, bytes) in contents {
            let name = unique_name(name, &mut names);
            let new = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            File::from(openat(&inputs, &*name, new, Mode::RUSR | Mode::WUSR)?).write_all(bytes)?;
            paths.push(input.join(name).to_string_lossy().into_owned());
        }
        Ok(Self { temporary: Some(temporary), input, output, outputs, paths })
    }

    /// Directory with all files of the turn.
    pub(super) fn directory(&self) -> &Path {
        self.temporary.as_ref().map_or(&self.input, TempDir::path)
    }

    /// Returns messages as text: each part on a line, a file as its path.
    pub(super) fn text<'m>(&self, messages: impl Iterator<Item = &'m Message>) -> String {
        let mut paths = self.paths.iter();
        let parts = messages.flat_map(|message| &message.parts).map(|part| match &part.content {
            Some(Content::Raw(_)) => paths.next().cloned().unwrap_or_default(),
            Some(Content::Url(url)) => url.clone(),
            _ => part.to_text().into_owned(),
        });
        let lines: Vec<String> = parts.filter(|line| !line.is_empty()).collect();
        lines.join("\n")
    }

    /// Sends the files in the output directory as artifacts, ordered by name. Directories and links are skipped. `max` is the
    /// maximum total size in bytes. Returns true if there is a file.
    pub(super) async fn send(&self, out: &Updates, max: usize) -> Result<bool, Error> {
        let outputs = self.outputs.try_clone()?;
        let files = spawn_blocking(move || read_output(&outputs, max)).await??;
        let has_files = !files.is_empty();
        for (name, bytes) in files {
            let part = Part::bytes(bytes, media_type_of(Path::new(&name))).named(&name);
            out.artifact(name).last().part(part).await.map_err(|stopped: Stopped| Error::from(stopped))?;
        }
        Ok(has_files)
    }
}

impl Drop for TurnFiles {
    fn drop(&mut self) {
        if let Some(directory) = self.temporary.take() {
            // Deletion blocks. Outside of a runtime, the directory is deleted here.
            match tokio::runtime::Handle::try_current() {
                Ok(runtime) => drop(runtime.spawn_blocking(move || drop(directory))),
                Err(_) => drop(directory),
            }
        }
    }
}

/// Creates the directory of a task in a workspace, and returns its path.
pub(super) async fn task_directory(workspace: &Path, turn: &Turn) -> io::Result<PathBuf> {
    let directory = workspace.join(safe_name(turn.task_id()));
    let created = spawn_blocking(move || {
        fs::create_dir_all(&directory)?;
        fs::canonicalize(directory)
    });
    created.await.map_err(io::Error::other)?
}

/// Returns the name and the content of a part with a file.
fn file(part: &Part) -> Option<(String, Vec<u8>)> {
    let Some(Content::Raw(bytes)) = &part.content else { return None };
    Some((safe_name(&part.filename), bytes.clone()))
}

/// Reads the regular files of a directory. The command, or a process that it has left, may change them at the same time: what was
/// opened counts, and no more than `max` bytes are read.
fn read_output(directory: &OwnedFd, max: usize) -> Result<Vec<(String, Vec<u8>)>, Error> {
    let mut names: Vec<CString> = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        // Some file systems do not know the type.
        if matches!(entry.file_type(), FileType::RegularFile | FileType::Unknown) {
            names.push(entry.file_name().to_owned());
        }
        if names.len() > MAX_OUTPUTS {
            return Err(Error::public(format!("The command wrote more than {MAX_OUTPUTS} files.")));
        }
    }
    names.sort();
    let mut left = u64::try_from(max)?;
    let mut files = Vec::with_capacity(names.len());
    for name in names {
        // A FIFO is opened without waiting for its other end.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match openat(directory, &name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            // A link, a socket, or a file that was deleted meanwhile.
            Err(Errno::LOOP | Errno::MLINK | Errno::NXIO | Errno::NOENT) => continue,
            Err(error) => return Err(error.into()),
        };
        if !file.metadata()?.is_file() {
            continue;
        }
        let mut bytes = Vec::new();
        file.take(left.saturating_add(1)).read_to_end(&mut bytes)?;
        let too_large = || Error::public(format!("The files of the command exceed {max} bytes (limits.task_bytes)."));
        left = left.checked_sub(u64::try_from(bytes.len())?).ok_or_else(too_large)?;
        files.push((name.to_string_lossy().into_owned(), bytes));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_equal_names_are_kept_apart() {
        let contents = [("a.txt".to_owned(), b"1".to_vec()), ("a.txt".to_owned(), b"2".to_vec())];
        let files = TurnFiles::write(&contents, PREFIX).unwrap();
        let read = |path: &String| fs::read(path).unwrap();
        assert_eq!(fs::metadata(files.directory()).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(files.paths.iter().map(read).collect::<Vec<_>>(), [b"1", b"2"]);
        let message = Message {
            parts: vec![Part::text("Compare"), Part::bytes("1", ""), Part::bytes("2", "")],
            ..Message::user("")
        };
        assert_eq!(files.text([message].iter()), format!("Compare\n{}", files.paths.join("\n")));
    }

    #[test]
    fn output_is_limited_and_links_are_skipped() {
        let files = TurnFiles::write(&[], PREFIX).unwrap();
        fs::write(files.output.join("b.txt"), "bb").unwrap();
        fs::write(files.output.join("a.txt"), "a").unwrap();
        fs::create_dir(files.output.join("directory")).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", files.output.join("link")).unwrap();
        let found = read_output(&files.outputs, 3).unwrap();
        assert_eq!(found, [("a.txt".to_owned(), b"a".to_vec()), ("b.txt".to_owned(), b"bb".to_vec())]);
        let error = read_output(&files.outputs, 2).unwrap_err();
        assert!(error.to_string().contains("limits.task_bytes"), "{error}");
    }

    #[test]
    fn only_files_of_the_output_directory_itself_are_read() {
        let files = TurnFiles::write(&[], PREFIX).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join("secret"), "sesame").unwrap();
        fs::rename(&files.output, files.directory().join("moved")).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), &files.output).unwrap();
        assert!(read_output(&files.outputs, 100).unwrap().is_empty());
        fs::write(files.directory().join("moved/own"), "own").unwrap();
        assert_eq!(read_output(&files.outputs, 100).unwrap(), [("own".to_owned(), b"own".to_vec())]);
        // Files that are exchanged for links all the time.
        let (path, new) = (files.directory().join("moved/own"), files.directory().join("new"));
        let target = elsewhere.path().join("secret");
        let exchange = std::thread::spawn(move || {
            for turn in 0..2000 {
                if turn % 2 == 0 {
                    std::os::unix::fs::symlink(&target, &new).unwrap();
                } else {
                    fs::write(&new, "own").unwrap();
                }
                fs::rename(&new, &path).unwrap();
            }
        });
        while !exchange.is_finished() {
            let found = read_output(&files.outputs, 100).unwrap();
            assert!(found.iter().all(|(_, bytes)| !bytes.starts_with(b"sesame")), "{found:?}");
        }
        exchange.join().unwrap();
    }
}
