//! What a server did, call by call, as strace has seen it: what it wrote, what it synced, and what left it on a socket.

use std::{
    collections::HashMap,
    fs,
    path::Path,
    process::{Command, Stdio},
};

/// What a call did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// A file is there, if it was not.
    Create(String),
    Write(String, usize, Vec<u8>),
    Truncate(String, usize),
    /// A file, or a directory with its names.
    Sync(String),
    Remove(String),
    Rename(String, String),
    /// On a connection.
    Send(Vec<u8>),
}

/// The calls that strace is to look at.
const CALLS: &str = "openat,pwrite64,write,writev,sendto,fsync,fdatasync,ftruncate,unlink,rename";

/// Whether there is a strace that may trace.
pub(super) fn is_available() -> bool {
    let tried = Command::new("strace").args(["-o", "/dev/null", "true"]).stderr(Stdio::null()).status();
    tried.is_ok_and(|it| it.success())
}

/// What comes before a command whose calls are written to a file. The process is that of the command.
pub(super) fn strace(into: &Path) -> Vec<String> {
    let into = into.display().to_string();
    ["strace", "-D", "-f", "-q", "-y", "-xx", "-s", "4000000", "-e", "signal=none", "-e", &format!("trace={CALLS}")]
        .map(str::to_owned)
        .into_iter()
        .chain(["-o".to_owned(), into])
        .collect()
}

/// A call from its beginning, which is when what it does may be done, to its end, which is when that is sure.
struct Traced {
    began: usize,
    ended: usize,
    call: Call,
}

/// The calls of a trace, in the order in which they count: a sync when it is over, all others when they begin. With each
/// sync comes how many calls had begun before it did.
pub(super) fn read(path: &Path) -> Vec<(Call, usize)> {
    let text = fs::read_to_string(path).unwrap();
    let mut unfinished: HashMap<&str, (usize, &str)> = HashMap::new();
    let mut all = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let Some((thread, line)) = line.split_once(' ') else { continue };
        let line = line.trim_start();
        if let Some(first) = line.strip_suffix("<unfinished ...>") {
            unfinished.insert(thread, (at, first));
        } else if let Some((_, rest)) = line.strip_prefix("<... ").and_then(|it| it.split_once("resumed>")) {
            let Some((began, first)) = unfinished.remove(thread) else { continue };
            all.extend(call(&format!("{first}{rest}")).map(|call| Traced { began, ended: at, call }));
        } else {
            all.extend(call(line).map(|call| Traced { began: at, ended: at, call }));
        }
    }
    let counts = |it: &Traced| if matches!(it.call, Call::Sync(_)) { it.ended } else { it.began };
    all.sort_by_key(counts);
    let order: Vec<usize> = all.iter().map(counts).collect();
    all.into_iter().map(|it| (it.call, order.partition_point(|at| *at < it.began))).collect()
}

/// What a line tells; nothing of a call that failed, or that is nothing to us.
fn call(line: &str) -> Option<Call> {
    let (name, rest) = line.split_once('(')?;
    let (arguments, result) = rest.rsplit_once(" = ")?;
    if result.starts_with('-') || result.starts_with('?') {
        return None;
    }
    let file = || text(arguments.split_once('<')?.1.split_once('>')?.0);
    let strings = || arguments.split('"').skip(1).step_by(2).map(bytes);
    let path = |n: usize| strings().nth(n).and_then(|it| String::from_utf8(it).ok());
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

/// Bytes that are written as `\x2f\x74`.
fn bytes(hex: &str) -> Vec<u8> {
    hex.split("\\x").skip(1).filter_map(|it| u8::from_str_radix(it.get(..2)?, 16).ok()).collect()
}
