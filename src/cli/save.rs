//! `--output-dir`: writes the artifacts and files of a task, or of a message, into a directory.
//!
//! Names come from the agent. They are reduced to a file name without special characters, so that nothing outside of the directory
//! is written. Existing files are kept unless `--force` is given.

use std::{
    collections::HashSet,
    fs::{self, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use clap::Args;
use prost::Message as _;

use super::{
    connection::OUTPUT,
    report_text, say,
    show::{OutputFormat, safe},
    terminal::{DIM, paint},
};
use crate::{
    client::StreamEvent,
    protocol::{
        message::file_name::{extension_of, safe_name, unique_name},
        pb::v1::{Artifact, Message, Part, Task, TaskArtifactUpdateEvent, TaskStatus, part::Content},
    },
};

/// Maximum size of everything that is received for files, in bytes.
const MAX_BYTES: usize = 256 << 20;

/// Memory of a part without its content, in bytes.
const PART: usize = 256;

/// Maximum number of files and links.
const MAX_FILES: usize = 1000;

/// Flags of the commands that write files.
#[derive(Debug, Args)]
#[command(next_help_heading = OUTPUT)]
pub(super) struct Save {
    /// Writes artifacts and files into this directory, and prints their paths.
    ///
    /// Created if it does not exist.
    #[arg(long, value_name = "DIR")]
    output_dir: Option<PathBuf>,
    /// Overwrites existing files of the directory.
    #[arg(long, requires = "output_dir", hide_short_help = true)]
    force: bool,
}

impl Save {
    /// Creates the directory, before the agent is called. `None` without `--output-dir`.
    pub(super) fn open(&self) -> anyhow::Result<Option<Files>> {
        let Some(directory) = &self.output_dir else { return Ok(None) };
        fs::create_dir_all(directory).with_context(|| format!("--output-dir: {}", directory.display()))?;
        let (directory, overwrite) = (directory.clone(), self.force);
        Ok(Some(Files { directory, overwrite, contents: Vec::new(), bytes: 0 }))
    }
}

/// Artifacts and files that were received.
#[derive(Debug)]
pub(super) struct Files {
    directory: PathBuf,
    overwrite: bool,
    contents: Vec<Artifact>,
    /// Size of all parts that were received, in bytes.
    bytes: usize,
}

/// Content of a file, or a link to one.
enum Entry {
    File { name: String, bytes: Vec<u8> },
    Link(String),
}

impl Files {
    /// Keeps the files of an event's parts.
    ///
    /// # Errors
    /// The agent has sent too much.
    pub(super) fn add_event(&mut self, event: &StreamEvent) -> anyhow::Result<()> {
        match event {
            StreamEvent::Task(task) => self.add_task(task),
            StreamEvent::Artifact(update) => self.add_update(update),
            StreamEvent::Message(message) => self.add_message(message),
            StreamEvent::Status(update) => self.add_status(update.status.as_ref()),
            StreamEvent::Gap => Ok(()),
        }
    }

    /// Takes the artifacts of a task, and the files of its status.
    pub(super) fn add_task(&mut self, task: &Task) -> anyhow::Result<()> {
        self.contents.retain(|known| task.artifacts.iter().all(|artifact| artifact.artifact_id != known.artifact_id));
        for artifact in &task.artifacts {
            self.count(&artifact.parts)?;
            self.contents.push(artifact.clone());
        }
        self.add_status(task.status.as_ref())
    }

    fn add_status(&mut self, status: Option<&TaskStatus>) -> anyhow::Result<()> {
        status.and_then(|status| status.message.as_ref()).map_or(Ok(()), |message| self.add_message(message))
    }

    /// Takes the files and data of a message. Its text is printed, and is no file.
    pub(super) fn add_message(&mut self, message: &Message) -> anyhow::Result<()> {
        let parts: Vec<Part> = message.parts.iter().filter(|part| part.as_text().is_none()).cloned().collect();
        let artifact_id = format!("message {}", message.message_id);
        if !parts.is_empty() && self.contents.iter().all(|known| known.artifact_id != artifact_id) {
            self.count(&parts)?;
            self.contents.push(Artifact { artifact_id, name: "message".to_owned(), parts, ..Artifact::default() });
        }
        Ok(())
    }

    fn add_update(&mut self, update: &TaskArtifactUpdateEvent) -> anyhow::Result<()> {
        let Some(artifact) = &update.artifact else { return Ok(()) };
        self.count(&artifact.parts)?;
        let known = self.contents.iter_mut().find(|known| known.artifact_id == artifact.artifact_id);
        match known {
            Some(known) if update.append => known.parts.extend(artifact.parts.iter().cloned()),
            Some(known) => known.clone_from(artifact),
            None => self.contents.push(artifact.clone()),
        }
        Ok(())
    }

    /// Counts received parts.
    fn count(&mut self, parts: &[Part]) -> anyhow::Result<()> {
        self.bytes += parts.iter().map(|part| part.encoded_len() + PART).sum::<usize>();
        if self.bytes > MAX_BYTES {
            bail!("--output-dir: the agent has sent more than {MAX_BYTES} bytes of artifacts");
        }
        Ok(())
    }

    /// Writes the files, and prints their paths and the links.
    ///
    /// # Errors
    /// A file exists or can't be written, or there are too many.
    pub(super) fn write(self, format: OutputFormat) -> anyhow::Result<()> {
        let entries = entries(&self.contents)?;
        let mut written = Vec::new();
        for entry in &entries {
            let Entry::File { name, .. } = entry else { continue };
            let path = self.directory.join(name);
            if !self.overwrite && path.symlink_metadata().is_ok() {
                bail!("--output-dir: {} exists; use another directory, or overwrite it with --force", path.display());
            }
        }
        for entry in entries {
            written.push(match entry {
                Entry::File { name, bytes } => {
                    let path = self.directory.join(name);
                    create(&path, &bytes, self.overwrite)
                        .with_context(|| format!("--output-dir: {}", path.display()))?;
                    format!("{}    {} ({} bytes)\n", paint(DIM, "Saved:"), safe(&path.to_string_lossy()), bytes.len())
                }
                Entry::Link(url) => format!("{}     {}\n", paint(DIM, "Link:"), safe(&url)),
            });
        }
        if format == OutputFormat::Text {
            say(&written.concat())?;
        } else {
            // With JSON, stdout has nothing else.
            report_text(&written.concat());
        }
        Ok(())
    }
}

/// Creates a file. An existing file, or a link of this name, is replaced if it may be overwritten.
fn create(path: &Path, bytes: &[u8], overwrite: bool) -> std::io::Result<()> {
    if overwrite && path.symlink_metadata().is_ok_and(|found| !found.is_dir()) {
        fs::remove_file(path)?;
    }
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(bytes)
}

/// Returns the files and links of artifacts, with names of their own.
fn entries(artifacts: &[Artifact]) -> anyhow::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut names = HashSet::new();
    for artifact in artifacts {
        let base = if artifact.name.is_empty() { &artifact.artifact_id } else { &artifact.name };
        let mut parts = artifact.parts.iter().peekable();
        while let Some(part) = parts.next() {
            let (default, bytes) = match &part.content {
                // A streamed text arrives as many parts.
                Some(Content::Text(text)) => {
                    let mut text = text.clone();
                    let is_next = |next: &&Part| {
                        next.as_text().is_some()
                            && (&next.filename, &next.media_type) == (&part.filename, &part.media_type)
                    };
                    while let Some(next) = parts.next_if(is_next) {
                        text.push_str(next.as_text().unwrap_or_default());
                    }
                    ("txt", text.into_bytes())
                }
                Some(Content::Raw(bytes)) => ("bin", bytes.clone()),
                Some(Content::Data(data)) => ("json", serde_json::to_vec_pretty(data)?),
                Some(Content::Url(url)) => {
                    entries.push(Entry::Link(url.clone()));
                    continue;
                }
                None => continue,
            };
            let name = if part.filename.is_empty() {
                let default = extension_of(&part.media_type).unwrap_or(default);
                with_extension(&safe_name(base), default)
            } else {
                safe_name(&part.filename)
            };
            entries.push(Entry::File { name: unique_name(&name, &mut names), bytes });
            if entries.len() > MAX_FILES {
                bail!("--output-dir: there are more than {MAX_FILES} files");
            }
        }
    }
    Ok(entries)
}

fn with_extension(name: &str, extension: &str) -> String {
    let has_extension = name.rsplit_once('.').is_some_and(|(_, found)| found.eq_ignore_ascii_case(extension));
    if has_extension { name.to_owned() } else { format!("{name}.{extension}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artifacts_are_files_with_names_of_their_own() {
        let chunk = |id: &str, parts: Vec<Part>, append: bool| {
            let artifact = Artifact { artifact_id: id.into(), parts, ..Artifact::default() };
            let update =
                TaskArtifactUpdateEvent { artifact: Some(artifact), append, ..TaskArtifactUpdateEvent::default() };
            StreamEvent::Artifact(Box::new(update))
        };
        let mut files = Files { directory: PathBuf::new(), overwrite: false, contents: Vec::new(), bytes: 0 };
        let image = || Part::bytes(*b"png", "image/png");
        for event in [
            chunk("a", vec![Part::text("x")], false),
            chunk("a", vec![Part::text("1")], false),
            chunk("a", vec![Part::text("2"), image(), image().named("../A.txt")], true),
            chunk("b", vec![Part::url("https://a.example/x", ""), Part::data(&7).unwrap()], false),
        ] {
            files.add_event(&event).unwrap();
        }
        let shown = |entry: Entry| match entry {
            Entry::File { name, bytes } => format!("{name}: {}", String::from_utf8(bytes).unwrap()),
            Entry::Link(url) => url,
        };
        let entries: Vec<_> = entries(&files.contents).unwrap().into_iter().map(shown).collect();
        assert_eq!(entries, ["a.txt: 12", "a.png: png", "A-2.txt: png", "https://a.example/x", "b.json: 7"]);
    }
}
