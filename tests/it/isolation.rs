//! Isolation of principals: whatever a caller does with the ids of another one, the answer is that for ids that do not exist.
//!
//! The matrix has every RPC of the method table, over every binding and version.

use a2a_service::{
    auth::{AuthRequest, Authenticator, Operation, Policy, Principal, Scopes},
    call::Call,
    contract::BoxStream,
    error::{Error, ErrorKind},
    event::{Cursor, Event},
    pb::v1::{
        AgentCard, CancelTaskRequest, DeleteTaskPushNotificationConfigRequest, GetExtendedAgentCardRequest,
        GetTaskPushNotificationConfigRequest, GetTaskRequest, ListTaskPushNotificationConfigsRequest, ListTasksRequest,
        ListTasksResponse, Message, SendMessageRequest, SubscribeToTaskRequest, Task, TaskPushNotificationConfig,
        TaskState, a2a_service_server::A2aService, bindings::Rpc, send_message_response::Payload as Answer,
    },
    server::Server,
};
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status};

use crate::{
    bindings::{Binding, each_binding, each_v03_binding, server},
    scenarios::{output, text},
};

/// Authenticator that trusts the id of the request, which clients of every binding can set.
struct TrustRequestId;

#[tonic::async_trait]
impl Authenticator for TrustRequestId {
    async fn authenticate(&self, request: &AuthRequest<'_>) -> Result<Option<Principal>, Error> {
        let name = request.headers.get("x-request-id").and_then(|value| value.to_str().ok());
        name.map(|name| Some(principal(name))).ok_or_else(|| ErrorKind::Unauthenticated.error())
    }

    fn describe(&self, card: AgentCard) -> AgentCard {
        card
    }
}

/// Principal of a name such as `ada`, `ada/tasks:read+admin` with scopes, or `ada//north` with a tenant.
fn principal(name: &str) -> Principal {
    let mut parts = name.split('/');
    let principal = Principal::new(name).owner(parts.next().unwrap());
    let principal = match parts.next().filter(|scopes| !scopes.is_empty()) {
        Some(scopes) => principal.scopes(Scopes::only(scopes.split('+'))),
        None => principal,
    };
    match parts.next() {
        Some(tenant) => principal.tenant(tenant),
        None => principal,
    }
}

/// Client of one principal.
#[derive(Clone, Copy)]
struct Caller<'a> {
    agent: &'a dyn A2aService,
    name: &'static str,
    tenant: &'static str,
}

/// Ids that a caller uses.
struct Ids {
    task: String,
    config: &'static str,
}

impl Ids {
    /// Ids that nobody has. The task id is as long as a real one.
    fn missing() -> Self {
        Self { task: "00000000-0000-4000-8000-000000000000".to_owned(), config: "c-1" }
    }
}

