//! Commands that `a2a listen --forward` runs.

use std::{convert::Infallible, io, process::Stdio, str::FromStr};

use tokio::{io::AsyncWriteExt as _, process::Command};

use super::Notification;
use crate::base::environment::{PREFIX, secret_variables};

/// Command of `--forward`.
#[derive(Clone, Debug)]
pub(super) struct Forward(Vec<String>);

impl FromStr for Forward {
    type Err = &'static str;

    /// Splits a command into words, as a shell does, without expansions.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let words = shlex::split(text).ok_or("a quote is not closed, or a backslash ends the command")?;
        if words.first().is_none_or(String::is_empty) { Err("the command is empty") } else { Ok(Self(words)) }
    }
}

impl Forward {
    /// Runs the command with the body on stdin, and waits for its end. It is killed, with the processes that it has started,
    /// if the sender disconnects.
    ///
    /// # Errors
    /// The command could not be started, or failed.
    pub(super) async fn run(
        &self,
        notification: &Notification<'_>,
        hidden_variable: Option<&str>,
        only_stderr: bool,
    ) -> Result<(), String> {
        let (program, arguments) = self.0.split_first().ok_or("the command is empty")?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).kill_on_drop(true);
        // The command may be this program, for which the user has set variables.
        let foreign = secret_variables().filter(|name| !name.as_encoded_bytes().starts_with(PREFIX.as_bytes()));
        for name in foreign.chain(hidden_variable.map(Into::into)) {
            command.env_remove(name);
        }
        command.envs([
            ("A2A_DELIVERY_ID", notification.delivery_id.unwrap_or_default()),
            ("A2A_PROTOCOL_VERSION", notification.version),
            ("A2A_TASK_ID", notification.task_id),
            ("A2A_CONTEXT_ID", notification.context_id),
            ("A2A_EVENT", notification.event),
            ("A2A_STATE", notification.state.unwrap_or_default()),
            ("A2A_VERIFIED", if notification.is_verified { "true" } else { "false" }),
        ]);
        if only_stderr {
            command.stdout(io::stderr());
        }
        // Of its own, so that Ctrl-C does not interrupt the command, and that its processes can be killed together.
        #[cfg(unix)]
        command.process_group(0);
        let failed = |error: io::Error| format!("{program}: {error}");
        let mut child = command.spawn().map_err(failed)?;
        #[cfg(unix)]
        let mut group = Group(child.id().and_then(|id| rustix::process::Pid::from_raw(id.try_into().ok()?)));
        let stdin = child.stdin.take();
        let write = async {
            if let Some(mut stdin) = stdin {
                // A command need not read its input.
                drop(stdin.write_all(notification.body).await);
            }
            std::future::pending::<Infallible>().await
        };
        let status = tokio::select! {
            status = child.wait() => status.map_err(failed)?,
            never = write => match never {},
        };
        // Its id can be reused now.
        #[cfg(unix)]
        group.0.take();
        if status.success() { Ok(()) } else { Err(format!("{program} failed: {status}")) }
    }
}

/// Process group of a running command, which is killed when this is dropped.
#[cfg(unix)]
struct Group(Option<rustix::process::Pid>);

#[cfg(unix)]
impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // Fails only if all of its processes have ended.
            _ = rustix::process::kill_process_group(leader, rustix::process::Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_split_without_expansions() {
        for (text, words) in [
            ("jq .task", &["jq", ".task"][..]),
            (r#" sh  -c 'cat >"$A2A_TASK_ID"; echo $HOME' "#, &["sh", "-c", r#"cat >"$A2A_TASK_ID"; echo $HOME"#]),
            (r#"a "b c" d\ e "f\"g" '' *.json | ~ $(x)"#, &["a", "b c", "d e", "f\"g", "", "*.json", "|", "~", "$(x)"]),
        ] {
            let Forward(found) = text.parse().unwrap();
            assert_eq!(found, words);
        }
        for text in ["", "  ", "''", "a 'b", "a \"b", "a \\"] {
            assert!(text.parse::<Forward>().is_err(), "{text}");
        }
    }
}
