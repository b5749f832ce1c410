//! Health checks over HTTP and gRPC, and gRPC reflection.

use a2a_service::{
    client,
    pb::v1::{Message, SendMessageRequest},
    transport::listener,
};
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, prost_types::FileDescriptorProto};
use serde_json::json;
use tokio_stream::StreamExt as _;
use tonic::{Code, Request, transport::Channel};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
use tonic_reflection::pb::{v1, v1alpha};

use super::support::*;

const SERVICE: &str = "lf.a2a.v1.A2AService";
const V03_SERVICE: &str = "a2a.v1.A2AService";

fn channel(url: &str) -> Channel {
    Channel::from_shared(url.to_owned()).unwrap().connect_lazy()
}

async fn get(url: &str, path: &str) -> (u16, String) {
    let reply = crate::bindings::fetch(format!("{url}{path}")).await.unwrap();
    (reply.status().as_u16(), reply.text().await.unwrap())
}

#[tokio::test]
async fn server_is_ready_until_it_drains() {
    let settings = settings();
    let drain = settings.drain.clone();
    // The listener is not drained, so that requests still arrive.
    let server = Server::with(settings, listener::ListenerSettings::default()).await;
    let mut health = HealthClient::new(channel(&server.url));
    let request = |service: &str| Request::new(HealthCheckRequest { service: service.into() });
    let mut watches = Vec::new();
    for service in ["", SERVICE, V03_SERVICE] {
        let reply = health.check(request(service)).await.unwrap().into_inner();
        assert_eq!(reply.status(), ServingStatus::Serving, "{service}");
        let mut watch = health.watch(request(service)).await.unwrap().into_inner();
        assert_eq!(watch.next().await.unwrap().unwrap().status(), ServingStatus::Serving);
        watches.push(watch);
    }
    let error = health.check(request("x.Y")).await.unwrap_err();
    assert_eq!((error.code(), error.details()), (Code::NotFound, &[][..]), "the error has no details of A2A");
    let mut unknown = health.watch(request("x.Y")).await.unwrap().into_inner();
    assert_eq!(unknown.next().await.unwrap().unwrap().status(), ServingStatus::ServiceUnknown);
    assert_eq!(get(&server.url, "/healthz").await, (200, "ok\n".into()));
    assert_eq!(get(&server.url, "/readyz").await, (200, "ok\n".into()));

    drain.cancel();
    assert_eq!(get(&server.url, "/healthz").await, (200, "ok\n".into()));
    assert_eq!(get(&server.url, "/readyz/").await, (503, "draining\n".into()));
    for mut watch in watches {
        assert_eq!(watch.next().await.unwrap().unwrap().status(), ServingStatus::NotServing);
        assert!(watch.next().await.is_none(), "watches end when the server drains");
    }
    let reply = health.check(request(SERVICE)).await.unwrap().into_inner();
    assert_eq!(reply.status(), ServingStatus::NotServing);
    let mut late = health.watch(request("")).await.unwrap().into_inner();
    assert_eq!(late.next().await.unwrap().unwrap().status(), ServingStatus::NotServing);
}

