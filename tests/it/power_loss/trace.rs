//! System calls of a server as traced by strace: writes, syncs, and data sent to sockets.

use std::{
    collections::HashMap,
    fs,
    path::Path,
    process::{Command, Stdio},
};

/// Effect of a system call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// Creates the file unless it exists.
    Create(String),
    Write(String, usize, Vec<u8>),
    Truncate(String, usize),
    /// Syncs a file, or the entries of a directory.
    Sync(String),
    Remove(String),
    Rename(String, String),
    /// Sends data on a socket.
    Send(Vec<u8>),
}

/// System calls to trace.
const CALLS: &str = "openat,pwrite64,write,writev,sendto,fsync,fdatasync,ftruncate,unlink,rename";

/// Returns whether strace is installed and permitted. Only root may read the memory of a server.
pub(super) fn is_available() -> bool {
    let tried = Command::new("strace").args(["-o", "/dev/null", "true"]).stderr(Stdio::null()).status();
    crate::program::is_root() && tried.is_ok_and(|status| status.success())
}

/// Prefix of a command that traces it to a file. The process id is that of the command.
pub(super) fn strace(into: &Path) -> Vec<String> {
    let into = into.display().to_string();
    ["strace", "-D", "-f", "-q", "-y", "-xx", "-s", "4000000", "-e", "signal=none", "-e", &format!("trace={CALLS}")]
        .map(str::to_owned)
        .into_iter()
        .chain(["-o".to_owned(), into])
        .collect()
}

/// Call with the lines of its start and end: it may take effect from the start, and has taken effect at the end.
struct Traced {
    began: usize,
    ended: usize,
    call: Call,
}

/// Returns the calls of a trace in the order in which they take effect: a sync at its end, others at their start. A sync
/// has the number of calls that started before it did.
pub(super) fn read(path: &Path) -> Vec<(Call, usize)> {
    let text = fs::read_to_string(path).unwrap();
    let mut unfinished: HashMap<&str, (usize, &str)> = HashMap::new();
    let mut traced_calls = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let Some((thread, line)) = line.split_once(' ') else { continue };
        let line = line.trim_start();
        if let Some(first) = line.strip_suffix("<unfinished ...>") {
            unfinished.insert(thread, (at, first));
        } else if let Some((_, rest)) = line.strip_prefix("<... ").and_then(|line| line.split_once("resumed>")) {
            let Some((began, first)) = unfinished.remove(thread) else { continue };
            traced_calls.extend(call(&format!("{first}{rest}")).map(|call| Traced { began, ended: at, call }));
        } else {
            traced_calls.extend(call(line).map(|call| Traced { began: at, ended: at, call }));
        }
    }
    let effective_line =
        |traced: &Traced| if matches!(traced.call, Call::Sync(_)) { traced.ended } else { traced.began };
    traced_calls.sort_by_key(effective_line);
    let order: Vec<usize> = traced_calls.iter().map(effective_line).collect();
    traced_calls.into_iter().map(|traced| (traced.call, order.partition_point(|at| *at < traced.began))).collect()
}

/// Parses a line. Returns `None` for a failed or irrelevant call.
fn call(line: &str) -> Option<Call> {
    let (name, rest) = line.split_once('(')?;
    let (arguments, result) = rest.rsplit_once(" = ")?;
    if result.starts_with('-') || result.starts_with('?') {
        return None;
    }
    let file = || text(arguments.split_once('<')?.1.split_once('>')?.0);
    let strings = || arguments.split('"').skip(1).step_by(2).map(bytes);
    let path = |n: usize| strings().nth(n).and_then(|bytes| String::from_utf8(bytes).ok());
    let last = || arguments.trim_end().trim_end_matches(')').rsplit(", ").next()?.trim().parse().ok();
    match name {
        "openat" if arguments.contains("O_CREAT") => path(0).map(Call::Create),
        "pwrite64" => Some(Call::Write(file()?, last()?, strings().next()?)),
        "ftruncate" => Some(Call::Truncate(file()?, last()?)),
        "fsync" | "fdatasync" => file().map(Call::Sync),
        "unlink" => path(0).map(Call::Remove),
        "rename" => Some(Call::Rename(path(0)?, path(1)?)),
        "write" | "writev" | "sendto" if file()?.starts_with("socket:") => {
            Some(Call::Send(strings().flatten().collect()))
        }
        _ => None,
    }
}

fn text(hex: &str) -> Option<String> {
    String::from_utf8(bytes(hex)).ok()
}

/// Decodes bytes of the form `\x2f\x74`.
fn bytes(hex: &str) -> Vec<u8> {
    hex.split("\\x").skip(1).filter_map(|digits| u8::from_str_radix(digits.get(..2)?, 16).ok()).collect()
}
