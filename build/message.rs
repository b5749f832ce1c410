//! Code generation for messages: ProtoJSON (`json::Members`, `json::Message`, serde) and bounds on the decoded size
//! (`json::Measure`). `check.rs` generates their validation.
//!
//! No generator on crates.io covers the protocol. pbjson 0.9 rejects null, drops `{"data": null}`, omits empty REQUIRED
//! members, and fails to print an unknown enum number, so that one such number in a store fails every reply that
//! contains it. `tests/oracle` compares with pbjson, and shows when these differences disappear.

#![expect(clippy::wildcard_enum_match_arm, reason = "unsupported field kinds are rejected in one place")]

use heck::{ToSnakeCase as _, ToUpperCamelCase as _};
use proc_macro2::{Ident, Literal, TokenStream};
use prost_reflect::{EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor, OneofDescriptor};
use quote::{format_ident, quote};

use super::{
    check::{check, choice},
    exceptions::{CHOICES, EXTRA_NAMES, EXTRA_VALUES, LENIENT},
    schema::{PACKAGES, Schema, WELL_KNOWN_MODULE},
};
use crate::Result;

/// Representation of a field in the struct that prost generates.
pub(super) enum Place {
    /// The bare value; an unset field has its default.
    Plain,
    /// An `Option`: messages and `optional` scalars.
    Option,
    /// A `Vec` or a map.
    Many,
    /// A variant of a oneof: the field that holds the oneof, and the path of the variant.
    Arm(Ident, TokenStream),
}

