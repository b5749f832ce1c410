//! Code generation for the validation of messages (`Validate`): REQUIRED fields, known enum numbers, lengths of ids and URIs.

use proc_macro2::TokenStream;
use prost_reflect::{FieldDescriptor, Kind, OneofDescriptor};
use quote::quote;

use super::message::{Place, arms, enum_type, ident};

/// Generates the checks of a field: that it is set if it is REQUIRED, lengths, and enum numbers; in this message and in nested
/// ones.
pub(super) fn check(field: &FieldDescriptor, place: &Place, required: bool) -> TokenStream {
    let (name, ident, kind) = (field.json_name(), ident(field.name()), field.kind());
    let here = quote!(At::Field(at, #name));
    let unset = match (place, &kind) {
        (Place::Many, _) | (Place::Plain, Kind::String | Kind::Bytes) => Some(quote!(self.#ident.is_empty())),
        (Place::Option, _) => Some(quote!(self.#ident.is_none())),
        (Place::Plain, Kind::Enum(_)) => Some(quote!(self.#ident == 0)),
        // A number without presence is zero if it is unset.
        _ => None,
    };
    let unset = unset.filter(|_| required).map(|unset| quote!(if #unset { found.push(Violation::unset(&#here)) }));
    let package = field.parent_message().package_name().to_owned();
    let ours = |kind: &Kind| matches!(kind, Kind::Message(message) if message.package_name() == package);
    // Stops at the maximum number of reported violations.
    let each = |pattern: TokenStream, all: TokenStream, check: TokenStream| quote!(for #pattern in #all { if found.is_full() { break; } #check });
    let inner = match (&kind, place) {
        (Kind::String, _) => length_check(field.name()).and_then(|check| {
            let ident = quote!(self.#ident);
            Some(match place {
                Place::Plain => quote!(#check(&#ident, &#here, found);),
                Place::Option => quote!(if let Some(value) = &#ident { #check(value, &#here, found); }),
                Place::Many if !field.is_map() => {
                    let check = quote!(#check(value, &At::Index(&#here, n), found););
                    each(quote!((n, value)), quote!(#ident.iter().enumerate()), check)
                }
                Place::Many | Place::Arm(..) => return None,
            })
        }),
        (Kind::Enum(descriptor), _) => {
            let rust = enum_type(descriptor);
            Some(quote!(check_enum::<#rust>(self.#ident, &#here, found);))
        }
        (Kind::Message(entry), _) if field.is_map() => ours(&entry.map_entry_value_field().kind()).then(|| {
            each(quote!((key, value)), quote!(&self.#ident), quote!(value.validate(&At::Key(&#here, key), found)))
        }),
        (kind, _) if !ours(kind) => None,
        (_, Place::Many) => {
            let check = quote!(value.validate(&At::Index(&#here, n), found));
            Some(each(quote!((n, value)), quote!(self.#ident.iter().enumerate()), check))
        }
        (_, Place::Arm(oneof, variant)) => {
            Some(quote!(if let Some(#variant(value)) = &self.#oneof { value.validate(&#here, found) }))
        }
        _ => Some(quote!(if let Some(value) = &self.#ident { value.validate(&#here, found) })),
    };
    quote!(#unset #inner)
}

/// Returns the check of a text field with a maximum length: identifiers and URIs, recognized by their proto names.
fn length_check(name: &str) -> Option<TokenStream> {
    match name {
        "extensions" | "uri" => Some(quote!(check_uri)),
        "tenant" => Some(quote!(check_tenant)),
        "id" => Some(quote!(check_id)),
        _ if name.ends_with("_id") || name.ends_with("_ids") => Some(quote!(check_id)),
        _ => None,
    }
}

/// Generates the check of a oneof that must have an arm.
pub(super) fn choice(oneof: &OneofDescriptor) -> TokenStream {
    let (ident, arms) = (ident(oneof.name()), arms(oneof));
    quote!(if self.#ident.is_none() { found.push(Violation::unchosen(at, #arms)) })
}
