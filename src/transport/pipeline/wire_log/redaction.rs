//! Redaction and truncation for the wire log and the output of `--debug`: headers, URLs, JSON bodies and events without secrets, at limited length.

use std::borrow::Cow;

use http::{HeaderMap, Uri};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use serde_json::Value;

use crate::service::wrappers::extended::secret;

/// Maximum length of a body in a log line, in bytes.
const MAX_LINE: usize = 16 << 10;

/// Maximum length of a string value, in characters.
const MAX_TEXT: usize = 200;

const HIDDEN: &str = "(hidden)";

/// Texts around the value in an error message about a text of the wrong type.
const ECHO_START: &str = "invalid type: string ";
const ECHO_END: &str = ", expected ";

/// Headers whose values are logged. Of all others only the names are.
const VISIBLE_HEADERS: [&str; 16] = [
    "a2a-version",
    "a2a-extensions",
    "x-a2a-extensions",
    "accept",
    "allow",
    "cache-control",
    "content-type",
    "content-length",
    "last-event-id",
    "grpc-timeout",
    "host",
    "grpc-status",
    "retry-after",
    "traceparent",
    "user-agent",
    "x-request-id",
];

/// Query parameters whose values are logged, without underscores and in lower case: those of the protocol. The values of others
/// may be secrets: an API key has the name that the card of the agent gives it.
const VISIBLE_PARAMETERS: [&str; 8] = [
    "tenant",
    "contextid",
    "status",
    "pagesize",
    "pagetoken",
    "historylength",
    "statustimestampafter",
    "includeartifacts",
];

/// Parts of the names of secret members.
const SECRET_NAMES: [&str; 9] =
    ["token", "credential", "authentication", "authorization", "headers", "secret", "password", "apikey", "api_key"];

/// Names of members of push configurations that are secret also if their values are objects.
const SECRET_OBJECTS: [&str; 3] = ["token", "credentials", "headers"];

/// Returns true for the name of a secret, which may be percent-encoded, or a text with one.
fn is_secret(name: &str) -> bool {
    let name = percent_decode_str(name).decode_utf8_lossy().to_ascii_lowercase();
    // `pageToken` and `nextPageToken` are no secrets.
    SECRET_NAMES.iter().any(|part| name.contains(part)) && !name.contains("page")
}

/// Formats headers as `[name: value, …]`.
pub(crate) fn headers(headers: &HeaderMap) -> String {
    let header = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        let value = value.to_str().ok().filter(|_| VISIBLE_HEADERS.contains(&name.as_str()));
        format!("{name}: {}", value.map_or(HIDDEN.to_owned(), truncated))
    };
    format!("[{}]", headers.iter().map(header).collect::<Vec<_>>().join(", "))
}

/// Formats the path and the query of a request.
pub(crate) fn target(uri: &Uri) -> String {
    let is_visible = |pair: &str| {
        let name = percent_decode_str(pair.split('=').next().unwrap_or_default()).decode_utf8_lossy();
        VISIBLE_PARAMETERS.contains(&&*name.replace('_', "").to_ascii_lowercase())
    };
    let path = truncated(uri.path());
    match uri.query() {
        None => path,
        Some(query) if query.split('&').all(is_visible) => format!("{path}?{}", truncated(query)),
        Some(_) => format!("{path}?{HIDDEN}"),
    }
}

/// Formats the URL of a request.
pub(crate) fn url(uri: &Uri) -> String {
    let (scheme, authority) = (uri.scheme_str().unwrap_or_default(), uri.authority().map_or("", |text| text.as_str()));
    without_userinfo(&format!("{scheme}://{authority}")).into_owned() + &target(uri)
}

/// Format of a body, which decides how it is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Media {
    Text,
    Events,
    Protobuf,
}

impl Media {
    pub(crate) fn of(content_type: &str) -> Self {
        let media_type = content_type.split(';').next().unwrap_or_default().trim();
        if media_type.starts_with("application/grpc") {
            Self::Protobuf
        } else if media_type == "text/event-stream" {
            Self::Events
        } else {
            Self::Text
        }
    }

    /// Formats a body of `length` bytes, of which `data` was buffered.
    pub(crate) fn show(self, data: &[u8], length: usize) -> String {
        if self == Self::Protobuf {
            return format!("({length} bytes of protobuf)");
        }
        let Ok(text) = std::str::from_utf8(data).map(str::trim) else { return format!("({length} bytes)") };
        if data.len() < length {
            return format!("({length} bytes, too long for the log)");
        }
        match self {
            Self::Events => {
                text.lines().filter(|line| !line.is_empty()).map(event_line).collect::<Vec<_>>().join(" | ")
            }
            Self::Text | Self::Protobuf => json(text),
        }
    }
}

fn event_line(line: &str) -> String {
    line.strip_prefix("data:").map_or_else(|| truncated(line), |data| format!("data: {}", json(data.trim())))
}

