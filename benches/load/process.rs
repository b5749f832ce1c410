//! Child processes pinned to cores, and their processor time and memory.

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

/// Server in a child process, killed on drop.
pub(crate) struct Server {
    child: Child,
    pub(crate) addr: String,
}

impl Server {
    /// Starts a server of [`servers`](crate::servers) on these cores.
    pub(crate) fn start(kind: &str, cores: &str) -> Self {
        Self::run(pinned(cores).args(["serve", kind]))
    }

    /// Starts another program that prints its address on the first line.
    pub(crate) fn start_program(program: &Path, cores: &str) -> Self {
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

    /// Resident memory in bytes.
    pub(crate) fn resident(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Processor time of all threads of a process. `schedstat` is exact to the nanosecond for threads that sleep, whereas
/// `stat` has steps of 10 ms.
pub(crate) fn cpu(id: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{id}/task")).unwrap();
    let schedstat = |path: std::path::PathBuf| fs::read_to_string(path.join("schedstat")).unwrap_or_default();
    let nanos = |text: &str| text.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0);
    Duration::from_nanos(threads.map(|entry| nanos(&schedstat(entry.unwrap().path()))).sum())
}

/// Command that runs this program on these cores, if `taskset` is available.
pub(crate) fn pinned(cores: &str) -> Command {
    on(&env::current_exe().unwrap(), cores)
}

fn on(program: &Path, cores: &str) -> Command {
    let has_taskset = Command::new("taskset").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !has_taskset {
        return Command::new(program);
    }
    let mut command = Command::new("taskset");
    command.args(["-c", cores]).arg(program);
    command
}
