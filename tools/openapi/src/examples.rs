//! Worked examples of requests and responses.
//!
//! They are written in 1.0 JSON. The forms of 0.3 are converted from them by the code that converts calls.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use a2a_service::{
    pb::{v1, v03},
    v03::{
        card::v03_card,
        json::{FinalEvent, Write},
    },
};

const TASK: &str = "0197a3c2-58f1-7d05-9c1e-3f6f0c9b1a42";
const CONTEXT: &str = "0197a3c2-58f1-7d05-9c1e-3f7a5be2d810";
const MESSAGE: &str = "7f1c0f0e-2f57-4a0c-9a55-1e2b7f3f4c11";
const CONFIG: &str = "ci-hook";

/// Example of a message.
#[derive(Clone, Debug)]
pub(super) struct Example {
    /// Name among the examples of the message.
    pub(super) name: &'static str,
    pub(super) summary: &'static str,
    pub(super) value: Value,
}

impl Example {
    const fn new(name: &'static str, summary: &'static str, value: Value) -> Self {
        Self { name, summary, value }
    }
}

/// Converts the value of each example.
fn converted(examples: Vec<Example>, convert: impl Fn(Value) -> Value) -> Vec<Example> {
    let convert = |example: Example| Example { value: convert(example.value), ..example };
    examples.into_iter().map(convert).collect()
}

/// Reads a 1.0 message and writes what `convert` makes of it.
fn typed<T: DeserializeOwned, U: Serialize>(value: Value, convert: impl Fn(T) -> U) -> Value {
    let message = serde_json::from_value(value).map(convert);
    message.and_then(serde_json::to_value).unwrap_or_default()
}

/// Returns the examples of a message, given its full name. A package that is not of the protocol has none.
pub(super) fn of(message: &str) -> Vec<Example> {
    if let Some(name) = message.strip_prefix("lf.a2a.v1.") {
        return v1(name);
    }
    match message.strip_prefix("a2a.v1.") {
        Some(name) => proto_v03(name),
        None => Vec::new(),
    }
}

fn one(value: Value) -> Vec<Example> {
    vec![Example::new("example", "", value)]
}

/// Returns the examples of a 1.0 message.
fn v1(name: &str) -> Vec<Example> {
    let example = match name {
        "SendMessageRequest" => return sends(),
        "SendMessageResponse" => {
            return vec![
                Example::new("task", "Task that the message started", json!({"task": completed_task()})),
                Example::new("message", "Reply without a task", json!({"message": reply()})),
            ];
        }
        "StreamResponse" => return events(),
        "GetTaskRequest" => json!({"id": TASK, "historyLength": 10}),
        "Task" => completed_task(),
        "ListTasksRequest" => json!({"contextId": CONTEXT, "status": "TASK_STATE_COMPLETED", "pageSize": 20}),
        "ListTasksResponse" => {
            json!({"tasks": [listed_task()], "nextPageToken": "", "pageSize": 20, "totalSize": 1})
        }
        "CancelTaskRequest" => json!({"id": TASK, "metadata": {"reason": "no longer needed"}}),
        "SubscribeToTaskRequest" => json!({"id": TASK}),
        "TaskPushNotificationConfig" => json!({
            "id": CONFIG,
            "taskId": TASK,
            "url": "https://ci.example.com/a2a/events",
            "token": "4bf1d6",
            "authentication": {"scheme": "Bearer", "credentials": "eyJhbGciOi"},
        }),
        "GetTaskPushNotificationConfigRequest" | "DeleteTaskPushNotificationConfigRequest" => {
            json!({"taskId": TASK, "id": CONFIG})
        }
        "ListTaskPushNotificationConfigsRequest" => json!({"taskId": TASK, "pageSize": 10}),
        "ListTaskPushNotificationConfigsResponse" => {
            let config = json!({"id": CONFIG, "taskId": TASK, "url": "https://ci.example.com/a2a/events"});
            json!({"configs": [config]})
        }
        "AgentCard" => card(),
        "GetExtendedAgentCardRequest" => json!({}),
        _ => return Vec::new(),
    };
    one(example)
}

