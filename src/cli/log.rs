//! Log on stderr: `tracing` subscriber, panic hook, and escaping of control characters.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    fmt,
    panic::PanicHookInfo,
};

use tracing::{Event, Subscriber};
use tracing_subscriber::{
    filter::Targets,
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    layer::SubscriberExt as _,
    registry::LookupSpan,
    util::SubscriberInitExt as _,
};

use crate::base::stderr::write_escaped;

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// A JSON object per line.
    Json,
}

/// Installs the subscriber that logs to stderr, and a panic hook that logs panics.
pub(crate) fn init(log: LogFormat, filter: Targets) {
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    let subscriber = tracing_subscriber::registry().with(filter);
    match log {
        LogFormat::Text => subscriber.with(lines.map_event_format(|format| Escaped { format, json: false })).init(),
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true).with_span_list(false);
            subscriber.with(lines.map_event_format(|format| Escaped { format, json: true })).init();
        }
    }
    std::panic::set_hook(Box::new(log_panic));
}

/// Installs the subscriber that prints warnings of the client to stderr, for commands that call an agent. The first one stays.
pub(crate) fn init_client() {
    let warnings = |target: &'static str| (target, tracing::Level::WARN);
    let filter: Targets = [warnings("a2a_service::client"), warnings("a2a_service::protocol")].into_iter().collect();
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    _ = tracing_subscriber::registry().with(filter).with(lines.event_format(Warning)).try_init();
}

/// Format of the warnings of the client, which is that of the warnings of a command.
struct Warning;

impl<S, N> FormatEvent<S, N> for Warning
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut text = String::new();
        context.field_format().format_fields(Writer::new(&mut text), event)?;
        writer.write_str("warning: ")?;
        write_escaped(&mut writer, &text, false)?;
        writer.write_str("\n")
    }
}

/// Logs a panic with its message escaped, because it may contain client input. The standard hook would write it verbatim.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let message = panic.payload_as_str().unwrap_or("no message");
    let location = panic.location().map(ToString::to_string);
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    tracing::error!(panic.message = message, panic.location = location, panic.backtrace = backtrace, "thread panicked");
}

/// Event format that escapes the control characters in the output of another format: in fields, spans and messages. Client
/// input can therefore neither start a new log line nor control a terminal.
struct Escaped<F> {
    format: F,
    /// The format writes JSON, so that `\u` escapes are used.
    json: bool,
}

impl<S, N, F> FormatEvent<S, N> for Escaped<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut line = String::new();
        self.format.format_event(context, Writer::new(&mut line), event)?;
        write_escaped(&mut writer, line.strip_suffix('\n').unwrap_or(&line), self.json)?;
        writer.write_str("\n")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::fmt::MakeWriter;

    use super::*;

    /// Captured output of a subscriber.
    #[derive(Clone, Default)]
    struct LogBuffer(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for LogBuffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for LogBuffer {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    const HOSTILE: &str = "x\r\n2026-01-01 ERROR fake\u{1b}[31m\u{7f}\u{9b}31m\u{2028}\u{202e}\u{0}end";

    /// Logs [`HOSTILE`] in fields (plain, debug, display), the message, an error and a span.
    fn log() {
        let error = std::io::Error::other(HOSTILE);
        let cause: &dyn std::error::Error = &error;
        let span = tracing::error_span!("span", held = HOSTILE, shown = %HOSTILE);
        let _entered = span.enter();
        tracing::error!(plain = HOSTILE, debug = ?HOSTILE, shown = %HOSTILE, cause, "{HOSTILE}");
    }

    #[test]
    fn control_characters_are_escaped_everywhere_in_the_text_log() {
        let output = LogBuffer::default();
        let lines = tracing_subscriber::fmt().with_writer(output.clone()).with_ansi(false);
        let lines = lines.map_event_format(|format| Escaped { format, json: false }).finish();
        tracing::subscriber::with_default(lines, log);
        let text = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
        let line = text.strip_suffix('\n').unwrap();
        assert!(!line.contains(|c: char| c.is_control() || ('\u{2028}'..='\u{202e}').contains(&c)), "{line:?}");
        assert_eq!(line.matches("ERROR fake").count(), 7, "{line}");
        for escaped in [r"x\r\n2026", r"\u{1b}[31m", r"\u{7f}", r"\u{9b}31m", r"\u{2028}", r"\u{202e}", r"\u{0}end"] {
            assert!(line.contains(escaped), "{escaped} is not in {line}");
        }
    }

    #[test]
    fn control_characters_are_escaped_in_the_json_log() {
        let output = LogBuffer::default();
        let lines = tracing_subscriber::fmt().with_writer(output.clone()).json().flatten_event(true);
        let lines = lines.map_event_format(|format| Escaped { format, json: true }).finish();
        tracing::subscriber::with_default(lines, log);
        let text = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
        let line = text.strip_suffix('\n').unwrap();
        assert!(!line.contains(|c: char| c.is_control() || ('\u{2028}'..='\u{202e}').contains(&c)), "{line:?}");
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(value["plain"], HOSTILE, "unescaping restores the text");
    }
}
