//! Metrics of the process, as the client libraries of Prometheus have them, read from `/proc`.

#[cfg(target_os = "linux")]
use super::{CPU_TIME, LimitUse, MAX_FILES, OPEN_FILES, RESIDENT_MEMORY, START_TIME, number};

/// Records the metrics of the process. Values that can't be read are left out.
#[cfg(target_os = "linux")]
pub(crate) fn record_process() {
    use std::fs;

    let ticks = rustix::param::clock_ticks_per_second().max(1);
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let stat = read("/proc/self/stat");
    // The name of the process, in parentheses, may have spaces.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace();
    let fields: Vec<u64> = fields.map(|field| field.parse().unwrap_or(0)).collect();
    // User and system time, and the start since the boot: fields 14, 15 and 22 of proc(5).
    if let [_, _, _, _, _, _, _, _, _, _, _, user, system, _, _, _, _, _, _, start, ..] = *fields {
        CPU_TIME.count(None, &[], (user + system) / ticks);
        if let Some(boot) = field(&read("/proc/stat"), "btime ") {
            START_TIME.set(None, &[], number(boot + start / ticks));
        }
    }
    if let Some(kib) = field(&read("/proc/self/status"), "VmRSS:") {
        RESIDENT_MEMORY.set(None, &[], number(kib * 1024));
    }
    let max = field(&read("/proc/self/limits"), "Max open files");
    if let Ok(files) = fs::read_dir("/proc/self/fd") {
        // The listing has an open file itself.
        let open = files.count().saturating_sub(1);
        LimitUse { max, ..LimitUse::new("open_files", open, 0) }.record(None);
        OPEN_FILES.set(None, &[], number(open));
    }
    if let Some(max) = max {
        MAX_FILES.set(None, &[], number(max));
    }
}

/// Returns the first number in the line that begins so.
#[cfg(target_os = "linux")]
fn field(text: &str, start: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(start))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

/// Records nothing: this system has no `/proc`.
#[cfg(not(target_os = "linux"))]
pub(crate) fn record_process() {}