/// Formats JSON without its secrets. Text that is not JSON is omitted if it may contain a secret.
fn json(text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(value) => value_text(value),
        Err(_) if is_secret(text) => format!("({} bytes that are not JSON)", text.len()),
        Err(_) => format!("{:?} (not JSON)", truncated(text)),
    }
}

/// Formats a message as ProtoJSON.
pub(crate) fn message(message: &impl Serialize) -> String {
    serde_json::to_value(message).map(value_text).unwrap_or_default()
}

fn value_text(mut value: Value) -> String {
    hide(&mut value);
    let text = value.to_string();
    match text.char_indices().find(|(index, _)| *index >= MAX_LINE) {
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], text.len()),
        None => text,
    }
}

/// Redacts secret members and the queries of URLs, and truncates long strings.
fn hide(value: &mut Value) {
    match value {
        Value::Object(members) if members.get("metadata").is_some_and(|metadata| metadata[secret::URI] == true) => {
            *value = serde_json::json!({ "text": HIDDEN, "metadata": { secret::URI: true } });
        }
        Value::Object(members) => {
            for (name, value) in members {
                // An object with another such name is no secret itself: its members are examined.
                let is_whole =
                    SECRET_OBJECTS.iter().any(|secret| name.eq_ignore_ascii_case(secret)) || !value.is_object();
                if is_secret(name) && is_whole && !value.is_null() {
                    *value = HIDDEN.into();
                    continue;
                }
                // The query of a webhook URL or a signed file URL is often a secret.
                let is_url = matches!(name.as_str(), "url" | "uri" | "fileWithUri" | "file_with_uri");
                let with_query = value.as_str().filter(|_| is_url).and_then(|url| url.split_once('?'));
                match with_query.map(|(base, _)| format!("{}?{HIDDEN}", truncated(base))) {
                    Some(redacted) => *value = redacted.into(),
                    None => hide(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(hide),
        Value::String(text) if text.contains(ECHO_START) => *text = truncated(&without_echo(text)),
        Value::String(text) if text.contains("://") || text.chars().nth(MAX_TEXT).is_some() => *text = truncated(text),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Redacts the value that an error message about a value of the wrong type repeats. It may be a secret.
fn without_echo(text: &str) -> String {
    let Some((before, after)) = text.split_once(ECHO_START) else { return text.to_owned() };
    let expected = after.rfind(ECHO_END).map_or("", |end| &after[end..]);
    format!("{before}{ECHO_START}{HIDDEN}{expected}")
}

/// Redacts the userinfo of URLs, which may be a password: `https://user:password@host` becomes `https://(hidden)@host`.
pub(crate) fn without_userinfo(text: &str) -> Cow<'_, str> {
    const SCHEME: &str = "://";
    let ends_authority = |c: char| matches!(c, '/' | '?' | '#' | '"' | '\'' | '<' | '>' | '\\') || c.is_whitespace();
    let (mut redacted, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once(SCHEME) {
        let (authority, tail) = after.split_at(after.find(ends_authority).unwrap_or(after.len()));
        let host = authority.rsplit_once('@').map(|(_, host)| host);
        redacted.extend([before, SCHEME]);
        match host {
            Some(host) => redacted.extend([HIDDEN, "@", host]),
            None => redacted.push_str(authority),
        }
        rest = tail;
    }
    if redacted.is_empty() { text.into() } else { (redacted + rest).into() }
}

/// Truncates a text to [`MAX_TEXT`] characters and appends its length. Userinfo of URLs is redacted.
fn truncated(text: &str) -> String {
    let text = &*without_userinfo(text);
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], text.len()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn secrets_are_redacted_by_name() {
        let body = r#"{"pageToken":"p","url":"https://h.example/x?key=s3cret","token":"s3cret","authentication":
            {"schemes":["Bearer"],"credentials":"s3cret"},"headers":{"X-Any":"s3cret"},"parts":[{"text":"hi"}],"token2":null}"#;
        let shown = Media::of("application/json; charset=utf-8").show(body.as_bytes(), body.len());
        assert!(!shown.contains("s3cret"), "{shown}");
        for kept in [r#""pageToken":"p""#, "https://h.example/x?(hidden)", r#"["Bearer"]"#, r#""text":"hi""#, "null"] {
            assert!(shown.contains(kept), "{kept} is not in {shown}");
        }
        // Values of the wrong type.
        let body = r#"{"token":{"a":"s3cret"},"credentials":{"b":["s3cret"]},"authentication":"s3cret","authorizationCode":
            {"tokenUrl":"s3cret","scopes":"kept"},"message":"a: invalid type: string \"s3cret, expected \", expected a B as an object"}"#;
        let shown = Media::Text.show(body.as_bytes(), body.len());
        assert!(!shown.contains("s3cret"), "{shown}");
        assert!(
            shown.contains(r#""scopes":"kept""#) && shown.contains("(hidden), expected a B as an object"),
            "{shown}"
        );
        let broken = r#"{"token":"s3cret"#;
        assert_eq!(Media::Text.show(broken.as_bytes(), broken.len()), "(16 bytes that are not JSON)");
        assert_eq!(Media::Text.show(b"{\n", 2), r#""{" (not JSON)"#);
        let events = format!("id: t.1.2\ndata: {{\"token\":\"s3cret\"}}\n\n: hello\n{}\n", "");
        assert_eq!(
            Media::Events.show(events.as_bytes(), events.len()),
            r#"id: t.1.2 | data: {"token":"(hidden)"} | : hello"#
        );
        let mut map = HeaderMap::new();
        map.insert("authorization", HeaderValue::from_static("Bearer s3cret"));
        map.insert("a2a-version", HeaderValue::from_static("1.0"));
        assert_eq!(headers(&map), "[authorization: (hidden), a2a-version: 1.0]");
        assert_eq!(target(&Uri::from_static("/tasks?token=s3cret")), "/tasks?(hidden)");
        assert_eq!(target(&Uri::from_static("/tasks?pageToken=p")), "/tasks?pageToken=p");
        for hidden in ["pageSize=1&k=s3cret", "api%5Fkey=s3cret", "tenant=a&%6b=s3cret"] {
            assert_eq!(target(&format!("/tasks?{hidden}").parse().unwrap()), "/tasks?(hidden)");
        }
        assert_eq!(target(&Uri::from_static("/tasks?page%54oken=p")), "/tasks?page%54oken=p");
        // A query that was sent as a body.
        let form = "api%5Fkey=s3cret";
        assert_eq!(Media::Text.show(form.as_bytes(), form.len()), "(16 bytes that are not JSON)");
        assert_eq!(
            url(&Uri::from_static("http://a:s3cret@h.example:1/t?x=s3cret")),
            "http://(hidden)@h.example:1/t?(hidden)"
        );
    }

    #[test]
    fn userinfo_of_urls_is_redacted() {
        for (text, redacted) in [
            ("https://ada:s3cret@h.example/x", "https://(hidden)@h.example/x"),
            (
                "see https://s3cret@h.example, or http://h.example/@x",
                "see https://(hidden)@h.example, or http://h.example/@x",
            ),
            ("postgres://a:s3c@ret@h:5432?u=x@y", "postgres://(hidden)@h:5432?u=x@y"),
            ("nothing: a@b.example", "nothing: a@b.example"),
        ] {
            assert_eq!(without_userinfo(text), redacted);
        }
        let long = format!("{} https://ada:s3cret@h.example", "x".repeat(MAX_TEXT - 20));
        let body =
            serde_json::json!({"url": "https://ada:s3cret@h.example?k=v", "text": long, "uri": "http://s3cret@h"});
        let shown = Media::Text.show(body.to_string().as_bytes(), body.to_string().len());
        assert!(!shown.contains("s3cret") && shown.contains("https://(hidden)@h.example?(hidden)"), "{shown}");
        let broken = "not JSON: http://ada:s3cret@h.example";
        assert!(!Media::Text.show(broken.as_bytes(), broken.len()).contains("s3cret"));
        let mut headers = HeaderMap::new();
        headers.insert("user-agent", HeaderValue::from_static("bot (http://ada:s3cret@h.example)"));
        assert!(!super::headers(&headers).contains("s3cret"));
    }

    #[test]
    fn long_texts_are_truncated() {
        let body = format!(r#"{{"raw":"{}"}}"#, "x".repeat(5000));
        let shown = Media::Text.show(body.as_bytes(), body.len());
        assert!(shown.len() < 300 && shown.contains("… (5000 bytes)"), "{shown}");
        let many = format!("[{}]", vec!["\"é\""; 10_000].join(","));
        assert!(Media::Text.show(many.as_bytes(), many.len()).len() < MAX_LINE + 40);
        assert_eq!(Media::Text.show(b"{", 100_000), "(100000 bytes, too long for the log)");
        assert_eq!(Media::of("application/grpc+proto").show(&[0, 1], 2), "(2 bytes of protobuf)");
    }

    #[test]
    fn marked_parts_are_redacted() {
        let mark = serde_json::json!({ secret::URI: true, "note": "s3cret" });
        for part in [
            serde_json::json!({ "text": "s3cret", "metadata": mark }),
            serde_json::json!({ "kind": "data", "data": { "a": "s3cret" }, "metadata": mark }),
            serde_json::json!({ "kind": "file", "file": { "bytes": "s3cret", "name": "s3cret" }, "metadata": mark }),
        ] {
            let body = serde_json::json!({ "message": { "parts": [{ "text": "plain" }, part] } }).to_string();
            let shown = Media::Text.show(body.as_bytes(), body.len());
            assert!(!shown.contains("s3cret") && shown.contains("plain") && shown.contains(secret::URI), "{shown}");
        }
    }
}
