//! Conversions of message parts: 0.3 has text, file and data parts, 1.0 has one message for all of them.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::pb::{
    v1::{Part, part::Content},
    v03::{self, DataPart, FilePart, file_part::File, part::Part as Old},
    wkt::{Struct, Value, value::Kind},
};

/// Metadata key that marks wrapped data: the data is an object whose [`VALUE`] member is the original value. SDKs of both
/// versions use it.
const WRAPPED_MARK: &str = "data_part_compat";

/// Member of a wrapper object that holds the original value.
const VALUE: &str = "value";

impl From<Part> for v03::Part {
    fn from(part: Part) -> Self {
        let Part { content, mut metadata, filename: name, media_type: mime_type } = part;
        let part = match content {
            None => None,
            Some(Content::Text(text)) => Some(Old::Text(text)),
            Some(Content::Raw(raw)) => {
                let file = Some(File::FileWithBytes(STANDARD.encode(raw).into()));
                Some(Old::File(FilePart { mime_type, name, file }))
            }
            Some(Content::Url(url)) => {
                Some(Old::File(FilePart { mime_type, name, file: Some(File::FileWithUri(url)) }))
            }
            Some(Content::Data(Value { kind: Some(Kind::StructValue(data)) })) => {
                Some(Old::Data(DataPart { data: Some(data) }))
            }
            Some(Content::Data(value)) => {
                let mark = Value { kind: Some(Kind::BoolValue(true)) };
                metadata.get_or_insert_default().fields.insert(WRAPPED_MARK.to_owned(), mark);
                let data = Struct { fields: [(VALUE.to_owned(), value)].into() };
                Some(Old::Data(DataPart { data: Some(data) }))
            }
        };
        Self { part, metadata }
    }
}

impl From<v03::Part> for Part {
    fn from(part: v03::Part) -> Self {
        let v03::Part { part, mut metadata } = part;
        let (mut filename, mut media_type) = (String::new(), String::new());
        let content = match part {
            None => None,
            Some(Old::Text(text)) => Some(Content::Text(text)),
            Some(Old::File(FilePart { mime_type, name, file })) => {
                (filename, media_type) = (name, mime_type);
                file.map(|file| match file {
                    File::FileWithUri(uri) => Content::Url(uri),
                    File::FileWithBytes(bytes) => Content::Raw(decode_file(bytes)),
                })
            }
            Some(Old::Data(DataPart { data })) => {
                let data = data.unwrap_or_default();
                let value = match unwrap_data(data, &mut metadata) {
                    Ok(value) => value,
                    Err(data) => Kind::StructValue(data).into(),
                };
                Some(Content::Data(value))
            }
        };
        Self { content, metadata, filename, media_type }
    }
}

/// Decodes file contents that are valid base64 text, and returns other contents unchanged.
///
/// Most clients send base64 text in the `bytes` field, some send raw bytes. Raw contents are rarely valid base64.
fn decode_file(bytes: Vec<u8>) -> Vec<u8> {
    STANDARD.decode(&bytes).unwrap_or(bytes)
}

/// Unwraps marked data and removes the mark from `metadata`. Returns the object as `Err` if it is not wrapped data.
fn unwrap_data(mut data: Struct, metadata: &mut Option<Struct>) -> Result<Value, Struct> {
    let is_marked = |metadata: &Struct| {
        metadata.fields.get(WRAPPED_MARK).is_some_and(|mark| mark.kind == Some(Kind::BoolValue(true)))
    };
    if data.fields.len() != 1 || !metadata.as_ref().is_some_and(is_marked) {
        return Err(data);
    }
    let Some(value) = data.fields.remove(VALUE) else { return Err(data) };
    if let Some(members) = metadata {
        members.fields.remove(WRAPPED_MARK);
        if members.fields.is_empty() {
            *metadata = None;
        }
    }
    Ok(value)
}
