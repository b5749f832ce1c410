//! Parts, which 1.0 has made one message of three.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::pb::{
    v1::{Part, part::Content},
    v03::{self, DataPart, FilePart, file_part::File, part::Part as Old},
    wkt::{Struct, Value, value::Kind},
};

/// In the metadata of a part of 0.3 it says that its data is a value in an object. The SDKs of both versions read it.
const WRAPPED: &str = "data_part_compat";

/// The member that such a value is.
const VALUE: &str = "value";

impl From<Part> for v03::Part {
    fn from(it: Part) -> Self {
        let Part { content, mut metadata, filename: name, media_type: mime_type } = it;
        let part = match content {
            None => None,
            Some(Content::Text(it)) => Some(Old::Text(it)),
            Some(Content::Raw(it)) => {
                let file = Some(File::FileWithBytes(STANDARD.encode(it).into()));
                Some(Old::File(FilePart { mime_type, name, file }))
            }
            Some(Content::Url(it)) => Some(Old::File(FilePart { mime_type, name, file: Some(File::FileWithUri(it)) })),
            Some(Content::Data(Value { kind: Some(Kind::StructValue(data)) })) => {
                Some(Old::Data(DataPart { data: Some(data) }))
            }
            Some(Content::Data(value)) => {
                let marker = Value { kind: Some(Kind::BoolValue(true)) };
                metadata.get_or_insert_default().fields.insert(WRAPPED.to_owned(), marker);
                let data = Struct { fields: [(VALUE.to_owned(), value)].into() };
                Some(Old::Data(DataPart { data: Some(data) }))
            }
        };
        Self { part, metadata }
    }
}

impl From<v03::Part> for Part {
    fn from(it: v03::Part) -> Self {
        let v03::Part { part, mut metadata } = it;
        let (mut filename, mut media_type) = (String::new(), String::new());
        let content = match part {
            None => None,
            Some(Old::Text(it)) => Some(Content::Text(it)),
            Some(Old::File(FilePart { mime_type, name, file })) => {
                (filename, media_type) = (name, mime_type);
                file.map(|it| match it {
                    File::FileWithUri(it) => Content::Url(it),
                    File::FileWithBytes(it) => Content::Raw(decoded(it)),
                })
            }
            Some(Old::Data(DataPart { data })) => {
                let data = data.unwrap_or_default();
                let value = match unwrapped(data, &mut metadata) {
                    Ok(value) => value,
                    Err(data) => Kind::StructValue(data).into(),
                };
                Some(Content::Data(value))
            }
        };
        Self { content, metadata, filename, media_type }
    }
}

/// The bytes of a file. Most clients put its base64 where its bytes should be, and some its bytes; of the latter, few
/// look like the former.
fn decoded(bytes: Vec<u8>) -> Vec<u8> {
    STANDARD.decode(&bytes).unwrap_or(bytes)
}

/// The value in an object that is there for its sake, or the object. The marker goes with it.
fn unwrapped(mut data: Struct, metadata: &mut Option<Struct>) -> Result<Value, Struct> {
    let marked = |it: &Struct| it.fields.get(WRAPPED).is_some_and(|it| it.kind == Some(Kind::BoolValue(true)));
    if data.fields.len() != 1 || !metadata.as_ref().is_some_and(marked) {
        return Err(data);
    }
    let Some(value) = data.fields.remove(VALUE) else { return Err(data) };
    if let Some(all) = metadata {
        all.fields.remove(WRAPPED);
        if all.fields.is_empty() {
            *metadata = None;
        }
    }
    Ok(value)
}
