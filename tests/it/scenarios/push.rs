//! Push notification configurations of a server that supports them (specification 3.1.7 to 3.1.10, 4.3).

use std::sync::Arc;

use a2a_service::{
    agent::{self, End},
    call::{AllPushExtras, PushExtra},
    client,
    pb::{
        v1::{
            AuthenticationInfo, DeleteTaskPushNotificationConfigRequest, GetTaskPushNotificationConfigRequest,
            ListTaskPushNotificationConfigsRequest, ListTaskPushNotificationConfigsResponse,
            TaskPushNotificationConfig,
        },
        v03,
    },
    protocol::Version,
    server::Server,
    service::Limits,
    store::{PushQueue as _, Scope, Store, TaskKey, memory::Memory},
};

use super::*;
use crate::{
    bindings::{Actor, Binding, each_binding, each_v03_binding, serve, server},
    conformance::{Exemption, allow_undocumented},
};

fn config(task_id: &str, id: &str) -> TaskPushNotificationConfig {
    TaskPushNotificationConfig {
        task_id: task_id.into(),
        id: id.into(),
        url: "https://hook.example/a?b=c".into(),
        token: "opaque".into(),
        authentication: Some(AuthenticationInfo { scheme: "Bearer".into(), credentials: "secret".into() }),
        ..Default::default()
    }
}

/// Server of an agent that always asks for input, so that its tasks accept messages.
fn asking() -> Server {
    let asks = agent::from_fn(|_, _| async { Ok(End::input_required("more?")) });
    Server::new(asks).push_options(crate::bindings::no_names())
}

/// The configuration as the server returns it.
fn without_secrets(mut config: TaskPushNotificationConfig) -> TaskPushNotificationConfig {
    config.token.clear();
    config.authentication.iter_mut().for_each(|info| info.credentials.clear());
    config
}

async fn create(
    agent: &dyn A2aService,
    config: TaskPushNotificationConfig,
) -> Result<TaskPushNotificationConfig, Error> {
    Ok(agent.create_task_push_notification_config(request(config)).await?.into_inner())
}

async fn read(agent: &dyn A2aService, task_id: &str, id: &str) -> Result<TaskPushNotificationConfig, Error> {
    let get = GetTaskPushNotificationConfigRequest { task_id: task_id.into(), id: id.into(), ..Default::default() };
    Ok(agent.get_task_push_notification_config(request(get)).await?.into_inner())
}

async fn page(
    agent: &dyn A2aService,
    task_id: &str,
    page_size: i32,
    page_token: &str,
) -> Result<ListTaskPushNotificationConfigsResponse, Error> {
    let (task_id, page_token) = (task_id.into(), page_token.into());
    let list = ListTaskPushNotificationConfigsRequest { task_id, page_size, page_token, ..Default::default() };
    Ok(agent.list_task_push_notification_configs(request(list)).await?.into_inner())
}

async fn list(agent: &dyn A2aService, task_id: &str) -> Vec<TaskPushNotificationConfig> {
    let page = page(agent, task_id, 0, "").await.unwrap();
    assert_eq!(page.next_page_token, "");
    page.configs
}

async fn delete(agent: &dyn A2aService, task_id: &str, id: &str) -> Result<(), Error> {
    let (task_id, id) = (task_id.into(), id.into());
    let delete = DeleteTaskPushNotificationConfigRequest { task_id, id, ..Default::default() };
    Ok(agent.delete_task_push_notification_config(request(delete)).await.map(|_| ())?)
}

/// A send with a push configuration.
fn with_push_config(sent: SendMessageRequest, config: TaskPushNotificationConfig) -> SendMessageRequest {
    configured(sent, SendMessageConfiguration { task_push_notification_config: Some(config), ..Default::default() })
}

async fn push_configuration_is_stored(binding: Binding) {
    let agent = binding(server().push(true)).await;
    let id = send(&*agent, text("", "/ask what?")).await.id;
    assert_eq!(list(&*agent, &id).await, []);
    // Without an id, the server generates one.
    let named = create(&*agent, config(&id, "mine")).await.unwrap();
    assert_eq!(named, without_secrets(config(&id, "mine")));
    let generated = create(&*agent, config(&id, "")).await.unwrap();
    assert!(!generated.id.is_empty(), "{generated:?}");
    assert_eq!(generated, without_secrets(config(&id, &generated.id)));
    let other = create(&*agent, config(&id, "")).await.unwrap();
    assert_ne!(other.id, generated.id);
    assert_eq!(list(&*agent, &id).await, [named.clone(), generated.clone(), other.clone()]);
    assert_eq!(read(&*agent, &id, &generated.id).await.unwrap(), generated);
    // A configuration with a known id replaces the stored one.
    let mut changed = config(&id, "mine");
    changed.url = "https://other.example".into();
    assert_eq!(create(&*agent, changed.clone()).await.unwrap(), without_secrets(changed.clone()));
    assert_eq!(list(&*agent, &id).await, [without_secrets(changed), generated, other.clone()]);
    // Deletion is idempotent.
    for _ in 0..2 {
        delete(&*agent, &id, "mine").await.unwrap();
    }
    delete(&*agent, &id, "never").await.unwrap();
    assert_error_kind(&read(&*agent, &id, "mine").await.unwrap_err(), ErrorKind::TaskNotFound);
    // A terminal task keeps its configurations.
    send(&*agent, text(&id, "that")).await;
    assert_eq!(list(&*agent, &id).await.last(), Some(&other));
}

