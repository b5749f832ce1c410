//! Line on stderr that shows the progress of a call that takes long.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    io::{self, IsTerminal as _},
    pin::pin,
    time::Duration,
};

use tokio::time::{Instant, timeout};

use super::{report, show};
use crate::{client::StreamEvent, protocol::pb::v1::TaskState};

/// Interval at which the progress line is written.
const TICK: Duration = Duration::from_millis(250);

/// Time after which a call counts as one that takes long.
const LONG: Duration = Duration::from_millis(500);

/// Maximum number of artifacts that are counted.
const MAX_ARTIFACTS: usize = 1000;

/// Width of a terminal that does not tell it, in columns.
const WIDTH: u16 = 80;

defaults! {
    /// Line on stderr that shows the state of a task while the program waits for it. Removed when dropped.
    #[derive(Debug)]
    pub(super) struct Progress {
        started: Instant = Instant::now(),
        drawn: Instant = Instant::now(),
        state: Option<TaskState>,
        text: String,
        artifacts: BTreeSet<String>,
        is_shown: bool,
    }
}

impl Progress {
    /// Returns the progress of a call that begins now. `None` if stderr is no terminal that can rewrite a line.
    pub(super) fn start() -> Option<Self> {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let can_rewrite = cfg!(unix) && io::stderr().is_terminal() && !is_dumb;
        can_rewrite.then(Self::default)
    }

    /// Waits for a result, and writes the line meanwhile.
    pub(super) async fn during<T>(&mut self, result: impl Future<Output = T>) -> T {
        let mut result = pin!(result);
        loop {
            match timeout(TICK, &mut result).await {
                Ok(result) => {
                    // Events may arrive faster than the ticks.
                    if self.drawn.elapsed() >= TICK {
                        self.draw();
                    }
                    return result;
                }
                Err(_) => self.draw(),
            }
        }
    }

    /// Updates the state and the progress line from an event.
    pub(super) fn record(&mut self, event: &StreamEvent) {
        self.state = event.state().or(self.state);
        if let Some(message) = event.status().and_then(|status| status.message.as_ref()) {
            self.text = message.text();
        }
        let artifacts = match event {
            StreamEvent::Task(task) => &*task.artifacts,
            StreamEvent::Artifact(update) => update.artifact.as_slice(),
            StreamEvent::Status(_) | StreamEvent::Message(_) | StreamEvent::Gap => &[],
        };
        let left = MAX_ARTIFACTS.saturating_sub(self.artifacts.len());
        self.artifacts.extend(artifacts.iter().map(|artifact| artifact.artifact_id.clone()).take(left));
    }

    /// Writes the line, once the call takes long.
    fn draw(&mut self) {
        let elapsed = self.started.elapsed();
        if elapsed < LONG {
            return;
        }
        (self.is_shown, self.drawn) = (true, Instant::now());
        let width = terminal_size::terminal_size_of(io::stderr()).map_or(WIDTH, |(width, _)| width.0);
        let line = self.line(elapsed.as_secs(), usize::from(width).saturating_sub(1));
        report(&format!("\r{line}\x1b[K"));
    }

    fn line(&self, seconds: u64, width: usize) -> String {
        let state = self.state.map_or("waiting", show::state);
        let mut line = format!("{state} {seconds} s");
        match self.artifacts.len() {
            0 => {}
            1 => line.push_str(", 1 artifact"),
            count => _ = write!(line, ", {count} artifacts"),
        }
        let text = self.text.split_whitespace().collect::<Vec<_>>().join(" ");
        if !text.is_empty() {
            line.push_str(": ");
            line.push_str(&show::safe(&text));
        }
        // Many characters other than ASCII take two columns.
        show::cut(&line, if line.is_ascii() { width } else { width / 2 }).into_owned()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            report("\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::pb::v1::{Artifact, Message, Task, TaskStatus};

    #[test]
    fn progress_line_fits_the_terminal() {
        let mut progress = Progress::default();
        assert_eq!(progress.line(1, 80), "waiting 1 s");
        let status = TaskStatus {
            message: Some(Message::agent("reading\nthe \u{1b}[2Jfiles")),
            state: TaskState::Working.into(),
            ..TaskStatus::default()
        };
        let mut task = Task { status: Some(status), ..Task::default() };
        task.artifacts = ["a", "b", "a"].map(|id| Artifact { artifact_id: id.into(), ..Artifact::default() }).into();
        progress.record(&StreamEvent::Task(Box::new(task)));
        assert_eq!(progress.line(62, 80), "working 62 s, 2 artifacts: reading the \\u{1b}[2Jfiles");
        assert_eq!(progress.line(62, 20), "working 62 s, 2 art…");
        progress.text = "日本語".repeat(20);
        assert_eq!(progress.line(62, 80).chars().count(), 40);
    }
}
