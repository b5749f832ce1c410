//! Generates `docs/protocol-0.3.md` from the tables in the source: differences in behavior and losses of the conversions
//! between 0.3 and 1.0. `UPDATE=1` writes the file.

use std::{fs, path::Path};

const HEAD: &str = "\
# Protocol 0.3

Clients of 0.3, and of the compatible parts of 0.2, are served on the same port as clients of 1.0, by the same agent and with
the same tasks. This is enabled by default; `protocols = [\"1.0\"]` disables it. The tables below are generated from the source.

## Request detection

The form of a request decides its version, never a header alone.

| Binding | 0.3 | 1.0 |
| --- | --- | --- |
| JSON-RPC at `/rpc`, `/a2a` and `/` | methods with a slash: `message/send` | methods without a slash: `SendMessage` |
| HTTP+JSON | paths below `/v1/`, unless `A2A-Version` is 1.0 or `protocols` contains only 1.0; `v1` is then a tenant | all other paths |
| gRPC | the package `a2a.v1` | the package `lf.a2a.v1` |
| Agent card | `/.well-known/agent.json`, `/agent-card`, or `A2A-Version: 0.3` | `A2A-Version: 1.0`; without the header, the card serves all versions that the server does |

A JSON-RPC body that is not a request is answered in the format of 0.3, which clients of both versions can read, unless
`A2A-Version` or a method name in the body identifies it as 1.0. A request of 0.3 may carry `A2A-Version` 0.1, 0.2, 0.3 or 1.0;
other values are rejected.

- **JSON-RPC**: `message/send`, `message/stream`, `tasks/get`, `tasks/list`, `tasks/cancel`, `tasks/resubscribe`,
  `tasks/pushNotificationConfig/set`, `…/get`, `…/list`, `…/delete`, `agent/getAuthenticatedExtendedCard`; and the aliases
  `agent/authenticatedExtendedCard` of the last, and `tasks/send` of the first. An SSE event of a stream has
  `event: message`, its cursor as `id:`, and one line of data; an error has `event: error`.
- **HTTP+JSON**: the routes of `proto/a2a/v1/a2a.proto`, and `GET /v1/tasks`. Bodies are ProtoJSON of that file. Bodies in the
  JSON of 0.3 JSON-RPC, snake case names and both encodings of file contents are accepted too.
- **gRPC**: `a2a.v1.A2AService`, also listed by server reflection.

Clients disagree about file contents in gRPC and HTTP+JSON: some expect base64 text in the `bytes` field, some raw bytes. The
server decides by `User-Agent`, unless `v03_file_bytes` is `base64` or `raw`. Active extensions are returned in the header
that the request used, `A2A-Extensions` or `X-A2A-Extensions`.

`a2a serve --log-wire` logs each request as received, the 1.0 call it was converted to, and the response. [rest.md](rest.md)
lists all routes and methods.

## Differences in behavior

Section numbers are those of 0.3 if prefixed with \"0.3\", otherwise those of 1.0. \"The proto\" is `a2a.v1`. Where 0.3 leaves
the behavior open, the server follows the first 0.3 servers, which its clients were written against. Error codes are listed in
[errors.md](errors.md).

";

/// Generated chapters: title, introduction, and the source file whose module documentation contains the table.
const CHAPTERS: [(&str, &str, &str); 3] = [
    ("", "", include_str!("../../src/service/wrappers/v03.rs")),
    (
        "## Conversion of `a2a.v1` messages (gRPC and HTTP+JSON)",
        "Messages are converted to 1.0 and back. The table lists fields that are dropped or represented differently; all other\n\
         fields are preserved. An empty cell means that the direction does not apply.",
        include_str!("../../src/protocol/v03/message.rs"),
    ),
    (
        "## JSON of 0.3 JSON-RPC",
        "Some 1.0 values have no representation in this format and do not survive a round trip.",
        include_str!("../../src/protocol/v03/json.rs"),
    ),
];

const TAIL: &str = "
The `headers` of a push configuration and its `schemes` after the first have no place in 1.0. They are stored next to the
configuration and returned to 0.3 clients only.
";

/// Returns the table in the module documentation of a source file, with intra-doc links replaced by their names.
fn table(source: &str) -> String {
    let docs = source.lines().take_while(|line| line.starts_with("//!"));
    let rows = docs.filter_map(|line| line.strip_prefix("//! |"));
    rows.flat_map(|row| ["|".to_owned(), without_links(row), "\n".to_owned()]).collect()
}

fn without_links(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, link)) = rest.split_once("[`")
        && let Some((name, after)) = link.split_once("`]")
    {
        out.extend([before, "`", name, "`"]);
        rest = after.strip_prefix('(').and_then(|target| target.split_once(')')).map_or(after, |(_, after)| after);
    }
    out + rest
}

#[test]
fn protocol_documentation_is_up_to_date() {
    let mut text = HEAD.to_owned();
    for (title, introduction, source) in CHAPTERS {
        if !title.is_empty() {
            text.extend(["\n", title, "\n\n", introduction, "\n\n"]);
        }
        let table = table(source);
        assert!(table.lines().count() > 5, "{title}");
        text.push_str(&table);
    }
    text.push_str(TAIL);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/protocol-0.3.md");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &text).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap_or_default(), text, "outdated; UPDATE=1 writes {}", path.display());
}
