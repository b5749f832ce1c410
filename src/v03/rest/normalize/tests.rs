//! Normalization of request bodies in the forms that clients send.

use super::*;

fn normalized(body: Value, normalize: impl FnOnce(&mut Object)) -> Value {
    let Value::Object(mut body) = body else { panic!("{body}") };
    normalize(&mut body);
    body.into()
}

fn normalized_send(body: Value) -> Value {
    normalized(body, |body| send(body, FileEncoding::Encoded).unwrap())
}

fn normalized_push(body: Value) -> Value {
    normalized(body, push)
}

fn normalized_part(part: &Value) -> Value {
    let body = json!({"message": {"content": [part]}});
    normalized_send(body)["message"]["content"][0].take()
}

#[test]
fn valid_proto_json_is_unchanged() {
    let body = json!({
        "message": {"messageId": "m", "role": "ROLE_USER", "content": [
            {"text": "hi", "metadata": {"k": 1}},
            {"file": {"fileWithBytes": "YUdWc2JHOD0=", "name": "a.txt", "mimeType": "text/plain"}},
            {"file": {"fileWithUri": "https://x/y.png"}},
            {"data": {"data": {"a": 1}}},
        ]},
        "configuration": {"blocking": false, "pushNotification": {"url": "u"}},
        "metadata": {"message": {"parts": []}},
    });
    assert_eq!(normalized_send(body.clone()), body);
    let body = json!({"configId": "c", "config": {"name": "n", "pushNotificationConfig": {"url": "u"}}});
    assert_eq!(normalized_push(body.clone()), body);
    for body in [json!({}), json!({"message": null}), json!({"message": 1, "configuration": "x"})] {
        assert_eq!(normalized_send(body.clone()), body);
    }
}

#[test]
fn message_is_found_under_each_of_its_names() {
    let message = json!({"messageId": "m", "content": [{"text": "hi"}]});
    for body in [
        json!({"message": message}),
        json!({"request": message}),
        json!({"msg": message}),
        json!({"message": null, "request": message}),
        json!({"message": message, "msg": {"messageId": "other"}}),
        json!({"message": {"kind": "message", "messageId": "m", "parts": [{"text": "hi"}]}}),
        json!({"message": {"messageId": "m", "content": [], "parts": [{"text": "hi"}]}}),
    ] {
        let mut found = normalized_send(body.clone());
        found["message"].as_object_mut().unwrap().remove("kind");
        assert_eq!(found, json!({"message": message}), "{body}");
    }
    for (name, role) in [("user", "ROLE_USER"), ("agent", "ROLE_AGENT"), ("ROLE_USER", "ROLE_USER"), ("x", "x")] {
        assert_eq!(normalized_send(json!({"message": {"role": name}}))["message"]["role"], role);
    }
    assert_eq!(normalized_send(json!({"message": {"role": 1}}))["message"]["role"], 1);
}

/// The decoder reads an unset `blocking` as false.
#[test]
fn blocking_is_unchanged() {
    for configuration in [json!({}), json!({"blocking": null, "historyLength": 1}), json!({"blocking": true})] {
        let body = json!({"configuration": configuration});
        assert_eq!(normalized_send(body.clone()), body);
    }
    for name in ["pushNotification", "push_notification", "pushNotificationConfig", "push_notification_config"] {
        let body = normalized_send(json!({"configuration": {name: {"url": "u"}}}));
        assert_eq!(body, json!({"configuration": {"pushNotification": {"url": "u"}}}), "{name}");
    }
}

