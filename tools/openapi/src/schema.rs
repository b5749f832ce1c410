//! JSON Schemas of messages in ProtoJSON, from their descriptors.
//!
//! A schema describes the JSON that the server sends, and the usual form of the JSON that it accepts. Schemas are open: the
//! server accepts unknown members, and ignores them.

use std::collections::{BTreeMap, BTreeSet};

use prost_reflect::{
    DescriptorPool, EnumDescriptor, ExtensionDescriptor, FieldDescriptor, Kind, MessageDescriptor, OneofDescriptor,
    Value,
};
use serde_json::json;
use utoipa::openapi::{
    Deprecated, KnownFormat, RefOr, Type,
    schema::{
        AdditionalProperties, ArrayBuilder, ObjectBuilder, OneOfBuilder, RefBuilder, Schema, SchemaFormat, SchemaType,
    },
};

use super::comments::Comments;
use a2a_service::{
    service::{DEFAULT_PAGE_SIZE, PAGE_SIZES},
    validate::{MAX_ID_BYTES, MAX_URI_BYTES},
};

/// Package of the well-known types.
const GOOGLE: &str = "google.protobuf";

/// Minimum, maximum and default of integers. Without a row, an integer may have any value of its type.
const RANGES: [(&str, Range); 10] = [
    ("lf.a2a.v1.GetTaskRequest.history_length", Range::AT_LEAST_0),
    ("lf.a2a.v1.ListTaskPushNotificationConfigsRequest.page_size", Range::PAGE_SIZE),
    ("lf.a2a.v1.ListTasksRequest.history_length", Range::AT_LEAST_0),
    ("lf.a2a.v1.ListTasksRequest.page_size", Range::PAGE_SIZE),
    ("lf.a2a.v1.ListTasksResponse.page_size", Range::AT_LEAST_0),
    ("lf.a2a.v1.ListTasksResponse.total_size", Range::AT_LEAST_0),
    ("lf.a2a.v1.SendMessageConfiguration.history_length", Range::AT_LEAST_0),
    ("a2a.v1.GetTaskRequest.history_length", Range::AT_LEAST_0),
    ("a2a.v1.ListTaskPushNotificationConfigRequest.page_size", Range::PAGE_SIZE),
    ("a2a.v1.SendMessageConfiguration.history_length", Range::AT_LEAST_0),
];

struct Range {
    min: i32,
    max: i32,
    default: Option<i32>,
}

impl Range {
    const AT_LEAST_0: Self = Self { min: 0, max: i32::MAX, default: None };

    const PAGE_SIZE: Self = Self { min: *PAGE_SIZES.start(), max: *PAGE_SIZES.end(), default: Some(DEFAULT_PAGE_SIZE) };
}

/// Pattern of texts without control characters.
const NO_CONTROL: &str = r"^[^\u0000-\u001f\u007f-\u009f]*$";

/// Pattern of texts without control characters that are not empty.
const NO_CONTROL_NOT_EMPTY: &str = r"^[^\u0000-\u001f\u007f-\u009f]+$";

/// Pattern of the URLs of webhooks.
const HTTP_URL: &str = r"^[Hh][Tt][Tt][Pp][Ss]?://[^/\\\s\u0000-\u001f\u007f-\u009f][^\s\u0000-\u001f\u007f-\u009f]*$";

/// Patterns of the texts of a webhook (`service/push.rs`).
const PATTERNS: [(&str, &str); 11] = [
    ("lf.a2a.v1.AuthenticationInfo.credentials", NO_CONTROL),
    ("lf.a2a.v1.AuthenticationInfo.scheme", NO_CONTROL),
    ("lf.a2a.v1.TaskPushNotificationConfig.id", NO_CONTROL),
    ("lf.a2a.v1.TaskPushNotificationConfig.token", NO_CONTROL),
    ("lf.a2a.v1.TaskPushNotificationConfig.url", HTTP_URL),
    ("a2a.v1.AuthenticationInfo.credentials", NO_CONTROL),
    ("a2a.v1.AuthenticationInfo.schemes", NO_CONTROL_NOT_EMPTY),
    ("a2a.v1.CreateTaskPushNotificationConfigRequest.config_id", NO_CONTROL),
    ("a2a.v1.PushNotificationConfig.id", NO_CONTROL),
    ("a2a.v1.PushNotificationConfig.token", NO_CONTROL),
    ("a2a.v1.PushNotificationConfig.url", HTTP_URL),
];

