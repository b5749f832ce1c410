//! Tool calls of a model, joined from their pieces.
//!
//! Endpoints tell the calls of an answer apart by an index, by an id, or only by their order.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::chunk::{CallPiece, JoinedMembers};
use crate::{
    base::surrogates::{decode, replace_lone_surrogates},
    engine::agent::Error,
    protocol::json::{check_json, wkt::check_unique},
};

/// Maximum number of tool calls in a response.
const MAX_CALLS: usize = 64;

/// Maximum size of the tool calls in a response, in bytes.
const MAX_CALL_BYTES: usize = 1 << 20;

/// Tool call of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::agents::openai) struct ToolCall {
    pub(in crate::agents::openai) id: String,
    pub(in crate::agents::openai) name: String,
    /// Arguments in JSON.
    pub(in crate::agents::openai) arguments: String,
}

impl ToolCall {
    /// Returns the arguments. Those that are not JSON, or have a member twice, are a string.
    pub(in crate::agents::openai) fn arguments(&self) -> Value {
        let arguments = check_json(self.arguments.as_bytes()).ok();
        let arguments = arguments.and_then(|()| check_unique(self.arguments.as_bytes()).ok());
        let arguments = arguments.and_then(|()| serde_json::from_str(&self.arguments).ok());
        arguments.unwrap_or_else(|| self.arguments.clone().into())
    }
}

/// Tool calls while they are received.
#[derive(Debug, Default)]
pub(super) struct Calls {
    calls: Vec<Call>,
    /// Size in bytes.
    bytes: usize,
}

/// Tool call while it is received.
#[derive(Debug, Default)]
struct Call {
    index: Option<u64>,
    id: String,
    name: String,
    /// Texts of the arguments, as the contents of JSON strings. A piece after a whole object begins a further one.
    arguments: Vec<String>,
    /// Braces of the last text. It looks like a whole object if they are closed.
    braces: Braces,
    /// The last text if a piece that begins with all before it replaces that.
    cumulative: String,
    members: JoinedMembers,
    function: JoinedMembers,
}

/// Reader of the braces in JSON that arrives in pieces: those in its strings do not count.
#[derive(Debug, Default)]
struct Braces {
    depth: usize,
    is_in_string: bool,
    /// The last character is a backslash in a string.
    is_escape: bool,
    /// The last character, except for white space, ends an object that is in no other one.
    is_closed: bool,
}

impl Braces {
    fn read(&mut self, piece: &str) {
        for byte in piece.bytes() {
            let is_escaped = std::mem::take(&mut self.is_escape);
            self.is_closed &= byte.is_ascii_whitespace();
            match byte {
                b'\\' if self.is_in_string => self.is_escape = !is_escaped,
                b'"' if !is_escaped => self.is_in_string = !self.is_in_string,
                b'{' if !self.is_in_string => self.depth += 1,
                b'}' if !self.is_in_string => {
                    self.is_closed = self.depth == 1;
                    self.depth = self.depth.saturating_sub(1);
                }
                _ => {}
            }
        }
    }
}

/// Decodes a text of arguments.
fn text(arguments: &str) -> Result<String, serde_json::Error> {
    Ok(replace_lone_surrogates(&decode(arguments)?).into_owned())
}

/// Parses arguments. `None` if they are no object.
fn object(arguments: &str) -> Option<Map<String, Value>> {
    check_json(arguments.as_bytes()).ok()?;
    serde_json::from_str(arguments).ok()
}

impl Call {
    /// Parses the last text of the arguments.
    fn last_object(&self) -> Option<Map<String, Value>> {
        self.arguments.last().and_then(|last| object(&text(last).ok()?))
    }

    /// Returns true if a piece has the whole arguments of this call once more.
    fn is_repeated_by(&self, piece: &CallPiece) -> bool {
        let further = piece.arguments.as_ref().filter(|_| self.braces.is_closed);
        further.is_some_and(|further| {
            let is_same = self.arguments.last() == Some(further);
            is_same || text(further).is_ok_and(|text| object(&text).is_some_and(|it| Some(it) == self.last_object()))
        })
    }

