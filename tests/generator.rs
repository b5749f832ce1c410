//! Code generation over a copy of the proto files in which a field has another name: messages, JSON, routes and documents
//! follow it without another edit.
//!
//! The documents are also written to `target/tmp/renamed/`, from which `scripts/sdk-proof` generates a client.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
};

use a2a_openapi::Documents;
use a2a_service::protocol::Version;
use prost_reflect::DescriptorPool;

#[path = "../build"]
mod build {
    pub(crate) mod check;
    pub(crate) mod commit;
    pub(crate) mod encoded;
    pub(crate) mod exceptions;
    pub(crate) mod extra_bindings;
    pub(crate) mod message;
    pub(crate) mod passes;
    pub(crate) mod routes;
    pub(crate) mod schema;
    pub(crate) mod service;
    pub(crate) mod v03;
    pub(crate) mod v03_json;
}

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// Output of the generator.
struct Generated {
    /// Rust code of the messages.
    messages: String,
    /// Code for their JSON.
    json: String,
    /// Service, with its routes.
    service: String,
    /// Documents by their file name.
    documents: Vec<(String, String)>,
}

/// Generates code and documents from the proto files, after an edit of the one of 1.0.
fn generate(edit: impl FnOnce(String) -> String) -> Generated {
    let directory = tempfile::tempdir().unwrap();
    let (proto, out) = (directory.path().join("proto"), directory.path().join("out"));
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("proto"), &proto);
    let file = proto.join("lf/a2a/v1/a2a.proto");
    fs::write(&file, edit(fs::read_to_string(&file).unwrap())).unwrap();
    build::passes::run(&proto, &out).unwrap();
    let read = |path: &str| fs::read_to_string(out.join(path)).unwrap();
    let pool = DescriptorPool::decode(&*fs::read(out.join("descriptors.bin")).unwrap()).unwrap();
    let documents = Documents::new(pool);
    let schema = documents.schema_files().into_iter().find(|(name, _)| name == "lf.a2a.v1.TaskPushNotificationConfig");
    Generated {
        messages: read("messages/lf.a2a.v1.rs"),
        json: read("messages/lf.a2a.v1.json.rs"),
        service: read("services/lf.a2a.v1.bindings.rs"),
        documents: vec![
            ("a2a-v1.json".to_owned(), documents.openapi(Version::V1_0).pretty()),
            ("a2a-jsonrpc.json".to_owned(), documents.openrpc().pretty()),
            ("TaskPushNotificationConfig.json".to_owned(), schema.unwrap().1.pretty()),
        ],
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (from, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(from, to).unwrap();
        }
    }
}

/// Returns the lines around the first occurrence of a text, from one line to another.
fn section<'a>(code: &'a str, begin: &str, end: &str) -> &'a str {
    let start = code.find(begin).expect(begin);
    let rest = &code[start..];
    &rest[..rest.find(end).unwrap_or(rest.len())]
}

#[test]
fn a_renamed_field_changes_messages_json_routes_and_documents() {
    // The webhook of a configuration, and the variable of a path.
    let renamed = |source: String| {
        let message = section(&source, "message TaskPushNotificationConfig {", "\n}\n").to_owned();
        let message_renamed = message.replace(" url = 4", " callback_uri = 4").replace(" task_id = 3", " job_id = 3");
        assert_ne!(message, message_renamed);
        let rpc = section(&source, "rpc CreateTaskPushNotificationConfig(", "\n  }\n").to_owned();
        source.replace(&message, &message_renamed).replace(&rpc, &rpc.replace("task_id", "job_id"))
    };
    let (before, after) = (generate(|source| source), generate(renamed));

    let message = |code: &str| section(code, "pub struct TaskPushNotificationConfig", "\n}").to_owned();
    assert!(message(&before.messages).contains("pub url:") && message(&before.messages).contains("pub task_id:"));
    assert!(message(&after.messages).contains("pub callback_uri:") && message(&after.messages).contains("pub job_id:"));
    assert!(!message(&after.messages).contains("pub url:"));

    for name in ["callbackUri", "jobId"] {
        assert!(!before.json.contains(name) && after.json.contains(&format!("\"{name}\"")), "{name}");
        for (before, after) in before.documents.iter().zip(&after.documents) {
            assert!(!before.1.contains(name) && after.1.contains(&format!("\"{name}\"")), "{name} in {}", after.0);
        }
    }

    let route = |code: &str| {
        let arms = code.lines().filter(|line| line.contains("pushNotificationConfigs")).count();
        (arms, code.contains("\"jobId\""))
    };
    let (routes_before, routes_after) = (route(&before.service), route(&after.service));
    assert_eq!(routes_before.0, routes_after.0);
    assert_eq!((routes_before.1, routes_after.1), (false, true));
    let paths = &after.documents[0].1;
    assert!(paths.contains("\"/tasks/{jobId}/pushNotificationConfigs\""), "{paths}");

    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("renamed");
    fs::create_dir_all(&directory).unwrap();
    for (name, document) in after.documents {
        fs::write(directory.join(name), document).unwrap();
    }
}

/// The commit of `a2a --version` is found in a clone, in a work tree, with packed references, and in a package.
#[test]
fn commit_is_read_from_the_files_of_git() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let id = "0123456789abcdef0123456789abcdef01234567";
    let expected = Some("0123456789ab".to_owned());
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let commit = |directory: &str| {
        let (commit, inputs) = build::commit::commit(&root.join(directory));
        assert!(inputs.iter().all(|input| input.exists()), "{inputs:?}");
        (commit, inputs.len())
    };
    assert_eq!(commit("none"), (None, 0));
    write("a/.git/HEAD", "ref: refs/heads/main\n");
    assert_eq!(commit("a"), (None, 1), "there is no commit yet");
    write("a/.git/refs/heads/main", &format!("{id}\n"));
    assert_eq!(commit("a"), (expected.clone(), 2));
    fs::remove_file(root.join("a/.git/refs/heads/main")).unwrap();
    write(
        "a/.git/packed-refs",
        &format!("# pack-refs\n{} refs/heads/mainline\n{id} refs/heads/main\n", "f".repeat(40)),
    );
    assert_eq!(commit("a"), (expected.clone(), 3));
    write("b/.git", "gitdir: ../a/.git/worktrees/b\n");
    write("a/.git/worktrees/b/HEAD", &format!("{id}\n"));
    write("a/.git/worktrees/b/commondir", "../..\n");
    assert_eq!(commit("b"), (expected.clone(), 2));
    write("a/.git/worktrees/b/HEAD", "ref: refs/heads/main\n");
    assert_eq!(commit("b"), (expected.clone(), 4));
    write("c/.cargo_vcs_info.json", &format!("{{\n  \"git\": {{\n    \"sha1\": \"{id}\"\n  }}\n}}"));
    assert_eq!(commit("c"), (expected, 1));
    write("d/.git/HEAD", "nonsense");
    assert_eq!(commit("d"), (None, 1));
}
