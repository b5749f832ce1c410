//! Code generation for `json::Transcode`: writes ProtoJSON straight from encoded protobuf, without decoding it.
//!
//! The output has the members and the order of `write` in `build/message.rs`. Fields are expected in the order of an
//! encoder, by number. In any other order, bytes are left over, and the caller decodes the message
//! (`src/protocol/json/encoded.rs`).

#![expect(clippy::wildcard_enum_match_arm, reason = "unsupported field kinds are rejected in one place")]

use proc_macro2::{Literal, TokenStream};
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use quote::{format_ident, quote};

use super::{
    exceptions::KEPT,
    message::{Place, is_set, place, rust_type, value},
    schema::Schema,
};
use crate::Result;

impl Schema {
    /// Returns the messages of `package` that get `json::Transcode`: the types in `KEPT` and the types of their fields.
    /// `google.protobuf` is excluded: it is implemented by hand.
    pub(crate) fn kept(&self, package: &str) -> Vec<MessageDescriptor> {
        let mut all: Vec<_> = KEPT.iter().filter_map(|name| self.pool.get_message_by_name(name)).collect();
        let mut at = 0;
        while let Some(message) = all.get(at).cloned() {
            let inner = message.fields().filter_map(|field| field.kind().as_message().cloned());
            for field_type in inner.filter(|inner| inner.package_name() == message.package_name()) {
                if !all.contains(&field_type) {
                    all.push(field_type);
                }
            }
            at += 1;
        }
        all.retain(|message| message.package_name() == package);
        all
    }

    /// Generates `impl json::Transcode` of a message.
    pub(crate) fn transcode(&self, message: &MessageDescriptor) -> Result<TokenStream> {
        let rust = rust_type(message);
        let oneofs = message.oneofs().filter(|oneof| !oneof.is_synthetic());
        let chosen: Vec<_> = oneofs.map(|oneof| format_ident!("chosen_{}", oneof.name())).collect();
        let mut fields: Vec<_> = message.fields().collect();
        fields.sort_by_key(FieldDescriptor::number);
        let fields = fields.iter().map(|field| self.transcoded_field(field)).collect::<Result<Vec<_>>>()?;
        Ok(quote! {
            impl json::Transcode for #rust {
                fn transcode(encoded: json::Encoded<'_, Self>, out: &mut Vec<u8>) -> Result<(), json::NotTranscodable> {
                    let mut from = encoded.fields()?;
                    let start = out.len();
                    #(let mut #chosen = false;)*
                    #(#fields)*
                    from.end()?;
                    json::close(out, start, *b"{}");
                    Ok(())
                }
            }
        })
    }

    fn transcoded_field(&self, field: &FieldDescriptor) -> Result<TokenStream> {
        let (place, required, kind) = (place(field), self.is_required(field), field.kind());
        let unsupported = || format!("{field:?}: cannot be written from encoded protobuf; add it to build/encoded.rs");
        let wire = match kind {
            _ if field.is_map() => return Err(unsupported().into()),
            Kind::String | Kind::Bytes | Kind::Message(_) => 2,
            _ => 0,
        };
        let key = Literal::u32_unsuffixed(field.number() << 3 | wire);
        // Every member begins with a comma. `json::close` replaces the first one by the bracket.
        let member = format!(",\"{}\":", field.json_name());
        let name = Literal::byte_string(member.as_bytes());
        let value = value(field);
        let read = match kind {
            Kind::Bytes => Some(quote!(from.bytes()?)),
            Kind::Bool => Some(quote!(from.flag()?)),
            Kind::Int32 | Kind::Enum(_) => Some(quote!(from.integer()?)),
            _ => None,
        };
        let write = match &kind {
            Kind::String => quote!(from.put_text(out, #name)?;),
            Kind::Message(message) => {
                let rust = rust_type(message);
                quote!(from.put_message::<#rust>(out, #name)?;)
            }
            _ => quote!(json::member(out, #name, #value)?;),
        };
        let set = is_set(field);
        Ok(match (place, read) {
            (Place::Many, _) => {
                let element = match &kind {
                    Kind::Message(message) => rust_type(message),
                    Kind::String => quote!(String),
                    _ => return Err(unsupported().into()),
                };
                let list = quote!(from.put_list::<#element>(#key, out, #name)?;);
                if required { list } else { quote!(if from.is_at(#key) { #list }) }
            }
            (Place::Arm(oneof, _), read) => {
                let chosen = format_ident!("chosen_{}", oneof);
                let read = read.map(|read| quote!(let value = &#read;));
                quote!(if from.is_at(#key) { json::once(&mut #chosen)?; #read #write })
            }
            (Place::Option, read) => {
                let read = read.map(|read| quote!(let value = &#read;));
                quote!(if from.is_at(#key) { #read #write })
            }
            (Place::Plain, Some(read)) if required => quote! {
                let value = &if from.is_at(#key) { #read } else { Default::default() };
                #write
            },
            (Place::Plain, Some(read)) => quote!(if from.is_at(#key) { let value = &#read; if #set { #write } }),
            (Place::Plain, None) if required => {
                let empty = Literal::byte_string(format!("{member}\"\"").as_bytes());
                quote!(if from.is_at(#key) { #write } else { out.extend_from_slice(#empty); })
            }
            (Place::Plain, None) => quote! {
                if from.is_at(#key) {
                    let value = from.bytes()?;
                    if #set { json::put_text(out, #name, value)?; }
                }
            },
        })
    }
}
