//! Which RPC a path is for.

use a2a_service::{
    contract::{BodyMapping, Dispatch, HttpRule, Route},
    pb::v1::bindings::{Rpc, ServiceHandle},
};

/// A path that a template stands for, and the fields in it.
fn expand(template: &str) -> (Vec<String>, String) {
    let (path, action) = template.rsplit_once(':').filter(|it| !it.1.contains('}')).unwrap_or((template, ""));
    let path = path.replace("{tenant}", "acme").replace(['{', '}'], "");
    let literal = |it: &str| it.split_once('=').map_or(it, |it| it.1).replace('*', "x");
    (path.split('/').skip(1).map(literal).collect(), action.to_owned())
}

#[test]
fn every_rpc_is_where_its_rule_says() {
    fn is_there<B: Dispatch>(rule: HttpRule, tenant: &str) -> Option<B::Rpc> {
        let (segments, action) = expand(&format!("{tenant}{}", rule.template));
        let segments: Vec<_> = segments.iter().map(String::as_str).collect();
        B::route(rule.verb, &segments, &action).map(|it| it.rpc)
    }
    for rpc in Rpc::ALL.iter().copied() {
        assert_eq!(is_there::<ServiceHandle>(rpc.http_rule(), ""), Some(rpc));
        assert_eq!(is_there::<ServiceHandle>(rpc.http_rule(), "/{tenant}"), Some(rpc));
        assert_eq!(Rpc::from_name(rpc.name()), Some(rpc));
    }
    for rpc in a2a_service::v03::pb::bindings::Rpc::ALL.iter().copied() {
        assert_eq!(is_there::<a2a_service::v03::pb::bindings::ServiceHandle>(rpc.http_rule(), ""), Some(rpc));
    }
    assert!(Rpc::SubscribeToTask.is_streaming() && !Rpc::GetTask.is_streaming());
    assert_eq!(ServiceHandle::CUSTOM_VERBS, ["cancel", "send", "stream", "subscribe"]);
}

#[test]
fn routes() {
    let route = |rpc, body, fields: &[(&'static str, &str)]| {
        let fields = fields.iter().map(|it| (it.0, it.1.to_owned())).collect();
        Some(Route { rpc, body, fields })
    };
    let post_subscribe = [
        ServiceHandle::route("POST", &["tasks", "7"], "subscribe"),
        ServiceHandle::route("GET", &["tasks", "7"], "subscribe"),
    ];
    assert_eq!(post_subscribe, [(); 2].map(|()| route(Rpc::SubscribeToTask, BodyMapping::None, &[("id", "7")])));
    assert_eq!(
        ServiceHandle::route("POST", &["acme", "tasks", "7"], "cancel"),
        route(Rpc::CancelTask, BodyMapping::Whole, &[("tenant", "acme"), ("id", "7")])
    );
    assert_eq!(
        ServiceHandle::route("DELETE", &["tasks", "7", "pushNotificationConfigs", "c"], ""),
        route(Rpc::DeleteTaskPushNotificationConfig, BodyMapping::None, &[("taskId", "7"), ("id", "c")])
    );
    for (verb, segments, action) in [
        ("PUT", &["tasks", "7"][..], ""),
        ("GET", &["tasks", "7"], "cancel"),
        ("get", &["tasks", "7"], ""),
        ("GET", &["tasks", "7", "x"], ""),
        ("GET", &[""], ""),
        ("GET", &[], ""),
    ] {
        assert_eq!(ServiceHandle::route(verb, segments, action), None, "{verb} {segments:?} {action}");
    }
    // 0.3 has names of resources, and a binding that was published with a slip of the hand.
    let old = a2a_service::v03::pb::bindings::ServiceHandle::route(
        "GET",
        &["v1", "tasks", "7", "pushNotificationConfigs", "c"],
        "",
    )
    .unwrap();
    assert_eq!(old.fields, [("name", "tasks/7/pushNotificationConfigs/c".to_owned())]);
    let slip = a2a_service::v03::pb::bindings::ServiceHandle::route(
        "POST",
        &["v1", "task", "7", "pushNotificationConfigs"],
        "",
    )
    .unwrap();
    assert_eq!(
        (slip.rpc, slip.body),
        (a2a_service::v03::pb::bindings::Rpc::CreateTaskPushNotificationConfig, BodyMapping::Field("config"))
    );
    assert!(a2a_service::v03::pb::bindings::ServiceHandle::route("POST", &["v1", "tasks", "7"], "subscribe").is_some());
}