each_binding!(push_configuration_is_stored, not_at_0_3 = "in 0.3, a configuration without an id replaces the last one");

async fn push_configuration_of_unknown_task_is_rejected(binding: Binding) {
    let agent = binding(server().push(true)).await;
    for error in [
        create(&*agent, config("t-9", "c")).await.unwrap_err(),
        read(&*agent, "t-9", "c").await.unwrap_err(),
        page(&*agent, "t-9", 0, "").await.unwrap_err(),
        delete(&*agent, "t-9", "c").await.unwrap_err(),
    ] {
        assert_error_kind(&error, ErrorKind::TaskNotFound);
        assert_eq!(error.metadata("taskId"), Some("t-9"));
    }
}

each_binding!(push_configuration_of_unknown_task_is_rejected);

/// A task id is scoped to its tenant.
async fn push_configuration_is_scoped_to_the_tenant(binding: Binding) {
    let agent = binding(server().push(true)).await;
    let id = send(&*agent, text("", "hello")).await.id;
    create(&*agent, config(&id, "c")).await.unwrap();
    let tenant = || "blue".to_owned();
    let get = GetTaskPushNotificationConfigRequest { tenant: tenant(), task_id: id.clone(), id: "c".into() };
    let error = agent.get_task_push_notification_config(request(get)).await.unwrap_err().into();
    assert_error_kind(&error, ErrorKind::TaskNotFound);
    let other = TaskPushNotificationConfig { tenant: tenant(), ..config(&id, "d") };
    assert_error_kind(&create(&*agent, other).await.unwrap_err(), ErrorKind::TaskNotFound);
    assert_eq!(list(&*agent, &id).await.len(), 1);
}

each_binding!(push_configuration_is_scoped_to_the_tenant, not_at_0_3 = "0.3 has no tenants");

async fn push_configurations_are_listed_in_pages(binding: Binding) {
    let agent = binding(server().push(true)).await;
    let id = send(&*agent, text("", "hello")).await.id;
    for n in 0..5 {
        create(&*agent, config(&id, &format!("c-{n}"))).await.unwrap();
    }
    let (mut token, mut seen) = (String::new(), Vec::new());
    loop {
        let page = page(&*agent, &id, 2, &token).await.unwrap();
        seen.extend(page.configs.into_iter().map(|config| config.id));
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, ["c-0", "c-1", "c-2", "c-3", "c-4"]);
    for (size, token, field) in [(-1, "", "pageSize"), (101, "", "pageSize"), (0, "x", "pageToken")] {
        let error = page(&*agent, &id, size, token).await.unwrap_err();
        assert_error_kind(&error, ErrorKind::InvalidParams);
        assert_eq!(fields(&error), [field]);
    }
}

each_binding!(push_configurations_are_listed_in_pages, not_in_v03_json_rpc = "lists have no pages there");

type Change = fn(&mut TaskPushNotificationConfig);

async fn invalid_push_configuration_is_rejected_by_field(binding: Binding) {
    let agent = binding(server().push(true)).await;
    let id = send(&*agent, text("", "/ask what?")).await.id;
    let changes: [(Change, &str); 8] = [
        (|config| config.url.clear(), "url"),
        (|config| config.url = "/swordfish".into(), "url"),
        (|config| config.url = "ftp://h/swordfish".into(), "url"),
        (|config| config.url = format!("http://h/swordfish{}", "x".repeat(4096)), "url"),
        (|config| config.url = "http://h/swordfish\r\nx: y".into(), "url"),
        (|config| config.token = "swordfish\r\nx: y".into(), "token"),
        (|config| config.id = "x".repeat(257), "id"),
        (
            |config| config.authentication.as_mut().unwrap().credentials = "swordfish\n".into(),
            "authentication.credentials",
        ),
    ];
    for (change, field) in changes {
        let mut invalid = config(&id, "c");
        change(&mut invalid);
        let rejected = create(&*agent, invalid.clone()).await.unwrap_err();
        assert_eq!(fields(&rejected), [field]);
        let in_send = send_payload(&*agent, with_push_config(text(&id, "x"), invalid)).await.unwrap_err();
        assert_eq!(fields(&in_send), [format!("configuration.taskPushNotificationConfig.{field}")]);
        for error in [rejected, in_send] {
            assert_error_kind(&error, ErrorKind::InvalidParams);
            assert!(!format!("{error} {:?}", error.details()).contains("swordfish"), "{error}");
        }
    }
    assert_eq!(list(&*agent, &id).await, []);
    assert_eq!(get(&*agent, &id).await.unwrap().state(), TaskState::InputRequired, "the agent did not run");
}