/// Fields that the server requires or that have to have a value although the proto file does not say so. The proto file of
/// 0.3 has almost no annotations; its specification requires these members (0.3, 6.4).
const ALSO_REQUIRED: [&str; 5] = [
    "a2a.v1.Message.message_id",
    "a2a.v1.Message.role",
    "a2a.v1.Message.content",
    "a2a.v1.PushNotificationConfig.url",
    "a2a.v1.TaskPushNotificationConfig.push_notification_config",
];

/// Fields that are annotated as REQUIRED although the server does without them.
const NOT_REQUIRED: [&str; 1] = ["a2a.v1.CreateTaskPushNotificationConfigRequest.config_id"];

/// Location of the schemas of a document, which references point to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// `components/schemas` of the document.
    Components,
    /// File of its own for each schema, named by package and message.
    Files,
}

impl Location {
    /// Returns the key of a schema.
    pub(super) fn key(self, package: &str, name: &str) -> String {
        match self {
            Self::Components => name.to_owned(),
            Self::Files => format!("{package}.{name}"),
        }
    }

    /// Returns a reference to the schema with a key.
    pub(super) fn reference(self, key: &str) -> RefBuilder {
        RefBuilder::new().ref_location(match self {
            Self::Components => format!("#/components/schemas/{key}"),
            Self::Files => format!("{key}.json"),
        })
    }
}

/// Schemas of a document. A schema is created when it is first referenced.
pub(super) struct Schemas<'a> {
    /// Schemas by key.
    pub(super) all: BTreeMap<String, RefOr<Schema>>,
    pub(super) location: Location,
    pub(super) comments: &'a Comments,
    required: Option<ExtensionDescriptor>,
    /// Full names of the messages that requests contain.
    requests: BTreeSet<String>,
}

impl<'a> Schemas<'a> {
    /// Prepares the schemas of the messages of a pool.
    pub(super) fn new(pool: &DescriptorPool, comments: &'a Comments, location: Location) -> Self {
        let mut requests = BTreeSet::new();
        let inputs = pool.services().flat_map(|service| service.methods().collect::<Vec<_>>());
        let mut queue: Vec<_> = inputs.map(|method| method.input()).collect();
        while let Some(message) = queue.pop() {
            if requests.insert(message.full_name().to_owned()) {
                queue.extend(message.fields().filter_map(|field| field.kind().as_message().cloned()));
            }
        }
        let required = pool.get_extension_by_name("google.api.field_behavior");
        Self { all: BTreeMap::new(), location, comments, required, requests }
    }

    /// Returns the schema of a message, usually a reference.
    pub(super) fn message(&mut self, message: &MessageDescriptor) -> RefOr<Schema> {
        if message.package_name() == GOOGLE
            && let Some(schema) = self.well_known(message.name())
        {
            return schema;
        }
        let key = self.location.key(message.package_name(), &local_name(message));
        if !self.all.contains_key(&key) {
            // Inserted first, since messages may contain themselves.
            self.all.insert(key.clone(), ObjectBuilder::new().into());
            let schema = self.create(message, &local_name(message), &[]);
            self.all.insert(key.clone(), schema);
        }
        self.location.reference(&key).into()
    }

    fn well_known(&mut self, name: &str) -> Option<RefOr<Schema>> {
        Some(match name {
            "Timestamp" => {
                let format = SchemaFormat::KnownFormat(KnownFormat::DateTime);
                ObjectBuilder::new().schema_type(Type::String).format(Some(format)).into()
            }
            "Duration" => ObjectBuilder::new().schema_type(Type::String).pattern(Some(r"^-?\d+(\.\d{1,9})?s$")).into(),
            "Struct" => self.free_form(),
            "Value" => any(),
            "ListValue" => ArrayBuilder::new().items(any()).into(),
            "Empty" => ObjectBuilder::new().into(),
            _ => return None,
        })
    }

    /// Returns the schema of any JSON object.
    pub(super) fn free_form(&mut self) -> RefOr<Schema> {
        let key = self.location.key(GOOGLE, "Struct");
        let any = AdditionalProperties::FreeForm(true);
        let object = ObjectBuilder::new().description(Some("Any JSON object.")).additional_properties(Some(any));
        self.all.entry(key.clone()).or_insert_with(|| object.into());
        self.location.reference(&key).into()
    }

