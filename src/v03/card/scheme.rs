//! The ways to authenticate, as 0.3 has them, which is as OpenAPI does (0.3, 5.5.3).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::pb::v1::{
    self, ApiKeySecurityScheme, AuthorizationCodeOAuthFlow, ClientCredentialsOAuthFlow, DeviceCodeOAuthFlow,
    HttpAuthSecurityScheme, ImplicitOAuthFlow, MutualTlsSecurityScheme, OAuth2SecurityScheme, OAuthFlows,
    OpenIdConnectSecurityScheme, PasswordOAuthFlow, SecurityScheme, security_scheme,
};

/// A way to authenticate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all_fields = "camelCase")]
#[expect(missing_docs, reason = "the members are OpenAPI's")]
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
    /// One that came after us.
    #[serde(other)]
    Unknown,
}

/// The flows of OAuth that an agent takes; 1.0 has one of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the members are OpenAPI's")]
pub struct Flows {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authorization_code: Option<Flow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_credentials: Option<Flow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub implicit: Option<Flow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<Flow>,
    /// Only 1.0 has it.
    #[serde(skip_serializing)]
    pub device_code: Option<Flow>,
}

/// A flow of OAuth: each kind has some of these members.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the members are OpenAPI's")]
pub struct Flow {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub authorization_url: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub token_url: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub refresh_url: String,
    pub scopes: BTreeMap<String, String>,
    /// Only 1.0 has it.
    #[serde(skip_serializing)]
    pub device_authorization_url: String,
    /// Only 1.0 has it.
    #[serde(skip_serializing)]
    pub pkce_required: bool,
}

/// Schemes of 1.0 as 0.3 has them; those that were said in 0.3's form as they were said.
pub(super) fn v03_card(
    schemes: &BTreeMap<String, SecurityScheme>,
    said: &BTreeMap<String, Scheme>,
) -> BTreeMap<String, Scheme> {
    let scheme = |(name, scheme): (&String, &SecurityScheme)| {
        let scheme = said.get(name).cloned().or_else(|| from_v1(scheme))?;
        Some((name.clone(), scheme))
    };
    schemes.iter().filter_map(scheme).collect()
}

/// Schemes of 0.3 as 1.0 has them, without those that nobody here knows.
pub(crate) fn to_v1(schemes: BTreeMap<String, Scheme>) -> BTreeMap<String, SecurityScheme> {
    schemes.into_iter().filter_map(|(name, it)| Some((name, SecurityScheme { scheme: Some(it.into_v1()?) }))).collect()
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
            let flows = Box::new(flows.and_then(|it| it.flow).map(Flows::from).unwrap_or_default());
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
                let flows = Some(OAuthFlows { flow: flows.first() });
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
    /// The one that 1.0 has of them: the safest that there is, and those that it has deprecated last.
    fn first(self) -> Option<v1::o_auth_flows::Flow> {
        use v1::o_auth_flows::Flow as V1;
        let Self { authorization_code, client_credentials, implicit, password, device_code } = self;
        let authorization_code = authorization_code.map(|it| {
            V1::AuthorizationCode(AuthorizationCodeOAuthFlow {
                authorization_url: it.authorization_url,
                token_url: it.token_url,
                refresh_url: it.refresh_url,
                scopes: it.scopes,
                pkce_required: it.pkce_required,
            })
        });
        let client_credentials = client_credentials.map(|it| {
            let Flow { token_url, refresh_url, scopes, .. } = it;
            V1::ClientCredentials(ClientCredentialsOAuthFlow { token_url, refresh_url, scopes })
        });
        let device_code = device_code.map(|it| {
            let Flow { device_authorization_url, token_url, refresh_url, scopes, .. } = it;
            V1::DeviceCode(DeviceCodeOAuthFlow { device_authorization_url, token_url, refresh_url, scopes })
        });
        #[expect(deprecated, reason = "0.3 has it")]
        let implicit = implicit.map(|it| {
            let Flow { authorization_url, refresh_url, scopes, .. } = it;
            V1::Implicit(ImplicitOAuthFlow { authorization_url, refresh_url, scopes })
        });
        #[expect(deprecated, reason = "0.3 has it")]
        let password = password.map(|it| {
            let Flow { token_url, refresh_url, scopes, .. } = it;
            V1::Password(PasswordOAuthFlow { token_url, refresh_url, scopes })
        });
        authorization_code.or(client_credentials).or(device_code).or(implicit).or(password)
    }
}

impl From<v1::o_auth_flows::Flow> for Flows {
    fn from(it: v1::o_auth_flows::Flow) -> Self {
        use v1::o_auth_flows::Flow as V1;
        let none = Self::default();
        #[expect(deprecated, reason = "0.3 has them")]
        match it {
            V1::AuthorizationCode(it) => {
                let AuthorizationCodeOAuthFlow { authorization_url, token_url, refresh_url, scopes, pkce_required } =
                    it;
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
            V1::DeviceCode(it) => {
                let DeviceCodeOAuthFlow { device_authorization_url, token_url, refresh_url, scopes } = it;
                let flow = Flow { token_url, refresh_url, scopes, device_authorization_url, ..Flow::default() };
                Self { device_code: Some(flow), ..none }
            }
        }
    }
}
