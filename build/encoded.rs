//! What a message is in ProtoJSON while it is still in protobuf: the same members in the same order as `write` of
//! `build/message.rs` has them, taken from bytes that nobody has decoded.
//!
//! The fields are looked for one after the other, as an encoder writes them. Whatever stands otherwise is left over at
//! the end, and then the message is decoded after all (`src/json/encoded.rs`).

#![expect(clippy::wildcard_enum_match_arm, reason = "kinds of fields that are not read here are refused in one place")]

use proc_macro2::{Literal, TokenStream};
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use quote::{format_ident, quote};

use super::{
    message::{Place, is_set, place, rust_type, value},
    schema::{KEPT, Schema},
};
use crate::Result;

impl Schema {
    /// The messages that are written from their bytes, and those in them; not those of `google.protobuf`, which are
    /// written by hand.
    pub(crate) fn kept(&self, package: &str) -> Vec<MessageDescriptor> {
        let mut all: Vec<_> = KEPT.iter().filter_map(|it| self.pool.get_message_by_name(it)).collect();
        let mut at = 0;
        while let Some(message) = all.get(at).cloned() {
            let inner = message.fields().filter_map(|it| it.kind().as_message().cloned());
            for it in inner.filter(|it| it.package_name() == message.package_name()) {
                if !all.contains(&it) {
                    all.push(it);
                }
            }
            at += 1;
        }
        all.retain(|it| it.package_name() == package);
        all
    }

    /// `impl json::Transcode`.
    pub(crate) fn transcode(&self, message: &MessageDescriptor) -> Result<TokenStream> {
        let rust = rust_type(message);
        let oneofs = message.oneofs().filter(|it| !it.is_synthetic());
        let chosen: Vec<_> = oneofs.map(|it| format_ident!("chosen_{}", it.name())).collect();
        let mut fields: Vec<_> = message.fields().collect();
        fields.sort_by_key(FieldDescriptor::number);
        let fields = fields.iter().map(|it| self.transcoded(it)).collect::<Result<Vec<_>>>()?;
        Ok(quote! {
            impl json::Transcode for #rust {
                fn transcode(encoded: json::Encoded<'_, Self>, out: &mut Vec<u8>) -> Result<(), json::Odd> {
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

    fn transcoded(&self, field: &FieldDescriptor) -> Result<TokenStream> {
        let (place, required, kind) = (place(field), self.is_required(field), field.kind());
        let refused = || format!("{field:?} is not written from its bytes");
        let wire = match kind {
            _ if field.is_map() => return Err(refused().into()),
            Kind::String | Kind::Bytes | Kind::Message(_) => 2,
            _ => 0,
        };
        let key = Literal::u32_unsuffixed(field.number() << 3 | wire);
        // Behind a comma, which the first one's bracket takes the place of.
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
            Kind::Message(it) => {
                let rust = rust_type(it);
                quote!(from.put_message::<#rust>(out, #name)?;)
            }
            _ => quote!(json::member(out, #name, #value)?;),
        };
        let set = is_set(field);
        Ok(match (place, read) {
            (Place::Many, _) => {
                let element = match &kind {
                    Kind::Message(it) => rust_type(it),
                    Kind::String => quote!(String),
                    _ => return Err(refused().into()),
                };
                let list = quote!(from.put_list::<#element>(#key, out, #name)?;);
                if required { list } else { quote!(if from.is_at(#key) { #list }) }
            }
            (Place::Arm(oneof, _), read) => {
                let chosen = format_ident!("chosen_{}", oneof);
                let read = read.map(|it| quote!(let it = &#it;));
                quote!(if from.is_at(#key) { json::once(&mut #chosen)?; #read #write })
            }
            (Place::Option, read) => {
                let read = read.map(|it| quote!(let it = &#it;));
                quote!(if from.is_at(#key) { #read #write })
            }
            (Place::Plain, Some(read)) if required => quote! {
                let it = &if from.is_at(#key) { #read } else { Default::default() };
                #write
            },
            (Place::Plain, Some(read)) => quote!(if from.is_at(#key) { let it = &#read; if #set { #write } }),
            (Place::Plain, None) if required => {
                let empty = Literal::byte_string(format!("{member}\"\"").as_bytes());
                quote!(if from.is_at(#key) { #write } else { out.extend_from_slice(#empty); })
            }
            (Place::Plain, None) => quote! {
                if from.is_at(#key) {
                    let it = from.bytes()?;
                    if #set { json::put_text(out, #name, it)?; }
                }
            },
        })
    }
}
