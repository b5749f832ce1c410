//! Authenticated extended card of 0.2: a GET request that is answered with HTTP status codes (0.2, 7.10).

use super::v03_card;
use crate::{
    call::Call,
    error::{Error, ErrorKind},
    pb::v1::{GetExtendedAgentCardRequest, a2a_service_server::A2aService},
    protocol::Version,
};

/// Returns the extended agent card as 0.3 JSON.
///
/// # Errors
/// `MethodNotFound` if the agent has no extended card, otherwise the error of the service.
pub(crate) async fn extended(service: &dyn A2aService, call: Call) -> Result<Vec<u8>, Error> {
    let call = Call { version: Version::V0_3, ..call };
    match service.get_extended_agent_card(call.request(GetExtendedAgentCardRequest::default())).await {
        Ok(card) => serde_json::to_vec(&v03_card(card.get_ref())).map_err(Error::internal),
        Err(status) => Err(to_not_found(status.into())),
    }
}

/// Maps the errors for a missing extended card to 404. Versions before 0.3 have no error code for it.
fn to_not_found(error: Error) -> Error {
    use ErrorKind::{ExtendedAgentCardNotConfigured, ExtendedCardNotSupported, UnsupportedOperation};
    if matches!(error.kind(), ExtendedCardNotSupported | ExtendedAgentCardNotConfigured | UnsupportedOperation) {
        return ErrorKind::MethodNotFound.because("this agent has no authenticated extended card");
    }
    error
}

#[cfg(test)]
mod tests {
    use std::{future::ready, sync::Arc};

    use tonic::{Request, Response, Status};

    use super::*;
    use crate::pb::v1::AgentCard;

    /// Service with a given result of `get_extended_agent_card`.
    struct CardService(CardResult);

    type CardResult = fn(&Call) -> Result<AgentCard, Error>;

    #[tonic::async_trait]
    impl A2aService for CardService {
        async fn get_extended_agent_card(
            &self,
            request: Request<GetExtendedAgentCardRequest>,
        ) -> Result<Response<AgentCard>, Status> {
            Ok(ready((self.0)(Call::of(&request)?)).await.map(Response::new)?)
        }
    }

    #[tokio::test]
    async fn extended_card_is_a_0_3_card_or_an_http_status() {
        let card = |call: &Call| {
            let name = format!("{:?} {}", call.version, call.owner);
            Ok(AgentCard { name, ..AgentCard::default() })
        };
        let service: Arc<dyn A2aService> = Arc::new(CardService(card));
        let json: serde_json::Value =
            serde_json::from_slice(&extended(&*service, Call::by("ada")).await.unwrap()).unwrap();
        assert_eq!((json["name"].as_str(), json["protocolVersion"].as_str()), (Some("V0_3 ada"), Some("0.3.0")));
        let errors: [(CardResult, u16); 4] = [
            (|_| Err(ErrorKind::ExtendedCardNotSupported.error()), 404),
            (|_| Err(ErrorKind::ExtendedAgentCardNotConfigured.error()), 404),
            (|_| Err(ErrorKind::PermissionDenied.error()), 403),
            (|_| Err(ErrorKind::Unauthenticated.error()), 401),
        ];
        for (result, status) in errors {
            let error = extended(&CardService(result), Call::default()).await.unwrap_err();
            assert_eq!(error.wire().http, status, "{error}");
        }
    }
}
