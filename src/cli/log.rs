//! Log on stderr: `tracing` subscriber, panic hook, and escaping of control characters.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    fmt::{self, Write as _},
    io::{self, IsTerminal as _},
    panic::PanicHookInfo,
};

use anstream::AutoStream;
use serde_json::{Map, Value};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    field::RecordFields,
    filter::Targets,
    fmt::{
        FmtContext, FormatEvent, FormatFields, FormattedFields,
        format::Writer,
        time::{FormatTime as _, SystemTime},
    },
    layer::SubscriberExt as _,
    registry::LookupSpan,
    util::SubscriberInitExt as _,
};

use super::terminal::{DIM, RED, YELLOW, paint};
use crate::{
    base::stderr::{escaped, is_hidden, write_escaped},
    transport::REQUEST_LOG,
};

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Short lines for people if stderr is a terminal, otherwise as `Text`.
    #[default]
    Auto,
    /// Lines of `name=value` (logfmt).
    Text,
    /// A JSON object per line.
    Json,
}

/// Installs the subscriber that logs to stderr, and a panic hook that logs panics.
pub(crate) fn init(log: LogFormat, filter: Targets) {
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false);
    let subscriber = tracing_subscriber::registry().with(filter);
    match log {
        LogFormat::Auto if io::stderr().is_terminal() => {
            // Removes the colors where they are not wanted.
            let stderr = || AutoStream::auto(io::stderr()).lock();
            subscriber.with(lines.with_writer(stderr).event_format(Lines::Brief)).init();
        }
        LogFormat::Auto | LogFormat::Text => {
            subscriber.with(lines.fmt_fields(Logfmt).event_format(Lines::Logfmt)).init();
        }
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true).with_span_list(false).with_current_span(false);
            subscriber.with(lines.map_event_format(Json)).init();
        }
    }
    std::panic::set_hook(Box::new(log_panic));
}

/// Installs the subscriber that prints warnings of the client to stderr, for commands that call an agent. The first one stays.
pub(crate) fn init_client() {
    let warnings = |target: &'static str| (target, Level::WARN);
    let filter: Targets = [warnings("a2a_service::client"), warnings("a2a_service::protocol")].into_iter().collect();
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false);
    _ = tracing_subscriber::registry().with(filter).with(lines.event_format(Lines::Warnings)).try_init();
}

/// Logs a panic with its message escaped, because it may contain client input. The standard hook would write it verbatim.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let message = panic.payload_as_str().unwrap_or("no message");
    let location = panic.location().map(ToString::to_string);
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    tracing::error!(panic.message = message, panic.location = location, panic.backtrace = backtrace, "thread panicked");
}

/// Fields of an event or a span, with their values as text.
#[derive(Default)]
struct Fields(Vec<(&'static str, String)>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.push((field.name(), value.to_owned()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push((field.name(), format!("{value:?}")));
    }
}

/// Fields that are part of the text of a line for people, or of the context of a request.
const OMITTED: &str = "message event agent error.cause error.kind reason request.id trace.id owner \
    panic.backtrace turn attempt outcome queue_ms commits tokens.input tokens.output exit_code";

impl Fields {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(found, _)| *found == name).map(|(_, value)| value.as_str())
    }

    /// Returns the text of an event for people, and its further fields.
    fn event(&self, level: Level) -> (String, String) {
        let event = self.get("message").or(self.get("event")).unwrap_or_default();
        let agent = self.get("agent").map(|name| format!("{name}: ")).unwrap_or_default();
        // The lines after the first one are those of stderr, which have been logged.
        let cause = self.get("error.cause").or(self.get("reason")).and_then(|cause| cause.lines().next());
        let cause = cause.map(|cause| format!(": {cause}")).unwrap_or_default();
        let is_omitted = |name: &str| {
            let is_of_level = if level > Level::WARN { name == "task.id" } else { name == "duration_ms" };
            is_of_level || OMITTED.split_whitespace().any(|omitted| omitted == name)
        };
        let mut further = String::new();
        for (name, value) in self.0.iter().filter(|(name, _)| !is_omitted(name)) {
            further.extend([" ", name, "=", value]);
        }
        (format!("{agent}{event}{cause}"), further)
    }

    /// Returns the text of a line of the request log for people, and its task.
    fn request(&self) -> (String, String) {
        let get = |name: &str| self.get(name).unwrap_or_default();
        let with = |before: &str, name| self.get(name).map(|value| format!("{before}{value}")).unwrap_or_default();
        let call = with("", "operation");
        let request = if call.is_empty() { format!("{} {}", get("http.method"), get("path")) } else { call };
        let end = if get("message") == "response aborted" { ", aborted by the client" } else { "" };
        let (status, reason, time) = (get("status"), with(" ", "error.reason"), get("duration_ms"));
        (format!("{request} {status}{reason} in {time} ms{end}"), with(" task.id=", "task.id"))
    }
}

