//! Stderr of a command: its lines for the log, without secrets, and its last lines for the error of a failed turn.

use std::{collections::VecDeque, sync::Arc};

use tokio::{io::BufReader, process::ChildStderr};

use crate::{
    agents::turn_json::{Level, each_log_line, log},
    base::{redaction::Secrets, stderr::escaped},
};

/// Maximum number of last lines that are kept. The trace of an uncaught error of Node.js has 15.
const LINES: usize = 20;

/// Maximum length of a line that is kept, in characters.
const LINE: usize = 200;

/// Stderr of a command.
pub(super) struct Stderr {
    lines: BufReader<ChildStderr>,
    secrets: Arc<Secrets>,
    last: VecDeque<String>,
}

impl Stderr {
    pub(super) fn new(stderr: ChildStderr, secrets: Arc<Secrets>) -> Self {
        Self { lines: BufReader::new(stderr), secrets, last: VecDeque::new() }
    }

    /// Logs the lines for a task until the end.
    pub(super) async fn log(&mut self, task_id: &str) {
        let Self { lines, secrets, last } = self;
        let warn = |why: String| tracing::warn!(task.id = task_id, "{why}");
        let redact = |line: &str| {
            let line = secrets.redact(line);
            if last.len() == LINES {
                last.pop_front();
            }
            last.push_back(escaped(&line.chars().take(LINE).collect::<String>()));
            line
        };
        each_log_line(lines, redact, |line| log(task_id, Level::Info, line), warn).await;
    }

    /// Returns the error of a command that has failed: its first line is `failure` with the line of stderr that names the error, and
    /// the last lines of stderr follow.
    pub(super) fn error(&self, failure: &str) -> String {
        let Some(line) = error_line(&self.last) else { return failure.to_owned() };
        let mut error = format!("{failure}: {line}");
        if self.last.len() > 1 {
            error.extend(self.last.iter().flat_map(|line| ["\n", line]));
        }
        error
    }
}

/// Returns the line that names the error: the last one that begins with the name of an exception. Traces follow it in Node.js, and
/// come before it in Python. Without such a name, the last line that is not indented.
fn error_line(lines: &VecDeque<String>) -> Option<&str> {
    let is_named = |line: &&String| {
        let name = line.split(':').next().unwrap_or_default();
        !line.starts_with(' ') && (name.ends_with("Error") || name.ends_with("Exception") || name == "panic")
    };
    let is_flush = |line: &&String| !line.starts_with([' ', '}']) && !line.starts_with("Node.js v");
    let last = |is_wanted: &dyn Fn(&&String) -> bool| lines.iter().rev().find(is_wanted);
    last(&is_named).or_else(|| last(&is_flush)).or(lines.back()).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_found_in_traces() {
        for (lines, expected) in [
            (
                &["Traceback (most recent call last):", "  File \"a.py\", line 3", "ValueError: no city"][..],
                "ValueError: no city",
            ),
            (
                &["a.js:3", "throw new Error(\"x\")", "^", "Error: no city", "    at a.js:3:7", "Node.js v18.19.0"],
                "Error: no city",
            ),
            (&["Error: x", "    at a.js {", "  code: 'E'", "}", "Node.js v18.19.0"], "Error: x"),
            (&["NoCity: x", "    at a.js:3:7", "Node.js v18.19.0"], "NoCity: x"),
            (&["loading", "./agent.sh: 3: foo: not found"], "./agent.sh: 3: foo: not found"),
            (&["  indented"], "  indented"),
        ] {
            assert_eq!(error_line(&lines.iter().map(|line| (*line).to_owned()).collect()), Some(expected));
        }
        assert_eq!(error_line(&VecDeque::new()), None);
    }
}
