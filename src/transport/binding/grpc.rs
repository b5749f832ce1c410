//! gRPC binding of the server: error details for tonic's own errors, health service and reflection.

use tonic::{Code, Status, server::NamedService, service::Routes};
use tonic_health::pb::{FILE_DESCRIPTOR_SET as HEALTH, health_server::HealthServer};
use tonic_reflection::server::Builder;
use tonic_types::pb::FILE_DESCRIPTOR_SET as ERROR_DETAILS;

use crate::{
    protocol::{Error, ErrorKind, Version, pb::DESCRIPTORS, rpc::codec::TRUNCATED},
    transport::{
        body::{Body, receive_budget::HEALTH_MESSAGE, response::remove_framing, too_large_for},
        resource::health::Health,
    },
};

/// Adds error details (10.6) to errors that tonic itself generated, which have only a code and a message.
pub(in crate::transport) fn complete(
    response: http::Response<tonic::body::Body>,
    max_message: usize,
    version: Version,
) -> http::Response<Body> {
    let mut response = response.map(Body::grpc);
    if response.headers().len() > 1 {
        remove_framing(response.headers_mut());
    }
    let headers = response.headers();
    // Errors of 0.3 with details are converted too: those of the codec have the form of 1.0.
    let is_complete = || headers.contains_key(Status::GRPC_STATUS_DETAILS) && version == Version::V1_0;
    if !headers.contains_key(Status::GRPC_STATUS) || is_complete() {
        return response;
    }
    let status_of = |error: Error| error.into_status(version);
    match Status::from_header_map(headers) {
        None => response,
        Some(status) if status.code() == Code::Ok => response,
        // Only tonic uses this code, for a message that is too large.
        Some(status) if status.code() == Code::OutOfRange => status_of(too_large_for(max_message)).into_http(),
        // gRPC has no code for a request that ends before its message. The client caused it, so it is not INTERNAL.
        Some(status) if status.code() == Code::Internal && TRUNCATED.contains(&status.message()) => {
            status_of(ErrorKind::InvalidRequest.because(status.message().to_owned())).into_http()
        }
        Some(mut status) => {
            let metadata = std::mem::take(status.metadata_mut());
            let prefix = status.message().split(':').next().unwrap_or_default().to_owned();
            let error = Error::from(status);
            if version == Version::V0_3 && prefix == error.kind().v03_name() {
                return response;
            }
            let mut complete = status_of(error);
            *complete.metadata_mut() = metadata;
            complete.into_http()
        }
    }
}

/// Both versions of the reflection service. Many tools try the older one first.
const REFLECTION: [&str; 2] = ["grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"];

/// Returns true if a path is a method of a reflection service.
pub(in crate::transport) fn is_reflection(path: &str) -> bool {
    let service = path.strip_prefix('/').and_then(|path| path.split('/').next());
    service.is_some_and(|service| REFLECTION.contains(&service))
}

/// Builds the health service, and reflection in both versions with the comments of the proto files. Reflection also has the
/// types of error details, which no service names: tools need them to print the details of an error.
pub(in crate::transport) fn auxiliary_services(service: Health) -> Routes {
    /// Maximum size of a reflection request in bytes. It names a service, a file or a symbol.
    const MAX_MESSAGE: usize = 16 << 10;
    let services = service.services.clone();
    let health = HealthServer::new(service).max_decoding_message_size(HEALTH_MESSAGE);
    let reflection = || {
        let builder = [DESCRIPTORS, HEALTH, ERROR_DETAILS]
            .into_iter()
            .fold(Builder::configure(), Builder::register_encoded_file_descriptor_set);
        let names = services.iter().copied().chain([name_of(&health)]).chain(REFLECTION);
        names.fold(builder, Builder::with_service_name)
    };
    let v1 = reflection().build_v1().map(|service| service.max_decoding_message_size(MAX_MESSAGE));
    let v1alpha = reflection().build_v1alpha().map(|service| service.max_decoding_message_size(MAX_MESSAGE));
    let routes = Routes::new(health);
    match (v1, v1alpha) {
        (Ok(v1), Ok(v1alpha)) => routes.add_service(v1).add_service(v1alpha).prepare(),
        (v1, v1alpha) => {
            let errors = [v1.err(), v1alpha.err()];
            tracing::error!(?errors, "reflection unavailable: invalid descriptors");
            routes.prepare()
        }
    }
}

fn name_of<S: NamedService>(_: &S) -> &'static str {
    S::NAME
}

/// Adds error details to the response of an unknown service. Responses of health and reflection are unchanged.
pub(in crate::transport) fn complete_unimplemented(
    response: http::Response<tonic::body::Body>,
) -> http::Response<Body> {
    const UNIMPLEMENTED: &[u8] = b"12";
    let status = response.headers().get(Status::GRPC_STATUS);
    if status.is_some_and(|code| code.as_bytes() == UNIMPLEMENTED) {
        complete(response, 0, Version::V1_0)
    } else {
        response.map(Body::grpc)
    }
}
