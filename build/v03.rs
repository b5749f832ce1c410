//! Code generation for protocol 0.3: conversions of messages that correspond to 1.0 field by field. All others are
//! converted in `src/v03/message.rs`.

use proc_macro2::TokenStream;
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use quote::quote;

use super::{
    message::{Place, ident, place, rust_module, rust_type},
    schema::Schema,
};
use crate::Result;

/// Messages that both versions have, and whose fields correspond by their JSON name.
const CONVERTED: [&str; 9] = [
    "Artifact",
    "Message",
    "SendMessageRequest",
    "SendMessageResponse",
    "StreamResponse",
    "Task",
    "TaskArtifactUpdateEvent",
    "TaskStatus",
    "TaskStatusUpdateEvent",
];

/// Fields without a corresponding field of the same meaning, and the expression for their value. In it, `message` is the
/// message of the other version. The functions are in `src/v03/message.rs`.
const DERIVED: [(&str, &str); 6] = [
    ("a2a.v1.Message.content", "convert_all(message.parts)"),
    ("lf.a2a.v1.Message.parts", "convert_all(message.content)"),
    ("lf.a2a.v1.Message.reference_task_ids", "Default::default()"),
    ("lf.a2a.v1.SendMessageRequest.tenant", "Default::default()"),
    ("lf.a2a.v1.TaskStatus.message", "status_message(message.update)"),
    ("a2a.v1.TaskStatusUpdateEvent.final", "is_final(&message)"),
];

impl Schema {
    /// Generates `From` in both directions for the messages in `CONVERTED`.
    pub(crate) fn conversions(&self) -> Result<TokenStream> {
        let message = |name: String| self.pool.get_message_by_name(&name).ok_or(format!("{name}: no such message"));
        let mut code = TokenStream::new();
        for name in CONVERTED {
            let (old, new) = (message(format!("a2a.v1.{name}"))?, message(format!("lf.a2a.v1.{name}"))?);
            code.extend([conversion(&old, &new)?, conversion(&new, &old)?]);
        }
        Ok(code)
    }
}

fn derived(field: &FieldDescriptor) -> Option<&'static str> {
    DERIVED.iter().find(|row| row.0 == field.full_name()).map(|row| row.1)
}

/// Generates `impl From<from> for to`. Fails if a field of either message has no counterpart and is not in `DERIVED`.
fn conversion(from: &MessageDescriptor, to: &MessageDescriptor) -> Result<TokenStream> {
    let counterpart = |field: &FieldDescriptor, other: &MessageDescriptor| {
        let counterpart = other.get_field_by_json_name(field.json_name());
        counterpart.ok_or_else(|| format!("{field:?}: no counterpart; add it to build/v03.rs"))
    };
    for field in from.fields().filter(|field| derived(field).is_none()) {
        counterpart(&field, to)?;
    }
    let (source, target) = (rust_type(from), rust_type(to));
    let (source_module, target_module) = (rust_module(from), rust_module(to));
    // Derived fields are first, since they may borrow the message before its fields are moved.
    let (mut first, mut values, mut arms, mut oneof) = (Vec::new(), Vec::new(), Vec::new(), None);
    for field in to.fields() {
        let name = ident(field.name());
        if let Some(expression) = derived(&field) {
            let value: TokenStream = expression.parse()?;
            first.push(quote!(#name: #value));
            continue;
        }
        let other = counterpart(&field, from)?;
        let value = ident(other.name());
        let is_converted = matches!(field.kind(), Kind::Message(inner) if inner.package_name() == to.package_name());
        values.push(match (place(&field), place(&other)) {
            (Place::Arm(to, to_arm), Place::Arm(from, from_arm)) => {
                arms.push(quote!(#source_module::#from_arm(value) => #target_module::#to_arm(value.into())));
                oneof = Some((to, from));
                continue;
            }
            (Place::Many, _) if is_converted => quote!(#name: convert_all(message.#value)),
            _ if is_converted => quote!(#name: message.#value.map(Into::into)),
            _ => quote!(#name: message.#value),
        });
    }
    let oneof = oneof.map(|(to, from)| quote!(#to: message.#from.map(|value| match value { #(#arms),* })));
    values.extend(oneof);
    Ok(quote! {
        impl From<#source> for #target {
            fn from(message: #source) -> Self {
                Self { #(#first,)* #(#values,)* }
            }
        }
    })
}
