//! What of a request or an answer can stand in a log: without what is secret by its name, and no longer than can be read.

use std::borrow::Cow;

use http::{HeaderMap, Uri};
use serde::Serialize;
use serde_json::Value;

/// A line has at most so many bytes of a body.
const LINE: usize = 16 << 10;

/// A text in a message, at most so many characters.
const TEXT: usize = 200;

const HIDDEN: &str = "(hidden)";

/// Headers that say how a call is meant. Of all others only the names are shown.
const SHOWN: [&str; 16] = [
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

/// What a member with one of these in its name holds is not for a log.
const SECRETS: [&str; 8] =
    ["token", "credential", "authorization", "headers", "secret", "password", "apikey", "api_key"];

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    // `pageToken` and its like are places in a list.
    SECRETS.iter().any(|it| name.contains(it)) && !name.contains("page")
}

/// `[name: value, …]`.
pub(super) fn headers(headers: &HeaderMap) -> String {
    let one = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        let value = value.to_str().ok().filter(|_| SHOWN.contains(&name.as_str()));
        format!("{name}: {}", value.map_or(HIDDEN.to_owned(), cut))
    };
    format!("[{}]", headers.iter().map(one).collect::<Vec<_>>().join(", "))
}

/// The path and the query.
pub(super) fn target(uri: &Uri) -> String {
    match uri.query() {
        None => cut(uri.path()),
        Some(query) if is_secret(&query.replace("pageToken", "").replace("page_token", "")) => {
            format!("{}?{HIDDEN}", cut(uri.path()))
        }
        Some(query) => format!("{}?{}", cut(uri.path()), cut(query)),
    }
}

/// What a body is, as far as that matters to who reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Media {
    Text,
    Events,
    Protobuf,
}

impl Media {
    pub(super) fn of(content_type: &str) -> Self {
        let media_type = content_type.split(';').next().unwrap_or_default().trim();
        if media_type.starts_with("application/grpc") {
            Self::Protobuf
        } else if media_type == "text/event-stream" {
            Self::Events
        } else {
            Self::Text
        }
    }

    /// What there is of a body, which was so long.
    pub(super) fn show(self, data: &[u8], length: usize) -> String {
        if self == Self::Protobuf {
            return format!("({length} bytes of protobuf)");
        }
        let Ok(text) = std::str::from_utf8(data).map(str::trim) else { return format!("({length} bytes)") };
        if data.len() < length {
            return format!("({length} bytes, which are too many to be shown)");
        }
        match self {
            Self::Events => text.lines().filter(|it| !it.is_empty()).map(event_line).collect::<Vec<_>>().join(" | "),
            Self::Text | Self::Protobuf => json(text),
        }
    }
}

fn event_line(line: &str) -> String {
    line.strip_prefix("data:").map_or_else(|| cut(line), |it| format!("data: {}", json(it.trim())))
}

/// JSON without its secrets; what is none is shown where nothing in it looks like one.
fn json(text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(value) => value_text(value),
        Err(_) if is_secret(text) => format!("({} bytes that are not JSON)", text.len()),
        Err(_) => format!("{:?}, which is not JSON", cut(text)),
    }
}

/// A message as ProtoJSON.
pub(super) fn message(message: &impl Serialize) -> String {
    serde_json::to_value(message).map(value_text).unwrap_or_default()
}

fn value_text(mut value: Value) -> String {
    hide(&mut value);
    let text = value.to_string();
    match text.char_indices().find(|(at, _)| *at >= LINE) {
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], text.len()),
        None => text,
    }
}