each_binding!(invalid_push_configuration_is_rejected_by_field);

async fn authentication_without_a_scheme_is_rejected(binding: Binding) {
    let agent = binding(server().push(true)).await;
    let id = send(&*agent, text("", "hello")).await.id;
    let mut without_scheme = config(&id, "c");
    without_scheme.authentication.as_mut().unwrap().scheme.clear();
    let rejected = create(&*agent, without_scheme).await.unwrap_err();
    assert_error_kind(&rejected, ErrorKind::InvalidParams);
    assert_eq!(fields(&rejected), ["authentication.scheme"]);
}

each_binding!(
    authentication_without_a_scheme_is_rejected,
    not_in_v03_json_rpc = "an empty list of schemes equals none there"
);

async fn push_configurations_over_the_limit_are_rejected(binding: Binding) {
    let mut limits = Limits::default();
    limits.push_configs = 2;
    let agent = binding(server().limits(limits).push(true)).await;
    let id = send(&*agent, with_push_config(text("", "/ask what?"), config("", "a"))).await.id;
    create(&*agent, config(&id, "b")).await.unwrap();
    for error in [
        create(&*agent, config(&id, "c")).await.unwrap_err(),
        send_payload(&*agent, with_push_config(text(&id, "x"), config("", ""))).await.unwrap_err(),
    ] {
        assert_error_kind(&error, ErrorKind::ResourceExhausted);
        assert_eq!(error.metadata("limit"), Some("push_configs"), "{:?}", error.details());
        assert!(error.to_string().contains("2 push notification configurations"), "{error}");
    }
    assert_eq!(get(&*agent, &id).await.unwrap().state(), TaskState::InputRequired, "the agent did not run");
    create(&*agent, config(&id, "a")).await.unwrap();
    delete(&*agent, &id, "a").await.unwrap();
    create(&*agent, config(&id, "c")).await.unwrap();
}

each_binding!(push_configurations_over_the_limit_are_rejected);

async fn push_configurations_over_the_limit_of_an_owner_are_rejected(binding: Binding) {
    let store = Arc::new(Memory::default().with_max_push_configs_per_owner(2));
    let agent = binding(server().store(store).push(true)).await;
    let first = send(&*agent, with_push_config(text("", "/ask what?"), config("", "a"))).await.id;
    let second = send(&*agent, text("", "/ask what?")).await.id;
    create(&*agent, config(&second, "a")).await.unwrap();
    for error in [
        create(&*agent, config(&first, "b")).await.unwrap_err(),
        send_payload(&*agent, with_push_config(text("", "hello"), config("", ""))).await.unwrap_err(),
        send_payload(&*agent, with_push_config(text(&first, "x"), config("", ""))).await.unwrap_err(),
    ] {
        assert_error_kind(&error, ErrorKind::ResourceExhausted);
        assert_eq!(error.metadata("limit"), Some("push_configs_per_owner"), "{:?}", error.details());
        assert!(error.to_string().contains("2 push notification configurations"), "{error}");
    }
    assert_eq!(get(&*agent, &first).await.unwrap().state(), TaskState::InputRequired, "the agent did not run");
    create(&*agent, config(&first, "a")).await.unwrap();
    delete(&*agent, &second, "a").await.unwrap();
    create(&*agent, config(&first, "b")).await.unwrap();
}

each_binding!(push_configurations_over_the_limit_of_an_owner_are_rejected, one_server = "its store has limits");