impl Schema {
    /// Generates `impl json::Members`, `json::Message`, `json::Measure` and `Validate`, and serde's traits on top of them.
    pub(crate) fn message(&self, message: &MessageDescriptor) -> Result<TokenStream> {
        let (name, rust) = (message.name(), rust_type(message));
        let (mut fields, mut numbers, mut reads) = (vec![], vec![], vec![]);
        let (mut writes, mut checks, mut nested) = (vec![], vec![], vec![]);
        for field in message.fields() {
            let place = place(&field);
            supported(&field, &place)?;
            let (number, json, proto) = (Literal::u32_unsuffixed(field.number()), field.json_name(), field.name());
            let other = (EXTRA_NAMES.iter().filter(|extra| extra.0 == field.full_name())).map(|extra| extra.1);
            let names = Some(json).into_iter().chain((proto != json).then_some(proto)).chain(other);
            numbers.push(quote!(#(#names)|* => #number));
            fields.push(quote!((#number, #json)));
            let read = read(&field, &place);
            reads.push(quote!(#number => #read));
            let required = self.is_required(&field);
            writes.push(write(&field, &place, required));
            checks.push(check(&field, &place, required));
            nested.extend(measured(&field).map(|kind| quote!(#number => #kind)));
        }
        let choices: Vec<_> = message.oneofs().filter(|oneof| CHOICES.contains(&oneof.full_name())).collect();
        checks.extend(choices.iter().map(choice));
        // Requests of 0.3 are checked later, by their names in JSON-RPC.
        let missing = choices.iter().filter(|_| message.full_name() == "lf.a2a.v1.Part").map(|oneof| {
            let (name, arms) = (ident(oneof.name()), arms(oneof));
            quote!(fn missing_content(&self) -> Option<&'static str> { self.#name.is_none().then_some(#arms) })
        });
        Ok(quote! {
            impl json::Members for #rust {
                const NAME: &'static str = #name;
                const FIELDS: &'static [(u32, &'static str)] = &[#(#fields),*];

                fn field(name: &str) -> Option<u32> {
                    Some(match name { #(#numbers,)* _ => return None })
                }

                fn read<'de, A: serde::de::MapAccess<'de>>(&mut self, field: u32, map: &mut A) -> Result<(), A::Error> {
                    match field { #(#reads,)* _ => {} }
                    Ok(())
                }

                #(#missing)*
            }

            impl json::Message for #rust {
                fn write<M: serde::ser::SerializeStruct>(&self, members: &mut M) -> Result<(), M::Error> {
                    #(#writes)*
                    Ok(())
                }
            }

            impl json::Measure for #rust {
                fn field(number: u32) -> Option<json::Nested> {
                    Some(match number { #(#nested,)* _ => return None })
                }
            }

            impl Validate for #rust {
                fn validate(&self, at: &At<'_>, found: &mut Violations) { #(#checks)* }
            }

            impl serde::Serialize for #rust {
                fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    json::write(self, serializer)
                }
            }

            impl<'de> serde::Deserialize<'de> for #rust {
                fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    json::read(deserializer)
                }
            }
        })
    }
}

/// Generates `impl json::Enum`.
pub(crate) fn numbers(descriptor: &EnumDescriptor) -> TokenStream {
    let (name, rust) = (descriptor.name(), enum_type(descriptor));
    let extra = EXTRA_VALUES.iter().filter(|extra| extra.0 == descriptor.full_name());
    let names = descriptor.values().map(|value| value.name().to_owned());
    let values = names.filter(|name| !name.ends_with("_UNSPECIFIED"));
    let extra = extra.map(|(_, name, number)| {
        let number = Literal::i32_unsuffixed(*number);
        quote!(#name => Some(#number))
    });
    quote! {
        impl json::Enum for #rust {
            const NAME: &'static str = #name;
            const VALUES: &'static [&'static str] = &[#(#values),*];

            fn name(number: i32) -> Option<&'static str> {
                Self::try_from(number).ok().map(|value| value.as_str_name())
            }

            fn number(name: &str) -> Option<i32> {
                match name { #(#extra,)* _ => Self::from_str_name(name).map(|value| value as i32) }
            }
        }
    }
}

/// Returns the Rust name of a field: a raw identifier for a keyword, such as `final` in protocol 0.3.
pub(super) fn ident(name: &str) -> Ident {
    syn::parse_str(name).unwrap_or_else(|_| format_ident!("r#{name}"))
}

pub(crate) fn rust_type(message: &MessageDescriptor) -> TokenStream {
    let (module, name) = (rust_module(message), format_ident!("{}", message.name().to_upper_camel_case()));
    quote!(#module::#name)
}

pub(super) fn rust_module(message: &MessageDescriptor) -> TokenStream {
    let package = PACKAGES.iter().find(|package| package.name == message.package_name());
    let module = package.map_or(WELL_KNOWN_MODULE, |package| package.module);
    let module = module.split("::").map(|segment| format_ident!("{segment}"));
    quote!(#(#module)::*)
}

pub(super) fn enum_type(descriptor: &EnumDescriptor) -> Ident {
    format_ident!("{}", descriptor.name().to_upper_camel_case())
}

/// Rejects a field of a kind that the generators do not implement: the build fails instead of generating wrong code.
fn supported(field: &FieldDescriptor, place: &Place) -> Result<()> {
    let kind = field.kind();
    let entry = kind.as_message().filter(|_| field.is_map());
    let value = entry.map(|entry| entry.map_entry_value_field().kind());
    let fits = match value.as_ref().unwrap_or(&kind) {
        Kind::Message(message) => message.parent_message().is_none(),
        Kind::String => true,
        Kind::Bool | Kind::Int32 | Kind::Bytes => !matches!(place, Place::Many),
        Kind::Enum(descriptor) => matches!(place, Place::Plain) && descriptor.parent_message().is_none(),
        _ => false,
    };
    // `json::read` tracks the members already read as one bit each of a `u64`.
    if fits && field.number() < 64 {
        Ok(())
    } else {
        Err(format!("{field:?}: not supported; extend build/message.rs and build/check.rs").into())
    }
}

pub(super) fn place(field: &FieldDescriptor) -> Place {
    match field.containing_oneof().filter(|oneof| !oneof.is_synthetic()) {
        Some(oneof) => {
            let module = format_ident!("{}", field.parent_message().name().to_snake_case());
            let choice = format_ident!("{}", oneof.name().to_upper_camel_case());
            let variant = format_ident!("{}", field.name().to_upper_camel_case());
            Place::Arm(ident(oneof.name()), quote!(#module::#choice::#variant))
        }
        None if field.is_list() || field.is_map() => Place::Many,
        None if field.supports_presence() => Place::Option,
        None => Place::Plain,
    }
}

/// Returns the JSON names of the arms of a oneof, separated by commas, for error messages.
pub(super) fn arms(oneof: &OneofDescriptor) -> String {
    let names: Vec<_> = oneof.fields().map(|field| field.json_name().to_owned()).collect();
    names.join(", ")
}

fn read(field: &FieldDescriptor, place: &Place) -> TokenStream {
    let ident = ident(field.name());
    let lenient = LENIENT.iter().find(|row| row.0 == field.full_name()).map(|row| format_ident!("{}", row.1));
    let value = match field.kind() {
        Kind::Enum(descriptor) => {
            let (rust, reader) = (enum_type(&descriptor), lenient.unwrap_or_else(|| format_ident!("name")));
            quote!(json::#reader::<#rust, A>(map)?)
        }
        _ if lenient.is_some() => quote!(json::#lenient(map)?),
        Kind::Bytes => quote!(json::bytes(map)?),
        Kind::Int32 => quote!(json::number(map)?),
        Kind::Message(message) if message.full_name() == "google.protobuf.Value" => quote!(json::value(map)?),
        _ => quote!(json::any(map)?),
    };
    match place {
        Place::Plain | Place::Many => quote!(self.#ident = #value.unwrap_or_default()),
        Place::Option => quote!(self.#ident = #value),
        Place::Arm(oneof, variant) => {
            let arms = field.containing_oneof().map(|oneof| arms(&oneof)).unwrap_or_default();
            quote!(json::arm(&mut self.#oneof, #arms, #value.map(#variant))?)
        }
    }
}

/// Generates the expression that serde serializes for the variable `value`, a reference to a field.
pub(super) fn value(field: &FieldDescriptor) -> TokenStream {
    match field.kind() {
        Kind::Enum(descriptor) => {
            let rust = enum_type(&descriptor);
            quote!(&json::Name::<#rust>::from(*value))
        }
        Kind::Bytes => quote!(&json::Base64(value)),
        _ => quote!(value),
    }
}

/// Generates the test of whether the variable `value` differs from the default of its field, which has no presence bit.
pub(super) fn is_set(field: &FieldDescriptor) -> TokenStream {
    match field.kind() {
        Kind::Enum(_) | Kind::Int32 => quote!(*value != 0),
        Kind::Bool => quote!(*value),
        _ => quote!(!value.is_empty()),
    }
}

/// Writes a field that is set or REQUIRED: "`nextPageToken` MUST always be present" (3.1.4).
fn write(field: &FieldDescriptor, place: &Place, required: bool) -> TokenStream {
    let (name, ident) = (field.json_name(), ident(field.name()));
    let (set, value) = (is_set(field), value(field));
    let entry = quote!(members.serialize_field(#name, #value)?;);
    match place {
        Place::Option => quote!(if let Some(value) = &self.#ident { #entry }),
        Place::Arm(oneof, variant) => quote!(if let Some(#variant(value)) = &self.#oneof { #entry }),
        _ if required => quote! { let value = &self.#ident; #entry },
        _ => quote! { let value = &self.#ident; if #set { #entry } },
    }
}

/// Generates the `json::Nested` kind of a field whose decoded value takes more memory than its encoded bytes.
fn measured(field: &FieldDescriptor) -> Option<TokenStream> {
    match field.kind() {
        // No request has such a field.
        Kind::Message(_) if field.is_map() => Some(quote!(json::Nested::entry())),
        Kind::Message(message) if message.full_name() == "google.protobuf.Struct" => {
            let rust = rust_type(&message);
            Some(quote!(json::Nested::object::<#rust>()))
        }
        Kind::Message(message) => {
            let rust = rust_type(&message);
            Some(quote!(json::Nested::message::<#rust>()))
        }
        Kind::String if field.is_list() => Some(quote!(json::Nested::text())),
        _ => None,
    }
}