    /// Returns true if a piece without a name may belong to this call, although its index is another one.
    fn accepts(&self, piece: &CallPiece) -> bool {
        let is_blank = |arguments: &String| decode(arguments).is_ok_and(|text| text.trim_ascii().is_empty());
        !self.braces.is_closed || piece.arguments.as_ref().is_none_or(is_blank) || self.is_repeated_by(piece)
    }

    /// Returns true if a piece with a name continues this call, and begins no other one.
    fn is_continued_by(&self, piece: &CallPiece, tools: &[&str]) -> bool {
        let has_begun = self.arguments.iter().any(|text| !text.is_empty());
        let is_blank = piece.arguments.as_ref().is_none_or(String::is_empty);
        if self.name.is_empty() {
            true
        } else if self.name != piece.name {
            // A further piece of the name.
            !has_begun && self.joined_name(&piece.name, tools).is_some()
        } else if has_begun {
            let has_index = piece.index.is_some() && self.index == piece.index;
            // An empty object in place of arguments. An endpoint that sends ids sends one with each call.
            let is_placeholder = || !self.id.is_empty() && self.last_object().is_some_and(|object| object.is_empty());
            // Some endpoints repeat the name with each piece.
            is_blank || !self.braces.is_closed || (has_index && (self.is_repeated_by(piece) || is_placeholder()))
        } else {
            piece.arguments.is_some() || piece.index.is_some() || !piece.id.is_empty()
        }
    }

    /// Returns the name with a further piece of it, if that is the beginning of a tool's name.
    fn joined_name(&self, piece: &str, tools: &[&str]) -> Option<String> {
        let is_tool = |name: &str| tools.contains(&name);
        if piece.starts_with(&self.name) && !is_tool(&self.name) {
            return Some(piece.to_owned());
        }
        let joined = format!("{}{piece}", self.name);
        tools.iter().any(|tool| tool.starts_with(&joined)).then_some(joined)
    }

    /// Adds a piece.
    fn add(&mut self, piece: CallPiece, tools: &[&str]) {
        self.index = self.index.or(piece.index);
        if self.id.is_empty() {
            self.id = piece.id;
        }
        if !piece.name.is_empty() && piece.name != self.name {
            self.name = self.joined_name(&piece.name, tools).unwrap_or(piece.name);
        }
        if let Some(further) = piece.arguments {
            self.add_arguments(further);
        }
        self.members.add(piece.members);
        self.function.add(piece.function);
    }

    fn add_arguments(&mut self, piece: String) {
        // A piece that can't be decoded is an error in the end.
        let text = decode(&piece).unwrap_or_default();
        if self.braces.is_closed && self.arguments.last() == Some(&piece) {
            return;
        }
        if self.arguments.is_empty() || (self.braces.is_closed && !text.trim_ascii().is_empty()) {
            self.arguments.push(String::new());
            self.braces = Braces::default();
            self.cumulative.clear();
        }
        self.braces.read(&text);
        if let Some(last) = self.arguments.last_mut() {
            last.push_str(&piece);
        }
        if piece.starts_with(&self.cumulative) {
            self.cumulative = piece;
        } else {
            self.cumulative.push_str(&piece);
        }
    }

    /// Returns the arguments. Some endpoints send the whole ones again at the end, others an empty object before them.
    ///
    /// # Errors
    /// The endpoint sent different whole arguments.
    fn joined_arguments(&self) -> Result<String, Error> {
        let mut joined = String::new();
        let mut known: Option<Map<_, _>> = None;
        for (position, arguments) in self.arguments.iter().enumerate() {
            let mut further = text(arguments)?;
            let mut value = object(&further);
            if value.is_none() && position + 1 == self.arguments.len() {
                // Some endpoints send the whole text so far with each piece. This is certain if the joined text is no object.
                let cumulative = text(&self.cumulative)?;
                value = object(&cumulative);
                if value.is_some() {
                    further = cumulative;
                }
            }
            if known.is_some() && known == value {
                continue;
            }
            if known.as_ref().is_some_and(Map::is_empty) {
                joined.clear();
            } else if known.is_some() && value.is_some() {
                return Err(Error::public("The model endpoint sent different arguments for the same tool call."));
            }
            known = value.filter(|_| joined.is_empty());
            joined.push_str(&further);
        }
        Ok(joined)
    }
}

