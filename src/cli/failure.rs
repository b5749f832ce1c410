//! Errors of commands: exit codes, and what is printed, as text and as JSON.

use std::sync::OnceLock;

use serde_json::{Value, json};
use url::Url;

use super::{
    Interrupted, Usage, Verdict, config, report, report_text,
    show::{self, OutputFormat, safe, wrapped},
    terminal::{RED, paint},
};
use crate::protocol::{
    error::{Error, ErrorKind, without_sentence},
    pb::v1::TaskState,
};

/// Table of the exit codes in the help.
pub(super) const EXIT_CODES: &str = include_str!("exit_codes.txt");

/// Exit code of an invalid command line or configuration.
pub(super) const USAGE: u8 = 2;

/// Remedy for a certificate of an unknown authority.
const TRUST: &str = "give the certificate of the authority, which the operator of the agent has, with --ca FILE
a self-signed certificate can be fetched, and then given with --ca ca.pem, by
openssl s_client -connect HOST </dev/null | openssl x509 >ca.pem
for tests only: --insecure-tls accepts any certificate";

/// Causes of failed connections: a text in the error of the HTTP client in lower case, a short form of it, and what to do. `HOST`
/// stands for the host and the port. The first one that fits counts.
const CAUSES: [(&str, &str, &str); 11] = [
    ("connection refused", "connection refused", "start the agent, or correct the host and the port of the URL"),
    ("dns error", "the host name is unknown", "correct the host name, or the name servers of this machine"),
    ("unknownissuer", "its certificate is of an unknown authority", TRUST),
    ("not valid for name", "its certificate is for another name:", "use a name of the certificate in the URL"),
    (
        "causedasendentity",
        "its certificate is for an authority",
        "make one with basicConstraints=CA:FALSE, or use --insecure-tls",
    ),
    ("expired", "its certificate has expired", "renew the certificate, or correct the clock of this machine"),
    ("peer certificate", "its certificate is invalid", "`a2a doctor https://HOST` has the details"),
    ("certificaterequired", "it requires a certificate of the client", "give one with --client-cert and --client-key"),
    ("corrupt message", "it has no TLS", "use the URL http://HOST"),
    ("invalid http version", "its answer is not HTTP, but perhaps TLS", "use the URL https://HOST"),
    ("connection closed before message", "it closed the connection", "use the URL https://HOST, if it has TLS"),
];

/// Maximum length of a line of an error with a remedy, and the width of `error: ` before it, in columns.
const MAX_COLUMNS: usize = 100;
const INDENT: usize = 7;

/// Format of all errors if the command has JSON as its result.
pub(super) static FORMAT: OnceLock<OutputFormat> = OnceLock::new();

/// End of a task without success.
#[derive(Debug, thiserror::Error)]
#[error("the task ended with the state {}", show::state(*.0))]
pub(super) struct TaskFailed(pub(super) TaskState);

/// Failure to find an agent at a URL, with its cause and what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
struct NoAgent {
    cause: String,
    remedy: String,
}

/// Explains an error of the download of a card or of another document, or of a call: the agent can't be reached, or is none, or
/// has not answered in time. `then` follows the remedy.
pub(super) fn explained(error: Error, url: &Url, then: &str) -> anyhow::Error {
    let origin = url.origin().ascii_serialization();
    // Without credentials, which the URL may have.
    let host = origin.split_once("://").map_or(&*origin, |(_, host)| host);
    let (kind, detail) = (error.kind(), error.to_string());
    let lower = detail.to_lowercase();
    let known = CAUSES.iter().find(|(text, ..)| lower.contains(text));
    let (cause, remedy) = if kind == ErrorKind::Unavailable {
        let last = detail.rsplit(": ").next().unwrap_or_default();
        let (_, cause, remedy) = known.copied().unwrap_or(("", last, "find out where it ends: a2a doctor HOST"));
        let names = detail.split_once("only valid for ").map_or("", |(_, names)| names);
        let names = names.split('"').skip(1).step_by(2).take(3).fold(String::new(), |all, name| all + " " + name);
        (format!("no connection to {origin}: {cause}{names}"), remedy)
    } else if kind == ErrorKind::InvalidAgentResponse {
        let remedy = "give the URL of an agent or of its card; a server with several agents has one for each";
        (without_sentence(kind, &detail).to_owned(), remedy)
    } else if kind == ErrorKind::InvalidParams && url.scheme() == "http" {
        (detail, "use the URL https://HOST, if it has TLS")
    } else if kind == ErrorKind::DeadlineExceeded && !then.is_empty() {
        (detail, "the agent may go on with the task")
    } else {
        return error.into();
    };
    anyhow::Error::from(error).context(NoAgent { cause, remedy: remedy.replace("HOST", host) + then })
}

