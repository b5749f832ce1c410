//! What a message is in ProtoJSON, and what is checked of it.
//!
//! We write this ourselves because no generator on crates.io does it as the protocol needs: pbjson 0.9 refuses null,
//! drops `{"data": null}`, leaves out REQUIRED members that are empty, and cannot print an enum number that it does not
//! know, so that one such number in a store fails every reply that it is in. `tests/oracle` watches whether it does yet.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "kinds of fields that the proto files lack are refused in one place"
)]

use heck::{ToSnakeCase as _, ToUpperCamelCase as _};
use proc_macro2::{Ident, Literal, TokenStream};
use prost_reflect::{EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor, OneofDescriptor};
use quote::{format_ident, quote};

use super::schema::{CHOICES, EXTRA_NAMES, EXTRA_VALUES, PACKAGES, Schema, WELL_KNOWN_MODULE};
use crate::Result;

/// How a field is held by the struct that prost makes.
pub(super) enum Place {
    /// As it is; not set is its default.
    Plain,
    /// In an `Option`: messages, and what the proto calls `optional`.
    Option,
    /// In a `Vec` or a map.
    Many,
    /// As an arm of a oneof: the field that holds it, and its variant.
    Arm(Ident, TokenStream),
}

impl Schema {
    /// `impl json::Members` and `json::Message`, `impl Check`, and serde's traits on top of the first.
    pub(crate) fn message(&self, message: &MessageDescriptor) -> Result<TokenStream> {
        let (name, rust) = (message.name(), rust_type(message));
        let (mut fields, mut numbers, mut reads) = (vec![], vec![], vec![]);
        let (mut writes, mut checks, mut nested) = (vec![], vec![], vec![]);
        for field in message.fields() {
            let place = place(&field);
            supported(&field, &place)?;
            let (number, json, proto) = (Literal::u32_unsuffixed(field.number()), field.json_name(), field.name());
            let other = (EXTRA_NAMES.iter().filter(|it| it.0 == field.full_name())).map(|it| it.1);
            let names = Some(json).into_iter().chain((proto != json).then_some(proto)).chain(other);
            numbers.push(quote!(#(#names)|* => #number));
            fields.push(quote!((#number, #json)));
            let read = read(&field, &place);
            reads.push(quote!(#number => #read));
            let required = self.is_required(&field);
            writes.push(write(&field, &place, required));
            checks.push(check(&field, &place, required));
            nested.extend(measured(&field).map(|it| quote!(#number => #it)));
        }
        checks.extend(message.oneofs().filter(|it| CHOICES.contains(&it.full_name())).map(|it| choice(&it)));
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

            impl Check for #rust {
                fn check(&self, at: &At<'_>, found: &mut Violations) { #(#checks)* }
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

/// `impl json::Enum`.
pub(crate) fn numbers(it: &EnumDescriptor) -> TokenStream {
    let (name, rust) = (it.name(), enum_type(it));
    let extra = EXTRA_VALUES.iter().filter(|extra| extra.0 == it.full_name());
    let values = it.values().map(|value| value.name().to_owned()).filter(|name| !name.ends_with("_UNSPECIFIED"));
    let extra = extra.map(|(_, name, number)| {
        let number = Literal::i32_unsuffixed(*number);
        quote!(#name => Some(#number))
    });
    quote! {
        impl json::Enum for #rust {
            const NAME: &'static str = #name;
            const VALUES: &'static [&'static str] = &[#(#values),*];

            fn name(number: i32) -> Option<&'static str> {
                Self::try_from(number).ok().map(|it| it.as_str_name())
            }

            fn number(name: &str) -> Option<i32> {
                match name { #(#extra,)* _ => Self::from_str_name(name).map(|it| it as i32) }
            }
        }
    }
}

/// A field's name in Rust, which is raw where it is a keyword: `final` in protocol 0.3.
fn ident(name: &str) -> Ident {
    syn::parse_str(name).unwrap_or_else(|_| format_ident!("r#{name}"))
}

pub(crate) fn rust_type(message: &MessageDescriptor) -> TokenStream {
    let name = format_ident!("{}", message.name().to_upper_camel_case());
    let package = PACKAGES.iter().find(|it| it.name == message.package_name());
    let module = package.map_or(WELL_KNOWN_MODULE, |it| it.module).split("::").map(|it| format_ident!("{it}"));
    quote!(#(#module::)*#name)
}

fn enum_type(it: &EnumDescriptor) -> Ident {
    format_ident!("{}", it.name().to_upper_camel_case())
}

/// Refuses what the proto files do not use, rather than doing it wrongly one day.
fn supported(field: &FieldDescriptor, place: &Place) -> Result<()> {
    let kind = field.kind();
    let value = kind.as_message().filter(|_| field.is_map()).map(|it| it.map_entry_value_field().kind());
    let fits = match value.as_ref().unwrap_or(&kind) {
        Kind::Message(it) => it.parent_message().is_none(),
        Kind::String => true,
        Kind::Bool | Kind::Int32 | Kind::Bytes => !matches!(place, Place::Many),
        Kind::Enum(it) => matches!(place, Place::Plain) && it.parent_message().is_none(),
        _ => false,
    };
    // The number is a bit of the set of members that were seen.
    if fits && field.number() < 64 { Ok(()) } else { Err(format!("no ProtoJSON for {field:?}").into()) }
}

pub(super) fn place(field: &FieldDescriptor) -> Place {
    match field.containing_oneof().filter(|it| !it.is_synthetic()) {
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

/// The arms of a oneof, as an error says them.
fn arms(oneof: &OneofDescriptor) -> String {
    oneof.fields().map(|it| it.json_name().to_owned()).collect::<Vec<_>>().join(", ")
}

fn read(field: &FieldDescriptor, place: &Place) -> TokenStream {
    let ident = ident(field.name());
    let value = match field.kind() {
        Kind::Enum(it) => {
            let rust = enum_type(&it);
            quote!(json::name::<#rust, A>(map)?)
        }
        Kind::Bytes => quote!(json::bytes(map)?),
        Kind::Int32 => quote!(json::number(map)?),
        Kind::Message(it) if it.full_name() == "google.protobuf.Value" => quote!(json::value(map)?),
        _ => quote!(json::any(map)?),
    };
    match place {
        Place::Plain | Place::Many => quote!(self.#ident = #value.unwrap_or_default()),
        Place::Option => quote!(self.#ident = #value),
        Place::Arm(oneof, variant) => {
            let arms = field.containing_oneof().map(|it| arms(&it)).unwrap_or_default();
            quote!(json::arm(&mut self.#oneof, #arms, #value.map(#variant))?)
        }
    }
}

/// A field `it`, as serde writes it.
pub(super) fn value(field: &FieldDescriptor) -> TokenStream {
    match field.kind() {
        Kind::Enum(it) => {
            let rust = enum_type(&it);
            quote!(&json::Name::<#rust>::from(*it))
        }
        Kind::Bytes => quote!(&json::Base64(it)),
        _ => quote!(it),
    }
}

/// Whether a field `it` is set that has no other way to say so.
pub(super) fn is_set(field: &FieldDescriptor) -> TokenStream {
    match field.kind() {
        Kind::Enum(_) | Kind::Int32 => quote!(*it != 0),
        Kind::Bool => quote!(*it),
        _ => quote!(!it.is_empty()),
    }
}

/// Writes a field that is set, or that is REQUIRED: "`nextPageToken` MUST always be present" (3.1.4).
fn write(field: &FieldDescriptor, place: &Place, required: bool) -> TokenStream {
    let (name, ident) = (field.json_name(), ident(field.name()));
    let (set, value) = (is_set(field), value(field));
    let entry = quote!(members.serialize_field(#name, #value)?;);
    match place {
        Place::Option => quote!(if let Some(it) = &self.#ident { #entry }),
        Place::Arm(oneof, variant) => quote!(if let Some(#variant(it)) = &self.#oneof { #entry }),
        _ if required => quote! { let it = &self.#ident; #entry },
        _ => quote! { let it = &self.#ident; if #set { #entry } },
    }
}

/// Finds a REQUIRED field that is not set and an enum number that does not exist, here and in the messages within.
fn check(field: &FieldDescriptor, place: &Place, required: bool) -> TokenStream {
    let (name, ident, kind) = (field.json_name(), ident(field.name()), field.kind());
    let here = quote!(At::Field(at, #name));
    let unset = match (place, &kind) {
        (Place::Many, _) | (Place::Plain, Kind::String | Kind::Bytes) => Some(quote!(self.#ident.is_empty())),
        (Place::Option, _) => Some(quote!(self.#ident.is_none())),
        (Place::Plain, Kind::Enum(_)) => Some(quote!(self.#ident == 0)),
        // A number that is zero and one that is not set look the same.
        _ => None,
    };
    let unset = unset.filter(|_| required).map(|unset| quote!(if #unset { found.push(Violation::unset(&#here)) }));
    let package = field.parent_message().package_name().to_owned();
    let ours = |kind: &Kind| matches!(kind, Kind::Message(it) if it.package_name() == package);
    // Stops at the maximum number of violations that are reported.
    let each = |pattern: TokenStream, all: TokenStream, check: TokenStream| quote!(for #pattern in #all { if found.is_full() { break; } #check });
    let inner = match (&kind, place) {
        (Kind::String, _) => length_check(field.name()).and_then(|check| {
            let ident = quote!(self.#ident);
            Some(match place {
                Place::Plain => quote!(#check(&#ident, &#here, found);),
                Place::Option => quote!(if let Some(it) = &#ident { #check(it, &#here, found); }),
                Place::Many if !field.is_map() => {
                    let check = quote!(#check(it, &At::Index(&#here, n), found););
                    each(quote!((n, it)), quote!(#ident.iter().enumerate()), check)
                }
                Place::Many | Place::Arm(..) => return None,
            })
        }),
        (Kind::Enum(it), _) => {
            let rust = enum_type(it);
            Some(quote!(check_enum::<#rust>(self.#ident, &#here, found);))
        }
        (Kind::Message(entry), _) if field.is_map() => ours(&entry.map_entry_value_field().kind())
            .then(|| each(quote!((key, it)), quote!(&self.#ident), quote!(it.check(&At::Key(&#here, key), found)))),
        (kind, _) if !ours(kind) => None,
        (_, Place::Many) => {
            let check = quote!(it.check(&At::Index(&#here, n), found));
            Some(each(quote!((n, it)), quote!(self.#ident.iter().enumerate()), check))
        }
        (_, Place::Arm(oneof, variant)) => {
            Some(quote!(if let Some(#variant(it)) = &self.#oneof { it.check(&#here, found) }))
        }
        _ => Some(quote!(if let Some(it) = &self.#ident { it.check(&#here, found) })),
    };
    quote!(#unset #inner)
}

/// Kind of a field whose decoded value takes more memory than its encoded bytes.
fn measured(field: &FieldDescriptor) -> Option<TokenStream> {
    match field.kind() {
        // The members of such an object are not counted one by one: no request has a map of its own.
        Kind::Message(_) if field.is_map() => Some(quote!(json::Nested::text())),
        Kind::Message(it) if it.full_name() == "google.protobuf.Struct" => {
            let rust = rust_type(&it);
            Some(quote!(json::Nested::object::<#rust>()))
        }
        Kind::Message(it) => {
            let rust = rust_type(&it);
            Some(quote!(json::Nested::message::<#rust>()))
        }
        Kind::String if field.is_list() => Some(quote!(json::Nested::text())),
        _ => None,
    }
}

/// The check of a text field that has a maximum length: identifiers and URIs, by the names that the proto files give them.
fn length_check(name: &str) -> Option<TokenStream> {
    match name {
        "extensions" | "uri" => Some(quote!(check_uri)),
        "id" | "tenant" => Some(quote!(check_id)),
        _ if name.ends_with("_id") || name.ends_with("_ids") => Some(quote!(check_id)),
        _ => None,
    }
}

/// Finds a oneof that has no arm and must have one.
fn choice(oneof: &OneofDescriptor) -> TokenStream {
    let (ident, arms) = (ident(oneof.name()), arms(oneof));
    quote!(if self.#ident.is_none() { found.push(Violation::unchosen(at, #arms)) })
}
