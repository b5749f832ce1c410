//! Chunk of a chat completion, or a whole one: JSON in the forms that endpoints send.
//!
//! Null is an absent member, a value is a list of one, and a number may be text. Texts stay JSON until they are complete, since a
//! character may be cut between two chunks.

use std::{collections::BTreeMap, fmt, sync::Arc};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, MapAccess, Visitor},
};
use serde_json::{Error, Map, Value, value::RawValue};

use crate::{
    base::{
        metric,
        surrogates::{decode, replace_lone_surrogates},
    },
    engine::agent::Turn,
    protocol::json::check_json,
};

type RawMembers = BTreeMap<String, Box<RawValue>>;

/// Members of an object that are not null, as JSON. Duplicate ones are refused.
#[derive(Debug, Default)]
pub(super) struct Members(RawMembers);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Unique;
        impl<'de> Visitor<'de> for Unique {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    if members.insert(name, value).is_some() {
                        return Err(A::Error::custom("a member is given twice"));
                    }
                }
                members.retain(|_, value| value.get() != "null");
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Unique)
    }
}

impl Members {
    fn take(&mut self, name: &str) -> Option<Box<RawValue>> {
        self.0.remove(name)
    }

    /// Takes a member that should be a text. Another value is its JSON.
    fn text(&mut self, name: &str) -> Result<Option<String>, Error> {
        let value = self.take(name);
        value.map(|value| content(&value).map_or_else(|| Ok(value.get().to_owned()), decode)).transpose()
    }

    fn object(&mut self, name: &str) -> Result<Option<Self>, Error> {
        self.take(name).map(|value| serde_json::from_str(value.get())).transpose()
    }

    fn list(&mut self, name: &str) -> Result<Vec<Box<RawValue>>, Error> {
        self.take(name).map_or_else(|| Ok(Vec::new()), |value| list(&value))
    }

    fn count(&mut self, name: &str) -> Option<u64> {
        self.take(name).and_then(|value| count(&value))
    }

    /// Size of the members as JSON in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.get().len()).sum()
    }
}

/// Returns true for the name of a member, or the type of a part, with the reasoning of a model.
fn is_reasoning(name: &str) -> bool {
    name.contains("reason") || name.contains("think")
}

/// Names of members whose texts are written piece by piece, so that two equal pieces may follow each other.
const STREAMED: [&str; 9] = [
    "content",
    "reasoning",
    "reasoning_content",
    "reasoning_summary",
    "reasoning_text",
    "text",
    "thinking",
    "thinking_content",
    "thought",
];

/// Value that arrives in pieces.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Joined {
    #[serde(serialize_with = "raw")]
    Json(String),
    /// Object in several pieces.
    Object(JoinedMembers),
}

/// Members of an object that arrives in pieces.
#[derive(Debug, Default, Serialize)]
pub(super) struct JoinedMembers(BTreeMap<String, Joined>);

/// Serializes a text that is JSON as it is.
fn raw<S: Serializer>(json: &str, serializer: S) -> Result<S::Ok, S::Error> {
    RawValue::from_string(json.to_owned()).map_err(serde::ser::Error::custom)?.serialize(serializer)
}

impl Joined {
    /// Adds a further piece. `is_streamed`: a text that is equal to the earlier one continues it.
    fn add(&mut self, piece: &RawValue, is_streamed: bool) {
        match (serde_json::from_str::<RawMembers>(piece.get()), &mut *self) {
            (Ok(further), _) if further.is_empty() => {}
            (Ok(further), Self::Object(known)) => known.merge(further),
            (Ok(further), Self::Json(json)) => {
                let mut joined = JoinedMembers::default();
                // Another value than an object is replaced.
                joined.merge(serde_json::from_str(json).unwrap_or_default());
                joined.merge(further);
                *self = Self::Object(joined);
            }
            (Err(_), Self::Json(json)) => add_json(json, piece, is_streamed),
            (Err(_), Self::Object(_)) => *self = Self::Json(piece.get().to_owned()),
        }
    }
}