impl Caller<'_> {
    fn call(&self) -> Call {
        Call { request_id: Some(self.name.to_owned()), ..Call::of_principal(principal(self.name)) }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        self.call().request(message)
    }

    fn tenant(&self) -> String {
        self.tenant.to_owned()
    }

    fn text(&self, task: &str, words: &str) -> SendMessageRequest {
        SendMessageRequest { tenant: self.tenant(), ..text(task, words) }
    }

    /// Creates a task that waits for input, with a push configuration.
    async fn create(&self) -> Ids {
        let ids = Ids { task: self.send(self.text("", "/ask what?")).await.id, config: "c-1" };
        self.agent.create_task_push_notification_config(self.request(self.config(&ids))).await.unwrap();
        ids
    }

    async fn send(&self, message: SendMessageRequest) -> Task {
        match self.agent.send_message(self.request(message)).await.unwrap().into_inner().payload {
            Some(Answer::Task(task)) => task,
            other => panic!("{other:?}"),
        }
    }

    async fn list(&self, request: ListTasksRequest) -> Result<ListTasksResponse, Error> {
        let request = ListTasksRequest { tenant: self.tenant(), ..request };
        Ok(self.agent.list_tasks(self.request(request)).await?.into_inner())
    }

    fn config(&self, ids: &Ids) -> TaskPushNotificationConfig {
        TaskPushNotificationConfig {
            tenant: self.tenant(),
            id: ids.config.to_owned(),
            task_id: ids.task.clone(),
            url: "https://hook.invalid/".to_owned(),
            ..TaskPushNotificationConfig::default()
        }
    }

    /// Calls an RPC for a task, and describes the answer.
    async fn answer(&self, rpc: Rpc, ids: &Ids) -> String {
        let (tenant, task_id, id) = (self.tenant(), ids.task.clone(), ids.config.to_owned());
        let agent = self.agent;
        match rpc {
            Rpc::SendMessage => described(agent.send_message(self.request(self.text(&task_id, "on"))).await),
            Rpc::SendStreamingMessage => {
                first(agent.send_streaming_message(self.request(self.text(&task_id, "on"))).await).await
            }
            Rpc::GetTask => {
                let request = GetTaskRequest { tenant, id: task_id, ..GetTaskRequest::default() };
                described(agent.get_task(self.request(request)).await)
            }
            // It names no task: the answer is what the caller sees in the context of the task.
            Rpc::ListTasks => {
                let request = ListTasksRequest { context_id: task_id, ..ListTasksRequest::default() };
                format!("{:?}", self.list(request).await)
            }
            Rpc::CancelTask => {
                let request = CancelTaskRequest { tenant, id: task_id, ..CancelTaskRequest::default() };
                described(agent.cancel_task(self.request(request)).await)
            }
            Rpc::SubscribeToTask => {
                first(agent.subscribe_to_task(self.request(SubscribeToTaskRequest { tenant, id: task_id })).await).await
            }
            Rpc::CreateTaskPushNotificationConfig => {
                described(agent.create_task_push_notification_config(self.request(self.config(ids))).await)
            }
            Rpc::GetTaskPushNotificationConfig => {
                let request = GetTaskPushNotificationConfigRequest { tenant, task_id, id };
                described(agent.get_task_push_notification_config(self.request(request)).await)
            }
            Rpc::ListTaskPushNotificationConfigs => {
                let request = ListTaskPushNotificationConfigsRequest {
                    tenant,
                    task_id,
                    ..ListTaskPushNotificationConfigsRequest::default()
                };
                described(agent.list_task_push_notification_configs(self.request(request)).await)
            }
            Rpc::DeleteTaskPushNotificationConfig => {
                let request = DeleteTaskPushNotificationConfigRequest { tenant, task_id, id };
                described(agent.delete_task_push_notification_config(self.request(request)).await)
            }
            Rpc::GetExtendedAgentCard => {
                described(agent.get_extended_agent_card(self.request(GetExtendedAgentCardRequest { tenant })).await)
            }
        }
    }
}

fn described<T: std::fmt::Debug>(result: Result<Response<T>, Status>) -> String {
    match result {
        Ok(response) => format!("ok {:?}", response.into_inner()),
        Err(status) => format!("error {:?}", Error::from(status)),
    }
}

/// Describes the first event of a stream.
async fn first(result: Result<Response<BoxStream<Event>>, Status>) -> String {
    match result {
        Ok(response) => described(response.into_inner().next().await.unwrap().map(Response::new)),
        Err(status) => described::<()>(Err(status)),
    }
}

fn isolated() -> Server {
    server().push(true).authenticator(TrustRequestId)
}

/// Asserts for every RPC that `stranger` gets the same answer for a task of `owner` and for a missing one, and that the task
/// is unchanged.
async fn assert_isolated(owner: Caller<'_>, stranger: Caller<'_>, rpcs: impl Iterator<Item = Rpc>) {
    let missing = Ids::missing();
    for rpc in rpcs {
        let ids = owner.create().await;
        let before = owner.answer(Rpc::GetTask, &ids).await;
        let foreign = stranger.answer(rpc, &ids).await;
        let of_missing = stranger.answer(rpc, &missing).await;
        assert_eq!(foreign.replace(&ids.task, &missing.task), of_missing, "{rpc:?}");
        assert_eq!(owner.answer(Rpc::GetTask, &ids).await, before, "{rpc:?} of a stranger changed the task");
        let own = owner.answer(rpc, &ids).await;
        if has_task(rpc) {
            assert!(own.starts_with("ok") && of_missing.starts_with("error"), "{rpc:?}: {own}\n{of_missing}");
        }
    }
}