    /// Creates the schema of a message without some of its fields. A message with oneofs is an alternative of messages, one for
    /// each field of a oneof.
    fn create(&mut self, message: &MessageDescriptor, name: &str, without: &[&str]) -> RefOr<Schema> {
        let description = self.comments.of(message);
        let oneofs: Vec<_> = message.oneofs().filter(|oneof| !oneof.is_synthetic()).collect();
        if oneofs.is_empty() {
            return self.object(message, &[], without).description(description).into();
        }
        let mut alternatives = OneOfBuilder::new().description(description);
        for arms in choices(&oneofs) {
            let mut name = name.to_owned();
            name.extend(arms.iter().map(|arm| upper_camel(arm.name())));
            let key = self.location.key(message.package_name(), &name);
            let descriptions: Vec<_> = arms.iter().filter_map(|arm| self.comments.of(arm)).collect();
            let object = self.object(message, &arms, without).title(Some(&name));
            let object = object.description((!descriptions.is_empty()).then(|| descriptions.join("\n\n")));
            self.all.insert(key.clone(), object.into());
            alternatives = alternatives.item(self.location.reference(&key));
        }
        alternatives.into()
    }

    /// Returns the body of a request whose path carries some of its fields: the schema of the message without them. If those
    /// are optional, it is the message.
    pub(super) fn body(&mut self, message: &MessageDescriptor, name: &str, in_path: &[&str]) -> RefOr<Schema> {
        let is_in_path = |field: &FieldDescriptor| in_path.contains(&field.name());
        let required: Vec<_> = message.fields().filter(|field| is_in_path(field) && self.is_required(field)).collect();
        if required.is_empty() {
            return self.message(message);
        }
        let key = self.location.key(message.package_name(), name);
        let without: Vec<_> = required.iter().map(FieldDescriptor::name).collect();
        let schema = self.create(message, name, &without);
        self.all.insert(key.clone(), schema);
        self.location.reference(&key).into()
    }

    /// Creates the schema of an object with the fields of a message except those in `without`, and of its oneofs those in
    /// `arms`.
    fn object(&mut self, message: &MessageDescriptor, arms: &[FieldDescriptor], without: &[&str]) -> ObjectBuilder {
        let mut object = ObjectBuilder::new();
        for field in message.fields().filter(|field| !without.contains(&field.name())) {
            let is_arm = arms.contains(&field);
            if field.containing_oneof().is_some_and(|oneof| !oneof.is_synthetic()) && !is_arm {
                continue;
            }
            object = object.property(field.json_name(), self.field(&field));
            if is_arm || self.is_required(&field) {
                object = object.required(field.json_name());
            }
        }
        object
    }

    /// Returns the schema of a field with its description.
    pub(super) fn field(&mut self, field: &FieldDescriptor) -> RefOr<Schema> {
        let must_be_set = self.is_required(field) && self.requests.contains(field.parent_message().full_name());
        let min_items = must_be_set.then_some(1);
        let kind = field.kind();
        let schema = match kind.as_message().filter(|_| field.is_map()) {
            Some(entry) => {
                let value = self.value(&entry.map_entry_value_field());
                ObjectBuilder::new().additional_properties(Some(value)).into()
            }
            None if field.is_list() => ArrayBuilder::new().items(self.value(field)).min_items(min_items).into(),
            None => {
                let mut schema = self.value(field);
                if let RefOr::T(Schema::Object(object)) = &mut schema {
                    if must_be_set && matches!(kind, Kind::String) {
                        object.min_length = Some(1);
                    }
                    if matches!(kind, Kind::Bool) && !field.supports_presence() {
                        object.default = Some(json!(false));
                    }
                }
                schema
            }
        };
        let options = field.options();
        let is_deprecated = options.get_field_by_name("deprecated").is_some_and(|value| *value == Value::Bool(true));
        described(schema, self.comments.of(field), is_deprecated)
    }

    /// Returns the schema of a single value of a field.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all other kinds are integers of 64 bits")]
    fn value(&mut self, field: &FieldDescriptor) -> RefOr<Schema> {
        let of_type = |value: Type| ObjectBuilder::new().schema_type(value);
        let format = |format: KnownFormat| Some(SchemaFormat::KnownFormat(format));
        match field.kind() {
            Kind::Message(message) => self.message(&message),
            Kind::Enum(descriptor) => self.enumeration(&descriptor),
            Kind::String => {
                let text = of_type(Type::String).max_length(max_length(field.name()));
                let pattern = PATTERNS.iter().find(|(name, _)| *name == field.full_name()).map(|(_, pattern)| *pattern);
                text.pattern(pattern).into()
            }
            Kind::Bytes => of_type(Type::String).format(format(KnownFormat::Byte)).content_encoding("base64").into(),
            Kind::Bool => of_type(Type::Boolean).into(),
            Kind::Double => of_type(Type::Number).format(format(KnownFormat::Double)).into(),
            Kind::Float => of_type(Type::Number).format(format(KnownFormat::Float)).into(),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => {
                const ANY: Range = Range { min: i32::MIN, max: i32::MAX, default: None };
                let row = RANGES.iter().find(|(name, _)| *name == field.full_name());
                let Range { min, max, default } = row.map_or(&ANY, |(_, range)| range);
                let object = of_type(Type::Integer).format(format(KnownFormat::Int32));
                object.minimum(Some(*min)).maximum(Some(*max)).default(default.map(Into::into)).into()
            }
            _ => of_type(Type::String).format(format(KnownFormat::Int64)).pattern(Some(r"^-?\d+$")).into(),
        }
    }