impl JoinedMembers {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the members of a further piece: texts are joined, lists are appended, objects are merged, and other values replace
    /// earlier ones. Some endpoints send a text, such as a signature, with each piece.
    pub(super) fn add(&mut self, further: Members) {
        self.merge(further.0);
    }

    fn merge(&mut self, further: RawMembers) {
        for (name, piece) in further {
            if let Some(known) = self.0.get_mut(&name) {
                if piece.get() != "null" {
                    known.add(&piece, STREAMED.contains(&name.as_str()));
                }
            } else {
                self.0.insert(name, Joined::Json(piece.get().to_owned()));
            }
        }
    }

    /// Decodes the members.
    ///
    /// # Errors
    /// They would take too much memory, or have a number that is too large.
    pub(super) fn into_map(self) -> Result<Map<String, Value>, Error> {
        let json = serde_json::to_string(&self)?;
        check_json(json.as_bytes()).map_err(Error::custom)?;
        serde_json::from_str(&replace_lone_surrogates(&json))
    }
}

/// Adds a further piece to a value that is no object in both.
fn add_json(known: &mut String, piece: &RawValue, is_streamed: bool) {
    if let (true, Some(text)) = (known.ends_with('"'), content(piece)) {
        if is_streamed || *known != piece.get() {
            known.pop();
            known.extend([text, "\""]);
        }
    } else if let (true, Some(items)) = (known.ends_with(']'), items(piece)) {
        known.pop();
        let is_first = items.is_empty() || known.trim_end() == "[";
        known.extend([if is_first { "" } else { "," }, items, "]"]);
    } else {
        piece.get().clone_into(known);
    }
}

/// Returns the content of a JSON string, still escaped. `None` for another value.
fn content(json: &RawValue) -> Option<&str> {
    json.get().strip_prefix('"')?.strip_suffix('"')
}

/// Returns the items of a JSON list. `None` for another value.
fn items(json: &RawValue) -> Option<&str> {
    Some(json.get().strip_prefix('[')?.strip_suffix(']')?.trim())
}

/// Returns the items of a list, or else the value itself, without those that are null.
fn list(json: &RawValue) -> Result<Vec<Box<RawValue>>, Error> {
    let is_list = json.get().starts_with('[');
    let mut values: Vec<Box<RawValue>> =
        if is_list { serde_json::from_str(json.get())? } else { vec![json.to_owned()] };
    values.retain(|value| value.get() != "null");
    Ok(values)
}

/// Returns a whole number that is not negative, also one that is written as a text or with a fraction of zero.
fn count(json: &RawValue) -> Option<u64> {
    let number = content(json).unwrap_or(json.get()).trim();
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    whole.parse().ok().filter(|_| fraction.bytes().all(|digit| digit == b'0'))
}

/// Numbers of tokens. Read in the form of the API, and stored in that of the metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::agents::openai) struct Usage {
    #[serde(default, rename = "promptTokens", alias = "prompt_tokens", deserialize_with = "number")]
    pub(super) prompt: u64,
    #[serde(default, rename = "completionTokens", alias = "completion_tokens", deserialize_with = "number")]
    pub(super) completion: u64,
    #[serde(default, rename = "totalTokens", alias = "total_tokens", deserialize_with = "number")]
    pub(super) total: u64,
    #[serde(default, skip_serializing, deserialize_with = "details")]
    pub(super) prompt_tokens_details: TokenDetails,
    #[serde(default, skip_serializing, deserialize_with = "details")]
    pub(super) completion_tokens_details: TokenDetails,
}

/// Details of a number of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct TokenDetails {
    /// Tokens of the prompt that were in a cache.
    #[serde(deserialize_with = "number")]
    cached_tokens: u64,
    /// Tokens of the completion that are reasoning.
    #[serde(deserialize_with = "number")]
    reasoning_tokens: u64,
}

/// Deserializes details. Anything else than an object is ignored.
fn details<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TokenDetails, D::Error> {
    Ok(serde_json::from_str(Box::<RawValue>::deserialize(deserializer)?.get()).unwrap_or_default())
}

