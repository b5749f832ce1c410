//! Security schemes of 0.3 cards, which are those of OpenAPI (0.3, 5.5.3), and their conversion to and from 1.0.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::pb::v1::{
    self, ApiKeySecurityScheme, AuthorizationCodeOAuthFlow, ClientCredentialsOAuthFlow, DeviceCodeOAuthFlow,
    HttpAuthSecurityScheme, ImplicitOAuthFlow, MutualTlsSecurityScheme, OAuth2SecurityScheme, OAuthFlows,
    OpenIdConnectSecurityScheme, PasswordOAuthFlow, SecurityScheme, security_scheme,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authorization_code: Option<Flow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_credentials: Option<Flow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub implicit: Option<Flow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<Flow>,
    /// Device code flow; 1.0 only.
    #[serde(skip_serializing)]
    pub device_code: Option<Flow>,
}

/// OAuth flow. Each kind of flow has some of these members.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the members are documented in OpenAPI")]
pub struct Flow {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub authorization_url: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub token_url: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub refresh_url: String,
    pub scopes: BTreeMap<String, String>,
    /// Device authorization endpoint; 1.0 only.
    #[serde(skip_serializing)]
    pub device_authorization_url: String,
    /// The client must use PKCE; 1.0 only.
    #[serde(skip_serializing)]
    pub pkce_required: bool,
}

/// Converts 1.0 schemes to 0.3. A scheme in `originals` is used instead of the converted one.
pub(super) fn to_v03(
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
            let flows = Box::new(flows.and_then(|flows| flows.flow).map(Flows::from).unwrap_or_default());
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
                let flows = Some(OAuthFlows { flow: flows.into_safest() });
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
    /// Returns the flow for a 1.0 scheme: the safest one, with the flows that 1.0 deprecates last.
    fn into_safest(self) -> Option<v1::o_auth_flows::Flow> {
        use v1::o_auth_flows::Flow as V1;
        let Self { authorization_code, client_credentials, implicit, password, device_code } = self;
        let authorization_code = authorization_code.map(|flow| {
            V1::AuthorizationCode(AuthorizationCodeOAuthFlow {
                authorization_url: flow.authorization_url,
                token_url: flow.token_url,
                refresh_url: flow.refresh_url,
                scopes: flow.scopes,
                pkce_required: flow.pkce_required,
            })
        });
        let client_credentials = client_credentials.map(|flow| {
            let Flow { token_url, refresh_url, scopes, .. } = flow;
            V1::ClientCredentials(ClientCredentialsOAuthFlow { token_url, refresh_url, scopes })
        });
        let device_code = device_code.map(|flow| {
            let Flow { device_authorization_url, token_url, refresh_url, scopes, .. } = flow;
            V1::DeviceCode(DeviceCodeOAuthFlow { device_authorization_url, token_url, refresh_url, scopes })
        });
        #[expect(deprecated, reason = "not deprecated in 0.3")]
        let implicit = implicit.map(|flow| {
            let Flow { authorization_url, refresh_url, scopes, .. } = flow;
            V1::Implicit(ImplicitOAuthFlow { authorization_url, refresh_url, scopes })
        });
        #[expect(deprecated, reason = "not deprecated in 0.3")]
        let password = password.map(|flow| {
            let Flow { token_url, refresh_url, scopes, .. } = flow;
            V1::Password(PasswordOAuthFlow { token_url, refresh_url, scopes })
        });
        authorization_code.or(client_credentials).or(device_code).or(implicit).or(password)
    }
}

impl From<v1::o_auth_flows::Flow> for Flows {
    fn from(flow: v1::o_auth_flows::Flow) -> Self {
        use v1::o_auth_flows::Flow as V1;
        let none = Self::default();
        #[expect(deprecated, reason = "not deprecated in 0.3")]
        match flow {
            V1::AuthorizationCode(flow) => {
                let AuthorizationCodeOAuthFlow { authorization_url, token_url, refresh_url, scopes, pkce_required } =
                    flow;
                let flow = Flow { authorization_url, token_url, refresh_url, scopes, pkce_required, ..Flow::default() };
                Self { authorization_code: Some(flow), ..none }
            }
            V1::ClientCredentials(ClientCredentialsOAuthFlow { token_url, refresh_url, scopes }) => {
                let flow = Flow { token_url, refresh_url, scopes, ..Flow::default() };
                Self { client_credentials: Some(flow), ..none }
            }
            V1::Implicit(ImplicitOAuthFlow { authorization_url, refresh_url, scopes }) => {
                let flow = Flow { authorization_url, refresh_url, scopes, ..Flow::default() };
                Self { implicit: Some(flow), ..none }
            }
            V1::Password(PasswordOAuthFlow { token_url, refresh_url, scopes }) => {
                let flow = Flow { token_url, refresh_url, scopes, ..Flow::default() };
                Self { password: Some(flow), ..none }
            }
            V1::DeviceCode(flow) => {
                let DeviceCodeOAuthFlow { device_authorization_url, token_url, refresh_url, scopes } = flow;
                let flow = Flow { token_url, refresh_url, scopes, device_authorization_url, ..Flow::default() };
                Self { device_code: Some(flow), ..none }
            }
        }
    }
}