/// A retry registers no configuration, so that it gets the task also if there can't be another one.
async fn repeated_send_is_not_rejected_at_the_push_limit(binding: Binding) {
    let store = Arc::new(Memory::default().with_max_push_configs_per_owner(1));
    let agent = binding(server().store(store).push(true)).await;
    let sent = with_push_config(text("", "hello"), config("", "a"));
    let send_by = async |key: &str, return_immediately: bool| {
        let mut sent = sent.clone();
        sent.configuration.as_mut().unwrap().return_immediately = return_immediately;
        let call = Call { idempotency_key: Some(key.into()), ..Call::default() };
        agent.send_message(call.request(sent)).await.map(|reply| match reply.into_inner().payload.unwrap() {
            Answer::Task(task) => task.id,
            Answer::Message(message) => panic!("{message:?}"),
        })
    };
    let id = send_by("one", false).await.unwrap();
    assert_eq!((send_by("one", false).await.unwrap(), send_by("one", true).await.unwrap()), (id.clone(), id.clone()));
    let call = Call { idempotency_key: Some("one".into()), ..Call::default() };
    let events = agent.send_streaming_message(call.request(sent.clone())).await.unwrap().into_inner();
    assert_eq!(task_of(&remaining(events).await[0]).id, id);
    assert_error_kind(&send_by("other", false).await.unwrap_err().into(), ErrorKind::ResourceExhausted);
}

each_binding!(repeated_send_is_not_rejected_at_the_push_limit, one_server = "its store has limits");

async fn send_can_include_a_push_configuration(binding: Binding) {
    let agent = binding(server().push(true)).await;
    // The configuration belongs to the new task, whatever task id it has itself.
    let id = send(&*agent, with_push_config(text("", "/ask what?"), config("t-9", "first"))).await.id;
    assert_eq!(list(&*agent, &id).await, [without_secrets(config(&id, "first"))]);
    // A follow-up adds or replaces a configuration.
    let changed = TaskPushNotificationConfig { url: "https://other.example/".into(), ..config("", "first") };
    send(&*agent, with_push_config(text(&id, "again"), changed)).await;
    let url = list(&*agent, &id).await.remove(0).url;
    assert_eq!(url, "https://other.example/");
    let events = stream(&*agent, with_push_config(text(&id, "that"), config("", ""))).await;
    remaining(events).await;
    assert_eq!(list(&*agent, &id).await.len(), 2);
    // Stored when a stream begins.
    let mut events = stream(&*agent, with_push_config(text("", "hello"), config("", "s"))).await;
    let streamed = task_of(&next(&mut events).await).id.clone();
    assert_eq!(list(&*agent, &streamed).await, [without_secrets(config(&streamed, "s"))]);
    remaining(events).await;
    // Stored when an immediate reply is returned.
    let immediate = SendMessageConfiguration {
        return_immediately: true,
        task_push_notification_config: Some(config("", "i")),
        ..Default::default()
    };
    let immediate = send(&*agent, configured(text("", "hello"), immediate)).await.id;
    assert_eq!(list(&*agent, &immediate).await, [without_secrets(config(&immediate, "i"))]);
    // A rejected send stores no configuration.
    send_payload(&*agent, with_push_config(text(&id, "more"), config("", "late"))).await.unwrap_err();
    assert_eq!(list(&*agent, &id).await.len(), 2);
}

each_binding!(send_can_include_a_push_configuration, kinds());

/// A message reply has no task to configure.
async fn push_configuration_of_a_message_reply_is_dropped(binding: Binding) {
    let agent = binding(server().push(true)).await;
    let sent = with_push_config(text("", "/message hi"), config("", "m"));
    assert!(matches!(send_payload(&*agent, sent).await, Ok(Answer::Message(_))));
}

each_binding!(push_configuration_of_a_message_reply_is_dropped);

/// In 0.3, a configuration without an id has the default id, so a second one replaces it.
async fn push_configuration_without_an_id_has_the_default_id_in_v03(binding: Binding) {
    let agent = binding(server().push(true)).await;
    let id = send(&*agent, text("", "/ask what?")).await.id;
    let named = create(&*agent, config(&id, "mine")).await.unwrap();
    assert_eq!(named, without_secrets(config(&id, "mine")));
    create(&*agent, config(&id, "")).await.unwrap();
    let changed = TaskPushNotificationConfig { url: "https://other.example/".into(), ..config(&id, "") };
    let unnamed = create(&*agent, changed).await.unwrap();
    assert_eq!((unnamed.id.as_str(), unnamed.url.as_str()), ("default", "https://other.example/"));
    assert_eq!(list(&*agent, &id).await, [named, unnamed.clone()]);
    assert_eq!(read(&*agent, &id, "default").await.unwrap(), unnamed);
    delete(&*agent, &id, "default").await.unwrap();
    assert_eq!(list(&*agent, &id).await.len(), 1);
}

each_v03_binding!(push_configuration_without_an_id_has_the_default_id_in_v03);

