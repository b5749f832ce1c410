//! JSON of 0.3 for parts: text, files (`bytes` or `uri`), and data.

use std::collections::BTreeMap;

use serde::{
    Deserialize, Serialize, Serializer,
    de::{Error, MapAccess},
    ser::SerializeMap,
};

use super::{
    super::message::{WRAPPED_MARK, WRAPPED_VALUE, unwrap_data},
    V03Json, Write, members, nested, optional, or_default, text,
};
use crate::protocol::{
    json::{Base64, Members, any, bytes, value},
    pb::{
        v1::{Part, part::Content},
        wkt::{Struct, Value, value::Kind as ValueKind},
    },
};

/// Reason for rejecting data. 0.3 allows objects only (6.5.3); arrays are accepted, since SDKs send them.
pub(crate) const SCALAR: &str = "data is a string, a number, a boolean or null; put it in an object or an array";

/// Reason for rejecting a file (0.3, 6.6).
pub(crate) const BYTES_AND_URI: &str = "has both bytes and a uri; send one of them";

/// Members of a part of any kind.
#[derive(Clone, Debug, Default)]
pub struct PartDraft {
    kind: Option<PartKind>,
    old_kind: Option<PartKind>,
    text: Option<String>,
    file: Option<File>,
    data: Option<Value>,
    metadata: Option<Struct>,
}

/// `kind` of a part.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PartKind {
    Text,
    File,
    Data,
}

members! { PartDraft, "Part" {
    1 "kind" => kind = any;
    // The name of `kind` in an example of 0.2, though not in its schema.
    2 "type" => old_kind = any;
    3 "text" => text = any;
    4 "file" => file = nested;
    5 "data" => data = value;
    6 "metadata" => metadata = any;
} }

impl V03Json for Part {
    type Draft = PartDraft;

    fn finish<E: Error>(draft: PartDraft) -> Result<Self, E> {
        let PartDraft { kind, old_kind, text, file, data, mut metadata } = draft;
        let declared_kind = kind.or(old_kind);
        let data_is_null = data.as_ref().is_some_and(is_null);
        let inferred_kind = match (&text, &file, &data) {
            (Some(_), None, None) => Some(PartKind::Text),
            (None, Some(_), None) => Some(PartKind::File),
            (Some(_), None, Some(_)) if data_is_null => Some(PartKind::Text),
            (None, Some(_), Some(_)) if data_is_null => Some(PartKind::File),
            (None, None, Some(_)) => Some(PartKind::Data),
            (None, None, None) => None,
            _ if declared_kind.is_none() => return Err(E::custom("must have only one of text, file, data")),
            _ => None,
        };
        let content = match (declared_kind.or(inferred_kind), text, file, data) {
            (Some(PartKind::Text), Some(text), ..) => Content::Text(text),
            (Some(PartKind::File), _, Some(File(part)), _) => return Ok(Self { metadata, ..part }),
            (Some(PartKind::Data), .., Some(data)) if is_scalar(&data) => {
                return Err(E::custom(SCALAR));
            }
            (Some(PartKind::Data), .., Some(data)) => Content::Data(unwrap_data(data, &mut metadata)),
            (Some(PartKind::Text), ..) => return Err(E::custom("must have `text`, since its kind is `text`")),
            (Some(PartKind::File), ..) => return Err(E::custom("must have `file`, since its kind is `file`")),
            (Some(PartKind::Data), ..) => return Err(E::custom("must have `data`, since its kind is `data`")),
            (None, ..) => return Err(E::custom("must have one of text, file, data")),
        };
        Ok(Self { metadata, ..content.into() })
    }
}

fn is_null(value: &Value) -> bool {
    matches!(value.kind, None | Some(ValueKind::NullValue(_)))
}

fn is_scalar(value: &Value) -> bool {
    !matches!(value.kind, Some(ValueKind::StructValue(_) | ValueKind::ListValue(_)))
}

