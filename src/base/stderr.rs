//! Reports on stderr for programs without a `tracing` subscriber, and escaping of control characters.

use std::{
    fmt,
    io::Write as _,
    sync::atomic::{AtomicUsize, Ordering},
};

use tracing::level_filters::LevelFilter;

/// Returns true for control characters (C0, DEL, C1), Unicode line separators, and characters that change the direction of text.
pub(crate) fn is_hidden(c: char) -> bool {
    let is_separator = matches!(c, '\u{2028}' | '\u{2029}');
    let is_bidi = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || is_separator || is_bidi
}

/// Writes text with [hidden](is_hidden) characters escaped. The line feeds of JSON are between its values, and stay.
pub(crate) fn write_escaped(out: &mut impl fmt::Write, text: &str, json: bool) -> fmt::Result {
    let mut rest = text;
    while let Some(index) = rest.find(|c| is_hidden(c) && !(json && c == '\n')) {
        let (plain, tail) = rest.split_at(index);
        out.write_str(plain)?;
        let mut tail = tail.chars();
        match tail.next() {
            Some(c) if json => write!(out, "\\u{:04x}", u32::from(c))?,
            Some(c) => write!(out, "{}", c.escape_default())?,
            None => {}
        }
        rest = tail.as_str();
    }
    out.write_str(rest)
}

/// Returns text with the characters escaped that [`write_escaped`] escapes.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    // Writing to a string does not fail.
    _ = write_escaped(&mut escaped, text, false);
    escaped
}

/// Escapes control characters other than line feeds, so that the text of an agent does not control the terminal.
#[cfg(any(feature = "cli", all(feature = "exec", unix)))]
pub(crate) fn safe(text: &str) -> String {
    text.split('\n').map(escaped).collect::<Vec<_>>().join("\n")
}

/// Formats a command for a shell. Its words may have been chosen by an agent.
#[cfg(any(feature = "cli", all(feature = "exec", unix)))]
pub(crate) fn shell_command(words: &[&str]) -> String {
    let words = words.iter().map(|word| shlex::try_quote(word).unwrap_or_default());
    escaped(&words.collect::<Vec<_>>().join(" "))
}

/// Number of live [`ReportGuard`] guards.
static REPORTING: AtomicUsize = AtomicUsize::new(0);

/// Guard that enables [`report`] while it lives.
#[derive(Debug)]
pub(crate) struct ReportGuard(());

impl ReportGuard {
    pub(crate) fn begin() -> Self {
        REPORTING.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for ReportGuard {
    fn drop(&mut self) {
        REPORTING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Writes a line to stderr if the program has never set a `tracing` subscriber, neither globally nor for a scope, and a
/// server has a [`ReportGuard`] guard.
pub(crate) fn report(line: fmt::Arguments<'_>) {
    let is_logged = || LevelFilter::current() != LevelFilter::OFF || tracing::dispatcher::has_been_set();
    if REPORTING.load(Ordering::Relaxed) == 0 || is_logged() {
        return;
    }
    let line = format!("a2a-service: {}\n", escaped(&line.to_string()));
    // A failure of stderr can't be reported.
    drop(std::io::stderr().lock().write_all(line.as_bytes()));
}
