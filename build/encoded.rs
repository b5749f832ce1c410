//! What a message is in ProtoJSON while it is still in protobuf: the same members in the same order as `write` of
//! `build/message.rs` has them, taken from bytes that nobody has decoded.
//!
//! The fields are looked for one after the other, as an encoder writes them. Whatever stands otherwise is left over at
//! the end, or is no number of a field at all, and then the message is decoded after all (`src/json/encoded.rs`).

#![expect(clippy::wildcard_enum_match_arm, reason = "kinds of fields that are not read here are refused in one place")]

use proc_macro2::{Literal, TokenStream};
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use quote::{format_ident, quote};

use super::{
    message::{Place, entry, place, rust_type},
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
        let fields = fields.iter().map(|it| self.from_bytes(it)).collect::<Result<Vec<_>>>()?;
        Ok(quote! {
            impl json::Transcode for #rust {
                fn transcode<S: serde::Serializer>(
                    encoded: json::Encoded<'_, Self>,
                    serializer: S,
                ) -> Result<S::Ok, S::Error> {
                    use serde::ser::SerializeStruct as _;
                    let mut from = encoded.fields::<S::Error>()?;
                    let mut members =
                        serializer.serialize_struct(<Self as json::Members>::NAME, <Self as json::Members>::FIELDS.len())?;
                    #(let mut #chosen = false;)*
                    #(#fields)*
                    from.end::<S::Error>()?;
                    members.end()
                }
            }
        })
    }

    fn from_bytes(&self, field: &FieldDescriptor) -> Result<TokenStream> {
        let (place, required, kind) = (place(field), self.is_required(field), field.kind());
        let (wire, value) = match &kind {
            _ if field.is_map() => {
                return Err(format!("{field:?} is a map, which is not written from its bytes").into());
            }
            Kind::String => (2, quote!(from.text::<S::Error>()?)),
            Kind::Bytes => (2, quote!(from.bytes::<S::Error>()?)),
            Kind::Bool => (0, quote!(from.flag::<S::Error>()?)),
            Kind::Int32 | Kind::Enum(_) => (0, quote!(from.integer::<S::Error>()?)),
            Kind::Message(it) => {
                let rust = rust_type(it);
                (2, quote!(from.message::<#rust, S::Error>()?))
            }
            _ => return Err(format!("{field:?} is not written from its bytes").into()),
        };
        let key = Literal::u32_unsuffixed(field.number() << 3 | wire);
        let (set, entry) = entry(field);
        Ok(match place {
            Place::Many => {
                let element = match &kind {
                    Kind::Message(it) => rust_type(it),
                    _ => quote!(String),
                };
                let write = if required { entry } else { quote!(if #set { #entry }) };
                quote! {
                    let it = &from.run::<#element, S::Error>(#key)?;
                    #write
                }
            }
            Place::Arm(oneof, _) => {
                let chosen = format_ident!("chosen_{}", oneof);
                quote! {
                    if from.is_at(#key) {
                        json::once::<S::Error>(&mut #chosen)?;
                        let it = &#value;
                        #entry
                    }
                }
            }
            Place::Option => quote!(if from.is_at(#key) { let it = &#value; #entry }),
            Place::Plain if required => quote! {
                let it = &if from.is_at(#key) { #value } else { Default::default() };
                #entry
            },
            Place::Plain => quote!(if from.is_at(#key) { let it = &#value; if #set { #entry } }),
        })
    }
}