/// Returns true for an RPC whose request names a task.
fn has_task(rpc: Rpc) -> bool {
    !matches!(rpc, Rpc::ListTasks | Rpc::GetExtendedAgentCard)
}

fn all_rpcs() -> impl Iterator<Item = Rpc> {
    Rpc::ALL.iter().copied()
}

each_binding!(tasks_of_another_principal_do_not_exist, not_at_0_3 = "its RPCs without a task are others");
async fn tasks_of_another_principal_do_not_exist(binding: Binding) {
    let agent = binding(isolated()).await;
    let caller = |name| Caller { agent: &*agent, name, tenant: "" };
    assert_isolated(caller("ada"), caller("bob"), all_rpcs()).await;
    assert_isolated(caller("bob"), caller("ada"), all_rpcs()).await;
}

each_v03_binding!(tasks_of_another_principal_do_not_exist_at_0_3);
async fn tasks_of_another_principal_do_not_exist_at_0_3(binding: Binding) {
    let agent = binding(isolated()).await;
    let caller = |name| Caller { agent: &*agent, name, tenant: "" };
    assert_isolated(caller("ada"), caller("bob"), all_rpcs().filter(|rpc| has_task(*rpc))).await;
}

each_binding!(tasks_of_another_tenant_do_not_exist, not_at_0_3 = "0.3 has no tenants");
async fn tasks_of_another_tenant_do_not_exist(binding: Binding) {
    let agent = binding(isolated()).await;
    let caller = |tenant| Caller { agent: &*agent, name: "ada", tenant };
    for (owner, stranger) in [("north", "south"), ("", "north"), ("north", "")] {
        assert_isolated(caller(owner), caller(stranger), all_rpcs()).await;
    }
}

