//! The card for authenticated callers as 0.2 has it: by a GET, with HTTP's own answers where there is none (0.2, 7.10).

use super::v03_card;
use crate::{
    call::{Call, Version},
    error::{Error, ErrorKind},
    pb::v1::{GetExtendedAgentCardRequest, a2a_service_server::A2aService},
};

/// The card in JSON.
pub(crate) async fn extended(service: &dyn A2aService, call: Call) -> Result<Vec<u8>, Error> {
    let call = Call { version: Version::V0_3, ..call };
    match service.get_extended_agent_card(call.request(GetExtendedAgentCardRequest::default())).await {
        Ok(card) => serde_json::to_vec(&v03_card(card.get_ref())).map_err(Error::internal),
        Err(status) => Err(missing(status.into())),
    }
}

/// That there is none is an error of its own since 0.3; before, it is a path that is not there.
fn missing(error: Error) -> Error {
    use ErrorKind::{ExtendedAgentCardNotConfigured, ExtendedCardNotSupported, UnsupportedOperation};
    if matches!(error.kind(), ExtendedCardNotSupported | ExtendedAgentCardNotConfigured | UnsupportedOperation) {
        return ErrorKind::MethodNotFound.because("this agent has no card for authenticated callers");
    }
    error
}

#[cfg(test)]
mod tests {
    use std::{future::ready, sync::Arc};

    use tonic::{Request, Response, Status};

    use super::*;
    use crate::pb::v1::AgentCard;

    /// A service that has such a card, or not.
    struct Having(Answer);

    type Answer = fn(&Call) -> Result<AgentCard, Error>;

    #[tonic::async_trait]
    impl A2aService for Having {
        async fn get_extended_agent_card(
            &self,
            request: Request<GetExtendedAgentCardRequest>,
        ) -> Result<Response<AgentCard>, Status> {
            Ok(ready((self.0)(Call::of(&request)?)).await.map(Response::new)?)
        }
    }

    #[tokio::test]
    async fn it_is_a_classic_card_or_a_status() {
        let card = |call: &Call| {
            let name = format!("{:?} {}", call.version, call.owner);
            Ok(AgentCard { name, ..AgentCard::default() })
        };
        let service: Arc<dyn A2aService> = Arc::new(Having(card));
        let json: serde_json::Value =
            serde_json::from_slice(&extended(&*service, Call::by("ada")).await.unwrap()).unwrap();
        assert_eq!((json["name"].as_str(), json["protocolVersion"].as_str()), (Some("V0_3 ada"), Some("0.3.0")));
        let errors: [(Answer, u16); 4] = [
            (|_| Err(ErrorKind::ExtendedCardNotSupported.error()), 404),
            (|_| Err(ErrorKind::ExtendedAgentCardNotConfigured.error()), 404),
            (|_| Err(ErrorKind::PermissionDenied.error()), 403),
            (|_| Err(ErrorKind::Unauthenticated.error()), 401),
        ];
        for (answer, status) in errors {
            let error = extended(&Having(answer), Call::default()).await.unwrap_err();
            assert_eq!(error.wire().http, status, "{error}");
        }
    }
}
