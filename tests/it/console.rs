//! Console: the files of `console/`, how the server sends them, and the key that turns them off.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use a2a_service::{
    auth::{Bearer, Token},
    pb::DESCRIPTORS,
    server::Console,
};
use prost_reflect::{DescriptorPool, EnumDescriptor, Kind, MessageDescriptor};
use serde_json::{Value, json};

use crate::program::{a2a, output};

/// Maximum sizes of all files of the console in bytes, as they are served and compressed.
const MAX_BYTES: u64 = 200_000;
const MAX_COMPRESSED: usize = 65_000;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("console")
}

/// Returns the files of the console by their path in the folder.
fn files() -> BTreeMap<String, Vec<u8>> {
    fn add(directory: &Path, files: &mut BTreeMap<String, Vec<u8>>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                add(&path, files);
            } else {
                let name = path.strip_prefix(folder()).unwrap().to_str().unwrap().to_owned();
                files.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    let mut files = BTreeMap::new();
    add(&folder(), &mut files);
    files
}

fn text(files: &BTreeMap<String, Vec<u8>>, name: &str) -> String {
    String::from_utf8(files[name].clone()).unwrap()
}

/// Returns a text without comments and white space, of which the program leaves out a part.
fn condensed(text: &str) -> String {
    let mut is_comment = false;
    let is_kept = |line: &&str| {
        let begins = is_comment || line.starts_with("/*");
        is_comment = begins && !line.ends_with("*/");
        !begins && !line.starts_with("//")
    };
    let lines: String = text.lines().map(str::trim).filter(is_kept).collect();
    lines.replace(char::is_whitespace, "").replace(";}", "}")
}

#[test]
fn libraries_are_those_of_the_manifest() {
    let files = files();
    let manifest = text(&files, "vendor/MANIFEST");
    let rows: Vec<Vec<&str>> =
        manifest.lines().filter(|line| !line.starts_with('#')).map(|line| line.split(' ').collect()).collect();
    let mut listed = BTreeSet::from(["vendor/LICENSES".to_owned(), "vendor/MANIFEST".to_owned()]);
    let licenses = text(&files, "vendor/LICENSES");
    for row in rows {
        let [file, package, version, _, hash] = row[..] else { panic!("{row:?}") };
        let output = Command::new("sha256sum").arg(folder().join("vendor").join(file)).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap().split(' ').next(), Some(hash), "{file}");
        assert!(licenses.contains(&format!("{package} {version}\n")), "{package} {version}");
        listed.insert(format!("vendor/{file}"));
    }
    let found: BTreeSet<_> = files.into_keys().filter(|name| name.starts_with("vendor/")).collect();
    assert_eq!(found, listed);
    assert!(found.len() > 3);
}

/// Code that would insert HTML, run text as a script, or load something of another host.
#[test]
fn files_contain_no_html_strings_and_no_urls() {
    const FORBIDDEN: [&str; 13] = [
        "dangerouslySetInnerHTML",
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        "srcdoc",
        "javascript:",
        " style=\"",
        "http://",
        "https://",
        "DOMParser",
    ];
    // An attribute with a handler in markup; `onClick=${…}` is a property of a component.
    let has_handler = |text: &str| {
        let lines = text.match_indices("=\"").map(|(at, _)| &text[..at]);
        lines
            .filter_map(|before| before.rsplit([' ', '\n']).next())
            .any(|name| name.starts_with("on") && name.len() > 2 && name.bytes().all(|byte| byte.is_ascii_lowercase()))
    };
    let files = files();
    let mut checked = 0;
    for (name, content) in files {
        // Preact has names of namespaces, and a property that the policy of the page makes useless.
        if ["vendor/preact.js", "vendor/LICENSES"].contains(&&*name) {
            continue;
        }
        checked += 1;
        let text = String::from_utf8(content).unwrap();
        for word in FORBIDDEN {
            assert!(!text.contains(word), "console/{name} contains {word}");
        }
        assert!(!has_handler(&text), "console/{name} has an attribute with a handler");
        // Links of texts are checked by text.js, and only components of ui.js make links.
        assert!(!text.contains("href=${"), "console/{name} has a link in a template");
        let is_link = ["href:", ".href ="].iter().any(|property| text.contains(property));
        assert!(!is_link || ["text.js", "ui.js", "vendor/preact.js"].contains(&&*name), "console/{name} has a link");
    }
    assert!(checked > 8, "{checked}");
    assert!(has_handler("<a onclick=\"x\">") && !has_handler("<a title=\"x\" data-on=\"y\">"));
}