/// Returns the exit code of an error.
pub(super) fn code_of(error: &anyhow::Error) -> u8 {
    if error.is::<config::Error>() || error.is::<Usage>() {
        return USAGE;
    }
    if let Some(Verdict { code, .. }) = error.downcast_ref() {
        return *code;
    }
    if error.is::<Interrupted>() {
        // As shells report the end by SIGINT.
        return 130;
    }
    match error.downcast_ref::<Error>().map(Error::kind) {
        Some(ErrorKind::Unavailable) => 3,
        Some(ErrorKind::Unauthenticated | ErrorKind::PermissionDenied) => 4,
        Some(ErrorKind::DeadlineExceeded) => 5,
        Some(_) if error.is::<NoAgent>() => 3,
        Some(_) => 6,
        None => 1,
    }
}

fn message(error: &anyhow::Error) -> String {
    if let Some(NoAgent { cause, .. }) = error.downcast_ref() {
        let outer = error.to_string();
        return if outer == *cause { outer } else { format!("{outer}: {cause}") };
    }
    let code = error.downcast_ref().and_then(own_code);
    format!("{error:#}{}", code.map(|code| format!(" (code {code})")).unwrap_or_default())
}

/// Returns the code of an error that the agent has defined.
fn own_code(error: &Error) -> Option<i32> {
    // Over gRPC, the agent writes the metadata.
    error.metadata("code")?.parse().ok().filter(|code| *code < 0 && !(-32009..=-32001).contains(code))
}

/// Returns the remedy for an error.
fn remedy(error: &anyhow::Error) -> Option<String> {
    if let Some(found) = error.downcast_ref::<NoAgent>() {
        return Some(found.remedy.clone());
    }
    let found = error.downcast_ref::<Error>()?;
    let kind = found.kind();
    let remedy = if kind == ErrorKind::Unauthenticated {
        "give credentials that the agent accepts: the variable A2A_CLIENT_TOKEN, or --token, --api-key\n\
         or --client-id; `a2a help auth` says how an agent's operator makes them"
    } else if kind == ErrorKind::Unavailable && message(error).contains("(Connect)") {
        "the card of the agent is there, but not its interface: `a2a doctor` checks all of them"
    } else if kind == ErrorKind::Misdirected {
        "the operator of the server names this host in public_url or allowed_hosts"
    } else if message(error).contains(" is in a terminal state") {
        "`a2a get task URL TASK` prints its state and result; send without --task for a new task"
    } else {
        return found.retry_after_seconds().map(|seconds| format!("the server asks for a retry after {seconds} s"));
    };
    Some(remedy.to_owned())
}

/// Formats an error as JSON: its message and exit code, and the code and the details of the protocol if it has any.
fn to_json(error: &anyhow::Error) -> Value {
    let mut object = json!({"message": message(error), "exitCode": code_of(error)});
    let of_protocol = error
        .downcast_ref::<Error>()
        .filter(|found| found.kind() == ErrorKind::DeadlineExceeded || !error.is::<NoAgent>());
    if let Some(found) = of_protocol {
        object["code"] = own_code(found).unwrap_or_else(|| found.wire().json_rpc).into();
        object["details"] = found.details().into();
    }
    if let Some(TaskFailed(state)) = error.downcast_ref() {
        object["state"] = state.as_str_name().into();
    }
    if let Some(remedy) = remedy(error) {
        object["remedy"] = remedy.into();
    }
    json!({ "error": object })
}

/// Prints an error, which may have text of an agent.
pub(super) fn print_error(error: &anyhow::Error) {
    let text = match (FORMAT.get(), remedy(error)) {
        (Some(format), _) => return print_json(&to_json(error), *format),
        // The text of an agent begins no line.
        (None, None) if error.is::<Error>() => safe(&message(error)).replace('\n', "\n       "),
        (None, None) => safe(&message(error)),
        (None, Some(remedy)) => {
            // Each path at which a card was looked for has a line.
            let lines = safe(&message(error)).replace(": /", ":\n/").replace("; /", "\n/");
            let is_narrow = |line: &str| line.chars().count() + INDENT <= MAX_COLUMNS;
            let broken = |line: &str| if is_narrow(line) { line.to_owned() } else { wrapped(line, INDENT) };
            let lines: Vec<_> = lines.split('\n').map(broken).collect();
            format!("{}\n  -> {}", lines.join("\n       "), remedy.replace('\n', "\n     "))
        }
    };
    report_text(&format!("{} {text}\n", paint(RED, "error:")));
}

/// Prints an error of the command line.
pub(super) fn print_usage(error: &clap::Error) {
    let Some(format) = FORMAT.get() else {
        return drop(error.print());
    };
    let text = error.render().to_string();
    let message = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
    print_json(&json!({"error": {"message": message, "exitCode": USAGE}}), *format);
}

fn print_json(value: &Value, format: OutputFormat) {
    report(&show::json(value, format).unwrap_or_default());
}
