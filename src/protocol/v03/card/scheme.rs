//! Security schemes of 0.3 cards, which are those of OpenAPI (0.3, 5.5.3), and their conversion to and from 1.0.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::protocol::pb::v1::{
    ApiKeySecurityScheme, HttpAuthSecurityScheme, MutualTlsSecurityScheme, OAuth2SecurityScheme, OAuthFlows,
    OpenIdConnectSecurityScheme, SecurityScheme, security_scheme,
};

/// Security scheme.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all_fields = "camelCase")]
#[expect(missing_docs, reason = "the members are documented in OpenAPI")]
pub enum Scheme {
    #[serde(rename = "apiKey")]
    ApiKey {
        #[serde(default, skip_serializing_if = "String::is_empty")]
        description: String,
        #[serde(rename = "in")]
        location: String,
        name: String,
    },
    #[serde(rename = "http")]
    Http {
        #[serde(default, skip_serializing_if = "String::is_empty")]
        description: String,
        scheme: String,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        bearer_format: String,
    },
    #[serde(rename = "oauth2")]
    OAuth2 {
        #[serde(default, skip_serializing_if = "String::is_empty")]
        description: String,
        flows: Box<Flows>,
        #[serde(default, rename = "oauth2MetadataUrl", skip_serializing_if = "String::is_empty")]
        metadata_url: String,
    },
    #[serde(rename = "openIdConnect")]
    OpenIdConnect {
        #[serde(default, skip_serializing_if = "String::is_empty")]
        description: String,
        open_id_connect_url: String,
    },
    #[serde(rename = "mutualTLS")]
    MutualTls {
        #[serde(default, skip_serializing_if = "String::is_empty")]
        description: String,
    },
    /// Scheme of an unknown type, which is dropped.
    #[serde(other)]
    Unknown,
}

/// OAuth flows that an agent supports. A 1.0 scheme has only one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the members are documented in OpenAPI")]
pub struct Flows {
    #[serde(alias = "authorization_code", skip_serializing_if = "Option::is_none")]
    pub authorization_code: Option<Flow>,
    #[serde(alias = "client_credentials", skip_serializing_if = "Option::is_none")]
    pub client_credentials: Option<Flow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub implicit: Option<Flow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<Flow>,
    /// Device code flow; 1.0 only.
    #[serde(alias = "device_code", skip_serializing)]
    pub device_code: Option<Flow>,
}

/// OAuth flow. Each kind of flow has some of these members.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the members are documented in OpenAPI")]
pub struct Flow {
    #[serde(alias = "authorization_url", skip_serializing_if = "String::is_empty")]
    pub authorization_url: String,
    #[serde(alias = "token_url", skip_serializing_if = "String::is_empty")]
    pub token_url: String,
    #[serde(alias = "refresh_url", skip_serializing_if = "String::is_empty")]
    pub refresh_url: String,
    pub scopes: BTreeMap<String, String>,
    /// Device authorization endpoint; 1.0 only.
    #[serde(alias = "device_authorization_url", skip_serializing)]
    pub device_authorization_url: String,
    /// The client must use PKCE; 1.0 only.
    #[serde(alias = "pkce_required", skip_serializing)]
    pub pkce_required: bool,
}

/// Names of the member with the schemes, as those of Protobuf messages in JSON.
const SCHEMES: [&str; 2] = ["securitySchemes", "security_schemes"];

/// Names of the member with an OAuth scheme of 1.0.
const OAUTH2: [&str; 2] = ["oauth2SecurityScheme", "oauth2_security_scheme"];

/// Returns the OAuth flows of a card of any version, by the names of their schemes. The message of 1.0 has one flow of each.
pub(crate) fn all_flows(card: &Value) -> BTreeMap<String, Flows> {
    let schemes = SCHEMES.into_iter().find_map(|name| card[name].as_object());
    let flows = schemes.into_iter().flatten().filter_map(|(name, scheme)| {
        let scheme = OAUTH2.into_iter().find_map(|name| scheme.get(name)).unwrap_or(scheme);
        Some((name.clone(), read_flows(scheme.get("flows")?)?))
    });
    flows.collect()
}

/// Reads OAuth flows of any version.
fn read_flows(flows: &Value) -> Option<Flows> {
    let mut flows = Some(flows).filter(|flows| flows.is_object())?.clone();
    super::drop_nulls(&mut flows);
    serde_json::from_value(flows).ok()
}

/// Reduces the schemes of a card of 1.0 to one flow each, the safest one: its message has no place for further ones.
pub(super) fn reduce_flows(card: &mut Value) {
    for (schemes, oauth2) in SCHEMES.into_iter().flat_map(|schemes| OAUTH2.map(|oauth2| (schemes, oauth2))) {
        let schemes = card.get_mut(schemes).and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut);
        for flows in schemes.filter_map(|scheme| scheme.get_mut(oauth2)?.get_mut("flows")) {
            if let Some(several) = read_flows(flows).filter(|several| several.count() > 1) {
                *flows = serde_json::to_value(several.into_safest()).unwrap_or_default();
            }
        }
    }
}