/// Deserializes a number of tokens. Anything else, such as a negative number, is ignored.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Ok(count(&Box::<RawValue>::deserialize(deserializer)?).unwrap_or_default())
}

impl Usage {
    /// Adds the tokens of a further request.
    pub(in crate::agents::openai) fn add(&mut self, other: Self) {
        self.prompt = self.prompt.saturating_add(other.prompt);
        self.completion = self.completion.saturating_add(other.completion);
        self.total = self.total.saturating_add(other.total);
    }

    /// Counts the tokens in the metrics, and in the record of the turn.
    pub(in crate::agents::openai) fn count(self, agent: Option<&Arc<str>>, turn: &Turn) {
        turn.record_tokens(self.prompt, self.completion);
        for (direction, detail, count) in [
            ("input", "all", self.prompt),
            ("output", "all", self.completion),
            ("input", "cache_read", self.prompt_tokens_details.cached_tokens),
            ("output", "reasoning", self.completion_tokens_details.reasoning_tokens),
        ] {
            metric::MODEL_TOKENS.add(agent, &[direction, detail], count);
        }
    }
}

/// Reason for which an answer has ended. Of several, the last one of this order counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::agents::openai) enum Finish {
    /// The answer is complete.
    Stop,
    /// The model waits for the results of tool calls.
    Calls,
    /// The answer has the maximum number of tokens.
    Length,
    /// A content filter has stopped the answer.
    Filtered,
    /// Failure, or a reason that is not known.
    Failed(String),
}

impl Finish {
    /// Label in metrics.
    pub(in crate::agents::openai) fn label(&self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Calls => "tool_calls",
            Self::Length => "length",
            Self::Filtered => "content_filter",
            Self::Failed(_) => "other",
        }
    }

    fn of(reason: &str) -> Option<Self> {
        Some(match reason.to_ascii_lowercase().as_str() {
            "" | "null" => return None,
            "stop" | "end_turn" | "eos" | "eos_token" | "stop_sequence" | "complete" => Self::Stop,
            "tool_calls" | "tool_call" | "tool_use" | "function_call" => Self::Calls,
            "length" | "max_tokens" | "model_length" => Self::Length,
            "content_filter" | "refusal" | "safety" => Self::Filtered,
            // For the log.
            _ => Self::Failed(reason.chars().take(100).collect()),
        })
    }
}

/// Form of an answer in a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Delta,
    Message,
}

/// Chunk of a stream, or a whole response.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    /// Error that the endpoint reports.
    pub(super) error: Option<String>,
    pub(super) usage: Option<Usage>,
    /// The chunk has none of the members that are known.
    pub(super) is_unknown: bool,
    /// Form of the answer, if the chunk has one.
    pub(super) form: Option<Form>,
    pub(super) finish: Option<Finish>,
    /// Text of the answer, as the content of a JSON string.
    pub(super) text: String,
    /// Text of a refusal, as the content of a JSON string.
    pub(super) refusal: String,
    pub(super) calls: Vec<CallPiece>,
    /// Members of the assistant's message that are not known.
    pub(super) members: Vec<Members>,
    pub(super) has_reasoning: bool,
    /// Number of parts of the content that were skipped.
    pub(super) skipped: usize,
}

impl Chunk {
    /// Reads a chunk.
    ///
    /// # Errors
    /// A member has another type than its meaning needs.
    pub(super) fn read(mut chunk: Members) -> Result<Self, Error> {
        let kinds = [chunk.text("type")?, chunk.text("object")?];
        let is_kind = |kind: &str| kinds.iter().flatten().any(|found| found == kind);
        let mut read = Self { error: reported_error(&mut chunk), ..Self::default() };
        if is_kind("error") && read.error.is_none() {
            read.error = Some(chunk.text("message")?.unwrap_or_default());
        }
        read.is_unknown = !is_kind("ping") && !["choices", "usage"].iter().any(|name| chunk.0.contains_key(*name));
        let usage = chunk.take("usage");
        // Anything but numbers of tokens is ignored.
        read.usage = usage.and_then(|usage| serde_json::from_str(usage.get()).ok());
        for choice in chunk.list("choices")? {
            let mut choice: Members = serde_json::from_str(choice.get())?;
            // One answer is requested.
            if choice.count("index").unwrap_or_default() == 0 {
                read.error = read.error.take().or(reported_error(&mut choice));
                let finish = choice.text("finish_reason")?.and_then(|reason| Finish::of(&reason));
                read.finish = read.finish.take().max(finish);
                let (delta, message) = (choice.object("delta")?, choice.object("message")?);
                read.form = Some(if delta.is_none() && message.is_some() { Form::Message } else { Form::Delta });
                read.add(delta.or(message).unwrap_or_default())?;
            }
        }
        Ok(read)
    }