/// Returns the examples of a message of `a2a.v1`.
fn proto_v03(name: &str) -> Vec<Example> {
    let task_name = format!("tasks/{TASK}");
    let config_name = format!("{task_name}/pushNotificationConfigs/{CONFIG}");
    let config = json!({
        "name": config_name,
        "pushNotificationConfig": {
            "id": CONFIG,
            "url": "https://ci.example.com/a2a/events",
            "token": "4bf1d6",
            "authentication": {"schemes": ["Bearer"], "credentials": "eyJhbGciOi"},
        },
    });
    let example = match name {
        "SendMessageRequest" => {
            return converted(v1(name), |value| {
                typed::<v1::SendMessageRequest, v03::SendMessageRequest>(value, Into::into)
            });
        }
        "SendMessageResponse" => {
            return converted(v1(name), |value| {
                typed::<v1::SendMessageResponse, v03::SendMessageResponse>(value, Into::into)
            });
        }
        "StreamResponse" => {
            return converted(v1(name), |value| typed::<v1::StreamResponse, v03::StreamResponse>(value, Into::into));
        }
        "Task" => return converted(v1(name), |value| typed::<v1::Task, v03::Task>(value, Into::into)),
        "ListTasksResponse" => {
            json!({"tasks": [typed::<v1::Task, v03::Task>(listed_task(), Into::into)], "nextPageToken": ""})
        }
        "GetTaskRequest" => json!({"name": task_name, "historyLength": 10}),
        "CancelTaskRequest" | "TaskSubscriptionRequest" => json!({"name": task_name}),
        "CreateTaskPushNotificationConfigRequest" => {
            json!({"parent": task_name, "configId": CONFIG, "config": config})
        }
        "TaskPushNotificationConfig" => config,
        "GetTaskPushNotificationConfigRequest" | "DeleteTaskPushNotificationConfigRequest" => {
            json!({"name": config_name})
        }
        "ListTaskPushNotificationConfigRequest" => json!({"parent": task_name, "pageSize": 10}),
        "ListTaskPushNotificationConfigResponse" => json!({"configs": [config]}),
        _ => return Vec::new(),
    };
    one(example)
}

/// Returns the examples of a 1.0 message in the JSON of 0.3 JSON-RPC.
pub(super) fn v03(name: &str) -> Vec<Example> {
    macro_rules! write {
        ($($message:ident),*) => {
            match name {
                "StreamResponse" => converted(v1(name), |value| typed(value, |event: v1::StreamResponse| final_event(&event))),
                "AgentCard" => converted(v1(name), |value| typed(value, |card: v1::AgentCard| v03_card(&card))),
                $(stringify!($message) => converted(v1(name), |value| {
                    typed(value, |message: v1::$message| serde_json::to_value(Write(&message)).unwrap_or_default())
                }),)*
                _ => Vec::new(),
            }
        };
    }
    write!(
        CancelTaskRequest,
        DeleteTaskPushNotificationConfigRequest,
        GetTaskPushNotificationConfigRequest,
        GetTaskRequest,
        ListTaskPushNotificationConfigsRequest,
        ListTaskPushNotificationConfigsResponse,
        ListTasksRequest,
        ListTasksResponse,
        SendMessageRequest,
        SendMessageResponse,
        SubscribeToTaskRequest,
        Task,
        TaskPushNotificationConfig
    )
}

/// Writes an event of 0.3 JSON-RPC. The example of a status update is the last event of its stream.
fn final_event(event: &v1::StreamResponse) -> Value {
    let event = event.payload.as_ref().map(|payload| serde_json::to_value(FinalEvent { payload, last: true }));
    event.and_then(Result::ok).unwrap_or_default()
}

