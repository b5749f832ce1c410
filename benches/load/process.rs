//! Processes of this program, on the cores they are given, and what the system knows of them.

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

/// A server in a process of its own, until it is dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) addr: String,
}

impl Server {
    /// One of [`servers`](crate::servers), on these cores.
    pub(crate) fn start(kind: &str, cores: &str) -> Self {
        Self::run(pinned(cores).args(["serve", kind]))
    }

    /// Another program, which says where it serves as one of ours does.
    pub(crate) fn of(program: &Path, cores: &str) -> Self {
        Self::run(&mut on(program, cores))
    }

    fn run(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut addr = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut addr).unwrap();
        Self { child, addr: addr.trim().to_owned() }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Memory, in bytes.
    pub(crate) fn resident(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let line = status.lines().find_map(|it| it.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The time that a process has had on processors, of all its threads. To the nanosecond for what sleeps, as a server
/// does that is asked nothing; `stat` has the same in steps of 10 ms.
pub(crate) fn cpu(id: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{id}/task")).unwrap();
    let of = |path: std::path::PathBuf| fs::read_to_string(path.join("schedstat")).unwrap_or_default();
    let nanos = |text: &str| text.split(' ').next().and_then(|it| it.parse().ok()).unwrap_or(0);
    Duration::from_nanos(threads.map(|it| nanos(&of(it.unwrap().path()))).sum())
}

/// This program on some cores, where the system can do that.
pub(crate) fn pinned(cores: &str) -> Command {
    on(&env::current_exe().unwrap(), cores)
}

fn on(program: &Path, cores: &str) -> Command {
    let known = Command::new("taskset").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !known {
        return Command::new(program);
    }
    let mut command = Command::new("taskset");
    command.args(["-c", cores]).arg(program);
    command
}