fn hide(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                // An object of that name may be one that has nothing to hide, and has members to tell.
                let bare = name.eq_ignore_ascii_case("headers") || !value.is_object();
                if is_secret(name) && bare && !value.is_null() {
                    *value = HIDDEN.into();
                    continue;
                }
                // The query of a webhook's URL is where its owner put what nobody else knows.
                let is_url = matches!(name.as_str(), "url" | "uri" | "fileWithUri" | "file_with_uri");
                let public = value.as_str().filter(|_| is_url).and_then(|it| it.split_once('?'));
                match public.map(|it| format!("{}?{HIDDEN}", cut(it.0))) {
                    Some(public) => *value = public.into(),
                    None => hide(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(hide),
        Value::String(text) if text.contains("://") || text.chars().nth(TEXT).is_some() => *text = cut(text),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Hides the userinfo of URLs, which may be a password: `https://user:password@host` is `https://(hidden)@host`.
pub(super) fn without_userinfo(text: &str) -> Cow<'_, str> {
    const SCHEME: &str = "://";
    let ends = |c: char| matches!(c, '/' | '?' | '#' | '"' | '\'' | '<' | '>' | '\\') || c.is_whitespace();
    let (mut shown, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once(SCHEME) {
        let (authority, tail) = after.split_at(after.find(ends).unwrap_or(after.len()));
        let host = authority.rsplit_once('@').map(|(_, host)| host);
        shown.extend([before, SCHEME]);
        match host {
            Some(host) => shown.extend([HIDDEN, "@", host]),
            None => shown.push_str(authority),
        }
        rest = tail;
    }
    if shown.is_empty() { text.into() } else { (shown + rest).into() }
}

/// The beginning of a text that is long, and how long it is. Userinfo of URLs is hidden.
fn cut(text: &str) -> String {
    let text = &*without_userinfo(text);
    match text.char_indices().nth(TEXT) {
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], text.len()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn what_is_secret_by_its_name_is_hidden() {
        let body = r#"{"pageToken":"p","url":"https://h.example/x?key=s3cret","token":"s3cret","authentication":
            {"schemes":["Bearer"],"credentials":"s3cret"},"headers":{"X-Any":"s3cret"},"parts":[{"text":"hi"}],"token2":null}"#;
        let shown = Media::of("application/json; charset=utf-8").show(body.as_bytes(), body.len());
        assert!(!shown.contains("s3cret"), "{shown}");
        for kept in [r#""pageToken":"p""#, "https://h.example/x?(hidden)", r#"["Bearer"]"#, r#""text":"hi""#, "null"] {
            assert!(shown.contains(kept), "{kept} is not in {shown}");
        }
        let broken = r#"{"token":"s3cret"#;
        assert_eq!(Media::Text.show(broken.as_bytes(), broken.len()), "(16 bytes that are not JSON)");
        assert_eq!(Media::Text.show(b"{\n", 2), r#""{", which is not JSON"#);
        let events = format!("id: t.1.2\ndata: {{\"token\":\"s3cret\"}}\n\n: hello\n{}\n", "");
        assert_eq!(
            Media::Events.show(events.as_bytes(), events.len()),
            r#"id: t.1.2 | data: {"token":"(hidden)"} | : hello"#
        );
        let mut all = HeaderMap::new();
        all.insert("authorization", HeaderValue::from_static("Bearer s3cret"));
        all.insert("a2a-version", HeaderValue::from_static("1.0"));
        assert_eq!(headers(&all), "[authorization: (hidden), a2a-version: 1.0]");
        assert_eq!(target(&Uri::from_static("/tasks?token=s3cret")), "/tasks?(hidden)");
        assert_eq!(target(&Uri::from_static("/tasks?pageToken=p")), "/tasks?pageToken=p");
    }

    #[test]
    fn userinfo_of_urls_is_hidden() {
        for (text, shown) in [
            ("https://ada:s3cret@h.example/x", "https://(hidden)@h.example/x"),
            (
                "see https://s3cret@h.example, or http://h.example/@x",
                "see https://(hidden)@h.example, or http://h.example/@x",
            ),
            ("postgres://a:s3c@ret@h:5432?u=x@y", "postgres://(hidden)@h:5432?u=x@y"),
            ("nothing: a@b.example", "nothing: a@b.example"),
        ] {
            assert_eq!(without_userinfo(text), shown);
        }
        let long = format!("{} https://ada:s3cret@h.example", "x".repeat(TEXT - 20));
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
    fn what_is_long_is_cut() {
        let body = format!(r#"{{"raw":"{}"}}"#, "x".repeat(5000));
        let shown = Media::Text.show(body.as_bytes(), body.len());
        assert!(shown.len() < 300 && shown.contains("… (5000 bytes)"), "{shown}");
        let many = format!("[{}]", vec!["\"é\""; 10_000].join(","));
        assert!(Media::Text.show(many.as_bytes(), many.len()).len() < LINE + 40);
        assert_eq!(Media::Text.show(b"{", 100_000), "(100000 bytes, which are too many to be shown)");
        assert_eq!(Media::of("application/grpc+proto").show(&[0, 1], 2), "(2 bytes of protobuf)");
    }
}
