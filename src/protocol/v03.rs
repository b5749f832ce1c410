//! Protocol 0.3, and the compatible parts of 0.2, on top of the 1.0 service.
//!
//! Each binding (JSON-RPC, HTTP+JSON, gRPC) converts requests to 1.0 messages, calls the service through a layer that
//! applies the semantics of 0.3, and converts responses, events and errors back.

use crate::protocol::pb::v1::bindings::Rpc;

pub mod card;
pub mod event;
pub(crate) mod file_encoding;
pub mod json;
pub(crate) mod message;
pub mod push_extras;
pub(crate) mod resource_name;

/// JSON-RPC methods of 0.3, and their RPCs in 1.0. Clients call the first name of an RPC.
pub const METHODS: [(&str, Rpc); 13] = [
    ("message/send", Rpc::SendMessage),
    // Name in 0.1, which servers of 0.2 still document as an alias.
    ("tasks/send", Rpc::SendMessage),
    ("message/stream", Rpc::SendStreamingMessage),
    ("tasks/get", Rpc::GetTask),
    // Some 0.3 servers have it although the specification does not.
    ("tasks/list", Rpc::ListTasks),
    ("tasks/cancel", Rpc::CancelTask),
    ("tasks/resubscribe", Rpc::SubscribeToTask),
    ("tasks/pushNotificationConfig/set", Rpc::CreateTaskPushNotificationConfig),
    ("tasks/pushNotificationConfig/get", Rpc::GetTaskPushNotificationConfig),
    ("tasks/pushNotificationConfig/list", Rpc::ListTaskPushNotificationConfigs),
    ("tasks/pushNotificationConfig/delete", Rpc::DeleteTaskPushNotificationConfig),
    ("agent/getAuthenticatedExtendedCard", Rpc::GetExtendedAgentCard),
    // Name in 0.3, 11.1.3.
    ("agent/authenticatedExtendedCard", Rpc::GetExtendedAgentCard),
];

crate::protocol::pb::service! {
    /// Generated service of protocol 0.3: trait, client, server and bindings.
    pb = "a2a.v1", v03
}
