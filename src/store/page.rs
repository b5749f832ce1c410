//! Lists of tasks, ends of pages, page tokens and page size limits. A token names the last task of a page instead of an
//! offset, so that changes between two pages neither repeat nor skip other tasks.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use prost::Message as _;

use super::{Millis, Task, TaskState, key::Scope};
use crate::protocol::history::HistoryLimit;

/// Filter, start and contents of a page of tasks.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    /// Owner and tenant of the tasks.
    pub scope: Arc<Scope>,
    /// Only tasks of this context.
    pub context: Option<Box<str>>,
    /// Only tasks in this state.
    pub state: Option<TaskState>,
    /// Only tasks with a status timestamp at or after this time.
    pub since: Option<Millis>,
    /// Start after this task.
    pub after: Option<PageToken>,
    /// Maximum number of tasks on the page.
    pub limit: usize,
    /// Maximum size of the page in bytes of protobuf, unlimited if `None`. A page ends before the task that exceeds it, but
    /// has at least one task.
    pub max_bytes: Option<usize>,
    /// Maximum number of messages in the history of each task, unlimited if `None`.
    pub history_length: Option<usize>,
    /// Maximum size of the history of each task in bytes of protobuf, unlimited if `None`: the newest messages that fit, and
    /// at least one unless `history_length` is 0.
    pub history_bytes: Option<usize>,
    /// Include the artifacts of each task.
    pub include_artifacts: bool,
}

impl ListQuery {
    /// Limit of the history of each task.
    pub(crate) fn history_limit(&self) -> HistoryLimit {
        HistoryLimit { messages: self.history_length, bytes: self.history_bytes.unwrap_or(usize::MAX) }
    }
}

/// Page of tasks in descending order of status timestamp and id (3.1.4).
#[derive(Clone, Debug, Default)]
pub struct ListPage {
    /// Tasks, with the parts that the query selects.
    pub tasks: Vec<Task>,
    /// Number of tasks on all pages.
    pub total: u64,
    /// Start of the next page, if there is one.
    pub next: Option<PageToken>,
}

/// Cursor of a list: the last task of a page, by its position in the list order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageToken {
    /// Status timestamp of the task when the page was read.
    pub time: Millis,
    /// Id of the task.
    pub id: Box<str>,
}

/// Version of the token encoding.
const LAYOUT: u8 = 1;

/// Ends a page that was read with one row more than its limit, if there is one. Returns the page, and the position of its
/// last row if another page follows.
pub(super) fn cut_page<P, T>(mut rows: Vec<(P, T)>, limit: usize) -> (Vec<T>, Option<P>) {
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    let mut last = None;
    let page = rows.into_iter().map(|(position, row)| {
        last = Some(position);
        row
    });
    let page = page.collect();
    (page, last.filter(|_| has_more))
}

impl PageToken {
    /// Encodes the token as opaque text that is valid for this query only.
    pub fn to_text(&self, query: &ListQuery) -> String {
        let mut bytes = vec![LAYOUT];
        bytes.extend(query_hash(query).to_be_bytes());
        bytes.extend(self.time.to_be_bytes());
        bytes.extend(self.id.as_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Decodes a token. Returns `None` if it is malformed or was issued for another query.
    pub fn from_text(text: &str, query: &ListQuery) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (&layout, bytes) = bytes.split_first()?;
        let (hash, bytes) = bytes.split_first_chunk()?;
        let (time, id) = bytes.split_first_chunk()?;
        let is_valid = layout == LAYOUT && u32::from_be_bytes(*hash) == query_hash(query);
        is_valid
            .then(|| std::str::from_utf8(id).ok())?
            .map(|id| Self { time: Millis::from_be_bytes(*time), id: id.into() })
    }
}

/// Hash (FNV-1a) of the filters of a query, which must not change between pages. Page size and selected parts may change.
fn query_hash(query: &ListQuery) -> u32 {
    let state = query.state.map_or(0, i32::from);
    let text = format!("{:?} {state} {:?}", query.context, query.since);
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Reads the tasks of a page within its byte budget ([`ListQuery::max_bytes`]): of rows in list order, with one more than the limit if
/// there are so many. A row for which `read` returns none is omitted. Also returns the start of the next page.
pub(super) fn read_page<R, E>(
    query: &ListQuery,
    rows: Vec<(PageToken, R)>,
    mut read: impl FnMut(&PageToken, R) -> Result<Option<Task>, E>,
) -> Result<(Vec<Task>, Option<PageToken>), E> {
    let (mut tasks, mut left, mut last) = (Vec::<Task>::new(), query.max_bytes.unwrap_or(usize::MAX), None);
    for (n, (token, row)) in rows.into_iter().enumerate() {
        if n >= query.limit {
            return Ok((tasks, last));
        }
        if let Some(task) = read(&token, row)? {
            let rest = left.checked_sub(task.encoded_len());
            // The first task always fits.
            if rest.is_none() && !tasks.is_empty() {
                return Ok((tasks, last));
            }
            left = rest.unwrap_or(0);
            tasks.push(task);
        }
        last = Some(token);
    }
    Ok((tasks, None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::pb::v1::TaskState;

    #[test]
    fn token_is_valid_only_for_its_query() {
        let query = ListQuery { context: Some("c".into()), ..ListQuery::default() };
        let token = PageToken { time: -5, id: "t-1".into() };
        let text = token.to_text(&query);
        assert_eq!(PageToken::from_text(&text, &query), Some(token));
        let other_limit = ListQuery { limit: 7, ..query.clone() };
        assert_eq!(PageToken::from_text(&text, &other_limit).map(|token| token.time), Some(-5));
        assert_eq!(PageToken::from_text(&text, &ListQuery { state: Some(TaskState::Working), ..query.clone() }), None);
        for text in ["", "x", "!!!!", "AQ", &text[2..]] {
            assert_eq!(PageToken::from_text(text, &query), None, "{text}");
        }
    }
}