/// Secrets are write-only: they are kept when a configuration is saved without them, and never returned.
async fn secrets_of_push_configurations_are_kept(binding: Binding) {
    let store = Arc::new(Memory::default());
    let shared: Arc<dyn Store> = Arc::<Memory>::clone(&store);
    let agent = binding(server().store(shared).push(true)).await;
    let id = send(&*agent, with_push_config(text("", "/ask what?"), config("", "c"))).await.id;
    let key = TaskKey::new(&Arc::default(), &id);
    let stored = async || {
        let stored = store.get_push(&key, "c").await.unwrap().unwrap().config.clone();
        (stored.url, stored.token, stored.authentication.map(|info| (info.scheme, info.credentials)))
    };
    let secrets = || ("opaque".to_owned(), Some(("Bearer".to_owned(), "secret".to_owned())));
    let without = |url: &str| TaskPushNotificationConfig { url: url.into(), ..without_secrets(config(&id, "c")) };
    let (token, authentication) = secrets();
    create(&*agent, without("https://hook.example/1")).await.unwrap();
    assert_eq!(stored().await, ("https://hook.example/1".to_owned(), token.clone(), authentication.clone()));
    create(&*agent, TaskPushNotificationConfig { authentication: None, ..without("https://hook.example/2") })
        .await
        .unwrap();
    assert_eq!(stored().await, ("https://hook.example/2".to_owned(), token.clone(), authentication));
    send(&*agent, with_push_config(text(&id, "again"), without("https://hook.example/3"))).await;
    // Credentials belong to their scheme.
    let info = AuthenticationInfo { scheme: "Basic".into(), credentials: String::new() };
    create(&*agent, TaskPushNotificationConfig { authentication: Some(info), ..without("https://hook.example/4") })
        .await
        .unwrap();
    assert_eq!(stored().await, ("https://hook.example/4".to_owned(), token, Some(("Basic".to_owned(), String::new()))));
}

each_binding!(secrets_of_push_configurations_are_kept, one_server = "it reads its store");

/// The secrets of a configuration are not kept for a URL of another origin: they must be sent again.
async fn secrets_of_push_configurations_stay_with_their_origin(binding: Binding) {
    let store = Arc::new(Memory::default());
    let shared: Arc<dyn Store> = Arc::<Memory>::clone(&store);
    let agent = binding(server().store(shared).push(true)).await;
    let id = send(&*agent, with_push_config(text("", "/ask what?"), config("", "c"))).await.id;
    let key = TaskKey::new(&Arc::default(), &id);
    let stored = async || store.get_push(&key, "c").await.unwrap().unwrap().config.clone();
    let before = stored().await;
    let at = |url: &str| TaskPushNotificationConfig { url: url.into(), ..config(&id, "c") };
    let without_token = |url: &str| TaskPushNotificationConfig { token: String::new(), ..at(url) };
    let without_credentials = |url: &str| TaskPushNotificationConfig { authentication: None, ..at(url) };
    for url in ["https://other.example/a", "https://hook.example:8443/a?b=c", "https://sub.hook.example/a?b=c"] {
        for (config, field) in [
            (without_token(url), "token"),
            (without_secrets(at(url)), "token"),
            (without_credentials(url), "authentication.credentials"),
        ] {
            for error in [
                create(&*agent, config.clone()).await.unwrap_err(),
                send_payload(&*agent, with_push_config(text(&id, "x"), config.clone())).await.unwrap_err(),
            ] {
                assert_error_kind(&error, ErrorKind::InvalidParams);
                assert!(error.violations()[0].field.ends_with(field), "{url}: {error}");
                assert!(error.to_string().contains("another origin"), "{error}");
                assert!(!error.to_string().contains("opaque"), "{error}");
            }
        }
    }
    assert_eq!(stored().await, before, "nothing was changed");
    // The same origin in another spelling.
    create(&*agent, without_secrets(at("HTTPS://HOOK.example:443/b"))).await.unwrap();
    assert_eq!((stored().await.token, stored().await.authentication), (before.token.clone(), before.authentication));
    // With its secrets, a configuration can move.
    create(&*agent, at("https://other.example/")).await.unwrap();
    assert_eq!((&*stored().await.url, stored().await.token), ("https://other.example/", before.token));
}

each_binding!(secrets_of_push_configurations_stay_with_their_origin, one_server = "it reads its store");

