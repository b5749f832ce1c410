//! JSON Schemas of 0.3 JSON-RPC, whose objects carry a `kind`, and of the agent card of 0.3.
//!
//! Messages whose members are fields of the 1.0 message come from the table that also generates their code
//! (`build/v03_json.rs`). The others are listed here. Descriptions are those of 1.0.

use prost_reflect::{DescriptorPool, FieldDescriptor, Kind, MessageDescriptor};
use utoipa::openapi::{
    KnownFormat, RefOr, Type,
    schema::{ArrayBuilder, Discriminator, Object, ObjectBuilder, OneOfBuilder, Schema, SchemaFormat},
};

use super::{
    schema::{Schemas, any, described},
    v03_json::V03_MESSAGES,
};

/// Package of these schemas in the names of schema files.
pub(super) const PACKAGE: &str = "jsonrpc.v0.3";

/// Objects: name, 1.0 message with the descriptions, and members with their types. `!` marks a member that is required.
///
/// Types are `string`, `boolean`, `integer`, `bytes`, another object, `[type]` for arrays, `{type}` for maps, and `=a|b` for
/// one of these texts.
const OBJECTS: [(&str, &str, &str); 28] = [
    ("TextPart", "Part", "kind!:=text text!:string metadata:Struct"),
    ("FilePart", "Part", "kind!:=file file!:File metadata:Struct"),
    ("DataPart", "Part", "kind!:=data data!:Struct metadata:Struct"),
    ("FileWithBytes", "Part", "name:string mimeType:string bytes!:bytes"),
    ("FileWithUri", "Part", "name:string mimeType:string uri!:string"),
    (
        "TaskStatusUpdateEvent",
        "TaskStatusUpdateEvent",
        "kind!:=status-update taskId!:string contextId!:string status!:TaskStatus final!:boolean metadata:Struct",
    ),
    (
        "MessageSendParams",
        "SendMessageRequest",
        "message!:Message configuration:MessageSendConfiguration metadata:Struct",
    ),
    (
        "MessageSendConfiguration",
        "SendMessageConfiguration",
        "acceptedOutputModes:[string] historyLength:integer pushNotificationConfig:PushNotificationConfig blocking:boolean",
    ),
    (
        "PushNotificationConfig",
        "TaskPushNotificationConfig",
        "id:string url!:string token:string authentication:PushNotificationAuthenticationInfo headers:{string}",
    ),
    ("PushNotificationAuthenticationInfo", "AuthenticationInfo", "schemes!:[string] credentials:string"),
    (
        "TaskPushNotificationConfig",
        "TaskPushNotificationConfig",
        "taskId!:string pushNotificationConfig!:PushNotificationConfig",
    ),
    (
        "AgentCard",
        "AgentCard",
        "protocolVersion!:string name!:string description!:string url!:string preferredTransport:string \
         additionalInterfaces:[AgentInterface] iconUrl:string provider:AgentProvider version!:string \
         documentationUrl:string capabilities!:AgentCapabilities securitySchemes:{SecurityScheme} \
         security:[{[string]}] defaultInputModes!:[string] defaultOutputModes!:[string] skills!:[AgentSkill] \
         supportsAuthenticatedExtendedCard:boolean signatures:[AgentCardSignature]",
    ),
    ("AgentInterface", "AgentInterface", "url!:string transport!:string"),
    ("AgentProvider", "AgentProvider", "organization!:string url!:string"),
    (
        "AgentCapabilities",
        "AgentCapabilities",
        "streaming:boolean pushNotifications:boolean stateTransitionHistory:boolean extensions:[AgentExtension]",
    ),
    ("AgentExtension", "AgentExtension", "uri!:string description:string required:boolean params:Struct"),
    (
        "AgentSkill",
        "AgentSkill",
        "id!:string name!:string description!:string tags!:[string] examples:[string] inputModes:[string] \
         outputModes:[string] security:[{[string]}]",
    ),
    ("AgentCardSignature", "AgentCardSignature", "protected!:string signature!:string header:Struct"),
    (
        "APIKeySecurityScheme",
        "APIKeySecurityScheme",
        "type!:=apiKey in!:=header|query|cookie name!:string description:string",
    ),
    (
        "HTTPAuthSecurityScheme",
        "HTTPAuthSecurityScheme",
        "type!:=http scheme!:string bearerFormat:string description:string",
    ),
    (
        "OAuth2SecurityScheme",
        "OAuth2SecurityScheme",
        "type!:=oauth2 flows!:OAuthFlows oauth2MetadataUrl:string description:string",
    ),
    (
        "OpenIdConnectSecurityScheme",
        "OpenIdConnectSecurityScheme",
        "type!:=openIdConnect openIdConnectUrl!:string description:string",
    ),
    ("MutualTLSSecurityScheme", "MutualTlsSecurityScheme", "type!:=mutualTLS description:string"),
    (
        "OAuthFlows",
        "OAuthFlows",
        "authorizationCode:AuthorizationCodeOAuthFlow clientCredentials:ClientCredentialsOAuthFlow \
         implicit:ImplicitOAuthFlow password:PasswordOAuthFlow",
    ),
    (
        "AuthorizationCodeOAuthFlow",
        "AuthorizationCodeOAuthFlow",
        "authorizationUrl!:string tokenUrl!:string refreshUrl:string scopes!:{string}",
    ),
    ("ClientCredentialsOAuthFlow", "ClientCredentialsOAuthFlow", "tokenUrl!:string refreshUrl:string scopes!:{string}"),
    ("ImplicitOAuthFlow", "ImplicitOAuthFlow", "authorizationUrl!:string refreshUrl:string scopes!:{string}"),
    ("PasswordOAuthFlow", "PasswordOAuthFlow", "tokenUrl!:string refreshUrl:string scopes!:{string}"),
];