/// Format of the fields of an event or a span in logfmt.
struct Logfmt;

impl<'w> FormatFields<'w> for Logfmt {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut found = Fields::default();
        fields.record(&mut found);
        found.0.iter().try_for_each(|(name, value)| {
            let is_quoted = |c: char| c.is_whitespace() || is_hidden(c) || matches!(c, '"' | '=');
            if value.is_empty() || value.contains(is_quoted) {
                write!(writer, " {name}=\"{}\"", value.replace('\\', r"\\").replace('"', "\\\""))
            } else {
                write!(writer, " {name}={value}")
            }
        })
    }
}

/// Maximum number of columns of a line for people with its further fields.
const COLUMNS: usize = 100;

/// Event formats as text. Control characters are escaped in fields, spans and messages: client input can neither start a new log
/// line nor control a terminal.
enum Lines {
    /// Form of the warnings of a command.
    Warnings,
    /// Time, event and cause, for people at a terminal. Further fields are on the same line, or on another one if they do not fit.
    /// Without the context of requests and the fields of spans.
    Brief,
    /// Fields of the event and of its spans, with the names that they have in JSON, for programs.
    Logfmt,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let (level, target) = (*event.metadata().level(), event.metadata().target());
        let (mut fields, mut time) = (Fields::default(), String::new());
        event.record(&mut fields);
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        if matches!(self, Self::Logfmt) {
            let mut line = format!("timestamp={time} level={level} target={target}");
            context.field_format().format_fields(Writer::new(&mut line), event)?;
            let mut names: Vec<_> = fields.0.iter().map(|(name, _)| (*name).to_owned()).collect();
            for span in context.event_scope().into_iter().flatten() {
                let extensions = span.extensions();
                let fields = extensions.get::<FormattedFields<N>>().map_or("", |fields| &fields.fields);
                let (mut is_quoted, mut is_escape) = (false, false);
                let separates = |c: char| {
                    is_quoted ^= c == '"' && !is_escape;
                    is_escape = c == '\\' && !is_escape;
                    c == ' ' && !is_quoted
                };
                for (name, field) in fields.split(separates).filter_map(|field| Some((field.split_once('=')?.0, field)))
                {
                    if !names.iter().any(|known| known == name) {
                        names.push(name.to_owned());
                        line.extend([" ", field]);
                    }
                }
            }
            return writeln!(writer, "{}", escaped(&line));
        }
        let (text, further) = if target == REQUEST_LOG { fields.request() } else { fields.event(level) };
        let (text, further) = (escaped(&text), escaped(&further));
        if matches!(self, Self::Warnings) {
            return writeln!(writer, "warning: {text}{further}");
        }
        let prefix = if level == Level::INFO { String::new() } else { format!("{level} ") };
        let style = if level == Level::ERROR { RED } else { YELLOW };
        let time = format!("{}Z ", time.get(11..19).unwrap_or_default());
        let columns: usize = [&time, &prefix, &text, &further].map(|part| part.chars().count()).iter().sum();
        let break_ = if columns > COLUMNS { format!("\n{}", " ".repeat(time.len() - 1)) } else { String::new() };
        writeln!(writer, "{}{}{text}{break_}{}", paint(DIM, time), paint(style, prefix), paint(DIM, further))
    }
}

/// Event format that adds the fields of spans to the JSON of another format, unless the event has them, and escapes control
/// characters.
struct Json<F>(F);