    /// Returns the schema of an enum: the names of its values, without the one for an unset field.
    fn enumeration(&mut self, descriptor: &EnumDescriptor) -> RefOr<Schema> {
        let key = self.location.key(descriptor.package_name(), descriptor.name());
        if !self.all.contains_key(&key) {
            let values: Vec<_> = descriptor.values().filter(|value| !value.name().ends_with("_UNSPECIFIED")).collect();
            let mut description = self.comments.of(descriptor).unwrap_or_default();
            for value in &values {
                let text = self.comments.of(value).unwrap_or_default();
                let start = if description.is_empty() {
                    ""
                } else if description.contains("\n- ") {
                    "\n"
                } else {
                    "\n\n"
                };
                description.extend([start, "- `", value.name(), "`: ", &text]);
            }
            let names = values.iter().map(|value| value.name().to_owned());
            let object = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(names));
            self.all.insert(key.clone(), object.description(Some(description)).into());
        }
        self.location.reference(&key).into()
    }

    /// Returns true if a field is always sent, and requests have to set it.
    pub(super) fn is_required(&self, field: &FieldDescriptor) -> bool {
        const REQUIRED: Value = Value::EnumNumber(2);
        let name = field.full_name();
        if ALSO_REQUIRED.contains(&name) || NOT_REQUIRED.contains(&name) {
            return ALSO_REQUIRED.contains(&name);
        }
        let Some(extension) = &self.required else { return false };
        let options = field.options();
        options.get_extension(extension).as_list().is_some_and(|list| list.contains(&REQUIRED))
    }
}

/// Schema of any JSON value.
pub(super) fn any() -> RefOr<Schema> {
    ObjectBuilder::new().schema_type(SchemaType::AnyValue).into()
}

/// Adds a description to a schema, and the mark of a deprecated one.
pub(super) fn described(schema: RefOr<Schema>, description: Option<String>, is_deprecated: bool) -> RefOr<Schema> {
    let deprecated = is_deprecated.then_some(Deprecated::True);
    let mut schema = schema;
    match &mut schema {
        RefOr::Ref(reference) => reference.description = description.unwrap_or_default(),
        RefOr::T(Schema::Object(object)) => (object.description, object.deprecated) = (description, deprecated),
        RefOr::T(Schema::Array(array)) => (array.description, array.deprecated) = (description, deprecated),
        RefOr::T(_) => {}
    }
    schema
}

/// Returns the name of a message within its package. A nested one has the names of its parents in front.
fn local_name(message: &MessageDescriptor) -> String {
    let name = message.full_name();
    let prefix = message.package_name();
    name.strip_prefix(prefix).map_or(name, |name| name.trim_start_matches('.')).replace('.', "")
}

/// Returns all combinations of one field for each oneof.
fn choices(oneofs: &[OneofDescriptor]) -> Vec<Vec<FieldDescriptor>> {
    oneofs.iter().fold(vec![Vec::new()], |combinations, oneof| {
        let extended = |chosen: Vec<FieldDescriptor>| {
            oneof.fields().map(move |field| [chosen.clone(), vec![field]].concat()).collect::<Vec<_>>()
        };
        combinations.into_iter().flat_map(extended).collect()
    })
}

/// Converts the name of a field to upper camel case: `status_update` to `StatusUpdate`.
pub(super) fn upper_camel(name: &str) -> String {
    name.split('_')
        .flat_map(|word| {
            let mut letters = word.chars();
            letters.next().into_iter().flat_map(char::to_uppercase).chain(letters)
        })
        .collect()
}

/// Returns the maximum length of a text by the rules of `build/check.rs`. The limits are bytes.
fn max_length(name: &str) -> Option<usize> {
    match name {
        "extensions" | "uri" => Some(MAX_URI_BYTES),
        "id" | "tenant" => Some(MAX_ID_BYTES),
        _ if name.ends_with("_id") || name.ends_with("_ids") => Some(MAX_ID_BYTES),
        _ => None,
    }
}