/// Converts 1.0 schemes to 0.3. A scheme in `originals` is used instead of the converted one.
pub(crate) fn to_v03(
    schemes: &BTreeMap<String, SecurityScheme>,
    originals: &BTreeMap<String, Scheme>,
) -> BTreeMap<String, Scheme> {
    let convert = |(name, scheme): (&String, &SecurityScheme)| {
        let scheme = originals.get(name).cloned().or_else(|| from_v1(scheme))?;
        Some((name.clone(), scheme))
    };
    schemes.iter().filter_map(convert).collect()
}

/// Converts 0.3 schemes to 1.0, without those of an unknown type.
pub(crate) fn to_v1(schemes: BTreeMap<String, Scheme>) -> BTreeMap<String, SecurityScheme> {
    let convert = |(name, scheme): (String, Scheme)| Some((name, SecurityScheme { scheme: Some(scheme.into_v1()?) }));
    schemes.into_iter().filter_map(convert).collect()
}

fn from_v1(scheme: &SecurityScheme) -> Option<Scheme> {
    use security_scheme::Scheme as V1;
    Some(match scheme.scheme.clone()? {
        V1::ApiKeySecurityScheme(ApiKeySecurityScheme { description, location, name }) => {
            Scheme::ApiKey { description, location, name }
        }
        V1::HttpAuthSecurityScheme(HttpAuthSecurityScheme { description, scheme, bearer_format }) => {
            Scheme::Http { description, scheme, bearer_format }
        }
        V1::Oauth2SecurityScheme(OAuth2SecurityScheme { description, flows, oauth2_metadata_url }) => {
            let flows = Box::new(flows.map(Flows::from).unwrap_or_default());
            Scheme::OAuth2 { description, flows, metadata_url: oauth2_metadata_url }
        }
        V1::OpenIdConnectSecurityScheme(OpenIdConnectSecurityScheme { description, open_id_connect_url }) => {
            Scheme::OpenIdConnect { description, open_id_connect_url }
        }
        V1::MtlsSecurityScheme(MutualTlsSecurityScheme { description }) => Scheme::MutualTls { description },
    })
}

impl Scheme {
    fn into_v1(self) -> Option<security_scheme::Scheme> {
        use security_scheme::Scheme as V1;
        Some(match self {
            Self::ApiKey { description, location, name } => {
                V1::ApiKeySecurityScheme(ApiKeySecurityScheme { description, location, name })
            }
            Self::Http { description, scheme, bearer_format } => {
                V1::HttpAuthSecurityScheme(HttpAuthSecurityScheme { description, scheme, bearer_format })
            }
            Self::OAuth2 { description, flows, metadata_url: oauth2_metadata_url } => {
                let flows = Some(flows.into_safest());
                V1::Oauth2SecurityScheme(OAuth2SecurityScheme { description, flows, oauth2_metadata_url })
            }
            Self::OpenIdConnect { description, open_id_connect_url } => {
                V1::OpenIdConnectSecurityScheme(OpenIdConnectSecurityScheme { description, open_id_connect_url })
            }
            Self::MutualTls { description } => V1::MtlsSecurityScheme(MutualTlsSecurityScheme { description }),
            Self::Unknown => return None,
        })
    }
}

impl Flows {
    fn count(&self) -> usize {
        let Self { authorization_code, client_credentials, implicit, password, device_code } = self;
        [authorization_code, client_credentials, implicit, password, device_code].into_iter().flatten().count()
    }

    /// Returns the flow for a 1.0 scheme: the safest one, with the flows that 1.0 deprecates last.
    fn into_safest(self) -> OAuthFlows {
        let Self { authorization_code, client_credentials, implicit, password, device_code } = self;
        let flows = [
            ("authorizationCode", authorization_code),
            ("clientCredentials", client_credentials),
            ("deviceCode", device_code),
            ("implicit", implicit),
            ("password", password),
        ];
        let Some((name, flow)) = flows.into_iter().find_map(|(name, flow)| Some((name, flow?))) else {
            return OAuthFlows::default();
        };
        // The members have equal names in both versions. Those that the kind of flow lacks in 1.0 are ignored.
        let flow = json!({
            "authorizationUrl": flow.authorization_url,
            "tokenUrl": flow.token_url,
            "refreshUrl": flow.refresh_url,
            "scopes": flow.scopes,
            "deviceAuthorizationUrl": flow.device_authorization_url,
            "pkceRequired": flow.pkce_required,
        });
        serde_json::from_value(json!({ name: flow })).unwrap_or_default()
    }
}

conversions! {
    Flows:
    flows: OAuthFlows => serde_json::to_value(flows).and_then(serde_json::from_value).unwrap_or_default();
}