impl<S, N, F> FormatEvent<S, N> for Json<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        if let Some(scope) = context.event_scope() {
            let object = |text: &str| serde_json::from_str::<Map<String, Value>>(text).unwrap_or_default();
            let mut known = object(&line);
            line.truncate(line.trim_end().trim_end_matches('}').len());
            for span in scope {
                let extensions = span.extensions();
                let fields = extensions.get::<FormattedFields<N>>().map_or("", |fields| &fields.fields);
                for (name, value) in object(fields) {
                    if !known.contains_key(&name) {
                        write!(line, ",{}:{value}", Value::from(&*name))?;
                        known.insert(name, value);
                    }
                }
            }
            line.push('}');
        }
        write_escaped(&mut writer, line.strip_suffix('\n').unwrap_or(&line), true)?;
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

    impl io::Write for LogBuffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
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
        let error = io::Error::other(HOSTILE);
        let cause: &dyn std::error::Error = &error;
        let span = tracing::error_span!("span", held = HOSTILE, held_shown = %HOSTILE);
        let _entered = span.enter();
        tracing::error!(plain = HOSTILE, debug = ?HOSTILE, shown = %HOSTILE, cause, "{HOSTILE}");
    }

    /// Returns what is logged in the format for terminals.
    fn brief(log: impl FnOnce()) -> String {
        let output = LogBuffer::default();
        let lines = tracing_subscriber::fmt().with_writer(output.clone()).with_max_level(Level::DEBUG);
        tracing::subscriber::with_default(lines.event_format(Lines::Brief).finish(), log);
        let colored = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
        assert!(colored.contains("\u{1b}[2m"), "{colored:?}");
        anstream::adapter::strip_str(&colored).to_string()
    }

    fn is_escaped(line: &str) -> bool {
        !line.contains(|c: char| c.is_control() || ('\u{2028}'..='\u{202e}').contains(&c))
    }

    #[test]
    fn control_characters_are_escaped_everywhere_in_the_text_log() {
        let output = LogBuffer::default();
        let lines = tracing_subscriber::fmt().with_writer(output.clone()).with_ansi(false).fmt_fields(Logfmt);
        let lines = lines.event_format(Lines::Logfmt).finish();
        tracing::subscriber::with_default(lines, log);
        let text = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
        let line = text.strip_suffix('\n').unwrap();
        assert!(is_escaped(line), "{line:?}");
        assert_eq!(line.matches("ERROR fake").count(), 7, "{line}");
        assert!(line.starts_with("timestamp=") && line.contains(" level=ERROR target=a2a_service::"), "{line}");
        for escaped in [r"x\r\n2026", r"\u{1b}[31m", r"\u{7f}", r"\u{9b}31m", r"\u{2028}", r"\u{202e}", r"\u{0}end"] {
            assert!(line.contains(escaped), "{escaped} is not in {line}");
        }
        let brief = brief(log);
        assert!(brief.lines().all(is_escaped) && brief.lines().count() == 2, "{brief:?}");
        assert_eq!(brief.matches("ERROR fake").count(), 5, "without the span: {brief}");
    }

    #[test]
    fn lines_of_a_terminal_are_short() {
        const ID: &str = "01a21e60-c74e-7000-921c-8e5c138a7ba1";
        let request = || {
            let span = tracing::info_span!("request", request.id = "r-1");
            let _entered = span.enter();
            tracing::info!(
                target: REQUEST_LOG,
                { rpc.system = "http", http.method = "POST", path = "/message:stream", status = 200,
                  operation = "CreateTaskPushNotificationConfig", task.id = ID, duration_ms = 7, request.id = ID },
                "request completed"
            );
            tracing::info!(target: REQUEST_LOG, { http.method = "GET", path = "/x", status = 404, duration_ms = 0 }, "response aborted");
            tracing::info!(task.id = ID, "agent: Traceback");
            let cause = "exit code 1: no city\nTraceback\nno city";
            tracing::warn!(
                agent = "geo",
                error.id = ID,
                task.id = ID,
                error.kind = "error",
                error.cause = cause,
                "turn failed"
            );
            tracing::warn!(event = "permission_denied", principal = "bob", reason = "needs a scope", request.id = ID);
        };
        let text = brief(request);
        let lines: Vec<_> = text.lines().map(|line| line.get(10..).unwrap()).collect();
        let expected = [
            &format!("CreateTaskPushNotificationConfig 200 in 7 ms task.id={ID}"),
            "GET /x 404 in 0 ms, aborted by the client",
            "agent: Traceback",
            "WARN geo: turn failed: exit code 1: no city",
            &format!("error.id={ID} task.id={ID}"),
            "WARN permission_denied: needs a scope principal=bob",
        ];
        assert_eq!(lines, expected, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
    }

    #[test]
    fn control_characters_are_escaped_in_the_json_log() {
        let output = LogBuffer::default();
        let lines = tracing_subscriber::fmt().with_writer(output.clone()).json().flatten_event(true);
        let lines = lines.map_event_format(Json).finish();
        tracing::subscriber::with_default(lines, log);
        let text = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
        let line = text.strip_suffix('\n').unwrap();
        assert!(!line.contains(|c: char| c.is_control() || ('\u{2028}'..='\u{202e}').contains(&c)), "{line:?}");
        let value: Value = serde_json::from_str(line).unwrap();
        assert_eq!(value["plain"], HOSTILE, "unescaping restores the text");
    }
}