/// Row of [`ALTERNATIVES`].
type Alternatives = (&'static str, &'static str, &'static str, &'static [(&'static str, &'static str)]);

/// Objects of which one is present: name, description, the member that tells them apart, and the objects with its values.
const ALTERNATIVES: [Alternatives; 5] = [
    (
        "Part",
        "Piece of content: a text, a file or structured data.",
        "kind",
        &[("TextPart", "text"), ("FilePart", "file"), ("DataPart", "data")],
    ),
    ("File", "File by value or by reference.", "", &[("FileWithBytes", ""), ("FileWithUri", "")]),
    (
        "SendMessageResult",
        "Task that the message started or continued, or a reply without a task.",
        "kind",
        &[("Task", "task"), ("Message", "message")],
    ),
    (
        "StreamEvent",
        "Event of a stream.",
        "kind",
        &[
            ("Task", "task"),
            ("Message", "message"),
            ("TaskStatusUpdateEvent", "status-update"),
            ("TaskArtifactUpdateEvent", "artifact-update"),
        ],
    ),
    (
        "SecurityScheme",
        "Authentication scheme of an agent, as in OpenAPI.",
        "type",
        &[
            ("APIKeySecurityScheme", "apiKey"),
            ("HTTPAuthSecurityScheme", "http"),
            ("OAuth2SecurityScheme", "oauth2"),
            ("OpenIdConnectSecurityScheme", "openIdConnect"),
            ("MutualTLSSecurityScheme", "mutualTLS"),
        ],
    ),
];

/// Enums of 1.0 whose values have other names.
const ENUMS: [(&str, &[&str]); 2] = [
    (
        "TaskState",
        &[
            "submitted",
            "working",
            "input-required",
            "completed",
            "canceled",
            "failed",
            "rejected",
            "auth-required",
            "unknown",
        ],
    ),
    ("Role", &["user", "agent"]),
];

/// Descriptions of members that 1.0 lacks.
const DESCRIPTIONS: [(&str, &str); 20] = [
    ("kind", "Kind of the object."),
    ("type", "Kind of the security scheme."),
    ("in", "Location of the key."),
    ("file", "File."),
    ("mimeType", "Media type of the file, such as `image/png`."),
    ("bytes", "Bytes of the file, in base64."),
    ("uri", "URL of the file."),
    ("final", "True for the last event of a stream."),
    (
        "blocking",
        "True waits for the end of the turn. By default true, unless a push notification configuration is set.",
    ),
    ("pushNotificationConfig", "Webhook for updates of the task."),
    ("pushNotificationConfigId", "Id of the push notification configuration."),
    ("headers", "HTTP headers of each notification, by name."),
    ("schemes", "HTTP authentication schemes that the webhook accepts. The first one is used."),
    ("protocolVersion", "Protocol version, such as `0.3.0`."),
    ("preferredTransport", "Transport at `url`. By default `JSONRPC`."),
    ("additionalInterfaces", "All URLs of the agent with their transports."),
    ("transport", "Transport: `JSONRPC`, `GRPC` or `HTTP+JSON`."),
    ("stateTransitionHistory", "True if the agent provides the history of task states."),
    ("security", "Requirements for access: names of schemes with their scopes. One of them suffices."),
    ("supportsAuthenticatedExtendedCard", "True if authenticated callers can read an extended card."),
];

