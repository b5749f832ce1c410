//! The table of errors in `docs/errors.md` is that of the source. `UPDATE=1` writes it.

use std::{collections::HashMap, fmt::Write as _, fs, path::Path};

use a2a_service::{call::Version, error::ErrorKind};

/// What stands at each kind in the source: when it is.
fn whens() -> HashMap<String, String> {
    let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/error/kind.rs")).unwrap();
    let kinds = source.split_once("pub enum ErrorKind {").unwrap().1.split_once("\n}").unwrap().0;
    let (mut whens, mut when) = (HashMap::new(), Vec::new());
    for line in kinds.lines().map(str::trim) {
        match line.strip_prefix("/// ") {
            Some(it) => when.push(it.to_owned()),
            None => drop(whens.insert(line.trim_end_matches(',').to_owned(), std::mem::take(&mut when).join(" "))),
        }
    }
    whens
}

const CLASSIC: &str = "
## In protocol 0.3

What is not here has the numbers above. An error of JSON-RPC has no `data` in 0.3; one of HTTP+JSON has the number and the
*name* beside `error`, as `code` and `type`; the message of one of gRPC begins with the name. A limit
is named in every message, as `(limit turns)` after the first words.

| Kind | Name | JSON-RPC | gRPC | HTTP |
| --- | --- | --- | --- | --- |
";

fn table() -> String {
    let whens = whens();
    let mut table = "\
# Errors

Every error of every binding is one of these. `src/error/kind.rs` has the table, and this file is made of it.

- The *reason* is what to look at: it is in the `google.rpc.ErrorInfo` among the details of an error, whichever binding it
  comes by, with the domain `a2a-protocol.org`. Kinds that share a reason are told apart by their messages alone.
- The codes of JSON-RPC up to -32010 are the protocol's, those beside -32600 and -32700 are of JSON-RPC itself, and those
  from -32050 on are this server's own.
- Fields that are to blame are in a `google.rpc.BadRequest`. A limit is named by the `limit` in the metadata of the
  `ErrorInfo`; where the same call may succeed later, a `google.rpc.RetryInfo` and `Retry-After` say when.
- What went wrong inside is never told. Where there is an `errorId` in the metadata, the log has the cause under it.

| Kind | When | Reason | JSON-RPC | gRPC | HTTP |
| --- | --- | --- | --- | --- | --- |
"
    .to_owned();
    for kind in ErrorKind::ALL {
        let (name, wire) = (format!("{kind:?}"), kind.wire());
        let (reason, json_rpc, status, grpc) = (wire.reason, wire.json_rpc, wire.status(), i32::from(wire.grpc));
        let when = &whens[&name];
        writeln!(table, "| {name} | {when} | `{reason}` | {json_rpc} | {status} ({grpc}) | {} |", wire.http).unwrap();
    }
    table.push_str(CLASSIC);
    for kind in ErrorKind::ALL {
        let (wire, now, name) = (kind.wire_for(Version::V0_3), kind.wire(), kind.classic_name());
        if (wire.json_rpc, wire.grpc, wire.http) != (now.json_rpc, now.grpc, now.http) {
            let (status, grpc, http) = (wire.status(), i32::from(wire.grpc), wire.http);
            writeln!(table, "| {kind:?} | `{name}` | {} | {status} ({grpc}) | {http} |", wire.json_rpc).unwrap();
        }
    }
    table
}

#[test]
fn the_documentation_has_the_table() {
    let (path, table) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/errors.md"), table());
    if std::env::var_os("UPDATE").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &table).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap_or_default(), table, "UPDATE=1 writes {}", path.display());
}

#[test]
fn own_codes_are_clear_of_those_of_others() {
    for kind in ErrorKind::ALL {
        let code = kind.wire().json_rpc;
        let own = (-32099..=-32050).contains(&code);
        let known = (-32010..=-32001).contains(&code) || [-32700, -32600, -32601, -32602, -32603].contains(&code);
        assert!(own != known, "{kind:?} {code}");
    }
}