fn sends() -> Vec<Example> {
    let send = |parts: Value| {
        json!({
            "message": {"messageId": MESSAGE, "role": "ROLE_USER", "parts": parts},
            "configuration": {"acceptedOutputModes": ["text/plain"], "historyLength": 10},
        })
    };
    let instruction = json!({"text": "Summarize this file."});
    let file = json!({"raw": "U2FsZXMgcm9zZSBieSA0ICUu", "filename": "report.txt", "mediaType": "text/plain"});
    let url = json!({"url": "https://files.example.com/report.pdf", "filename": "report.pdf", "mediaType": "application/pdf"});
    let data = json!({"data": {"quarter": 3, "revenue": 1250.5}, "mediaType": "application/json"});
    vec![
        Example::new("text", "Text", send(json!([{"text": "Summarize the quarterly report."}]))),
        Example::new("file", "File by value, in base64", send(json!([instruction, file]))),
        Example::new("url", "File by URL", send(json!([instruction, url]))),
        Example::new("data", "Structured data", send(json!([instruction, data]))),
    ]
}

fn reply() -> Value {
    json!({
        "messageId": "0197a3c2-5b90-7aa1-b5a6-0d5d3c1f9e77",
        "contextId": CONTEXT,
        "role": "ROLE_AGENT",
        "parts": [{"text": "Which quarter?"}],
    })
}

fn status(state: &str) -> Value {
    json!({"state": state, "timestamp": "2026-03-14T09:26:53.589Z"})
}

fn artifact() -> Value {
    json!({"artifactId": "summary", "name": "Summary", "parts": [{"text": "Sales rose by 4 %."}]})
}

fn listed_task() -> Value {
    json!({"id": TASK, "contextId": CONTEXT, "status": status("TASK_STATE_COMPLETED")})
}

fn completed_task() -> Value {
    let mut task = listed_task();
    task["artifacts"] = json!([artifact()]);
    task["history"] = json!([{
        "messageId": MESSAGE,
        "contextId": CONTEXT,
        "taskId": TASK,
        "role": "ROLE_USER",
        "parts": [{"text": "Summarize the quarterly report."}],
    }]);
    task
}

fn events() -> Vec<Example> {
    let task = json!({"id": TASK, "contextId": CONTEXT, "status": status("TASK_STATE_SUBMITTED")});
    let artifact = json!({"taskId": TASK, "contextId": CONTEXT, "artifact": artifact(), "lastChunk": true});
    let update = json!({"taskId": TASK, "contextId": CONTEXT, "status": status("TASK_STATE_COMPLETED")});
    vec![
        Example::new("task", "First event: the task", json!({"task": task})),
        Example::new("artifactUpdate", "Artifact, or a chunk of it", json!({"artifactUpdate": artifact})),
        Example::new("statusUpdate", "Last event: the task is completed", json!({"statusUpdate": update})),
        Example::new("message", "Only event: a reply without a task", json!({"message": reply()})),
    ]
}

fn card() -> Value {
    let interface = |url: &str, binding: &str, version: &str| json!({"url": url, "protocolBinding": binding, "protocolVersion": version});
    json!({
        "name": "Report agent",
        "description": "Summarizes reports.",
        "version": "1.4.0",
        "supportedInterfaces": [
            interface("https://agent.example.com/rpc", "JSONRPC", "1.0"),
            interface("https://agent.example.com", "HTTP+JSON", "1.0"),
            interface("https://agent.example.com/rpc", "JSONRPC", "0.3"),
        ],
        "provider": {"organization": "Example", "url": "https://example.com"},
        "capabilities": {"streaming": true, "pushNotifications": false, "extendedAgentCard": false},
        "securitySchemes": {"bearer": {"httpAuthSecurityScheme": {"scheme": "bearer"}}},
        "securityRequirements": [{"schemes": {"bearer": {}}}],
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{
            "id": "summarize",
            "name": "Summarize",
            "description": "Summarizes a report.",
            "tags": ["report", "summary"],
        }],
    })
}
