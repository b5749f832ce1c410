//! Generates `docs/errors.md` from the table of error kinds, and checks that the file is up to date. `UPDATE=1` writes it.

use std::{collections::HashMap, fmt::Write as _, fs, path::Path};

use a2a_service::{error::ErrorKind, protocol::Version};

/// Reads the doc comment of each error kind from the source.
fn descriptions() -> HashMap<String, String> {
    let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/protocol/error/kind.rs")).unwrap();
    let kinds = source.split_once("pub enum ErrorKind {").unwrap().1.split_once("\n}").unwrap().0;
    let (mut descriptions, mut comment) = (HashMap::new(), Vec::new());
    for line in kinds.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("/// ") {
            comment.push(text.to_owned());
        } else {
            let kind = line.split(' ').next().unwrap_or_default().to_owned();
            descriptions.insert(kind, std::mem::take(&mut comment).join(" "));
        }
    }
    descriptions
}

const V03: &str = "
## In protocol 0.3

Kinds that are not listed here have the codes above.

- JSON-RPC errors have no `data`.
- HTTP+JSON errors have two members next to `error`: `code`, the JSON-RPC code, and `type`, the name.
- Messages of gRPC errors begin with the name.
- Messages name the limit that was reached after their first words: `(limit turns)`.

| Kind | Name | JSON-RPC | gRPC | HTTP |
| --- | --- | --- | --- | --- |
";

fn table() -> String {
    let descriptions = descriptions();
    let mut table = "\
# Errors

<!-- Generated from src/protocol/error/kind.rs. -->
All errors of all bindings.

- Identify an error by its *reason*: `google.rpc.ErrorInfo.reason` in the details, in every binding, with the domain
  `a2a-protocol.org`. Kinds with the same reason differ only in their messages.
- JSON-RPC codes from -32001 to -32009 are defined by A2A, -32700 and -32600 to -32603 by JSON-RPC, and -32050 to -32099
  by this server.
- Invalid fields are listed in `google.rpc.BadRequest`. The metadata entry `limit` of the `ErrorInfo` names a limit that was
  reached: its key without `limits.`, such as `parts`; a fixed limit may be a number. If a retry may succeed, `google.rpc.RetryInfo` and `Retry-After` give the delay.
- Internal causes are never sent. The metadata entry `errorId` identifies the log line with the cause.

| Kind | When | Reason | JSON-RPC | gRPC | HTTP |
| --- | --- | --- | --- | --- | --- |
"
    .to_owned();
    for kind in ErrorKind::ALL {
        let (name, wire) = (format!("{kind:?}"), kind.wire());
        let (reason, json_rpc, status, grpc) = (wire.reason, wire.json_rpc, wire.status(), i32::from(wire.grpc));
        let description = &descriptions[&name];
        writeln!(table, "| {name} | {description} | `{reason}` | {json_rpc} | {status} ({grpc}) | {} |", wire.http)
            .unwrap();
    }
    table.push_str(V03);
    for kind in ErrorKind::ALL {
        let (wire, current, name) = (kind.wire_for(Version::V0_3), kind.wire(), kind.v03_name());
        if (wire.json_rpc, wire.grpc, wire.http) != (current.json_rpc, current.grpc, current.http) {
            let (status, grpc, http) = (wire.status(), i32::from(wire.grpc), wire.http);
            writeln!(table, "| {kind:?} | `{name}` | {} | {status} ({grpc}) | {http} |", wire.json_rpc).unwrap();
        }
    }
    table
}

#[test]
fn errors_document_is_up_to_date() {
    let (path, table) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/errors.md"), table());
    if std::env::var_os("UPDATE").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &table).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap_or_default(), table, "UPDATE=1 writes {}", path.display());
}

#[test]
fn server_defined_codes_do_not_overlap_standard_codes() {
    for kind in ErrorKind::ALL {
        let code = kind.wire().json_rpc;
        let own = (-32099..=-32050).contains(&code);
        let known = (-32010..=-32001).contains(&code) || [-32700, -32600, -32601, -32602, -32603].contains(&code);
        assert!(own != known, "{kind:?} {code}");
    }
}