each_binding!(contexts_and_idempotency_keys_are_those_of_the_principal);
async fn contexts_and_idempotency_keys_are_those_of_the_principal(binding: Binding) {
    let agent = binding(isolated()).await;
    let [ada, bob] = ["ada", "bob"].map(|name| Caller { agent: &*agent, name, tenant: "" });
    let in_context = |context: &str| {
        let message = Message { context_id: context.to_owned(), ..Message::user("hello") };
        SendMessageRequest { message: Some(message), ..SendMessageRequest::default() }
    };
    let made = ada.send(in_context("shared")).await;
    // The same context id is another context.
    let other = bob.send(in_context("shared")).await;
    assert_eq!((&*other.context_id, other.state()), ("shared", TaskState::Completed));
    assert_ne!(other.id, made.id);

    // An idempotency key of another principal is unused.
    let mut sent = Vec::new();
    for caller in [ada, bob, ada] {
        let message = Message { message_id: format!("m-{}", caller.name), ..Message::user("hello") };
        let request = SendMessageRequest { message: Some(message), ..SendMessageRequest::default() };
        let call = Call { idempotency_key: Some("k-1".to_owned()), ..caller.call() };
        match agent.send_message(call.request(request)).await.unwrap().into_inner().payload {
            Some(Answer::Task(task)) => sent.push(task.id),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(sent[0], sent[2]);
    assert_ne!(sent[0], sent[1]);
}

each_binding!(
    references_to_tasks_of_another_principal_are_ignored,
    not_in_v03_proto = "the proto file of 0.3 has no references"
);
async fn references_to_tasks_of_another_principal_are_ignored(binding: Binding) {
    let agent = binding(isolated()).await;
    let [ada, bob] = ["ada", "bob"].map(|name| Caller { agent: &*agent, name, tenant: "" });
    let made = ada.send(ada.text("", "hello")).await;
    for (caller, seen) in [(ada, made.id.as_str()), (bob, "")] {
        let message = Message { reference_task_ids: vec![made.id.clone()], ..Message::user("!referenced") };
        let request = SendMessageRequest { message: Some(message), ..SendMessageRequest::default() };
        assert_eq!(output(&caller.send(request).await), seen, "{}", caller.name);
    }
}

each_binding!(
    page_tokens_and_cursors_do_not_reach_tasks_of_another_principal,
    not_at_0_3 = "0.3 has no lists of tasks on every binding"
);
async fn page_tokens_and_cursors_do_not_reach_tasks_of_another_principal(binding: Binding) {
    let agent = binding(isolated()).await;
    let [ada, bob] = ["ada", "bob"].map(|name| Caller { agent: &*agent, name, tenant: "" });
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(ada.create().await.task);
    }
    let own = bob.create().await.task;
    let page =
        |token: &str| ListTasksRequest { page_size: Some(1), page_token: token.to_owned(), ..Default::default() };
    let first = ada.list(page("")).await.unwrap();
    assert!(first.total_size == 3 && !first.next_page_token.is_empty(), "{first:?}");
    // With a token of another principal, a caller sees at most its own tasks.
    match bob.list(page(&first.next_page_token)).await {
        Ok(seen) => assert!(seen.tasks.iter().all(|task| task.id == own), "{seen:?}"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidParams, "{error:?}"),
    }
    assert_eq!(bob.list(page("")).await.unwrap().total_size, 1);

    // A cursor names its task, and is of no use for the task of another principal, or for one's own.
    let cursor = Cursor::from_text(&format!("{}.1.1", ids[0]));
    for (caller, task) in [(bob, &ids[0]), (bob, &own)] {
        let subscribe = SubscribeToTaskRequest { id: task.clone(), ..SubscribeToTaskRequest::default() };
        let call = Call { cursor: cursor.clone(), ..caller.call() };
        let answer = first_event(agent.subscribe_to_task(call.request(subscribe)).await).await;
        assert!(task == &own || answer.is_none(), "{answer:?}");
        assert!(answer.is_none_or(|event| event.task().is_none_or(|task| task.id == own)), "{}", caller.name);
    }
}

async fn first_event(result: Result<Response<BoxStream<Event>>, Status>) -> Option<Event> {
    result.ok()?.into_inner().next().await?.ok()
}

/// Scope that an RPC requires.
fn scope_of(rpc: Rpc) -> &'static str {
    match rpc {
        Rpc::SendMessage | Rpc::SendStreamingMessage | Rpc::CancelTask => "tasks:write",
        Rpc::CreateTaskPushNotificationConfig | Rpc::DeleteTaskPushNotificationConfig => "push:write",
        Rpc::GetExtendedAgentCard => "card:extended",
        Rpc::GetTask
        | Rpc::ListTasks
        | Rpc::SubscribeToTask
        | Rpc::GetTaskPushNotificationConfig
        | Rpc::ListTaskPushNotificationConfigs => "tasks:read",
    }
}

each_binding!(each_rpc_requires_its_scope);
async fn each_rpc_requires_its_scope(binding: Binding) {
    let agent = binding(isolated()).await;
    let caller = |name| Caller { agent: &*agent, name, tenant: "" };
    let callers = ["ada/tasks:read", "ada/tasks:write", "ada/push:write", "ada/card:extended", "ada/admin"].map(caller);
    for rpc in all_rpcs().filter(|rpc| has_task(*rpc)) {
        for caller in callers {
            let ids = caller_ids(&*agent).await;
            let scope = scope_of(rpc);
            let answer = caller.answer(rpc, &ids).await;
            if caller.name == format!("ada/{scope}") {
                assert!(answer.starts_with("ok"), "{rpc:?} with {}: {answer}", caller.name);
            } else {
                let is_named = answer.contains(&format!("the credentials lack the scope {scope}"));
                assert!(answer.starts_with("error") && is_named, "{rpc:?} with {}: {answer}", caller.name);
            }
        }
    }
}

/// Policy in which principals with a list of scopes may only read.
struct ReadOnly;

#[tonic::async_trait]
impl Policy for ReadOnly {
    async fn authorize(&self, call: &Call, operation: &Operation<'_>) -> Result<(), Error> {
        let is_limited = call.principal.as_ref().is_none_or(|principal| principal.id.contains('/'));
        if is_limited && operation.scope != "tasks:read" {
            let reason = format!("{} of task {} is not permitted", operation.name, operation.task_id);
            return Err(ErrorKind::PermissionDenied.because(reason));
        }
        Ok(())
    }
}