/// Creates schemas of 0.3 JSON-RPC, and adds them to the schemas of a document.
pub(super) struct V03Schemas<'a, 'b> {
    pool: &'a DescriptorPool,
    schemas: &'a mut Schemas<'b>,
    /// Prefix of the names, where the document has schemas of 1.0 too.
    prefix: &'static str,
}

impl<'a, 'b> V03Schemas<'a, 'b> {
    pub(super) fn new(pool: &'a DescriptorPool, schemas: &'a mut Schemas<'b>, prefix: &'static str) -> Self {
        Self { pool, schemas, prefix }
    }

    /// Returns the names of all schemas.
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        let rows = V03_MESSAGES.iter().map(|row| row.1).chain(OBJECTS.iter().map(|row| row.0));
        rows.chain(ALTERNATIVES.iter().map(|row| row.0)).chain(ENUMS.iter().map(|row| row.0))
    }

    /// Returns the name of the parameters or the result for a 1.0 message.
    pub(super) fn name_of(message: &str) -> Option<&'static str> {
        V03_MESSAGES.iter().find(|row| row.0 == message).map(|row| row.1)
    }

    /// Returns a reference to the schema with a name of 0.3, and adds the schema.
    pub(super) fn named(&mut self, name: &str) -> RefOr<Schema> {
        let key = self.schemas.location.key(PACKAGE, &format!("{}{name}", self.prefix));
        if !self.schemas.all.contains_key(&key) {
            self.schemas.all.insert(key.clone(), any());
            let schema = self.create(name);
            self.schemas.all.insert(key.clone(), schema);
        }
        self.schemas.location.reference(&key).into()
    }

    /// Returns the schema with a name of 0.3, and adds it.
    pub(super) fn object_named(&mut self, name: &str) -> Option<Object> {
        self.named(name);
        let key = self.schemas.location.key(PACKAGE, &format!("{}{name}", self.prefix));
        let RefOr::T(Schema::Object(object)) = self.schemas.all.get(&key)? else { return None };
        Some(object.clone())
    }

    fn create(&mut self, name: &str) -> RefOr<Schema> {
        if let Some((message, _, kind, members)) = V03_MESSAGES.iter().find(|row| row.1 == name) {
            return self.of_message(message, kind, members);
        }
        if let Some((_, message, members)) = OBJECTS.iter().find(|row| row.0 == name) {
            return self.object(name, message, members);
        }
        if let Some((_, description, member, objects)) = ALTERNATIVES.iter().find(|row| row.0 == name) {
            let mut alternatives = OneOfBuilder::new().description(Some(*description));
            let mut mapping = Vec::new();
            for (object, value) in *objects {
                if let RefOr::Ref(reference) = self.named(object) {
                    mapping.push((*value, reference.ref_location.clone()));
                    alternatives = alternatives.item(reference);
                }
            }
            let is_discriminated = !member.is_empty();
            let discriminator = is_discriminated.then(|| Discriminator::with_mapping(*member, mapping));
            return alternatives.discriminator(discriminator).into();
        }
        if let Some((_, values)) = ENUMS.iter().find(|row| row.0 == name) {
            let object = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(values.iter().copied()));
            let comment = self.pool.get_enum_by_name(&format!("lf.a2a.v1.{name}"));
            return object.description(comment.and_then(|comment| self.schemas.comments.of(&comment))).into();
        }
        any()
    }

    /// Creates the schema of an object whose members are fields of a 1.0 message.
    fn of_message(&mut self, message: &str, kind: &str, members: &str) -> RefOr<Schema> {
        let Some(message) = self.message(message) else { return any() };
        let mut object = ObjectBuilder::new().description(self.schemas.comments.of(&message));
        if !kind.is_empty() {
            object = object.property("kind", self.member("kind", &format!("={kind}"), Some(&message)));
            object = object.required("kind");
        }
        for member in members.split_whitespace() {
            let (member, is_required) = member.strip_suffix('!').map_or((member, false), |member| (member, true));
            let (field, names) = member.split_once('=').unwrap_or((member, member));
            let Some(field) = message.get_field_by_name(field) else { continue };
            let name = camel(names.split('|').next().unwrap_or(names));
            let schema = self.field(&field);
            object = object.property(&name, described(schema, self.schemas.comments.of(&field), false));
            if is_required {
                object = object.required(name);
            }
        }
        object.into()
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "all other kinds have the schemas of ProtoJSON")]
    fn field(&mut self, field: &FieldDescriptor) -> RefOr<Schema> {
        let kind = field.kind();
        let own_name = match &kind {
            Kind::Message(message) if message.package_name() == field.parent_message().package_name() => {
                Some(Self::name_of(message.name()).unwrap_or(message.name()).to_owned())
            }
            Kind::Enum(descriptor) => Some(descriptor.name().to_owned()),
            _ => None,
        };
        let Some(name) = own_name else { return self.schemas.field(field) };
        let value = self.named(&name);
        if field.is_list() { ArrayBuilder::new().items(value).into() } else { value }
    }

    fn message(&self, name: &str) -> Option<MessageDescriptor> {
        self.pool.get_message_by_name(&format!("lf.a2a.v1.{name}"))
    }

    fn object(&mut self, name: &str, message: &str, members: &str) -> RefOr<Schema> {
        let message = self.message(message);
        let is_whole = message.as_ref().is_some_and(|message| message.name() != "Part");
        let comment = message.as_ref().filter(|_| is_whole).and_then(|message| self.schemas.comments.of(message));
        let mut object = ObjectBuilder::new().title(Some(name)).description(comment);
        for member in members.split_whitespace() {
            let (name, value) = member.split_once(':').unwrap_or((member, "string"));
            let (name, is_required) = name.strip_suffix('!').map_or((name, false), |name| (name, true));
            object = object.property(name, self.member(name, value, message.as_ref()));
            if is_required {
                object = object.required(name);
            }
        }
        object.into()
    }

    /// Returns the schema of a member of a type, with its description.
    fn member(&mut self, name: &str, value: &str, message: Option<&MessageDescriptor>) -> RefOr<Schema> {
        let comment = message
            .and_then(|message| message.get_field_by_json_name(name))
            .and_then(|field| self.schemas.comments.of(&field));
        let own = DESCRIPTIONS.iter().find(|row| row.0 == name).map(|row| row.1.to_owned());
        let schema = self.value(value);
        described(schema, comment.or(own), false)
    }

    fn value(&mut self, value: &str) -> RefOr<Schema> {
        let of_type = |value: Type| ObjectBuilder::new().schema_type(value);
        if let Some(item) = value.strip_prefix('[').and_then(|value| value.strip_suffix(']')) {
            return ArrayBuilder::new().items(self.value(item)).into();
        }
        if let Some(item) = value.strip_prefix('{').and_then(|value| value.strip_suffix('}')) {
            return ObjectBuilder::new().additional_properties(Some(self.value(item))).into();
        }
        if let Some(values) = value.strip_prefix('=') {
            return of_type(Type::String).enum_values(Some(values.split('|'))).into();
        }
        match value {
            "string" => of_type(Type::String).into(),
            "boolean" => of_type(Type::Boolean).into(),
            "integer" => {
                let format = SchemaFormat::KnownFormat(KnownFormat::Int32);
                of_type(Type::Integer).format(Some(format)).minimum(Some(0)).into()
            }
            "bytes" => {
                let format = SchemaFormat::KnownFormat(KnownFormat::Byte);
                of_type(Type::String).format(Some(format)).content_encoding("base64").into()
            }
            "Struct" => self.schemas.free_form(),
            name => self.named(name),
        }
    }
}

