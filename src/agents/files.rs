//! Files of a turn: those that its messages contain, for the command to read, and those that the command writes as artifacts.

use std::{
    collections::HashSet,
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use tempfile::TempDir;
use tokio::task::spawn_blocking;

use super::{Content, Error, Message, Part, Stopped, Turn, Updates};
use crate::protocol::message::file_name::{media_type_of, safe_name, unique_name};

/// Maximum number of files that a command can write as artifacts in a turn.
const MAX_OUTPUTS: usize = 100;

/// Beginning of the names of directories of turns.
pub(super) const PREFIX: &str = "a2a-turn-";

/// Directories of a turn, which are deleted when the turn has ended.
pub(super) struct TurnFiles {
    temporary: Option<TempDir>,
    input: PathBuf,
    output: PathBuf,
    /// Paths of the files of the messages, in their order.
    paths: Vec<String>,
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
        fs::create_dir(&input)?;
        fs::create_dir(&output)?;
        let mut names = HashSet::new();
        let mut paths = Vec::with_capacity(contents.len());
        for (name, bytes) in contents {
            let path = input.join(unique_name(name, &mut names));
            fs::write(&path, bytes)?;
            paths.push(path.to_string_lossy().into_owned());
        }
        Ok(Self { temporary: Some(temporary), input, output, paths })
    }

    /// Directory with all files of the turn.
    pub(super) fn directory(&self) -> &Path {
        self.temporary.as_ref().map_or(&self.input, TempDir::path)
    }

    /// Directory with the files of the messages.
    pub(super) fn input(&self) -> &Path {
        &self.input
    }

    /// Directory for files that become artifacts.
    pub(super) fn output(&self) -> &Path {
        &self.output
    }

    /// Paths of the files of the messages.
    pub(super) fn paths(&self) -> &[String] {
        &self.paths
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
    /// maximum total size in bytes.
    pub(super) async fn send(&self, out: &Updates, max: usize) -> Result<(), Error> {
        let output = self.output.clone();
        let files = spawn_blocking(move || read_output(&output, max)).await?;
        for (name, bytes) in files? {
            let part = Part::bytes(bytes, media_type_of(Path::new(&name))).named(&name);
            out.artifact(name).last().part(part).await.map_err(|stopped: Stopped| Error::from(stopped))?;
        }
        Ok(())
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

/// Reads the files of a directory.
fn read_output(directory: &Path, max: usize) -> Result<Vec<(String, Vec<u8>)>, Error> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            paths.push(entry.path());
        }
        if paths.len() > MAX_OUTPUTS {
            return Err(Error::public(format!("The command wrote more than {MAX_OUTPUTS} files.")));
        }
    }
    paths.sort();
    let mut left = u64::try_from(max)?;
    let mut files = Vec::with_capacity(paths.len());
    for path in paths {
        let too_large = || Error::public(format!("The files of the command exceed {max} bytes (limits.task_bytes)."));
        left = left.checked_sub(fs::symlink_metadata(&path)?.len()).ok_or_else(too_large)?;
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        files.push((name, fs::read(path)?));
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
        assert_eq!(files.paths().iter().map(read).collect::<Vec<_>>(), [b"1", b"2"]);
        let message = Message {
            parts: vec![Part::text("Compare"), Part::bytes("1", ""), Part::bytes("2", "")],
            ..Message::user("")
        };
        assert_eq!(files.text([message].iter()), format!("Compare\n{}", files.paths().join("\n")));
    }

    #[test]
    fn output_is_limited_and_links_are_skipped() {
        let files = TurnFiles::write(&[], PREFIX).unwrap();
        fs::write(files.output().join("b.txt"), "bb").unwrap();
        fs::write(files.output().join("a.txt"), "a").unwrap();
        fs::create_dir(files.output().join("directory")).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", files.output().join("link")).unwrap();
        let found = read_output(files.output(), 3).unwrap();
        assert_eq!(found, [("a.txt".to_owned(), b"a".to_vec()), ("b.txt".to_owned(), b"bb".to_vec())]);
        let error = read_output(files.output(), 2).unwrap_err();
        assert!(error.to_string().contains("limits.task_bytes"), "{error}");
    }
}