/// Fields of the messages of a stream, for the text format of protobuf. `UPDATE=1` writes the file.
#[test]
fn schema_is_up_to_date() {
    let pool = DescriptorPool::decode(DESCRIPTORS).unwrap();
    let mut messages = BTreeMap::new();
    let mut enums = BTreeMap::new();
    collect(&pool.get_message_by_name("lf.a2a.v1.StreamResponse").unwrap(), &mut messages, &mut enums);
    let mut schema = "// Fields of the messages of a stream by number: name and type. Enum values by number. Generated from proto/: \
                      `UPDATE=1 cargo test schema` writes it.\n\nexport const MESSAGES = {\n"
        .to_owned();
    for (name, message) in &messages {
        let mut fields: Vec<_> = message.fields().collect();
        fields.sort_by_key(prost_reflect::FieldDescriptor::number);
        let fields = fields.iter().map(|field| format!("{}: ['{}', '{}']", field.number(), field.name(), kind(field)));
        writeln!(schema, "  '{name}': {{ {} }},", fields.collect::<Vec<_>>().join(", ")).unwrap();
    }
    schema.push_str("};\n\nexport const ENUMS = {\n");
    for (name, values) in &enums {
        let values = values.values().map(|value| format!("{}: '{}'", value.number(), value.name()));
        writeln!(schema, "  '{name}': {{ {} }},", values.collect::<Vec<_>>().join(", ")).unwrap();
    }
    schema.push_str("};\n");
    let path = folder().join("schema.js");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &schema).unwrap();
    }
    assert!(fs::read_to_string(&path).unwrap() == schema, "console/schema.js is outdated; UPDATE=1 writes it");
}

fn collect(
    message: &MessageDescriptor,
    messages: &mut BTreeMap<String, MessageDescriptor>,
    enums: &mut BTreeMap<String, EnumDescriptor>,
) {
    if messages.insert(message.full_name().to_owned(), message.clone()).is_some() {
        return;
    }
    for field in message.fields() {
        let kind = field.kind();
        if let Some(message) = kind.as_message() {
            collect(message, messages, enums);
        } else if let Some(values) = kind.as_enum() {
            enums.insert(values.full_name().to_owned(), values.clone());
        } else {
            // wire.js has no packed fields.
            let is_number = matches!(kind, Kind::Double | Kind::Int32 | Kind::Int64 | Kind::Bool) && !field.is_list();
            let is_known = is_number || matches!(kind, Kind::String | Kind::Bytes);
            assert!(is_known, "{}: wire.js has no {kind:?}", field.full_name());
        }
    }
}

/// Returns the name of the type of a field.
fn kind(field: &prost_reflect::FieldDescriptor) -> String {
    let kind = field.kind();
    let name = kind.as_message().map(MessageDescriptor::full_name).or(kind.as_enum().map(EnumDescriptor::full_name));
    name.map_or_else(|| format!("{kind:?}").to_lowercase(), str::to_owned)
}

#[cfg(feature = "console")]
mod served {
    use std::time::Duration;

    use a2a_service::{
        agent::{self, Agent, End, Error, Stopped, demo::Demo},
        extension::secret,
        pb::v1::{Message, Part},
        server::Server,
    };
    use reqwest::{Response, StatusCode, header, redirect};

    use super::*;
    use crate::bindings;

    const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; \
                          base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                          trusted-types 'none'";

    /// Requests a page as a browser does, without following redirects.
    async fn page(url: &str) -> Response {
        let http = reqwest::Client::builder().tls_certs_only([]).redirect(redirect::Policy::none()).build().unwrap();
        http.get(url).header(header::ACCEPT, "text/html,application/xhtml+xml,*/*;q=0.8").send().await.unwrap()
    }