/// 1.0 part that is read from a `file` member.
#[derive(Clone, Debug)]
struct File(Part);

/// Members of a file.
#[derive(Clone, Debug, Default)]
struct FileDraft {
    name: String,
    media_type: String,
    bytes: Option<Vec<u8>>,
    data: Option<Vec<u8>>,
    uri: Option<String>,
}

members! { FileDraft, "File" {
    1 "name" => name = or_default;
    2 "mimeType" "mime_type" => media_type = or_default;
    3 "bytes" => bytes = bytes;
    // The name in the examples of 0.2, though not in its schema.
    4 "data" => data = bytes;
    5 "uri" => uri = any;
} }

impl V03Json for File {
    type Draft = FileDraft;

    /// Accepts both `bytes` and `uri` if one of them is empty, as some clients send them.
    fn finish<E: Error>(draft: FileDraft) -> Result<Self, E> {
        let FileDraft { name: filename, media_type, bytes, data, uri } = draft;
        let content = match (bytes.or(data), uri) {
            (Some(raw), Some(url)) if raw.is_empty() && !url.is_empty() => Content::Url(url),
            (Some(raw), Some(url)) if !raw.is_empty() && !url.is_empty() => return Err(E::custom(BYTES_AND_URI)),
            (Some(raw), _) => Content::Raw(raw),
            (None, Some(url)) => Content::Url(url),
            (None, None) => return Err(E::custom("must have one of bytes, uri")),
        };
        Ok(Self(Part { filename, media_type, ..content.into() }))
    }
}

impl Serialize for Write<'_, Part> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (part, mut map) = (self.0, serializer.serialize_map(None)?);
        let metadata = part.metadata.as_ref();
        match &part.content {
            None | Some(Content::Text(_)) => {
                map.serialize_entry("kind", "text")?;
                map.serialize_entry("text", part.as_text().unwrap_or_default())?;
            }
            Some(Content::Raw(_) | Content::Url(_)) => {
                map.serialize_entry("kind", "file")?;
                map.serialize_entry("file", &WriteFile(part))?;
            }
            Some(Content::Data(data)) if is_object(data) => {
                map.serialize_entry("kind", "data")?;
                map.serialize_entry("data", data)?;
            }
            Some(Content::Data(data)) => {
                map.serialize_entry("kind", "data")?;
                map.serialize_entry("data", &BTreeMap::from([(WRAPPED_VALUE, data)]))?;
                map.serialize_entry("metadata", &Marked(metadata))?;
                return map.end();
            }
        }
        optional(&mut map, "metadata", metadata)?;
        map.end()
    }
}

/// Returns whether data is an object, the only form that 0.3 allows.
fn is_object(data: &Value) -> bool {
    matches!(data.kind, Some(ValueKind::StructValue(_)))
}

/// `file` member of a part with raw bytes or a URL.
struct WriteFile<'a>(&'a Part);

impl Serialize for WriteFile<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (part, mut map) = (self.0, serializer.serialize_map(None)?);
        text(&mut map, "name", &part.filename)?;
        text(&mut map, "mimeType", &part.media_type)?;
        match &part.content {
            Some(Content::Raw(raw)) => map.serialize_entry("bytes", &Base64(raw))?,
            Some(Content::Url(url)) => map.serialize_entry("uri", url)?,
            Some(Content::Text(_) | Content::Data(_)) | None => {}
        }
        map.end()
    }
}

/// Metadata of wrapped data, with the mark.
struct Marked<'a>(Option<&'a Struct>);

impl Serialize for Marked<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let others = self.0.into_iter().flat_map(|metadata| &metadata.fields).filter(|(name, _)| *name != WRAPPED_MARK);
        let mark = ValueKind::BoolValue(true).into();
        serializer.collect_map(others.map(|(name, value)| (name.as_str(), value)).chain([(WRAPPED_MARK, &mark)]))
    }
}
