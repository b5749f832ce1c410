//! gRPC on the server side: error details for tonic's own refusals, health and reflection.

use tonic::{Code, Status, server::NamedService, service::Routes};
use tonic_health::pb::{FILE_DESCRIPTOR_SET as HEALTH, health_server::HealthServer};
use tonic_reflection::server::Builder;

use crate::{
    contract::grpc::TRUNCATED,
    error::{Error, ErrorKind},
    pb::DESCRIPTORS,
    protocol::Version,
    transport::{
        body::{Body, too_large_for},
        health::{self, Health},
        response::remove_framing,
    },
};

/// Gives the refusals of tonic's own, which know a code and nothing more, the details that all of ours have (10.6).
pub(super) fn complete(
    response: http::Response<tonic::body::Body>,
    max_message: usize,
    version: Version,
) -> http::Response<Body> {
    let mut response = response.map(Body::grpc);
    if response.headers().len() > 1 {
        remove_framing(response.headers_mut());
    }
    let headers = response.headers();
    // Of those that have details, the ones of the codec don't know which version they are for.
    let whole = headers.contains_key(Status::GRPC_STATUS_DETAILS) && version == Version::V1_0;
    if !headers.contains_key(Status::GRPC_STATUS) || whole {
        return response;
    }
    let say = |error: Error| error.into_status(version);
    match Status::from_header_map(headers) {
        None => response,
        Some(status) if status.code() == Code::Ok => response,
        // No error of ours has this code; of tonic it is what it says of a message that is too long.
        Some(status) if status.code() == Code::OutOfRange => say(too_large_for(max_message)).into_http(),
        // gRPC has no word for a call that breaks off before its message has come; it is not we who are at fault.
        Some(status) if status.code() == Code::Internal && TRUNCATED.contains(&status.message()) => {
            say(ErrorKind::InvalidRequest.because(status.message().to_owned())).into_http()
        }
        Some(mut status) => {
            let metadata = std::mem::take(status.metadata_mut());
            let said = status.message().split(':').next().unwrap_or_default().to_owned();
            let error = Error::from(status);
            if version == Version::V0_3 && said == error.kind().classic_name() {
                return response;
            }
            let mut complete = say(error);
            *complete.metadata_mut() = metadata;
            complete.into_http()
        }
    }
}

/// Both versions of the reflection service. Tools ask for either, and many for the older one first.
const REFLECTION: [&str; 2] = ["grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"];

/// Returns true if a path is a method of a reflection service.
pub(super) fn is_reflection(path: &str) -> bool {
    let service = path.strip_prefix('/').and_then(|path| path.split('/').next());
    service.is_some_and(|service| REFLECTION.contains(&service))
}

/// The services that tools look for beside ours: health, and reflection in both of its versions, which says what is
/// served here with the comments of the proto files.
pub(super) fn auxiliary_services(service: Health) -> Routes {
    /// Requests of reflection name a service, a file or a symbol.
    const MAX_MESSAGE: usize = 16 << 10;
    let services = service.services.clone();
    let health = HealthServer::new(service).max_decoding_message_size(health::MAX_MESSAGE);
    let reflection = || {
        let builder = Builder::configure().register_encoded_file_descriptor_set(DESCRIPTORS);
        let builder = builder.register_encoded_file_descriptor_set(HEALTH);
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
            tracing::error!(?errors, "the descriptors can't be read, and there is no reflection");
            routes.prepare()
        }
    }
}

fn name_of<S: NamedService>(_: &S) -> &'static str {
    S::NAME
}

/// Gives the answer to a service that is not there the details that all of our errors have. What the services beside
/// ours say is not for us to complete.
pub(super) fn complete_unimplemented(response: http::Response<tonic::body::Body>) -> http::Response<Body> {
    let status = response.headers().get(Status::GRPC_STATUS);
    if status.is_some_and(|it| it.as_bytes() == b"12") {
        complete(response, 0, Version::V1_0)
    } else {
        response.map(Body::grpc)
    }
}
