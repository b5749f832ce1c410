//! Guard of a command: a process between the server and the command, which starts the command with its memory limit and
//! leaves no process of it behind, and none of its temporary files, even if the server is killed.
//!
//! The program starts itself as the guard. The guard has stdin, stdout and stderr of the command. As long as the server lives, it
//! has the other end of stderr, so that an error on that pipe means that the server is gone. On Linux, the guard is also the
//! parent of processes whose own parent has ended, and finds them wherever they went.

use std::{
    env,
    ffi::{OsStr, OsString},
    io::{self, Write as _},
    os::unix::{
        fs::PermissionsExt as _,
        process::{CommandExt as _, ExitStatusExt as _},
    },
    path::{Path, PathBuf},
    process::{self, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, Resource, Rlimit, Signal, kill_process_group, setrlimit},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
    time::{Instant, sleep_until},
};

use crate::base::environment::secret_variables;

/// Name of the processes in a list of processes.
const NAME: &str = "a2a";

/// First argument of the program as the guard.
const GUARD: &str = "exec-guard";

/// First argument of the program that sets the memory limit, and then becomes the command.
const LIMITED: &str = "exec-limited";

/// Exit code for a command that was not found, as in a shell.
pub(in crate::agents) const NOT_FOUND: u8 = 127;

/// Exit code for a command that can't be executed, as in a shell.
pub(in crate::agents) const NOT_EXECUTABLE: u8 = 126;

/// Exit code of a process that was killed by signal 0; the number of the signal is added, as in a shell.
pub(in crate::agents) const KILLED: u8 = 128;

/// Time in which all processes of a command end after they were killed. Only one that waits for hardware does not.
const KILL_TIME: Duration = Duration::from_secs(5);

/// Time in which a process gets another parent after its parent has closed its files at its end.
const REPARENT_TIME: Duration = Duration::from_secs(2);

/// Interval at which the remaining processes are killed again.
const KILL_INTERVAL: Duration = Duration::from_millis(2);

/// Times between SIGTERM and SIGKILL.
#[derive(Clone, Copy, Debug)]
pub(in crate::agents) struct Grace {
    /// After SIGTERM for the guard.
    pub(in crate::agents) terminated: Duration,
    /// After the server has closed its end of stderr.
    pub(in crate::agents) orphaned: Duration,
}

/// Returns the path of this program. On Linux, it remains valid if the file is replaced while the program runs.
pub(crate) fn own_program() -> io::Result<PathBuf> {
    let running = Path::new("/proc/self/exe");
    if cfg!(target_os = "linux") && running.exists() { Ok(running.to_owned()) } else { env::current_exe() }
}

