//! Descriptors of the proto files: their packages, messages, fields and annotations.

use prost_reflect::{DescriptorPool, ExtensionDescriptor, FieldDescriptor, MessageDescriptor, Value};

use super::{
    exceptions::{CHOICES, EXTRA_NAMES, EXTRA_VALUES, KEPT, SHARED},
    extra_bindings::EXTRA_BINDINGS,
};
use crate::Result;

/// A package of `proto/`.
pub(crate) struct Package {
    pub(crate) name: &'static str,
    /// Its proto file, which must define exactly one service.
    pub(crate) file: &'static str,
    /// Rust module of its messages.
    pub(crate) module: &'static str,
}

/// The packages of protocol 1.0 and 0.3.
pub(crate) const PACKAGES: [Package; 2] = [
    Package { name: "lf.a2a.v1", file: "lf/a2a/v1/a2a.proto", module: "crate::protocol::messages::v1" },
    Package { name: "a2a.v1", file: "a2a/v1/a2a.proto", module: "crate::protocol::messages::v03" },
];

/// Files of `google.protobuf` that the packages import, and their Rust module.
pub(crate) const WELL_KNOWN: [&str; 3] =
    ["google/protobuf/empty.proto", "google/protobuf/struct.proto", "google/protobuf/timestamp.proto"];
pub(crate) const WELL_KNOWN_MODULE: &str = "crate::protocol::json::wkt";

/// The descriptors, and the two annotations from which code is generated.
pub(crate) struct Schema {
    pub(crate) pool: DescriptorPool,
    pub(crate) http: ExtensionDescriptor,
    field_behavior: ExtensionDescriptor,
}

impl Schema {
    pub(crate) fn new(descriptors: &[u8]) -> Result<Self> {
        // prost's own descriptors drop extensions, and so `google.api.http`.
        let pool = DescriptorPool::decode(descriptors)?;
        let extension = |name: &str| {
            pool.get_extension_by_name(name).ok_or(format!("{name}: extension not found; import its proto file"))
        };
        let (http, field_behavior) = (extension("google.api.http")?, extension("google.api.field_behavior")?);
        let schema = Self { pool, http, field_behavior };
        schema.check_exceptions()?;
        Ok(schema)
    }

    pub(crate) fn is_required(&self, field: &FieldDescriptor) -> bool {
        const REQUIRED: Value = Value::EnumNumber(2);
        let options = field.options();
        let behavior = options.get_extension(&self.field_behavior);
        behavior.as_list().is_some_and(|list| list.contains(&REQUIRED))
    }

    /// Rejects exceptions for names that no proto file defines: they would have no effect, silently.
    fn check_exceptions(&self) -> Result<()> {
        let methods: Vec<_> = self.pool.services().flat_map(|service| service.methods().collect::<Vec<_>>()).collect();
        let messages: Vec<_> = self.pool.all_messages().collect();
        let is_message = |name: &str| messages.iter().any(|message| message.full_name() == name);
        let is_method = |name: &str| methods.iter().any(|method| method.full_name() == name);
        let has_field =
            |message: &MessageDescriptor, name: &str| message.fields().any(|field| field.full_name() == name);
        let has_oneof =
            |message: &MessageDescriptor, name: &str| message.oneofs().any(|oneof| oneof.full_name() == name);
        let is_field = |name: &str| messages.iter().any(|message| has_field(message, name));
        let is_oneof = |name: &str| messages.iter().any(|message| has_oneof(message, name));
        let is_enum = |name: &str| self.pool.get_enum_by_name(name).is_some();
        let unknown = [
            SHARED.iter().map(|row| row.0).find(|name| !is_message(name)),
            KEPT.into_iter().find(|name| !is_message(name)),
            EXTRA_BINDINGS.iter().map(|row| row.0).find(|name| !is_method(name)),
            EXTRA_NAMES.iter().map(|row| row.0).find(|name| !is_field(name)),
            EXTRA_VALUES.iter().map(|row| row.0).find(|name| !is_enum(name)),
            CHOICES.into_iter().find(|name| !is_oneof(name)),
        ];
        match unknown.into_iter().flatten().next() {
            Some(name) => Err(format!("{name}: listed in build/, but no proto file defines it").into()),
            None => Ok(()),
        }
    }
}
