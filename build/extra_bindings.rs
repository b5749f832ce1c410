//! HTTP routes that the proto files lack. `tools/openapi` compiles this file too, for the API documents.

/// HTTP bindings of an RPC that its proto file lacks: verb, template, body.
///
/// To subscribe, the specification uses POST (11.3.2) and the proto file GET; clients use either, in 1.0 and in 0.3. In
/// 0.3 a template was also published with `task/` instead of `tasks/`, and clients were generated from it.
pub(crate) const EXTRA_BINDINGS: [(&str, [&str; 3]); 4] = [
    ("lf.a2a.v1.A2AService.SubscribeToTask", ["POST", "/tasks/{id=*}:subscribe", ""]),
    ("lf.a2a.v1.A2AService.SubscribeToTask", ["POST", "/{tenant}/tasks/{id=*}:subscribe", ""]),
    ("a2a.v1.A2AService.TaskSubscription", ["POST", "/v1/{name=tasks/*}:subscribe", ""]),
    (
        "a2a.v1.A2AService.CreateTaskPushNotificationConfig",
        ["POST", "/v1/{parent=task/*/pushNotificationConfigs}", "config"],
    ),
];
