//! `docs/protocol-0.3.md` has the tables of the source: what 0.3 does otherwise, and what is lost between the two
//! versions. `UPDATE=1` writes it.

use std::{fs, path::Path};

const HEAD: &str = "\
# Protocol 0.3

A client of 0.3, or of 0.2 where it is the same, is served beside those of 1.0: on the same port, by the same agent, with the
same tasks. Nothing is switched on for that, and `protocols = [\"1.0\"]` switches it off. This file is made of the source.

## How a call of 0.3 is known

By its form, and never by a header alone.

| Binding | 0.3 | 1.0 |
| --- | --- | --- |
| JSON-RPC, at `/rpc`, `/a2a` and `/` | methods with a slash: `message/send` | methods without: `SendMessage` |
| HTTP+JSON | paths below `/v1/`, unless `A2A-Version` is 1.0 or `protocols` has 1.0 alone, where `v1` is a tenant | all others |
| gRPC | the package `a2a.v1` | the package `lf.a2a.v1` |
| The card | `/.well-known/agent.json`, `/agent-card`, or `A2A-Version: 0.3` | `A2A-Version: 1.0`; without one, the card is for both, and `card.shape` says otherwise |

A JSON-RPC body that is no call is answered in 0.3, which both can read, unless `A2A-Version` or the name of a method in it
says 1.0. `A2A-Version` may say 0.1, 0.2, 0.3 or 1.0 with a call of 0.3; others are refused.

- **JSON-RPC**: `message/send`, `message/stream`, `tasks/get`, `tasks/list`, `tasks/cancel`, `tasks/resubscribe`,
  `tasks/pushNotificationConfig/set`, `…/get`, `…/list`, `…/delete`, `agent/getAuthenticatedExtendedCard`; and, as they were
  called before, `agent/authenticatedExtendedCard`, `tasks/send`, `tasks/sendSubscribe`, `tasks/pushNotification/set` and
  `…/get`. An event of a stream has `event: message`, its cursor as `id:`, and one line of data; an error is `event: error`.
- **HTTP+JSON**: the routes of `proto/a2a/v1/a2a.proto`, and `GET /v1/tasks`. Bodies are ProtoJSON of that file; JSON as
  JSON-RPC has it, names in snake case and both encodings of bytes are read as well.
- **gRPC**: `a2a.v1.A2AService`, which reflection lists too.

The bytes of files are base64 in the messages of the proto for some clients, and the bytes themselves for others. The
`User-Agent` tells which, unless `v03.file_bytes` says `base64` or `raw`. Extensions are echoed in the header that the
request has them in, `A2A-Extensions` or `X-A2A-Extensions`.

`a2a serve --print-wire` shows for each request what came in, the call of 1.0 that it was, and what went out.

## What it does otherwise

Sections are those of 0.3 where they begin with 0.3, and of 1.0 otherwise; \"the proto\" is `a2a.v1`. Where 0.3 leaves something
open, its first servers are what its clients were written against. [errors.md](errors.md) has the numbers of errors.

";

/// The chapters after that: a title, what is said of the table, and the source that has it.
const CHAPTERS: [(&str, &str, &str); 3] = [
    ("", "", include_str!("../../src/v03/semantics.rs")),
    (
        "## Messages of protobuf, and their ProtoJSON",
        "What 0.3 can say comes back from 1.0 as it was, and so does what 1.0 has a form for in 0.3. The rest is this.",
        include_str!("../../src/v03/message.rs"),
    ),
    (
        "## JSON as JSON-RPC has it",
        "Some of what 1.0 can say has no word here, and is not there when it is read again.",
        include_str!("../../src/v03/json.rs"),
    ),
];

const TAIL: &str = "
The other way, `final` is not kept: an event knows by itself what it says. The `headers` of a webhook and the `schemes` after
the first are kept beside it, and shown to callers of 0.3 alone.
";

/// The rows of the table at the head of a source, without links that only the source can follow.
fn table(source: &str) -> String {
    let head = source.lines().take_while(|it| it.starts_with("//!"));
    let rows = head.filter_map(|it| it.strip_prefix("//! |"));
    let rows = rows.map(|it| format!("|{}\n", unlinked(it).replace("| here |", "| `Legacy` |")));
    rows.collect()
}

fn unlinked(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, (name, after))) = rest.split_once("[`").and_then(|it| Some((it.0, it.1.split_once("`]")?)))
    {
        out.extend([before, "`", name, "`"]);
        rest = after.strip_prefix('(').and_then(|it| it.split_once(')')).map_or(after, |it| it.1);
    }
    out + rest
}

#[test]
fn the_documentation_has_the_tables() {
    let mut text = HEAD.to_owned();
    for (title, says, source) in CHAPTERS {
        if !title.is_empty() {
            text.extend(["\n", title, "\n\n", says, "\n\n"]);
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
    assert_eq!(fs::read_to_string(&path).unwrap_or_default(), text, "UPDATE=1 writes {}", path.display());
}