impl Calls {
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Adds a list of pieces. `tools` are the names of the tools.
    ///
    /// # Errors
    /// The calls exceed a limit.
    pub(super) fn add(&mut self, pieces: Vec<CallPiece>, tools: &[&str]) -> Result<(), Error> {
        let (before, count) = (self.calls.len(), pieces.len());
        for (order, piece) in pieces.into_iter().enumerate() {
            let arguments = piece.arguments.as_ref().map_or(0, String::len);
            self.bytes +=
                piece.id.len() + piece.name.len() + arguments + piece.members.bytes() + piece.function.bytes();
            if self.bytes > MAX_CALL_BYTES {
                let text = format!("The tool calls of the model exceed {MAX_CALL_BYTES} bytes.");
                return Err(Error::public(text));
            }
            // The last calls before the list have the order of the list.
            let by_order = (before + order).checked_sub(count);
            let position = self.position(&piece, by_order, tools).unwrap_or(self.calls.len());
            if position == MAX_CALLS {
                return Err(Error::public(format!("The model called more than {MAX_CALLS} tools at once.")));
            }
            if position == self.calls.len() {
                self.calls.push(Call::default());
            }
            if let Some(call) = self.calls.get_mut(position) {
                call.add(piece, tools);
            }
        }
        Ok(())
    }

    /// Returns the position of the call to which a piece belongs. `None`: a new call. `by_order` is the call to which its order refers.
    fn position(&self, piece: &CallPiece, by_order: Option<usize>, tools: &[&str]) -> Option<usize> {
        let last = self.calls.len().checked_sub(1)?;
        let has_name = !piece.name.is_empty();
        let has_id = !piece.id.is_empty();
        let has_same_id = |call: &Call| has_id && call.id == piece.id;
        let is_known = |call: &Call| {
            let has_index = piece.index.is_none() || call.index.is_none() || call.index == piece.index;
            let is_same = !has_name || call.name == piece.name || call.is_continued_by(piece, tools);
            has_same_id(call) && has_index && is_same
        };
        let is_repeated = |call: &Call| has_same_id(call) && call.name == piece.name && call.is_repeated_by(piece);
        let known = self.calls.iter().rposition(is_known);
        if let Some(known) = known.or_else(|| self.calls.iter().rposition(is_repeated)) {
            return Some(known);
        }
        let candidate = match piece.index {
            Some(index) => self.calls.iter().rposition(|call| call.index == Some(index)),
            None => by_order,
        };
        if !has_name && !has_id {
            return candidate.or_else(|| self.calls.get(last).is_some_and(|call| call.accepts(piece)).then_some(last));
        }
        let call = self.calls.get(candidate?)?;
        let is_continued = match (has_id && !call.id.is_empty(), has_name) {
            (false, true) => call.is_continued_by(piece, tools),
            (false, false) => true,
            // An index that several calls have.
            (true, true) => false,
            // Some endpoints send another id with each piece.
            (true, false) => piece.arguments.as_ref().is_some_and(|arguments| !arguments.is_empty()),
        };
        candidate.filter(|_| is_continued)
    }

    /// Returns the calls, and their form in the assistant's message.
    ///
    /// # Errors
    /// A call has no name, or is invalid.
    pub(super) fn finish(mut self) -> Result<(Vec<ToolCall>, Vec<Value>), Error> {
        let is_blank = |call: &Call| call.arguments.iter().all(String::is_empty);
        // An id alone means nothing.
        self.calls.retain(|call| !call.name.is_empty() || !is_blank(call));
        let (mut calls, mut messages) = (Vec::new(), Vec::new());
        for (position, call) in self.calls.into_iter().enumerate() {
            if call.name.is_empty() {
                return Err(Error::public("The model called a tool without a name."));
            }
            let arguments = call.joined_arguments()?;
            let id = if call.id.is_empty() { format!("call_{position}") } else { call.id };
            let (mut message, mut function) = (call.members.into_map()?, call.function.into_map()?);
            function.insert("name".to_owned(), call.name.clone().into());
            function.insert("arguments".to_owned(), arguments.clone().into());
            message.insert("id".to_owned(), id.clone().into());
            message.insert("type".to_owned(), "function".into());
            message.insert("function".to_owned(), function.into());
            messages.push(message.into());
            calls.push(ToolCall { id, name: call.name, arguments });
        }
        Ok((calls, messages))
    }
}
