//! Push notification configurations, where they are offered (3.1.7 to 3.1.10, 4.3).

use std::sync::Arc;

use a2a_service::{
    agent::{self, End},
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
    service::{
        Limits,
        push::{AllPushExtras, PushExtra},
    },
    store::{Key, Scope, Store, memory::Memory},
};

use super::*;
use crate::bindings::{Actor, each_binding, each_v03_binding, serve, server};

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

async fn create(agent: &dyn A2aService, it: TaskPushNotificationConfig) -> Result<TaskPushNotificationConfig, Error> {
    Ok(agent.create_task_push_notification_config(request(it)).await?.into_inner())
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

/// A send that says where to.
fn pushed(sent: SendMessageRequest, config: TaskPushNotificationConfig) -> SendMessageRequest {
    configured(sent, SendMessageConfiguration { task_push_notification_config: Some(config), ..Default::default() })
}

async fn a_configuration_is_kept(way: impl AsyncFn(Server<Actor>) -> Arc<dyn A2aService>) {
    let agent = way(server().push(true)).await;
    let id = send(&*agent, text("", "/ask what?")).await.id;
    assert_eq!(list(&*agent, &id).await, []);
    // With an id, and without: then it is given one.
    let named = create(&*agent, config(&id, "mine")).await.unwrap();
    assert_eq!(named, config(&id, "mine"), "as it was registered");
    let given = create(&*agent, config(&id, "")).await.unwrap();
    assert!(!given.id.is_empty() && given == config(&id, &given.id), "{given:?}");
    let other = create(&*agent, config(&id, "")).await.unwrap();
    assert_ne!(other.id, given.id);
    assert_eq!(list(&*agent, &id).await, [named.clone(), given.clone(), other.clone()]);
    assert_eq!(read(&*agent, &id, &given.id).await.unwrap(), given);
    // The same id again is the same configuration with another content.
    let mut changed = config(&id, "mine");
    (changed.url, changed.authentication) = ("http://localhost:1".into(), None);
    assert_eq!(create(&*agent, changed.clone()).await.unwrap(), changed);
    assert_eq!(list(&*agent, &id).await, [changed, given, other.clone()]);
    // Twice is as once.
    for _ in 0..2 {
        delete(&*agent, &id, "mine").await.unwrap();
    }
    delete(&*agent, &id, "never").await.unwrap();
    assert_error_kind(&read(&*agent, &id, "mine").await.unwrap_err(), ErrorKind::TaskNotFound);
    // A task that has ended keeps what it has.
    send(&*agent, text(&id, "that")).await;
    assert_eq!(list(&*agent, &id).await.last(), Some(&other));
}

each_binding!(a_configuration_is_kept, not_at_0_3 = "there one without an id replaces the last of those");

async fn a_task_has_to_be_there(way: impl AsyncFn(Server<Actor>) -> Arc<dyn A2aService>) {
    let agent = way(server().push(true)).await;
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

each_binding!(a_task_has_to_be_there);

/// In another tenant there is another task of that id, or none.
async fn a_task_has_a_tenant(way: impl AsyncFn(Server<Actor>) -> Arc<dyn A2aService>) {
    let agent = way(server().push(true)).await;
    let id = send(&*agent, text("", "hello")).await.id;
    create(&*agent, config(&id, "c")).await.unwrap();
    let tenant = || "blue".to_owned();
    let get = GetTaskPushNotificationConfigRequest { tenant: tenant(), task_id: id.clone(), id: "c".into() };
    let error = agent.get_task_push_notification_config(request(get)).await.unwrap_err().into();
    assert_error_kind(&error, ErrorKind::TaskNotFound);
    let elsewhere = TaskPushNotificationConfig { tenant: tenant(), ..config(&id, "d") };
    assert_error_kind(&create(&*agent, elsewhere).await.unwrap_err(), ErrorKind::TaskNotFound);
    assert_eq!(list(&*agent, &id).await.len(), 1);
}

each_binding!(a_task_has_a_tenant, not_at_0_3 = "it has no tenants");

async fn a_list_has_pages(way: impl AsyncFn(Server<Actor>) -> Arc<dyn A2aService>) {
    let agent = way(server().push(true)).await;
    let id = send(&*agent, text("", "hello")).await.id;
    for n in 0..5 {
        create(&*agent, config(&id, &format!("c-{n}"))).await.unwrap();
    }
    let (mut token, mut seen) = (String::new(), Vec::new());
    loop {
        let page = page(&*agent, &id, 2, &token).await.unwrap();
        seen.extend(page.configs.into_iter().map(|it| it.id));
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

each_binding!(a_list_has_pages, not_in_v03_json_rpc = "there a list has no pages");

type Change = fn(&mut TaskPushNotificationConfig);

async fn what_cannot_be_delivered_to_is_refused(way: impl AsyncFn(Server<Actor>) -> Arc<dyn A2aService>) {
    let agent = way(server().push(true)).await;
    let id = send(&*agent, text("", "/ask what?")).await.id;
    let changes: [(Change, &str); 8] = [
        (|it| it.url.clear(), "url"),
        (|it| it.url = "/swordfish".into(), "url"),
        (|it| it.url = "ftp://h/swordfish".into(), "url"),
        (|it| it.url = format!("http://h/swordfish{}", "x".repeat(4096)), "url"),
        (|it| it.url = "http://h/swordfish\r\nx: y".into(), "url"),
        (|it| it.token = "swordfish\r\nx: y".into(), "token"),
        (|it| it.id = "x".repeat(257), "id"),
        (|it| it.authentication.as_mut().unwrap().credentials = "swordfish\n".into(), "authentication.credentials"),
    ];
    for (change, field) in changes {
        let mut it = config(&id, "c");
        change(&mut it);
        let refused = create(&*agent, it.clone()).await.unwrap_err();
        assert_eq!(fields(&refused), [field]);
        let in_send = send_payload(&*agent, pushed(text(&id, "x"), it)).await.unwrap_err();
        assert_eq!(fields(&in_send), [format!("configuration.taskPushNotificationConfig.{field}")]);
        for error in [refused, in_send] {
            assert_error_kind(&error, ErrorKind::InvalidParams);
            assert!(!format!("{error} {:?}", error.details()).contains("swordfish"), "{error}");
        }
    }
    assert_eq!(list(&*agent, &id).await, []);
    assert_eq!(get(&*agent, &id).await.unwrap().state(), TaskState::InputRequired, "the agent was not asked");
}

each_binding!(what_cannot_be_delivered_to_is_refused);

async fn authentication_has_a_scheme(way: impl AsyncFn(Server<Actor>) -> Arc<dyn A2aService>) {
    let agent = way(server().push(true)).await;
    let id = send(&*agent, text("", "hello")).await.id;
    let mut it = config(&id, "c");
    it.authentication.as_mut().unwrap().scheme.clear();
    let refused = create(&*agent, it).await.unwrap_err();
    assert_error_kind(&refused, ErrorKind::InvalidParams);
    assert_eq!(fields(&refused), ["authentication.scheme"]);
}

each_binding!(authentication_has_a_scheme, not_in_v03_json_rpc = "there a list without schemes is as good as none");

async fn a_task_has_so_many(way: impl AsyncFn(Server<Actor>) -> Arc<dyn A2aService>) {
    let mut limits = Limits::default();
    limits.max_push_configs = 2;
    let agent = way(server().limits(limits).push(true)).await;
    let id = send(&*agent, pushed(text("", "/ask what?"), config("", "a"))).await.id;
    create(&*agent, config(&id, "b")).await.unwrap();
    for error in [
        create(&*agent, config(&id, "c")).await.unwrap_err(),
        send_payload(&*agent, pushed(text(&id, "x"), config("", ""))).await.unwrap_err(),
    ] {
        assert_error_kind(&error, ErrorKind::ResourceExhausted);
        assert_eq!(error.metadata("limit"), Some("max_push_configs"), "{:?}", error.details());
        assert!(error.to_string().contains("2 push notification configurations"), "{error}");
    }
    assert_eq!(get(&*agent, &id).await.unwrap().state(), TaskState::InputRequired, "the agent was not asked");
    create(&*agent, config(&id, "a")).await.unwrap();
    delete(&*agent, &id, "a").await.unwrap();
    create(&*agent, config(&id, "c")).await.unwrap();
}

each_binding!(a_task_has_so_many);

async fn a_send_says_where_to(way: impl AsyncFn(Server<Actor>) -> Arc<dyn A2aService>) {
    let agent = way(server().push(true)).await;
    // With the task that it begins, whatever task it names itself.
    let id = send(&*agent, pushed(text("", "/ask what?"), config("t-9", "first"))).await.id;
    assert_eq!(list(&*agent, &id).await, [config(&id, "first")]);
    // A follow-up adds one, or changes one.
    let changed = TaskPushNotificationConfig { token: "other".into(), ..config("", "first") };
    send(&*agent, pushed(text(&id, "again"), changed)).await;
    let token = list(&*agent, &id).await.remove(0).token;
    assert_eq!(token, "other");
    let events = stream(&*agent, pushed(text(&id, "that"), config("", ""))).await;
    remaining(events).await;
    assert_eq!(list(&*agent, &id).await.len(), 2);
    // A stream's task has it when the stream begins.
    let mut events = stream(&*agent, pushed(text("", "hello"), config("", "s"))).await;
    let streamed = task_of(&next(&mut events).await).id.clone();
    assert_eq!(list(&*agent, &streamed).await, [config(&streamed, "s")]);
    remaining(events).await;
    // As does that of a send that does not wait.
    let at_once = SendMessageConfiguration {
        return_immediately: true,
        task_push_notification_config: Some(config("", "i")),
        ..Default::default()
    };
    let at_once = send(&*agent, configured(text("", "hello"), at_once)).await.id;
    assert_eq!(list(&*agent, &at_once).await, [config(&at_once, "i")]);
    // An answer without a task has nothing to send.
    assert!(matches!(
        send_payload(&*agent, pushed(text("", "/message hi"), config("", "m"))).await,
        Ok(Answer::Message(_))
    ));
    // What is refused leaves nothing behind.
    send_payload(&*agent, pushed(text(&id, "more"), config("", "late"))).await.unwrap_err();
    assert_eq!(list(&*agent, &id).await.len(), 2);
}

each_binding!(a_send_says_where_to);

/// At 0.3 the one without an id has one of its own, and a second is put in its place.
async fn a_configuration_without_an_id_is_one(way: impl AsyncFn(Server<Actor>) -> Arc<dyn A2aService>) {
    let agent = way(server().push(true)).await;
    let id = send(&*agent, text("", "/ask what?")).await.id;
    let named = create(&*agent, config(&id, "mine")).await.unwrap();
    assert_eq!(named, config(&id, "mine"));
    create(&*agent, config(&id, "")).await.unwrap();
    let changed = TaskPushNotificationConfig { token: "other".into(), ..config(&id, "") };
    let unnamed = create(&*agent, changed).await.unwrap();
    assert_eq!((unnamed.id.as_str(), unnamed.token.as_str()), ("default", "other"));
    assert_eq!(list(&*agent, &id).await, [named, unnamed.clone()]);
    assert_eq!(read(&*agent, &id, "default").await.unwrap(), unnamed);
    delete(&*agent, &id, "default").await.unwrap();
    assert_eq!(list(&*agent, &id).await.len(), 1);
}

each_v03_binding!(a_configuration_without_an_id_is_one);

/// A message that can't be taken in takes the configuration back that came with it.
#[tokio::test]
async fn what_came_with_a_message_that_is_refused_goes_again() {
    let mut limits = Limits::default();
    limits.turns = 1;
    let agent = Server::new(Actor).limits(limits).push(true).into_service();
    let id = send(&*agent, pushed(text("", "/ask what?"), config("", "kept"))).await.id;
    let mut running = stream(&*agent, text("", "!authorise")).await;
    next(&mut running).await;
    let changed = TaskPushNotificationConfig { token: "other".into(), ..config("", "kept") };
    for it in [config("", "new"), changed] {
        assert_error_kind(
            &send_payload(&*agent, pushed(text(&id, "x"), it)).await.unwrap_err(),
            ErrorKind::ResourceExhausted,
        );
    }
    let left: Vec<_> = list(&*agent, &id).await.into_iter().map(|it| it.id).collect();
    assert_eq!(left, ["kept"]);
}

/// A codec's words are kept as they are, with the version that they came in, and another owner sees nothing of it.
#[tokio::test]
async fn what_1_0_cannot_say_is_kept_beside() {
    let store = Arc::new(Memory::default());
    let shared: Arc<dyn Store> = Arc::<Memory>::clone(&store);
    let replies = agent::from_fn(|_, _| async { Ok(End::InputRequired(Message::agent("more?"))) });
    let agent = Server::new(replies).store(shared).push(true).into_service();
    let ada = || Call { version: Version::V0_3, ..Call::by("ada") };
    let with = |words: &'static str| PushExtra(words.into());

    let mut sent = ada().request(pushed(text("", "x"), config("", "sent")));
    sent.extensions_mut().insert(with("in a send"));
    let Some(Answer::Task(task)) = agent.send_message(sent).await.unwrap().into_inner().payload else {
        panic!("no task")
    };
    let mut created = ada().request(config(&task.id, "created"));
    created.extensions_mut().insert(with("by itself"));
    let created = agent.create_task_push_notification_config(created).await.unwrap();
    assert_eq!(created.extensions().get(), Some(&with("by itself")));
    agent.create_task_push_notification_config(Call::by("ada").request(config(&task.id, "plain"))).await.unwrap();

    let listed = ListTaskPushNotificationConfigsRequest { task_id: task.id.clone(), ..Default::default() };
    let listed = agent.list_task_push_notification_configs(ada().request(listed)).await.unwrap();
    let besides = ["in a send", "by itself", ""].map(|it| it.as_bytes().into());
    assert_eq!(listed.extensions().get(), Some(&AllPushExtras(besides.into())));
    let one =
        GetTaskPushNotificationConfigRequest { task_id: task.id.clone(), id: "sent".into(), ..Default::default() };
    let read = agent.get_task_push_notification_config(ada().request(one.clone())).await.unwrap();
    assert_eq!(read.extensions().get(), Some(&with("in a send")));
    let theirs = agent.get_task_push_notification_config(Call::by("bob").request(one)).await.unwrap_err();
    assert_error_kind(&theirs.into(), ErrorKind::TaskNotFound);

    let key = Key::new(&Arc::new(Scope { owner: "ada".into(), tenant: "".into() }), &task.id);
    for (id, version) in [("sent", Version::V0_3), ("created", Version::V0_3), ("plain", Version::V1_0)] {
        assert_eq!(store.get_push(&key, id).await.unwrap().unwrap().version, version, "{id}");
    }
}

/// What 0.3 says of how to authenticate comes back at 0.3, by whichever binding, and 1.0 has the first of it.
#[tokio::test]
async fn further_schemes_survive() {
    let url = serve(server().push(true)).await;
    let mut classic = a2a_service::v03::pb::a2a_service_client::A2aServiceClient::connect(url.clone()).await.unwrap();
    let push = |id: &str| v03::PushNotificationConfig {
        id: id.into(),
        url: "https://hook.example".into(),
        authentication: Some(v03::AuthenticationInfo {
            schemes: ["Bearer", "Basic", "Digest"].map(Into::into).into(),
            credentials: "secret".into(),
        }),
        ..Default::default()
    };
    let schemes = |it: &v03::TaskPushNotificationConfig| {
        it.push_notification_config.clone().unwrap().authentication.unwrap().schemes
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
        classic.send_message(sent).await.unwrap().into_inner().payload
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
    let created = classic.create_task_push_notification_config(create).await.unwrap().into_inner();
    assert_eq!(schemes(&created), expected);
    let name = format!("{parent}/pushNotificationConfigs/sent");
    let get = v03::GetTaskPushNotificationConfigRequest { name };
    assert_eq!(schemes(&classic.get_task_push_notification_config(get).await.unwrap().into_inner()), expected);
    let all = v03::ListTaskPushNotificationConfigRequest { parent, ..Default::default() };
    let listed = classic.list_task_push_notification_config(all).await.unwrap().into_inner().configs;
    assert_eq!(listed.iter().map(schemes).collect::<Vec<_>>(), [expected, expected]);
    let agent = client::json_rpc(&format!("{url}/rpc")).unwrap();
    for config in list(&*agent, &task.id).await {
        assert_eq!(config.authentication.unwrap().scheme, "Bearer");
    }
}
