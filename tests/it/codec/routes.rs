//! Routing of HTTP paths to RPCs.

use a2a_service::{
    contract::{BodyMapping, Dispatch, HttpRule, Route},
    pb::v1::bindings::{Rpc, ServiceHandle},
};

/// Expands the template of an HTTP rule to path segments and an action.
fn expand(template: &str) -> (Vec<String>, String) {
    let (path, action) =
        template.rsplit_once(':').filter(|(_, action)| !action.contains('}')).unwrap_or((template, ""));
    let path = path.replace("{tenant}", "acme").replace(['{', '}'], "");
    let literal = |segment: &str| segment.split_once('=').map_or(segment, |(_, pattern)| pattern).replace('*', "x");
    (path.split('/').skip(1).map(literal).collect(), action.to_owned())
}

#[test]
fn every_rpc_is_routed_by_its_http_rule() {
    fn routed_rpc<B: Dispatch>(rule: HttpRule, tenant: &str) -> Option<B::Rpc> {
        let (segments, action) = expand(&format!("{tenant}{}", rule.template));
        let segments: Vec<_> = segments.iter().map(String::as_str).collect();
        B::route(rule.verb, &segments, &action).map(|route| route.rpc)
    }
    for rpc in Rpc::ALL.iter().copied() {
        assert_eq!(routed_rpc::<ServiceHandle>(rpc.http_rule(), ""), Some(rpc));
        assert_eq!(routed_rpc::<ServiceHandle>(rpc.http_rule(), "/{tenant}"), Some(rpc));
        assert_eq!(Rpc::from_name(rpc.name()), Some(rpc));
    }
    for rpc in a2a_service::v03::pb::bindings::Rpc::ALL.iter().copied() {
        assert_eq!(routed_rpc::<a2a_service::v03::pb::bindings::ServiceHandle>(rpc.http_rule(), ""), Some(rpc));
    }
    assert!(Rpc::SubscribeToTask.is_streaming() && !Rpc::GetTask.is_streaming());
    assert_eq!(ServiceHandle::CUSTOM_VERBS, ["cancel", "send", "stream", "subscribe"]);
}

#[test]
fn paths_are_routed_to_rpcs() {
    let route = |rpc, body, fields: &[(&'static str, &str)]| {
        let fields = fields.iter().map(|field| (field.0, field.1.to_owned())).collect();
        Some(Route { rpc, body, fields })
    };
    let subscribe_routes = [
        ServiceHandle::route("POST", &["tasks", "7"], "subscribe"),
        ServiceHandle::route("GET", &["tasks", "7"], "subscribe"),
    ];
    assert_eq!(subscribe_routes, [(); 2].map(|()| route(Rpc::SubscribeToTask, BodyMapping::None, &[("id", "7")])));
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
    // 0.3 has resource names, and one misspelled path in its published proto file.
    let v03 = a2a_service::v03::pb::bindings::ServiceHandle::route(
        "GET",
        &["v1", "tasks", "7", "pushNotificationConfigs", "c"],
        "",
    )
    .unwrap();
    assert_eq!(v03.fields, [("name", "tasks/7/pushNotificationConfigs/c".to_owned())]);
    let misspelled = a2a_service::v03::pb::bindings::ServiceHandle::route(
        "POST",
        &["v1", "task", "7", "pushNotificationConfigs"],
        "",
    )
    .unwrap();
    assert_eq!(
        (misspelled.rpc, misspelled.body),
        (a2a_service::v03::pb::bindings::Rpc::CreateTaskPushNotificationConfig, BodyMapping::Field("config"))
    );
    assert!(a2a_service::v03::pb::bindings::ServiceHandle::route("POST", &["v1", "tasks", "7"], "subscribe").is_some());
}
