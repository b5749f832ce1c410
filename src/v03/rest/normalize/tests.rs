//! Bodies as clients have been seen to write them.

use super::*;

fn repaired(body: Value, repair: impl FnOnce(&mut Object)) -> Value {
    let Value::Object(mut body) = body else { panic!("{body}") };
    repair(&mut body);
    body.into()
}

fn sent(body: Value) -> Value {
    repaired(body, |body| send(body, FileEncoding::Encoded).unwrap())
}

fn pushed(body: Value) -> Value {
    repaired(body, push)
}

fn repaired_part(it: &Value) -> Value {
    let body = json!({"message": {"content": [it]}});
    sent(body)["message"]["content"][0].take()
}

#[test]
fn what_is_well_stays_as_it_is() {
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
    assert_eq!(sent(body.clone()), body);
    let body = json!({"configId": "c", "config": {"name": "n", "pushNotificationConfig": {"url": "u"}}});
    assert_eq!(pushed(body.clone()), body);
    for nothing in [json!({}), json!({"message": null}), json!({"message": 1, "configuration": "x"})] {
        assert_eq!(sent(nothing.clone()), nothing);
    }
}

#[test]
fn a_message_is_found_under_each_of_its_names() {
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
        let mut found = sent(body.clone());
        found["message"].as_object_mut().unwrap().remove("kind");
        assert_eq!(found, json!({"message": message}), "{body}");
    }
    for (said, role) in [("user", "ROLE_USER"), ("agent", "ROLE_AGENT"), ("ROLE_USER", "ROLE_USER"), ("x", "x")] {
        assert_eq!(sent(json!({"message": {"role": said}}))["message"]["role"], role);
    }
    assert_eq!(sent(json!({"message": {"role": 1}}))["message"]["role"], 1);
}

/// The decoder reads what is not said of `blocking` as false.
#[test]
fn blocking_is_left_as_it_was_said() {
    for configuration in [json!({}), json!({"blocking": null, "historyLength": 1}), json!({"blocking": true})] {
        let body = json!({"configuration": configuration});
        assert_eq!(sent(body.clone()), body);
    }
    for name in ["pushNotification", "push_notification", "pushNotificationConfig", "push_notification_config"] {
        let body = sent(json!({"configuration": {name: {"url": "u"}}}));
        assert_eq!(body, json!({"configuration": {"pushNotification": {"url": "u"}}}), "{name}");
    }
}

#[test]
fn messages_that_json_rpc_refuses_are_refused() {
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
        let Value::Object(mut read) = body.clone() else { panic!("{body}") };
        let error = send(&mut read, FileEncoding::Encoded).unwrap_err();
        assert_eq!(error.violations()[0].field, field, "{body}");
    }
}

#[test]
fn parts_of_other_dialects() {
    let twice = "YUdWc2JHOD0=";
    for (part, read) in [
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
        // Once encoded, as in JSON-RPC, and as 0.2 had it.
        (
            json!({"file": {"bytes": "aGVsbG8=", "mimeType": "a/b"}}),
            json!({"file": {"fileWithBytes": twice, "mimeType": "a/b"}}),
        ),
        (
            json!({"kind": "file", "file": {"data": "aGVsbG8="}}),
            json!({"kind": "file", "file": {"fileWithBytes": twice}}),
        ),
        (json!({"file": {"bytes": "_-8"}}), json!({"file": {"fileWithBytes": "_-8"}})),
        (json!({"file": {"uri": "u", "name": "n"}}), json!({"file": {"fileWithUri": "u", "name": "n"}})),
        // Both at once, where one is empty.
        (json!({"file": {"file_with_uri": "", "file_with_bytes": "aGk="}}), json!({"file": {"fileWithBytes": "aGk="}})),
        (json!({"file": {"file_with_uri": "u", "file_with_bytes": ""}}), json!({"file": {"fileWithUri": "u"}})),
        (json!({"file": {"fileWithUri": "", "fileWithBytes": ""}}), json!({"file": {"fileWithBytes": ""}})),
        (json!({"text": "", "file": {"uri": "u"}}), json!({"file": {"fileWithUri": "u"}})),
        (json!({"text": "", "data": null}), json!({"text": ""})),
        (json!("text"), json!("text")),
    ] {
        assert_eq!(repaired_part(&part), read, "{part}");
    }
}

#[test]
fn four_bodies_are_one_push_configuration() {
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
        let read = pushed(body.clone());
        assert_eq!(read["config"]["pushNotificationConfig"], inner, "{body}");
    }
    let named = pushed(json!({"name": "n", "pushNotificationConfig": inner, "config_id": "c"}));
    assert_eq!((&named["config"]["name"], &named["config_id"]), (&json!("n"), &json!("c")));
}