/// Returns the path of a program, which is looked for as a shell does, in `path` or in that of this process.
///
/// # Errors
/// `NotFound` if there is none that can be executed.
pub(in crate::agents) fn find_program(name: &OsStr, path: Option<&OsStr>) -> io::Result<PathBuf> {
    let is_program = |path: &PathBuf| {
        path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    let found = if Path::new(name).components().count() > 1 || name.as_encoded_bytes().contains(&b'/') {
        Some(PathBuf::from(name)).filter(is_program).and_then(|path| std::path::absolute(path).ok())
    } else {
        let path = path.map(OsStr::to_owned).or_else(|| env::var_os("PATH")).unwrap_or_default();
        env::split_paths(&path).map(|directory| directory.join(name)).find(is_program)
    };
    found.ok_or_else(|| {
        let why = format!("{}: there is no such program that can be executed", name.to_string_lossy());
        io::Error::new(io::ErrorKind::NotFound, why)
    })
}

/// Returns a command that runs `program`, with a guard if the path of one is given. It is detached from the terminal of the server.
/// Variables of the server that may be secrets are not passed on. If the server is killed, the guard deletes the directories whose
/// paths begin with `files`. With a guard, `memory` limits the address space of each process in bytes, unless it is 0.
pub(in crate::agents) fn command(
    guard: Option<&Path>,
    program: &Path,
    grace: Grace,
    memory: u64,
    files: Option<&Path>,
) -> tokio::process::Command {
    let mut command = match guard {
        Some(guard) => {
            let mut command = tokio::process::Command::new(guard);
            command
                .arg0(NAME)
                .arg(GUARD)
                .args([grace.terminated, grace.orphaned].map(|grace| grace.as_millis().to_string()));
            command.arg(files.unwrap_or(Path::new(""))).arg(memory.to_string()).arg(program);
            command
        }
        None => tokio::process::Command::new(program),
    };
    for name in secret_variables() {
        command.env_remove(name);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    command
}

/// Runs a process of a guarded command, if the arguments of the program are those of one. Returns its exit code.
pub(crate) fn run(mut arguments: impl Iterator<Item = OsString>) -> Option<u8> {
    let role = arguments.next()?;
    if role != GUARD && role != LIMITED {
        return None;
    }
    let number = |word: Option<OsString>| word?.to_str()?.parse::<u64>().ok();
    let mut grace = || number(arguments.next()).map(Duration::from_millis);
    let grace = if role == GUARD { (|| Some(Grace { terminated: grace()?, orphaned: grace()? }))() } else { None };
    let files = grace.and_then(|_| arguments.next()).filter(|path| !path.is_empty()).map(PathBuf::from);
    let memory = number(arguments.next());
    let command: Vec<OsString> = arguments.collect();
    match (memory, grace) {
        (Some(memory), Some(grace)) if role == GUARD && !command.is_empty() => {
            Some(guard(grace, memory, &command, files.as_deref()))
        }
        (Some(memory), None) if role == LIMITED && !command.is_empty() => Some(become_command(memory, &command)),
        _ => Some(fail(OsStr::new(GUARD), &io::Error::other("internal command of `a2a serve`"), 2)),
    }
}

/// Prints an error to stderr, which the server logs.
fn fail(name: &OsStr, error: &io::Error, code: u8) -> u8 {
    drop(io::stderr().write_all(format!("{}: {error}\n", name.to_string_lossy()).as_bytes()));
    code
}

/// Limits the address space, unless the limit is 0, and replaces this process by the command. Returns only if that fails.
fn become_command(memory: u64, command: &[OsString]) -> u8 {
    let Some((program, arguments)) = command.split_first() else { return NOT_FOUND };
    let limit = Rlimit { current: Some(memory), maximum: Some(memory) };
    if memory > 0
        && let Err(error) = setrlimit(Resource::As, limit)
    {
        return fail(program, &error.into(), NOT_EXECUTABLE);
    }
    let error = process::Command::new(program).args(arguments).exec();
    let code = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
    fail(program, &error, code)
}

/// Starts the command, and waits for its end. SIGTERM is passed on, and sent if the server is gone. The command is killed after
/// the grace period. If the server was killed, the directories whose paths begin with `files` are deleted.
fn guard(grace: Grace, memory: u64, command: &[OsString], files: Option<&Path>) -> u8 {
    let server = rustix::process::getppid();
    let program = command.first().map(OsString::as_os_str).unwrap_or_default();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(program, &error, NOT_EXECUTABLE),
    };
    let result = runtime.block_on(async {
        // Before the command starts, so that no signal is lost.
        let mut terminated = signal(SignalKind::terminate())?;
        adopt_orphans();
        let mut limited = tokio::process::Command::new(own_program()?);
        limited.arg0(NAME).arg(LIMITED).arg(memory.to_string()).args(command).process_group(0);
        let mut child = limited.spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let orphaned = watch_server();
        // The command has the only other ends of the pipes of stdin and stdout, so that its end is seen there.
        if let Ok(null) = std::fs::File::options().read(true).write(true).open("/dev/null") {
            _ = rustix::stdio::dup2_stdin(&null);
            _ = rustix::stdio::dup2_stdout(&null);
        }
        tokio::pin!(orphaned);
        let (mut killed_at, mut is_orphaned) = (None::<Instant>, false);
        let status = loop {
            tokio::select! {
                status = child.wait() => break status?,
                _ = &mut orphaned, if !is_orphaned => {
                    send(group, Signal::TERM);
                    let end = Instant::now() + grace.orphaned;
                    (killed_at, is_orphaned) = (Some(killed_at.map_or(end, |at| at.min(end))), true);
                }
                _ = terminated.recv() => {
                    send(group, Signal::TERM);
                    killed_at.get_or_insert_with(|| Instant::now() + grace.terminated);
                }
                () = sleep_until(killed_at.unwrap_or_else(Instant::now)), if killed_at.is_some() => break ExitStatus::from_raw(Signal::KILL.as_raw()),
            }
        };
        kill_all(group).await;
        // Not if the server has only left the command: it may still read the files.
        if let Some(files) = files
            && is_without(server).await
        {
            delete(files)?;
        }
        io::Result::Ok(status)
    });
    match result {
        Ok(status) => exit_code(status),
        Err(error) => fail(program, &error, NOT_EXECUTABLE),
    }
}

/// Returns true if the server, the first parent of this process, has ended.
async fn is_without(server: Option<Pid>) -> bool {
    let end = Instant::now() + REPARENT_TIME;
    while rustix::process::getppid() == server {
        // A server that ends closes its end of stderr before its children get another parent.
        let stderr = io::stderr();
        let is_open =
            matches!(poll(&mut [PollFd::new(&stderr, PollFlags::empty())], Some(&Timespec::default())), Ok(0));
        if is_open || Instant::now() > end {
            return false;
        }
        sleep_until(Instant::now() + KILL_INTERVAL).await;
    }
    true
}

/// Deletes the directories whose paths begin with a text, as many as it can. Returns the first error.
fn delete(begin: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (begin.parent(), begin.file_name()) else { return Ok(()) };
    let mut outcome = Ok(());
    for entry in std::fs::read_dir(parent)?.flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(name.as_encoded_bytes()) {
            outcome = outcome.and(std::fs::remove_dir_all(entry.path()));
        }
    }
    outcome
}