/// The requests of `grpcurl list` and `grpcurl describe`, in both versions of the reflection protocol.
macro_rules! reflection {
    ($name:ident, $package:ident) => {
        #[tokio::test]
        async fn $name() {
            use $package::{
                ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
                server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
            };

            let server = Server::start().await;
            let mut client = ServerReflectionClient::new(channel(&server.url));
            let requests = [
                MessageRequest::ListServices(String::new()),
                MessageRequest::FileContainingSymbol(SERVICE.into()),
                MessageRequest::FileByFilename("google/protobuf/descriptor.proto".into()),
                MessageRequest::FileContainingSymbol("google.rpc.ErrorInfo".into()),
            ];
            let requests =
                requests.map(|message| ServerReflectionRequest { host: String::new(), message_request: Some(message) });
            let mut replies = client.server_reflection_info(tokio_stream::iter(requests)).await.unwrap().into_inner();
            let mut next = async || replies.next().await.unwrap().unwrap().message_response.unwrap();
            let MessageResponse::ListServicesResponse(list) = next().await else { panic!("no list") };
            let names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
            let versions = ["v1", "v1alpha"].map(|version| format!("grpc.reflection.{version}.ServerReflection"));
            let [v1, v1alpha] = versions.each_ref().map(String::as_str);
            assert_eq!(names, [SERVICE, V03_SERVICE, "grpc.health.v1.Health", v1, v1alpha]);
            for _ in 0..3 {
                let MessageResponse::FileDescriptorResponse(file) = next().await else { panic!("no file") };
                assert_eq!(file.file_descriptor_proto.len(), 1);
            }
        }
    };
}
reflection!(reflection_lists_the_served_services, v1);
reflection!(reflection_v1alpha_lists_the_served_services, v1alpha);

/// As `grpcurl` does, the test gets the type of each detail by reflection, and the files that it imports.
#[tokio::test]
async fn reflection_describes_error_details() {
    use v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };

    let server = Server::start().await;
    let mut client = ServerReflectionClient::new(channel(&server.url));
    let mut file = async |message: MessageRequest| {
        let request = ServerReflectionRequest { host: String::new(), message_request: Some(message) };
        let replies = client.server_reflection_info(tokio_stream::once(request.clone())).await.unwrap();
        let reply = replies.into_inner().next().await.unwrap().unwrap().message_response.unwrap();
        let MessageResponse::FileDescriptorResponse(file) = reply else { panic!("{request:?}: {reply:?}") };
        FileDescriptorProto::decode(&*file.file_descriptor_proto[0]).unwrap()
    };
    let types =
        ["BadRequest", "DebugInfo", "ErrorInfo", "Help", "LocalizedMessage", "PreconditionFailure", "QuotaFailure"];
    let types = types.into_iter().chain(["RequestInfo", "ResourceInfo", "RetryInfo", "Status"]);
    let types: Vec<_> = types.map(|name| format!("google.rpc.{name}")).chain(["google.protobuf.Any".into()]).collect();
    let mut files = Vec::new();
    for name in &types {
        files.push(file(MessageRequest::FileContainingSymbol(name.clone())).await);
    }
    let mut imports: Vec<_> = files.iter().flat_map(|file| file.dependency.clone()).collect();
    while let Some(import) = imports.pop() {
        files.push(file(MessageRequest::FileByFilename(import)).await);
        imports.extend(files.last().unwrap().dependency.clone());
    }
    let mut pool = DescriptorPool::new();
    files.sort_by(|a, b| a.name.cmp(&b.name));
    files.dedup();
    pool.add_file_descriptor_protos(files).unwrap();
    for name in &types {
        assert!(pool.get_message_by_name(name).is_some(), "{name}");
    }

    let agent = client::grpc(&server.url).unwrap();
    let request = SendMessageRequest { message: Some(Message::default()), ..Default::default() };
    let error = agent.send_message(Request::new(request)).await.unwrap_err();
    let status = pool.get_message_by_name("google.rpc.Status").unwrap();
    let status = serde_json::to_value(DynamicMessage::decode(status, error.details()).unwrap()).unwrap();
    let details = status["details"].as_array().unwrap();
    assert_eq!((&status["code"], details.len()), (&json!(3), 2), "{status}");
    assert_eq!(details[0]["@type"], "type.googleapis.com/google.rpc.ErrorInfo");
    assert_eq!((&details[0]["reason"], &details[0]["domain"]), (&json!("INVALID_PARAMS"), &json!("a2a-protocol.org")));
    assert_eq!(details[1]["@type"], "type.googleapis.com/google.rpc.BadRequest");
    assert_eq!(details[1]["fieldViolations"][0]["field"], "message.messageId", "{status}");
}