    fn header_of<'a>(response: &'a Response, name: &str) -> &'a str {
        response.headers().get(name).unwrap_or_else(|| panic!("{} has no {name}", response.url())).to_str().unwrap()
    }

    async fn json_of(response: Response) -> Value {
        serde_json::from_slice(&response.bytes().await.unwrap()).unwrap()
    }

    /// Returns the facts about a server that its console gets.
    async fn facts(url: &str) -> Value {
        let script = page(&format!("{url}/console/server.js")).await.text().await.unwrap();
        serde_json::from_str(script.strip_prefix("export default ").unwrap().trim_end_matches(";\n")).unwrap()
    }

    /// No request needs the token: the files have no data.
    #[tokio::test]
    async fn every_file_is_served_with_strict_headers() {
        let authenticator = Bearer::new(Token::new("sesame").unwrap());
        let url = bindings::serve(bindings::server().authenticator(authenticator)).await;
        let mut files = files();
        files.remove("vendor/MANIFEST");
        let mut all = tempfile::NamedTempFile::new().unwrap();
        let paths = files.keys().map(|name| match &**name {
            "index.html" => (String::new(), name),
            _ => (format!("console/{name}"), name),
        });
        for (path, name) in paths {
            let response = page(&format!("{url}/{path}")).await;
            assert_eq!(response.status(), StatusCode::OK, "{path}");
            for (header, expected) in [
                ("content-security-policy", POLICY),
                ("x-content-type-options", "nosniff"),
                ("x-frame-options", "DENY"),
                ("referrer-policy", "no-referrer"),
                ("cross-origin-opener-policy", "same-origin"),
                ("cross-origin-resource-policy", "same-origin"),
                ("cache-control", "no-cache"),
            ] {
                assert_eq!(header_of(&response, header), expected, "{path}: {header}");
            }
            assert!(!response.headers().contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN), "{path}");
            let expected = match name.rsplit_once('.').map(|(_, extension)| extension) {
                Some("html") => "text/html; charset=utf-8",
                Some("css") => "text/css; charset=utf-8",
                Some("js") => "text/javascript; charset=utf-8",
                _ => "text/plain; charset=utf-8",
            };
            assert_eq!(header_of(&response, "content-type"), expected, "{path}");
            let tag = header_of(&response, "etag").to_owned();
            let (served, source) = (response.text().await.unwrap(), text(&files, name));
            let is_vendored = name.starts_with("vendor/");
            let is_same = if is_vendored { served == source } else { condensed(&served) == condensed(&source) };
            assert!(is_same, "console/{name} is not served as it is in the folder");
            all.write_all(served.as_bytes()).unwrap();
            let again = bindings::http().get(format!("{url}/{path}")).header(header::ACCEPT, "text/html");
            let again = again.header(header::IF_NONE_MATCH, &tag).send().await.unwrap();
            assert_eq!((again.status(), header_of(&again, "etag")), (StatusCode::NOT_MODIFIED, &*tag), "{path}");
            assert_eq!(header_of(&again, "content-security-policy"), POLICY, "{path}");
        }
        let size = all.as_file().metadata().unwrap().len();
        assert!(size <= MAX_BYTES, "the console has {size} bytes");
        let output = Command::new("gzip").args(["-9", "-c"]).arg(all.path()).output().unwrap();
        let size = output.stdout.len();
        assert!((1..=MAX_COMPRESSED).contains(&size), "the console has {size} bytes after gzip");

        let index = page(&url).await;
        assert!(index.headers().get_all(header::VARY).iter().any(|name| name == "accept"), "{:?}", index.headers());
        assert_eq!(bindings::fetch(format!("{url}/tasks")).await.unwrap().status(), StatusCode::UNAUTHORIZED);
        for path in ["console/none.js", "console/vendor", "console/vendor/MANIFEST", "console/tasks"] {
            assert_eq!(page(&format!("{url}/{path}")).await.status(), StatusCode::NOT_FOUND, "{path}");
        }
        let head = bindings::http().head(format!("{url}/console/vendor/htm.js")).send().await.unwrap();
        assert_eq!(
            (head.status(), header_of(&head, "content-length")),
            (StatusCode::OK, &*files["vendor/htm.js"].len().to_string())
        );
        let post = bindings::http().post(format!("{url}/console/app.css")).send().await.unwrap();
        assert_eq!((post.status(), header_of(&post, "allow")), (StatusCode::METHOD_NOT_ALLOWED, "GET, HEAD"));
    }

    #[tokio::test]
    async fn only_browsers_get_the_page() {
        let url = bindings::serve(bindings::server()).await;
        for accept in ["application/json", "*/*"] {
            let request = bindings::http().get(&url).header(header::ACCEPT, accept);
            assert_eq!(request.send().await.unwrap().status(), StatusCode::METHOD_NOT_ALLOWED, "{accept}");
        }
        let list = json!({"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}).to_string();
        let rpc = bindings::http().post(&url).header(header::CONTENT_TYPE, "application/json").body(list);
        let rpc = json_of(rpc.header(header::ACCEPT, "text/html").send().await.unwrap()).await;
        assert_eq!(rpc["result"]["totalSize"], 0, "{rpc}");
    }

    /// The page has relative links, which need the slash. A proxy may have removed a prefix, so that the location is relative too.
    #[tokio::test]
    async fn page_below_a_path_has_a_slash() {
        let server = bindings::server().url("http://agent.example/a2a/v1");
        let url = bindings::serve(server).await;
        for (path, location) in
            [("/a2a/v1", "./v1/"), ("/a2a/v1?a=b", "./v1/?a=b"), ("/console", "./"), ("/console/", "../")]
        {
            let response = page(&format!("{url}{path}")).await;
            assert_eq!(
                (response.status(), header_of(&response, "location")),
                (StatusCode::PERMANENT_REDIRECT, location),
                "{path}"
            );
        }
        assert_eq!(page(&format!("{url}/a2a/v1/")).await.status(), StatusCode::OK);
        assert_eq!(page(&format!("{url}/a2a/v1/console/app.js")).await.status(), StatusCode::OK);
        let list = json!({"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}).to_string();
        let rpc = bindings::http().post(format!("{url}/a2a/v1")).header(header::CONTENT_TYPE, "application/json");
        assert_eq!(json_of(rpc.body(list).send().await.unwrap()).await["result"]["totalSize"], 0);
        let get = bindings::fetch(format!("{url}/a2a/v1")).await.unwrap();
        assert_eq!(get.status(), StatusCode::METHOD_NOT_ALLOWED);
    }

    #[tokio::test]
    async fn key_selects_the_views() {
        let url = bindings::serve(bindings::server()).await;
        let version = env!("CARGO_PKG_VERSION");
        let docs = cfg!(feature = "docs");
        assert_eq!(facts(&url).await, json!({"version": version, "operator": true, "docs": docs, "agents": true}));
        let url = bindings::serve(bindings::server().console(Console::Developer).docs(false)).await;
        assert_eq!(facts(&url).await, json!({"version": version, "operator": false, "docs": false, "agents": true}));
        let url = bindings::program(bindings::server().router()).await;
        assert_eq!(facts(&url).await["operator"], false, "the address of a router is unknown");

        let url = bindings::serve(bindings::server().console(Console::Off)).await;
        let response = page(&url).await;
        assert_eq!((response.status(), header_of(&response, "allow")), (StatusCode::METHOD_NOT_ALLOWED, "POST"));
        for path in ["console/app.js", "console/server.js", "console/review.json", "console"] {
            assert_eq!(page(&format!("{url}/{path}")).await.status(), StatusCode::NOT_FOUND, "{path}");
        }
    }

    #[tokio::test]
    async fn program_has_the_key() {
        for (arguments, expected) in [
            (&[][..], Some(true)),
            (&["--console", "true"], Some(true)),
            (&["--console", "developer"], Some(false)),
            (&["--listen", "0.0.0.0:0", "--insecure"], Some(false)),
            (&["--console", "false"], None),
        ] {
            let listen = if arguments.contains(&"--listen") { &[][..] } else { &["--listen", "127.0.0.1:0"] };
            let (_server, url) = crate::program::started(a2a(&[&["serve"], listen, arguments].concat())).await;
            let url = url.replace("0.0.0.0", "127.0.0.1");
            match expected {
                Some(is_operator) => assert_eq!(facts(&url).await["operator"], is_operator, "{arguments:?}"),
                None => assert_eq!(page(&url).await.status(), StatusCode::METHOD_NOT_ALLOWED, "{arguments:?}"),
            }
        }
        let failed = output(a2a(&["serve", "--console", "admin"])).await;
        let error = String::from_utf8(failed.stderr).unwrap();
        assert!(error.contains("--console: `admin` is not `true`, `\"developer\"` or `false`"), "{error}");
    }

    /// Agents below a path have a page of their own, and only the root lists all.
    #[tokio::test]
    async fn each_agent_has_a_page() {
        let url = bindings::serve(bindings::server().agent("geo", Server::new(Demo).name("Geo"))).await;
        assert_eq!(page(&format!("{url}/geo/")).await.status(), StatusCode::OK);
        assert_eq!(header_of(&page(&format!("{url}/geo")).await, "location"), "./geo/");
        assert_eq!(
            (facts(&url).await["agents"].clone(), facts(&format!("{url}/geo")).await["agents"].clone()),
            (true.into(), false.into())
        );
    }

    #[tokio::test]
    async fn review_is_that_of_the_program() {
        let card = json!({
            "name": "Geo", "description": "Maps.", "version": "1", "capabilities": {}, "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"], "skills": [{"id": "a", "name": "", "description": "a", "tags": []}],
        });
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("card.json");
        fs::write(&file, card.to_string()).unwrap();
        let file = file.to_str().unwrap();
        let (_server, url) =
            crate::program::started(a2a(&["serve", "--listen", "127.0.0.1:0", "--card-file", file])).await;
        let printed = output(a2a(&["card", "validate", &url, "-o", "json"])).await;
        let printed: Value = serde_json::from_slice(&printed.stdout).unwrap();
        let review = bindings::http().get(format!("{url}/console/review.json")).header("a2a-version", "1.0");
        let served = json_of(review.send().await.unwrap()).await;
        assert_eq!(served, printed, "the version of the request does not matter");
        let problem = json!({
            "versions": ["1.0", "0.3"], "path": "skills[0].name", "problem": "is empty",
            "remedy": "set it to a name of the skill for people",
        });
        assert_eq!(served["problems"], json!([problem]), "{served}");
    }

    #[tokio::test]
    async fn review_is_as_public_as_the_card() {
        let authenticator = || Bearer::new(Token::new("sesame").unwrap());
        let url = bindings::serve(bindings::server().authenticator(authenticator())).await;
        let public = page(&format!("{url}/console/review.json")).await;
        assert_eq!((public.status(), header_of(&public, "access-control-allow-origin")), (StatusCode::OK, "*"));
        let url = bindings::serve(bindings::server().authenticator(authenticator()).protect_card(true)).await;
        let review = format!("{url}/console/review.json");
        assert_eq!(page(&review).await.status(), StatusCode::UNAUTHORIZED);
        let private = bindings::http().get(&review).bearer_auth("sesame").send().await.unwrap();
        assert_eq!((private.status(), header_of(&private, "cache-control")), (StatusCode::OK, "private, no-cache"));
        assert_eq!(page(&url).await.status(), StatusCode::OK);
    }

    #[expect(clippy::disallowed_methods, reason = "the statuses of a task get different times")]
    async fn tick() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    /// Agent whose tasks have every kind of event. It waits before each one, which so has its own number and its own time.
    fn every_kind_of_event() -> impl Agent {
        agent::from_fn(|turn, out| async move {
            let pause = async || {
                out.flush().await?;
                tick().await;
                Ok::<_, Stopped>(())
            };
            pause().await?;
            out.progress("Begins.").await?;
            pause().await?;
            let command = turn.message().parts.first().and_then(Part::as_text).unwrap_or_default();
            let mut notes = out.artifact("notes").id("notes").appending();
            match command {
                "artifacts" => {
                    out.task_metadata(&json!({"step": 1, "kept": {"a": 1}})).await?;
                    pause().await?;
                    let report = out.artifact("report").id("report").describe("A report.").extensions(["urn:x:a"]);
                    let mut report = report.metadata(&json!({"a": 1, "b": {"c": 1}}))?;
                    report.text("one ").await?;
                    pause().await?;
                    report.text("two").await?;
                    pause().await?;
                    let mut table = out.artifact("table").id("table");
                    table
                        .data(&json!({"number": 1.5, "list": [true, null, "\"\n"], "__proto__": {"deep": {}}}))
                        .await?;
                    pause().await?;
                    let mut report = report.metadata(&json!({"b": 2}))?.extensions(["urn:x:a", "urn:x:b"]);
                    report.parts(vec![Part::text("three"), Part::bytes([0, 255], "image/png").named("a.png")]).await?;
                    pause().await?;
                    report.parts(vec![Part::text("four"), Part::text(" five"), Part::text("").named("empty")]).await?;
                    pause().await?;
                    report.last().file("https://example.com/map.png", "image/png").await?;
                    pause().await?;
                    out.artifact("table again").id("table").last().text("replaced").await?;
                    pause().await?;
                    let nearly = Message::agent("Nearly done.").with_metadata(&json!({"percent": 90}))?;
                    out.with_metadata(&json!({"step": 2}))?.progress(nearly).await?;
                    pause().await?;
                    Ok(End::Completed(Some("Done.".into())))
                }
                "ask" => {
                    notes.text(format!("{} parts", turn.message().parts.len())).await?;
                    pause().await?;
                    let schema = json!({"requestedSchema": {"type": "object"}});
                    Ok(End::input_required(Message::agent("City?").with_metadata(&schema)?))
                }
                "sign" => {
                    notes.text(", one answer").await?;
                    pause().await?;
                    Ok(End::auth_required("Sign in."))
                }
                "wait" => {
                    notes.text("begun").await?;
                    turn.canceled().await;
                    tick().await;
                    Err(Stopped.into())
                }
                "fail" => Err(Error::public("No such city.")),
                "break" => Err(Error::internal("broken")),
                "reject" => Ok(End::rejected("Not for me.")),
                _ => {
                    notes.last().text(", the end").await?;
                    pause().await?;
                    Ok(End::Completed(None))
                }
            }
        })
    }

    /// Replaces ids and times, which differ in each run, by numbers in the order in which they occur.
    fn number_ids(value: &mut Value, known: &mut Vec<String>) {
        match value {
            Value::Object(members) => members.values_mut().for_each(|value| number_ids(value, known)),
            Value::Array(items) => items.iter_mut().for_each(|item| number_ids(item, known)),
            Value::String(text) => {
                let mut number = |word: &str| {
                    let is_time = word.ends_with('Z') && word.parse::<jiff::Timestamp>().is_ok();
                    if !is_time && (word.len() != 36 || word.matches('-').count() != 4) {
                        return word.to_owned();
                    }
                    let number = known.iter().position(|other| other == word).unwrap_or(known.len());
                    if number == known.len() {
                        known.push(word.to_owned());
                    }
                    let (minutes, seconds) = (number / 60, number % 60);
                    if is_time {
                        format!("2030-01-01T00:{minutes:02}:{seconds:02}Z")
                    } else {
                        format!("00000000-0000-7000-8000-{number:012}")
                    }
                };
                *text = text.split(' ').map(&mut number).collect::<Vec<_>>().join(" ");
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Logs of tasks as the operator API returns them, each with the task after each turn, for the test of `model.js`, which makes
    /// tasks of events. `UPDATE=1` writes the file.
    #[tokio::test]
    async fn recorded_logs_are_up_to_date() {
        let url = bindings::serve(Server::new(every_kind_of_event()).operator_token(Token::new("root").unwrap())).await;
        let get = async |path: String| {
            json_of(bindings::http().get(format!("{url}/{path}")).bearer_auth("root").send().await.unwrap()).await
        };
        let post = async |path: String, body: Value| {
            let request =
                bindings::http().post(format!("{url}/{path}")).header(header::CONTENT_TYPE, "application/json");
            json_of(request.body(body.to_string()).send().await.unwrap()).await
        };
        let secret = json!({"text": "hunter2", "metadata": {(secret::URI): true}});
        let all = json!([{"text": "parts"}, {"text": "named", "filename": "a.txt"}, {"text": "marked", "metadata": {"a": 1}},
            {"data": [1, {"b": null}]}, {"raw": "AP8=", "mediaType": "image/png"}, {"url": "https://example.com/a"}]);
        let mut recorded = String::new();
        let mut known = Vec::new();
        for (name, turns) in [
            ("artifacts", json!([[{"text": "artifacts"}]])),
            (
                "questions",
                json!([[{"text": "ask"}], [{"text": "sign"}, {"data": {"city": "Lisbon"}}], [{"text": "end"}]]),
            ),
            ("secrets", json!([[{"text": "ask"}, secret], [secret, {"text": "end"}]])),
            ("parts", json!([all])),
            ("canceled", json!([[{"text": "wait"}]])),
            ("failed", json!([[{"text": "fail"}]])),
            ("broken", json!([[{"text": "ask"}], [{"text": "break"}]])),
            ("rejected", json!([[{"text": "reject"}]])),
        ] {
            let mut message = json!({"role": "ROLE_USER", "metadata": {"turns": name}});
            let mut log = Value::Null;
            let mut tasks = Vec::new();
            for (number, parts) in turns.as_array().unwrap().iter().enumerate() {
                message["messageId"] = format!("{name}-{number}").into();
                message["parts"] = parts.clone();
                let configuration = json!({"returnImmediately": name == "canceled"});
                let body = json!({"message": message, "configuration": configuration});
                let sent = post("message:send".to_owned(), body).await;
                let id = sent["task"]["id"].as_str().unwrap_or_else(|| panic!("{sent}"));
                message["taskId"] = id.into();
                if name == "canceled" {
                    while get(format!("tasks/{id}")).await["artifacts"].is_null() {
                        tick().await;
                    }
                    post(format!("tasks/{id}:cancel"), json!({})).await;
                }
                log = get(format!("operator/tasks/{id}/events")).await["events"].take();
                tasks.push(json!({"events": log.as_array().unwrap().len(), "task": get(format!("tasks/{id}")).await}));
            }
            let mut events: Vec<Value> = log.as_array_mut().unwrap().drain(..).collect();
            let visible = events.iter().filter(|event| event["hidden"] == false).map(|event| event["wire"].clone());
            let id = message["taskId"].as_str().unwrap();
            let stream = bindings::fetch(format!("{url}/tasks/{id}:subscribe?lastEventId={id}.0.0")).await.unwrap();
            let stream = stream.text().await.unwrap();
            let streamed = stream.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data:")?).ok());
            assert_eq!(streamed.collect::<Vec<Value>>(), visible.collect::<Vec<_>>(), "{name}");
            let mut lines = |values: &mut [Value]| {
                for value in values.iter_mut() {
                    number_ids(value, &mut known);
                }
                values.iter().map(Value::to_string).collect::<Vec<_>>().join(",\n")
            };
            for event in &mut events {
                *event = json!({"seq": event["seq"], "hidden": event["hidden"], "wire": event["wire"]});
            }
            let (events, tasks) = (lines(&mut events), lines(&mut tasks));
            let comma = if recorded.is_empty() { "" } else { ",\n" };
            write!(recorded, "{comma}{{\"name\": \"{name}\", \"events\": [\n{events}\n], \"tasks\": [\n{tasks}\n]}}")
                .unwrap();
        }
        let recorded = format!("[{recorded}]\n");
        assert!(!recorded.contains("hunter2"));
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/console/logs.json");
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&path, &recorded).unwrap();
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(found == recorded, "{} is outdated; UPDATE=1 writes it: {recorded}", path.display());
    }
}