/// Headers of 0.3 are kept, cleared and bound to their origin as the other secrets are.
#[tokio::test]
async fn headers_of_push_configurations_are_kept_or_cleared() {
    allow_undocumented(Exemption::Requests);
    let store = Arc::new(Memory::default());
    let shared: Arc<dyn Store> = Arc::<Memory>::clone(&store);
    let url = serve(asking().store(shared).push(true)).await;
    let agent = client::rest(&url).unwrap();
    let id = send(&*agent, text("", "/ask what?")).await.id;
    let key = TaskKey::new(&Arc::default(), &id);
    let call = async |to: &str, body: serde_json::Value| {
        let post = crate::bindings::http().post(format!("{url}{to}")).header("content-type", "application/json");
        let reply = post.body(body.to_string()).send().await.unwrap().text().await.unwrap();
        serde_json::from_str::<serde_json::Value>(&reply).unwrap()
    };
    let set = async |config: serde_json::Value| {
        let params = serde_json::json!({ "taskId": id, "pushNotificationConfig": config });
        let method = "tasks/pushNotificationConfig/set";
        call("/", serde_json::json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params })).await
    };
    let inline = async |config: serde_json::Value| {
        let message = serde_json::json!({ "kind": "message", "messageId": id, "taskId": id, "role": "user",
            "parts": [{ "kind": "text", "text": "/ask more?" }] });
        let params = serde_json::json!({ "message": message, "configuration": { "pushNotificationConfig": config } });
        call("/", serde_json::json!({ "jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params })).await
    };
    let stored = async || {
        let extra = store.get_push(&key, "c").await.unwrap().unwrap().extra.clone();
        serde_json::from_slice::<serde_json::Value>(&extra).unwrap_or_default()
    };
    let (hook, other) = ("https://hook.example/", "https://other.example/");
    let headers = serde_json::json!({ "X-Key": "opaque" });
    let full = serde_json::json!({ "id": "c", "url": hook, "headers": headers,
        "authentication": { "schemes": ["Bearer", "Basic"] } });
    let with = |member: &str, value: serde_json::Value| {
        let mut config = serde_json::json!({ "id": "c", "url": hook });
        config[member] = value;
        config
    };
    for (config, expected_headers, expected_schemes) in [
        (with("id", "c".into()), headers.clone(), serde_json::json!(["Basic"])),
        (
            with("authentication", serde_json::json!({ "schemes": ["Bearer", "Digest"] })),
            headers.clone(),
            serde_json::json!(["Digest"]),
        ),
        (with("authentication", serde_json::json!({ "schemes": ["Bearer"] })), headers.clone(), ().into()),
        (with("headers", serde_json::json!({})), ().into(), serde_json::json!(["Basic"])),
        (with("headers", ().into()), ().into(), serde_json::json!(["Basic"])),
        (
            with("headers", serde_json::json!({ "X-Other": "a" })),
            serde_json::json!({ "X-Other": "a" }),
            serde_json::json!(["Basic"]),
        ),
    ] {
        for is_sent in [false, true] {
            set(full.clone()).await;
            let reply = if is_sent { inline(config.clone()).await } else { set(config.clone()).await };
            assert!(reply["result"].is_object() && !reply.to_string().contains("opaque"), "{reply}");
            let extra = stored().await;
            assert_eq!((&extra["headers"], &extra["schemes"]), (&expected_headers, &expected_schemes), "{config}");
        }
    }
    set(full.clone()).await;
    let before = stored().await;
    let refused = set(with("url", other.into())).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    assert!(refused.to_string().contains("pushNotificationConfig.headers"), "{refused}");
    let refused = inline(with("url", other.into())).await;
    assert!(refused.to_string().contains("configuration.pushNotificationConfig.headers"), "{refused}");
    assert_eq!(stored().await, before);
    // A registration in 1.0 keeps the headers: without them, its receiver would refuse the notifications.
    let plain =
        TaskPushNotificationConfig { id: "c".into(), url: hook.into(), task_id: id.clone(), ..Default::default() };
    create(&*agent, plain).await.unwrap();
    assert_eq!(stored().await["headers"], headers);
}

/// An explicit empty value in JSON clears a secret; null does too.
#[tokio::test]
async fn explicit_empty_secrets_of_push_configurations_are_cleared() {
    // A value of null is accepted, and not documented.
    allow_undocumented(Exemption::Requests);
    let store = Arc::new(Memory::default());
    let shared: Arc<dyn Store> = Arc::<Memory>::clone(&store);
    let url = serve(asking().store(shared).push(true)).await;
    let agent = client::rest(&url).unwrap();
    let id = send(&*agent, text("", "/ask what?")).await.id;
    let key = TaskKey::new(&Arc::default(), &id);
    let hook = "https://hook.example/";
    let v03_json_rpc = |config: serde_json::Value| {
        let params = serde_json::json!({ "taskId": id, "pushNotificationConfig": config });
        let method = "tasks/pushNotificationConfig/set";
        (format!("{url}/"), serde_json::json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }))
    };
    let rest = |config| (format!("{url}/tasks/{id}/pushNotificationConfigs"), config);
    let in_send = |config: serde_json::Value| {
        let message = serde_json::json!({ "messageId": "m", "taskId": id, "role": "ROLE_USER",
            "parts": [{ "text": "/ask more?" }] });
        let configuration = serde_json::json!({ "taskPushNotificationConfig": config });
        (format!("{url}/message:send"), serde_json::json!({ "message": message, "configuration": configuration }))
    };
    let v03_send = |config: serde_json::Value| {
        let message = serde_json::json!({ "kind": "message", "messageId": "m", "taskId": id, "role": "user",
            "parts": [{ "kind": "text", "text": "/ask more?" }] });
        let params = serde_json::json!({ "message": message, "configuration": { "pushNotificationConfig": config } });
        (
            format!("{url}/"),
            serde_json::json!({ "jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params }),
        )
    };
    for (name, (to, body), expected) in [
        ("token", rest(serde_json::json!({ "id": "c", "url": hook, "token": "" })), ("", "secret")),
        ("null", rest(serde_json::json!({ "id": "c", "url": hook, "token": null })), ("", "secret")),
        (
            "credentials",
            rest(
                serde_json::json!({ "id": "c", "url": hook, "authentication": { "scheme": "Bearer", "credentials": "" } }),
            ),
            ("opaque", ""),
        ),
        ("authentication", rest(serde_json::json!({ "id": "c", "url": hook, "authentication": null })), ("opaque", "")),
        ("nothing", rest(serde_json::json!({ "id": "c", "url": hook })), ("opaque", "secret")),
        ("0.3 token", v03_json_rpc(serde_json::json!({ "id": "c", "url": hook, "token": "" })), ("", "secret")),
        ("0.3 nothing", v03_json_rpc(serde_json::json!({ "id": "c", "url": hook })), ("opaque", "secret")),
        ("send", in_send(serde_json::json!({ "id": "c", "url": hook, "token": "" })), ("", "secret")),
        ("send, null", in_send(serde_json::json!({ "id": "c", "url": hook, "authentication": null })), ("opaque", "")),
        ("send, nothing", in_send(serde_json::json!({ "id": "c", "url": hook })), ("opaque", "secret")),
        ("0.3 send", v03_send(serde_json::json!({ "id": "c", "url": hook, "token": "" })), ("", "secret")),
        ("0.3 send, nothing", v03_send(serde_json::json!({ "id": "c", "url": hook })), ("opaque", "secret")),
    ] {
        create(&*agent, config(&id, "c")).await.unwrap();
        let reply = crate::bindings::http()
            .post(to)
            .header("content-type", "application/json")
            .body(body.to_string())
            .send()
            .await
            .unwrap();
        let (status, text) = (reply.status(), reply.text().await.unwrap());
        assert!(status.is_success() && !text.contains("opaque") && !text.contains("secret"), "{name}: {text}");
        let stored = store.get_push(&key, "c").await.unwrap().unwrap().config.clone();
        let credentials = stored.authentication.map(|info| info.credentials).unwrap_or_default();
        assert_eq!((&*stored.token, &*credentials), expected, "{name}");
    }
}

/// A rejected message rolls back the configuration that it came with.
#[tokio::test]
async fn push_configuration_of_a_rejected_message_is_rolled_back() {
    let mut limits = Limits::default();
    (limits.turns, limits.queued_turns) = (1, 0);
    let agent =
        Server::new(Actor::new()).limits(limits).push(true).push_options(crate::bindings::no_names()).into_service();
    let id = send(&*agent, with_push_config(text("", "/ask what?"), config("", "kept"))).await.id;
    let mut running = stream(&*agent, text("", "!authorise")).await;
    next(&mut running).await;
    let changed = TaskPushNotificationConfig { token: "other".into(), ..config("", "kept") };
    for config in [config("", "new"), changed] {
        assert_error_kind(
            &send_payload(&*agent, with_push_config(text(&id, "x"), config)).await.unwrap_err(),
            ErrorKind::ResourceExhausted,
        );
    }
    let remaining_ids: Vec<_> = list(&*agent, &id).await.into_iter().map(|config| config.id).collect();
    assert_eq!(remaining_ids, ["kept"]);
}

/// Extra data of the 0.3 codec is stored unchanged with the protocol version, and is not visible to other owners.
#[tokio::test]
async fn push_extras_of_v03_are_stored() {
    let store = Arc::new(Memory::default());
    let shared: Arc<dyn Store> = Arc::<Memory>::clone(&store);
    let replies = agent::from_fn(|_, _| async { Ok(End::input_required("more?")) });
    let agent = Server::new(replies).store(shared).push(true).push_options(crate::bindings::no_names()).into_service();
    let ada = || Call { version: Version::V0_3, ..Call::by("ada") };
    let extra = |text: &'static str| PushExtra(text.into());

    let mut sent = ada().request(with_push_config(text("", "x"), config("", "sent")));
    sent.extensions_mut().insert(extra("in a send"));
    let Some(Answer::Task(task)) = agent.send_message(sent).await.unwrap().into_inner().payload else {
        panic!("no task")
    };
    let mut created = ada().request(config(&task.id, "created"));
    created.extensions_mut().insert(extra("by itself"));
    let created = agent.create_task_push_notification_config(created).await.unwrap();
    assert_eq!(created.extensions().get(), Some(&extra("by itself")));
    agent.create_task_push_notification_config(Call::by("ada").request(config(&task.id, "plain"))).await.unwrap();

    let listed = ListTaskPushNotificationConfigsRequest { task_id: task.id.clone(), ..Default::default() };
    let listed = agent.list_task_push_notification_configs(ada().request(listed)).await.unwrap();
    let extras = ["in a send", "by itself", ""].map(extra);
    assert_eq!(listed.extensions().get(), Some(&AllPushExtras(extras.into())));
    let one =
        GetTaskPushNotificationConfigRequest { task_id: task.id.clone(), id: "sent".into(), ..Default::default() };
    let read = agent.get_task_push_notification_config(ada().request(one.clone())).await.unwrap();
    assert_eq!(read.extensions().get(), Some(&extra("in a send")));
    let denied = agent.get_task_push_notification_config(Call::by("bob").request(one)).await.unwrap_err();
    assert_error_kind(&denied.into(), ErrorKind::TaskNotFound);

    let key = TaskKey::new(&Arc::new(Scope { owner: "ada".into(), tenant: "".into() }), &task.id);
    for (id, version) in [("sent", Version::V0_3), ("created", Version::V0_3), ("plain", Version::V1_0)] {
        assert_eq!(store.get_push(&key, id).await.unwrap().unwrap().version, version, "{id}");
    }
}

/// All authentication schemes are returned over every binding of 0.3; 1.0 returns the first.
#[tokio::test]
async fn further_authentication_schemes_are_returned_in_v03() {
    let url = serve(server().push(true)).await;
    let mut v03_client =
        a2a_service::v03::pb::a2a_service_client::A2aServiceClient::connect(url.clone()).await.unwrap();
    let push = |id: &str| v03::PushNotificationConfig {
        id: id.into(),
        url: "https://hook.example".into(),
        authentication: Some(v03::AuthenticationInfo {
            schemes: ["Bearer", "Basic", "Digest"].map(Into::into).into(),
            credentials: "secret".into(),
        }),
        ..Default::default()
    };
    let schemes = |config: &v03::TaskPushNotificationConfig| {
        config.push_notification_config.clone().unwrap().authentication.unwrap().schemes
    };
    let expected = ["Bearer", "Basic", "Digest"];
    let message = v03::Message {
        message_id: "m".into(),
        role: v03::Role::User.into(),
        content: vec![v03::Part { part: Some(v03::part::Part::Text("/ask what?".into())), metadata: None }],
        ..Default::default()
    };
    let configuration =
        v03::SendMessageConfiguration { push_notification: Some(push("sent")), blocking: true, ..Default::default() };
    let sent = v03::SendMessageRequest { request: Some(message), configuration: Some(configuration), metadata: None };
    let Some(v03::send_message_response::Payload::Task(task)) =
        v03_client.send_message(sent).await.unwrap().into_inner().payload
    else {
        panic!("no task")
    };
    let parent = format!("tasks/{}", task.id);
    let create = v03::CreateTaskPushNotificationConfigRequest {
        parent: parent.clone(),
        config_id: "created".into(),
        config: Some(v03::TaskPushNotificationConfig {
            push_notification_config: Some(push("created")),
            ..Default::default()
        }),
    };
    let created = v03_client.create_task_push_notification_config(create).await.unwrap().into_inner();
    assert_eq!(schemes(&created), expected);
    let name = format!("{parent}/pushNotificationConfigs/sent");
    let get = v03::GetTaskPushNotificationConfigRequest { name };
    assert_eq!(schemes(&v03_client.get_task_push_notification_config(get).await.unwrap().into_inner()), expected);
    let all = v03::ListTaskPushNotificationConfigRequest { parent, ..Default::default() };
    let listed = v03_client.list_task_push_notification_config(all).await.unwrap().into_inner().configs;
    assert_eq!(listed.iter().map(schemes).collect::<Vec<_>>(), [expected, expected]);
    let agent = client::json_rpc(&format!("{url}/rpc")).unwrap();
    for config in list(&*agent, &task.id).await {
        assert_eq!(config.authentication.unwrap().scheme, "Bearer");
    }
}
