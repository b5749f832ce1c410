//! What 0.3 says of a webhook and 1.0 has no room for: it is shown to callers of 0.3 as it was said.

use a2a_service::{
    agent::{self, End},
    pb::v1::Message,
    server,
};
use serde_json::{Value, json};

use super::classic_scripted::{call, post};

async fn ask(url: &str, method: &str, params: &Value) -> Value {
    let reply = post(url, call("1", method, &params.to_string())).await.text().await.unwrap();
    let reply: Value = serde_json::from_str(&reply).unwrap();
    assert!(reply["error"].is_null(), "{method} {params}: {reply}");
    reply["result"].clone()
}

#[tokio::test]
async fn headers_and_further_schemes_come_back() {
    let agent = agent::from_fn(|_, _| async { Ok(End::InputRequired(Message::agent("more?"))) });
    let server = server::Server::new(agent).push(true).bind("127.0.0.1:0").await.unwrap();
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
    let message = json!({"messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "hi"}]});
    let configuration = json!({"blocking": true, "pushNotificationConfig": config("sent")});
    let task = ask(url, "message/send", &json!({"message": message, "configuration": configuration})).await;
    let task_id = &task["id"];
    assert_eq!((&task["kind"], &task["status"]["state"]), (&json!("task"), &json!("input-required")));

    let stored = json!({"taskId": task_id, "pushNotificationConfig": config("set")});
    assert_eq!(ask(url, "tasks/pushNotificationConfig/set", &stored).await, stored);
    let plain = json!({"taskId": task_id, "pushNotificationConfig": {"url": "https://hooks.example.com/b"}});
    let plain = ask(url, "tasks/pushNotificationConfig/set", &plain).await;
    assert_eq!(plain["pushNotificationConfig"], json!({"id": "default", "url": "https://hooks.example.com/b"}));

    let sent = json!({"taskId": task_id, "pushNotificationConfig": config("sent")});
    let get = json!({"id": task_id, "pushNotificationConfigId": "sent"});
    assert_eq!(ask(url, "tasks/pushNotificationConfig/get", &get).await, sent);
    let of_task = json!({"id": task_id});
    assert_eq!(ask(url, "tasks/pushNotificationConfig/get", &of_task).await, plain, "the one without a name");
    assert_eq!(ask(url, "tasks/pushNotificationConfig/list", &of_task).await, json!([sent, stored, plain]));

    // What could not be a header is refused by its name, and not said again.
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

    // To callers of 1.0 it is what they have room for.
    let now = ask(url, "GetTaskPushNotificationConfig", &json!({"taskId": task_id, "id": "set"})).await;
    assert_eq!(now["authentication"], json!({"scheme": "Bearer", "credentials": "x"}));
    assert!(now["headers"].is_null(), "{now}");

    assert_eq!(ask(url, "tasks/pushNotificationConfig/delete", &get).await, Value::Null);
    assert_eq!(ask(url, "tasks/pushNotificationConfig/list", &of_task).await, json!([stored, plain]));
}
