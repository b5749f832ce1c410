//! Every error kind over every binding: wire codes of the error table, and the kind that clients decode.

use a2a_service::{
    client,
    error::{Error, ErrorKind},
    pb::v1::GetTaskRequest,
};
use serde_json::{Value, json};
use tonic::Request;
use tonic_types::StatusExt as _;

use super::support::*;
use crate::conformance::{Exemption, allow_undocumented};

#[tokio::test]
async fn error_has_the_codes_of_each_binding() {
    allow_undocumented(Exemption::Errors);
    let Server { url, .. } = &Server::start().await;
    let http = crate::bindings::http();
    for (n, kind) in ErrorKind::ALL.into_iter().enumerate() {
        let (wire, message) = (kind.wire(), format!("{}: ü: why", kind.wire().sentence));
        let info = json!({
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": wire.reason,
            "domain": "a2a-protocol.org",
            "metadata": {"taskId": "t-ü"},
        });
        let reply = http.get(format!("{url}/tasks/error-{n}")).send().await.unwrap();
        assert_eq!(reply.status(), wire.http, "{kind:?}");
        let expected = json!({"code": wire.http, "status": wire.status(), "message": message, "details": [info]});
        assert_eq!(json(reply).await, json!({"error": expected}), "{kind:?}");

        let call = json!({"jsonrpc": "2.0", "id": 0, "method": "GetTask", "params": {"id": format!("error-{n}")}});
        let reply = http.post(format!("{url}/rpc")).json_body(call.to_string()).send().await.unwrap();
        // Many clients read no body unless the status is 200; the exceptions are statuses that intermediaries act on.
        let has_http_status = [401, 403, 405, 408, 413, 421, 429].contains(&wire.http);
        assert_eq!(reply.status(), if has_http_status { wire.http } else { 200 }, "{kind:?}");
        let expected = json!({"code": wire.json_rpc, "message": message, "data": [info]});
        let expected: Value = json!({"jsonrpc": "2.0", "id": 0, "error": expected});
        assert_eq!(json(reply).await, expected, "{kind:?}");
    }
}

#[tokio::test]
async fn clients_decode_the_error_of_the_server() {
    allow_undocumented(Exemption::Errors);
    let Server { url, .. } = &Server::start().await;
    for agent in [client::grpc(url), client::rest(url), client::json_rpc(&format!("{url}/rpc"))] {
        let agent = agent.unwrap();
        for (n, kind) in ErrorKind::ALL.into_iter().enumerate() {
            let request = GetTaskRequest { id: format!("error-{n}"), ..GetTaskRequest::default() };
            let status = agent.get_task(Request::new(request)).await.unwrap_err();
            assert_eq!(status.code(), kind.wire().grpc, "{kind:?}");
            let details = status.get_error_details();
            let info = details.error_info().unwrap();
            assert_eq!((info.reason.as_str(), info.domain.as_str()), (kind.wire().reason, "a2a-protocol.org"));
            let error = Error::from(status);
            // Kinds that share a reason cannot be distinguished on the wire.
            assert_eq!(error.wire(), kind.wire(), "{kind:?}");
            assert_eq!(error.to_string(), format!("{}: ü: why", kind.wire().sentence));
        }
    }
}