/// Converts snake case to lower camel case.
fn camel(name: &str) -> String {
    let upper = super::schema::upper_camel(name);
    let mut letters = upper.chars();
    letters.next().into_iter().flat_map(char::to_lowercase).chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use a2a_service::{
        pb::v1::{Message, Role, TaskState, TaskStatus},
        v03::json::Write,
    };

    use super::*;

    #[test]
    fn enum_values_are_those_that_the_server_writes() {
        let states: Vec<_> = (0..)
            .map_while(|number| TaskState::try_from(number).ok())
            .map(|state| {
                serde_json::to_value(Write(&TaskStatus { state: state.into(), ..TaskStatus::default() })).unwrap()
            })
            .map(|status| status["state"].as_str().unwrap().to_owned())
            .collect();
        let roles: Vec<_> = [Role::User, Role::Agent]
            .map(|role| serde_json::to_value(Write(&Message { role: role.into(), ..Message::default() })).unwrap())
            .map(|message| message["role"].as_str().unwrap().to_owned())
            .to_vec();
        for (mut written, (name, listed)) in [states, roles].into_iter().zip(ENUMS) {
            let mut listed = listed.to_vec();
            written.sort();
            listed.sort_unstable();
            assert_eq!(written, listed, "{name}");
        }
    }
}
