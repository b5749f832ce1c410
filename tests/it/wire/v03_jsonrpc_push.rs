//! Push configuration members that only 0.3 has (headers, further authentication schemes): stored, and returned to 0.3
//! clients.

use a2a_service::{
    agent::{self, End},
    server,
};
use serde_json::{Value, json};

use super::v03_support::{call, post};
use crate::conformance::{CheckLayer, Exemption, allow_undocumented};

async fn call_ok(url: &str, method: &str, params: &Value) -> Value {
    let reply = post(url, call("1", method, &params.to_string())).await.text().await.unwrap();
    let reply: Value = serde_json::from_str(&reply).unwrap();
    assert!(reply["error"].is_null(), "{method} {params}: {reply}");
    reply["result"].clone()
}

#[tokio::test]
async fn further_schemes_are_returned_to_v03_clients_and_secrets_are_not() {
    allow_undocumented(Exemption::Requests);
    let agent = agent::from_fn(|_, _| async { Ok(End::input_required("more?")) });
    let server = server::Server::new(agent)
        .push(true)
        .push_options(crate::bindings::no_names())
        .layer(CheckLayer)
        .bind("127.0.0.1:0")
        .await
        .unwrap();
    let url = &format!("http://{}/rpc", server.addr());
    tokio::spawn(server.run_until(std::future::pending()));

    let config = |id: &str| {
        json!({
            "id": id,
            "url": "https://hooks.example.com/a2a",
            "token": "k",
            "authentication": {"schemes": ["Bearer", "Basic"], "credentials": "x"},
            "headers": {"X-Custom-Header": "value"},
        })
    };
    let without_secrets = |id: &str| {
        let authentication = json!({"schemes": ["Bearer", "Basic"]});
        json!({"id": id, "url": "https://hooks.example.com/a2a", "authentication": authentication})
    };
    let message = json!({"messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "hi"}]});
    let configuration = json!({"blocking": true, "pushNotificationConfig": config("sent")});
    let task = call_ok(url, "message/send", &json!({"message": message, "configuration": configuration})).await;
    let task_id = &task["id"];
    assert_eq!((&task["kind"], &task["status"]["state"]), (&json!("task"), &json!("input-required")));

    let registered = json!({"taskId": task_id, "pushNotificationConfig": config("set")});
    let stored = json!({"taskId": task_id, "pushNotificationConfig": without_secrets("set")});
    assert_eq!(call_ok(url, "tasks/pushNotificationConfig/set", &registered).await, stored);
    let plain = json!({"taskId": task_id, "pushNotificationConfig": {"url": "https://hooks.example.com/b"}});
    let plain = call_ok(url, "tasks/pushNotificationConfig/set", &plain).await;
    assert_eq!(plain["pushNotificationConfig"], json!({"id": "default", "url": "https://hooks.example.com/b"}));

    let sent = json!({"taskId": task_id, "pushNotificationConfig": without_secrets("sent")});
    let get = json!({"id": task_id, "pushNotificationConfigId": "sent"});
    assert_eq!(call_ok(url, "tasks/pushNotificationConfig/get", &get).await, sent);
    let task_params = json!({"id": task_id});
    assert_eq!(
        call_ok(url, "tasks/pushNotificationConfig/get", &task_params).await,
        plain,
        "the configuration without an id"
    );
    assert_eq!(call_ok(url, "tasks/pushNotificationConfig/list", &task_params).await, json!([sent, stored, plain]));

    // Values that cannot be HTTP headers are rejected by field, and the error does not repeat the value.
    for (headers, schemes, field) in [
        (
            json!({"X-Key": "swordfish\r\nHost: x"}),
            json!(["Bearer"]),
            "headers.X-Key: must not have control characters",
        ),
        (json!({"X-Key: swordfish\n": ""}), json!(["Bearer"]), "headers: has an invalid HTTP header name"),
        (json!({}), json!(["a", "swordfish\n"]), "authentication.schemes[1]: must not have control characters"),
        (json!({}), json!(["swordfish\n"]), "authentication.schemes: must not have control characters"),
    ] {
        let (authentication, hook) = (json!({"schemes": schemes}), "https://hooks.example.com/a2a");
        let config = json!({"id": "x", "url": hook, "authentication": authentication, "headers": headers});
        let configuration = json!({"pushNotificationConfig": config});
        for (method, at, params) in [
            ("tasks/pushNotificationConfig/set", "", json!({"taskId": task_id, "pushNotificationConfig": config})),
            ("message/send", "configuration.", json!({"message": message, "configuration": configuration})),
        ] {
            let reply = post(url, call("1", method, &params.to_string())).await.text().await.unwrap();
            let message = format!("Invalid method parameters: {at}pushNotificationConfig.{field}");
            let error = json!({"code": -32602, "message": message});
            assert_eq!(serde_json::from_str::<Value>(&reply).unwrap()["error"], error);
        }
    }

    // Clients of 1.0 get the members that 1.0 has.
    let v1 = call_ok(url, "GetTaskPushNotificationConfig", &json!({"taskId": task_id, "id": "set"})).await;
    assert_eq!(v1["authentication"], json!({"scheme": "Bearer"}));
    assert!(v1["headers"].is_null(), "{v1}");

    assert_eq!(call_ok(url, "tasks/pushNotificationConfig/delete", &get).await, Value::Null);
    assert_eq!(call_ok(url, "tasks/pushNotificationConfig/list", &task_params).await, json!([stored, plain]));
}
