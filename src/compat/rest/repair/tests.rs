//! Bodies as clients have been seen to write them.

use super::*;

fn repaired(repair: fn(&mut Object, Files), body: Value) -> Value {
    let Value::Object(mut body) = body else { panic!("{body}") };
    repair(&mut body, Files::Encoded);
    body.into()
}

fn repaired_part(it: &Value) -> Value {
    let body = json!({"message": {"content": [it]}});
    repaired(send, body)["message"]["content"][0].take()
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
    assert_eq!(repaired(send, body.clone()), body);
    let body = json!({"configId": "c", "config": {"name": "n", "pushNotificationConfig": {"url": "u"}}});
    assert_eq!(repaired(push, body.clone()), body);
    for nothing in [json!({}), json!({"message": null}), json!({"message": 1, "configuration": "x"})] {
        assert_eq!(repaired(send, nothing.clone()), nothing);
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
        let mut found = repaired(send, body.clone());
        found["message"].as_object_mut().unwrap().remove("kind");
        assert_eq!(found, json!({"message": message}), "{body}");
    }
    for (said, role) in [("user", "ROLE_USER"), ("agent", "ROLE_AGENT"), ("ROLE_USER", "ROLE_USER"), ("x", "x")] {
        assert_eq!(repaired(send, json!({"message": {"role": said}}))["message"]["role"], role);
    }
    assert_eq!(repaired(send, json!({"message": {"role": 1}}))["message"]["role"], 1);
}

/// It waits, unless it is told not to, or is given another way to answer (0.3, 9.5).
#[test]
fn what_is_not_said_of_blocking_is_not_false() {
    for (configuration, blocking) in [
        (json!({}), true),
        (json!({"blocking": null, "historyLength": 1}), true),
        (json!({"blocking": true}), true),
        (json!({"blocking": false}), false),
        (json!({"pushNotification": {"url": "u"}}), false),
        (json!({"push_notification": {"url": "u"}}), false),
        (json!({"pushNotificationConfig": {"url": "u"}}), false),
        (json!({"pushNotificationConfig": {"url": "u"}, "blocking": true}), true),
        (json!({"push_notification_config": {"url": "u"}, "blocking": false}), false),
    ] {
        let body = repaired(send, json!({"configuration": configuration}));
        assert_eq!(body["configuration"]["blocking"], blocking, "{configuration}");
        if configuration.to_string().contains("url") {
            assert_eq!(body["configuration"]["pushNotification"], json!({"url": "u"}), "{configuration}");
        }
    }
    assert_eq!(repaired(send, json!({})), json!({}), "without a configuration there is nothing to say it in");
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
        // Both at once, where one is empty; and where none is, the bytes are here.
        (json!({"file": {"file_with_uri": "", "file_with_bytes": "aGk="}}), json!({"file": {"fileWithBytes": "aGk="}})),
        (json!({"file": {"file_with_uri": "u", "file_with_bytes": ""}}), json!({"file": {"fileWithUri": "u"}})),
        (json!({"file": {"uri": "u", "bytes": "aGk="}}), json!({"file": {"fileWithBytes": "YUdrPQ=="}})),
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
        let read = repaired(push, body.clone());
        assert_eq!(read["config"]["pushNotificationConfig"], inner, "{body}");
    }
    let named = repaired(push, json!({"name": "n", "pushNotificationConfig": inner, "config_id": "c"}));
    assert_eq!((&named["config"]["name"], &named["config_id"]), (&json!("n"), &json!("c")));
}