each_binding!(policy_restricts_calls_that_the_scopes_permit);
async fn policy_restricts_calls_that_the_scopes_permit(binding: Binding) {
    let agent = binding(isolated().policy(ReadOnly)).await;
    for rpc in all_rpcs().filter(|rpc| has_task(*rpc)) {
        let ids = caller_ids(&*agent).await;
        let limited = Caller { agent: &*agent, name: "ada/tasks:read+tasks:write+push:write", tenant: "" };
        let answer = limited.answer(rpc, &ids).await;
        if scope_of(rpc) == "tasks:read" {
            assert!(answer.starts_with("ok"), "{rpc:?}: {answer}");
        } else {
            // Without the operation: a cancel of 0.3 reads the task first, with the scope of the cancel.
            let refused = format!("of task {} is not permitted", ids.task);
            assert!(answer.starts_with("error") && answer.contains(&refused), "{rpc:?}: {answer}");
            let answer = Caller { name: "ada", ..limited }.answer(rpc, &ids).await;
            assert!(answer.starts_with("ok"), "{rpc:?}: {answer}");
        }
    }
}

async fn caller_ids(agent: &dyn A2aService) -> Ids {
    Caller { agent, name: "ada", tenant: "" }.create().await
}

each_binding!(principal_of_a_tenant_cannot_use_another_one, not_at_0_3 = "0.3 has no tenants");
async fn principal_of_a_tenant_cannot_use_another_one(binding: Binding) {
    let agent = binding(isolated()).await;
    let caller = |name, tenant| Caller { agent: &*agent, name, tenant };
    // A call without a tenant is one for that of the principal.
    let ids = caller("ada//north", "").create().await;
    assert!(caller("ada", "north").answer(Rpc::GetTask, &ids).await.starts_with("ok"));
    assert!(caller("ada", "").answer(Rpc::GetTask, &ids).await.contains("TaskNotFound"));
    for rpc in all_rpcs() {
        let answer = caller("ada//south", "north").answer(rpc, &ids).await;
        assert!(answer.contains("tenant: the credentials are for another tenant"), "{rpc:?}: {answer}");
    }
}

each_binding!(messages_reach_only_the_skills_of_the_scopes);
async fn messages_reach_only_the_skills_of_the_scopes(binding: Binding) {
    let agent = binding(isolated()).await;
    let send = async |name: &'static str, skill: Option<&str>| {
        let mut message = Message::user("hello");
        message.metadata = skill.map(|skill| serde_json::from_value(serde_json::json!({"skillId": skill})).unwrap());
        let request = SendMessageRequest { message: Some(message), ..SendMessageRequest::default() };
        let caller = Caller { agent: &*agent, name, tenant: "" };
        described(agent.send_message(caller.request(request)).await)
    };
    let (any, echo) = ("ada/tasks:write", "ada/tasks:write+skill:echo");
    for (name, skill) in [(any, None), (any, Some("echo")), (echo, None), (echo, Some("echo")), ("ada", Some("add"))] {
        let answer = send(name, skill).await;
        assert!(answer.starts_with("ok"), "{name} {skill:?}: {answer}");
    }
    // The agent may read the metadata of the message or of the request.
    let mut message = Message::user("hello");
    message.metadata = Some(serde_json::from_value(serde_json::json!({"skillId": "echo"})).unwrap());
    let metadata = Some(serde_json::from_value(serde_json::json!({"skillId": "add"})).unwrap());
    let request = SendMessageRequest { message: Some(message), metadata, ..SendMessageRequest::default() };
    let caller = Caller { agent: &*agent, name: echo, tenant: "" };
    assert!(described(agent.send_message(caller.request(request)).await).contains("the scope skill:add"));
    let answer = send(echo, Some("add")).await;
    assert!(answer.contains("metadata.skillId: the credentials lack the scope skill:add"), "{answer}");
}
