//! Page tokens and page sizes of lists. A page begins after a task, not at an offset, so that the list may change
//! between two pages.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use prost::Message as _;

use super::ListQuery;
use crate::{pb::v1::Task, seam::Millis};

/// The last task of a page. The next one begins behind its status time and its id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token {
    /// The time of its status, as it was when the page was made.
    pub time: Millis,
    /// Its id.
    pub id: Box<str>,
}

/// The layout of a token; another one is another number.
const LAYOUT: u8 = 1;

impl Token {
    /// As it is given to a client: opaque, and for this query only.
    pub fn to_text(&self, query: &ListQuery) -> String {
        let mut bytes = vec![LAYOUT];
        bytes.extend(fingerprint(query).to_be_bytes());
        bytes.extend(self.time.to_be_bytes());
        bytes.extend(self.id.as_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Reads what a client gives back. None for what we did not make, or made for another query.
    pub fn from_text(text: &str, query: &ListQuery) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (&layout, bytes) = bytes.split_first()?;
        let (print, bytes) = bytes.split_first_chunk()?;
        let (time, id) = bytes.split_first_chunk()?;
        let known = layout == LAYOUT && u32::from_be_bytes(*print) == fingerprint(query);
        known
            .then(|| std::str::from_utf8(id).ok())?
            .map(|id| Self { time: Millis::from_be_bytes(*time), id: id.into() })
    }
}

/// What of a query has to stay the same from page to page (FNV-1a). How large the pages are, and what of the tasks is
/// on them, may change.
fn fingerprint(query: &ListQuery) -> u32 {
    let state = query.state.map_or(0, i32::from);
    let text = format!("{:?} {state} {:?}", query.context, query.since);
    text.bytes().fold(0x811c_9dc5, |hash, it| (hash ^ u32::from(it)).wrapping_mul(0x0100_0193))
}

/// The tasks of a page, as far as they fit its byte budget ([`ListQuery::bytes`]).
pub(super) struct PageTasks {
    tasks: Vec<Task>,
    /// Bytes that are left of the budget.
    left: usize,
}

impl PageTasks {
    pub(super) fn new(query: &ListQuery) -> Self {
        Self { tasks: Vec::new(), left: query.bytes.unwrap_or(usize::MAX) }
    }

    /// Adds a task and returns true, or returns false if it does not fit. The first task always fits.
    pub(super) fn push(&mut self, task: Task) -> bool {
        let left = self.left.checked_sub(task.encoded_len());
        if left.is_none() && !self.tasks.is_empty() {
            return false;
        }
        self.left = left.unwrap_or(0);
        self.tasks.push(task);
        true
    }

    pub(super) fn into_tasks(self) -> Vec<Task> {
        self.tasks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb::v1::TaskState;

    #[test]
    fn a_token_is_for_its_query() {
        let query = ListQuery { context: Some("c".into()), ..ListQuery::default() };
        let token = Token { time: -5, id: "t-1".into() };
        let text = token.to_text(&query);
        assert_eq!(Token::from_text(&text, &query), Some(token));
        assert_eq!(Token::from_text(&text, &ListQuery { limit: 7, ..query.clone() }).map(|it| it.time), Some(-5));
        assert_eq!(Token::from_text(&text, &ListQuery { state: Some(TaskState::Working), ..query.clone() }), None);
        for text in ["", "x", "!!!!", "AQ", &text[2..]] {
            assert_eq!(Token::from_text(text, &query), None, "{text}");
        }
    }
}