/// Returns the exit code of a shell for the end of a process.
fn exit_code(status: ExitStatus) -> u8 {
    let signal = || status.signal().and_then(|signal| KILLED.checked_add(signal.try_into().ok()?));
    status.code().and_then(|code| code.try_into().ok()).or_else(signal).unwrap_or(KILLED)
}

fn send(group: Option<Pid>, signal: Signal) {
    if let Some(group) = group {
        // Fails if the group has ended.
        _ = kill_process_group(group, signal);
    }
}

/// Waits on a thread until the server has closed its end of stderr.
fn watch_server() -> oneshot::Receiver<()> {
    let (gone, orphaned) = oneshot::channel();
    thread::spawn(move || {
        let stderr = io::stderr();
        // Without requested events, only errors end the wait.
        while let Ok(0) | Err(rustix::io::Errno::INTR) = poll(&mut [PollFd::new(&stderr, PollFlags::empty())], None) {}
        _ = gone.send(());
    });
    orphaned
}

/// Makes this process the parent of descendants whose parent ends.
#[cfg(target_os = "linux")]
fn adopt_orphans() {
    _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

#[cfg(not(target_os = "linux"))]
fn adopt_orphans() {}

/// Kills the process group of the command, and all descendants outside of it.
#[cfg(target_os = "linux")]
async fn kill_all(group: Option<Pid>) {
    use rustix::process::{WaitOptions, kill_process, wait};

    let end = Instant::now() + KILL_TIME;
    loop {
        // Reaps what has ended. Descendants of a killed process become children of this one.
        let remaining = loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => {}
                remaining => break remaining,
            }
        };
        if remaining.is_err() || Instant::now() > end {
            return;
        }
        send(group, Signal::KILL);
        for child in children() {
            _ = kill_process(child, Signal::KILL);
        }
        sleep_until(Instant::now() + KILL_INTERVAL).await;
    }
}

#[cfg(not(target_os = "linux"))]
async fn kill_all(group: Option<Pid>) {
    send(group, Signal::KILL);
}

/// Returns the children of this process.
#[cfg(target_os = "linux")]
fn children() -> Vec<Pid> {
    let parent = process::id().to_string();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let child = |id: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // The name of the program, in parentheses, may have spaces and parentheses itself.
        let (_, fields) = stat.rsplit_once(')')?;
        let is_child = fields.split_whitespace().nth(1) == Some(parent.as_str());
        is_child.then(|| Pid::from_raw(id.parse().ok()?)).flatten()
    };
    processes.filter_map(|process| child(process.file_name().to_str()?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_by_a_shell() {
        assert!(find_program(OsStr::new("sh"), None).unwrap().is_absolute());
        assert!(find_program(OsStr::new("/bin/sh"), None).is_ok());
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(find_program(file.path().as_os_str(), None).is_err(), "not executable");
        assert!(find_program(OsStr::new("no-such-program"), None).is_err());
        assert!(find_program(OsStr::new("sh"), Some(OsStr::new("/nowhere"))).is_err());
    }
}