    /// Adds a message of the assistant, or a part of one.
    fn add(&mut self, mut delta: Members) -> Result<(), Error> {
        delta.take("role");
        for part in delta.list("content")? {
            self.add_part(&part)?;
        }
        for part in delta.list("refusal")? {
            self.refusal.push_str(content(&part).ok_or_else(|| Error::custom("the refusal is no text"))?);
        }
        for call in delta.list("tool_calls")? {
            self.calls.push(CallPiece::read(serde_json::from_str(call.get())?)?);
        }
        // The form of a call before there were several.
        if let Some(function) = delta.take("function_call").filter(|_| self.calls.is_empty()) {
            let call = BTreeMap::from([("function".to_owned(), function)]);
            self.calls.push(CallPiece::read(Members(call))?);
        }
        self.has_reasoning |= delta.0.keys().any(|name| is_reasoning(name));
        self.members.push(delta);
        Ok(())
    }

    /// Adds a part of a content: a text, or an object with a type.
    fn add_part(&mut self, part: &RawValue) -> Result<(), Error> {
        if let Some(text) = content(part) {
            self.text.push_str(text);
            return Ok(());
        }
        let mut part: Members = serde_json::from_str(part.get())?;
        let kind = part.text("type")?.unwrap_or_default();
        if is_reasoning(&kind) {
            self.has_reasoning = true;
        } else if let Some(text) = part.take("text") {
            self.text.push_str(content(&text).ok_or_else(|| Error::custom("a text of the content is no text"))?);
        } else if let Some(refusal) = part.take("refusal") {
            self.refusal.push_str(content(&refusal).ok_or_else(|| Error::custom("the refusal is no text"))?);
        } else if kind == "reference" {
            self.skipped += 1;
        } else if kind != "text" {
            return Err(Error::custom(format!("a part of the content is no text (`{kind}`)")));
        }
        Ok(())
    }
}

/// Takes the error of a chunk or of a choice, as JSON.
fn reported_error(members: &mut Members) -> Option<String> {
    let error = members.take("error").filter(|error| !matches!(error.get(), "false" | "\"\"" | "{}"));
    error.map(|error| error.get().to_owned())
}

/// Piece of a tool call, or a whole one.
#[derive(Debug, Default)]
pub(super) struct CallPiece {
    pub(super) index: Option<u64>,
    pub(super) id: String,
    pub(super) name: String,
    /// Text of the arguments, as the content of a JSON string.
    pub(super) arguments: Option<String>,
    /// Members that are not known.
    pub(super) members: Members,
    /// Members of `function` that are not known.
    pub(super) function: Members,
}

impl CallPiece {
    fn read(mut call: Members) -> Result<Self, Error> {
        call.take("type");
        let mut function = call.object("function")?.unwrap_or_default();
        let arguments = function.take("arguments").map(|arguments| match content(&arguments) {
            Some(text) => Ok(text.to_owned()),
            // An object in place of its text.
            None => serde_json::to_string(arguments.get()).map(|text| text.trim_matches('"').to_owned()),
        });
        Ok(Self {
            index: call.count("index"),
            id: call.text("id")?.unwrap_or_default(),
            name: function.text("name")?.unwrap_or_default(),
            arguments: arguments.transpose()?,
            members: call,
            function,
        })
    }
}