#[test]
fn messages_that_json_rpc_rejects_are_rejected() {
    let part = |part: Value| json!({"message": {"parts": [{"text": "a"}, part]}});
    for (body, field) in [
        (json!({"message": {"kind": "task", "parts": [{"text": "a"}]}}), "message.kind"),
        (json!({"request": {"kind": 7, "content": []}}), "message.kind"),
        (part(json!({"file": {"uri": "u", "bytes": "aGk="}})), "message.parts[1].file"),
        (part(json!({"kind": "file", "file": {"fileWithUri": "u", "fileWithBytes": "aGk="}})), "message.parts[1].file"),
        (part(json!({"kind": "data", "data": 7})), "message.parts[1]"),
        (part(json!({"kind": "data", "data": "text"})), "message.parts[1]"),
        (part(json!({"kind": "data", "data": false})), "message.parts[1]"),
    ] {
        let Value::Object(mut object) = body.clone() else { panic!("{body}") };
        let error = send(&mut object, FileEncoding::Encoded).unwrap_err();
        assert_eq!(error.violations()[0].field, field, "{body}");
    }
}

#[test]
fn parts_of_other_formats_are_normalized() {
    let encoded_twice = "YUdWc2JHOD0=";
    for (part, expected) in [
        (json!({"kind": "text", "text": "hi"}), json!({"kind": "text", "text": "hi"})),
        (json!({"type": "text", "text": "hi", "file": null}), json!({"type": "text", "text": "hi"})),
        (
            json!({"kind": "data", "data": {"data": {"a": 1}}}),
            json!({"kind": "data", "data": {"data": {"data": {"a": 1}}}}),
        ),
        (
            json!({"kind": "data", "data": [1], "metadata": null}),
            json!({"kind": "data", "data": {"data": {"value": [1]}}, "metadata": {"data_part_compat": true}}),
        ),
        // Encoded once, as in JSON-RPC and in 0.2.
        (
            json!({"file": {"bytes": "aGVsbG8=", "mimeType": "a/b"}}),
            json!({"file": {"fileWithBytes": encoded_twice, "mimeType": "a/b"}}),
        ),
        (
            json!({"kind": "file", "file": {"data": "aGVsbG8="}}),
            json!({"kind": "file", "file": {"fileWithBytes": encoded_twice}}),
        ),
        (json!({"file": {"bytes": "_-8"}}), json!({"file": {"fileWithBytes": "_-8"}})),
        (json!({"file": {"uri": "u", "name": "n"}}), json!({"file": {"fileWithUri": "u", "name": "n"}})),
        // Both members, one of them empty.
        (json!({"file": {"file_with_uri": "", "file_with_bytes": "aGk="}}), json!({"file": {"fileWithBytes": "aGk="}})),
        (json!({"file": {"file_with_uri": "u", "file_with_bytes": ""}}), json!({"file": {"fileWithUri": "u"}})),
        (json!({"file": {"fileWithUri": "", "fileWithBytes": ""}}), json!({"file": {"fileWithBytes": ""}})),
        (json!({"text": "", "file": {"uri": "u"}}), json!({"file": {"fileWithUri": "u"}})),
        (json!({"text": "", "data": null}), json!({"text": ""})),
        (json!("text"), json!("text")),
    ] {
        assert_eq!(normalized_part(&part), expected, "{part}");
    }
}

#[test]
fn push_configuration_is_found_in_each_form_of_the_body() {
    let inner = json!({"id": "p", "url": "u"});
    for body in [
        json!({"pushNotificationConfig": inner}),
        json!({"push_notification_config": inner}),
        json!({"parent": "tasks/t", "config": {"push_notification_config": inner}}),
        json!({"config": {"pushNotificationConfig": inner}, "pushNotificationConfig": {"url": "other"}}),
        json!({"config": inner}),
        json!({"taskId": "t", "pushNotificationConfig": inner}),
        inner.clone(),
    ] {
        let normalized = normalized_push(body.clone());
        assert_eq!(normalized["config"]["pushNotificationConfig"], inner, "{body}");
    }
    let named = normalized_push(json!({"name": "n", "pushNotificationConfig": inner, "config_id": "c"}));
    assert_eq!((&named["config"]["name"], &named["config_id"]), (&json!("n"), &json!("c")));
}
