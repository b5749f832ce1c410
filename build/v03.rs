//! Code generation for protocol 0.3: conversions between the messages of both versions, and the JSON of 0.3 JSON-RPC,
//! for messages that correspond to 1.0 field by field. All others are in `src/protocol/v03/message.rs` and `src/protocol/v03/json.rs`.

#![expect(clippy::wildcard_enum_match_arm, reason = "most field kinds are converted alike")]

use heck::ToLowerCamelCase as _;
use proc_macro2::{Literal, TokenStream};
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use quote::quote;

use super::{
    exceptions::LENIENT,
    message::{Place, enum_type, ident, is_set, place, rust_module, rust_type},
    schema::Schema,
    v03_json::V03_MESSAGES,
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
/// message of the other version. The functions are in `src/protocol/v03/message.rs`.
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

    /// Generates `json::Members` and `V03Json`, which read 0.3 JSON, and `Write` for the messages in `V03_MESSAGES`.
    pub(crate) fn v03_json(&self) -> Result<TokenStream> {
        let mut code = TokenStream::new();
        for (name, v03_name, kind, members) in V03_MESSAGES {
            let name = format!("lf.a2a.v1.{name}");
            let message = self.pool.get_message_by_name(&name).ok_or_else(|| format!("{name}: no such message"))?;
            let rust = rust_type(&message);
            let (mut names, mut numbers, mut reads, mut writes) = (vec![], vec![], vec![], vec![]);
            if !kind.is_empty() {
                names.push(quote!((63, "kind")));
                numbers.push(quote!("kind" => 63));
                // Other objects are known by their place, whatever their `kind`.
                let is_checked = v03_name == "Message";
                let check = quote!(63 => map.next_value_seed(Kind(#kind))?);
                reads.push(if is_checked {
                    check
                } else {
                    quote!(63 => { map.next_value::<serde::de::IgnoredAny>()?; })
                });
                writes.push(quote!(map.serialize_entry("kind", #kind)?;));
            }
            for member in members.split_whitespace() {
                let (member, always) = member.strip_suffix('!').map_or((member, false), |member| (member, true));
                let (field, spellings) = member.split_once('=').unwrap_or((member, member));
                let field = message.get_field_by_name(field).ok_or_else(|| format!("{name}: no field {field}"))?;
                let number = Literal::u32_unsuffixed(field.number());
                let spellings = spellings.split('|').flat_map(|name| [name.to_lower_camel_case(), name.to_owned()]);
                let mut spellings: Vec<_> = spellings.collect();
                spellings.dedup();
                let first = &spellings[0];
                names.push(quote!((#number, #first)));
                numbers.push(quote!(#(#spellings)|* => #number));
                reads.extend(read(&field).map(|read| quote!(#number => #read)));
                writes.push(write(&field, first, always));
            }
            code.extend(quote! {
                impl Members for DirectDraft<#rust> {
                    const NAME: &'static str = #v03_name;
                    const FIELDS: &'static [(u32, &'static str)] = &[#(#names),*];

                    fn field(name: &str) -> Option<u32> {
                        Some(match name { #(#numbers,)* _ => return None })
                    }

                    fn read<'de, A: MapAccess<'de>>(&mut self, field: u32, map: &mut A) -> Result<(), A::Error> {
                        match field { #(#reads,)* _ => self.message.read(field, map)? }
                        Ok(())
                    }
                }

                impl V03Json for #rust {
                    type Draft = DirectDraft<Self>;

                    fn finish<E: Error>(draft: DirectDraft<Self>) -> Result<Self, E> {
                        Ok(draft.message)
                    }
                }

                impl Serialize for Write<'_, #rust> {
                    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                        let (message, mut map) = (self.0, serializer.serialize_map(None)?);
                        #(#writes)*
                        map.end()
                    }
                }
            });
        }
        Ok(code)
    }
}

/// Generates the statement that reads a field that differs from ProtoJSON: enums, and messages of the protocol.
fn read(field: &FieldDescriptor) -> Option<TokenStream> {
    let (name, module) = (ident(field.name()), rust_module(field.parent_message()));
    let value = match field.kind() {
        Kind::Enum(descriptor) => {
            let descriptor = enum_type(&descriptor);
            let is_lenient = LENIENT.iter().any(|row| row.0 == field.full_name());
            let reader = if is_lenient { quote!(lenient_enum_value) } else { quote!(enum_value) };
            quote!(#reader::<#module::#descriptor, A>(map)?)
        }
        _ if !is_protocol_message(field) => return None,
        _ if field.is_list() => quote!(nested_list(map)?),
        _ => quote!(nested(map)?),
    };
    Some(quote!(self.message.#name = #value))
}

/// Generates the statements that write a field, or that write it only if it is set.
fn write(field: &FieldDescriptor, name: &str, always: bool) -> TokenStream {
    let (member, module) = (ident(field.name()), rust_module(field.parent_message()));
    let value = match field.kind() {
        Kind::Enum(descriptor) => {
            let descriptor = enum_type(&descriptor);
            quote!(#module::#descriptor::v03_name(*value))
        }
        _ if !is_protocol_message(field) => quote!(value),
        _ if field.is_list() => quote!(&Array(value)),
        _ => quote!(&Write(value)),
    };
    let (entry, set) = (quote!(map.serialize_entry(#name, #value)?;), is_set(field));
    match place(field) {
        Place::Option if always => {
            quote!(let empty = Default::default(); let value = message.#member.as_ref().unwrap_or(&empty); #entry)
        }
        Place::Option => quote!(if let Some(value) = &message.#member { #entry }),
        _ if always => quote!(let value = &message.#member; #entry),
        _ => quote!(let value = &message.#member; if #set { #entry }),
    }
}

/// Returns whether the type of a field is a message of the protocol, not of `google.protobuf`.
fn is_protocol_message(field: &FieldDescriptor) -> bool {
    matches!(field.kind(), Kind::Message(inner) if inner.package_name() == field.parent_message().package_name())
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
        values.push(match (place(&field), place(&other)) {
            (Place::Arm(to, to_arm), Place::Arm(from, from_arm)) => {
                arms.push(quote!(#source_module::#from_arm(value) => #target_module::#to_arm(value.into())));
                oneof = Some((to, from));
                continue;
            }
            (Place::Many, _) if is_protocol_message(&field) => quote!(#name: convert_all(message.#value)),
            _ if is_protocol_message(&field) => quote!(#name: message.#value.map(Into::into)),
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
