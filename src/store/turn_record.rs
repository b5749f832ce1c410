//! Record of a turn: who called the agent, when, and how the turn ended. Stored with the task, so that an operator can follow
//! it later, and in a compact encoding, because a task may have many turns.

use std::time::Duration;

use prost::{
    Message as _,
    encoding::{decode_varint, encode_varint},
};
use uuid::{Uuid, Variant};

use super::{Fence, Millis, Seq, log_codec::to_u64};
use crate::{
    base::{clock::whole_millis, trace::TraceContext},
    protocol::{call::Binding, pb::wkt::timestamp, version::Version},
};

/// Maximum number of records that a store keeps of a task whose log it has deleted: the newest ones.
pub const MAX_TURNS: usize = 32;

/// Values of [`TurnRecord::outcome`]. Stored by their position.
pub const OUTCOMES: [&str; 8] =
    ["completed", "failed", "canceled", "rejected", "input_required", "auth_required", "reply", "abandoned"];

/// Values of [`TurnRecord::reason`]. Stored by their position.
pub const REASONS: [&str; 12] = [
    "none",
    "agent",
    "error",
    "panic",
    "deadline",
    "idle",
    "limit",
    "unavailable",
    "breaker_open",
    "credentials",
    "tool_rounds",
    "exit_code",
];

/// Record of an attempt to run a turn of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TurnRecord {
    /// Number of the turn in its task, from 1.
    pub number: u32,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Fencing token of the opening of the store in which the attempt runs: it names the start of the server.
    pub fence: Fence,
    /// Event of the last message of the turn.
    pub message: Seq,
    /// Time at which the message was accepted, or recovered after a restart.
    pub accepted: Millis,
    /// Time at which the agent was called.
    pub begun: Option<Millis>,
    /// Time at which the turn ended.
    pub ended: Option<Millis>,
    /// Id of the principal that sent the message, if it is not the owner of the task.
    pub caller: Option<Box<str>>,
    /// Binding over which the message was received, if that is known.
    pub binding: Option<Binding>,
    /// Protocol version of the call, if that is known.
    pub version: Option<Version>,
    /// Trace context: trace id, span id and flags.
    pub trace: Option<[u8; 25]>,
    /// Id of the request with the message.
    pub request_id: Option<Box<str>>,
    /// Outcome of the turn, one of [`OUTCOMES`]. `None` while it runs, and of an attempt that the end of the server interrupted.
    pub outcome: Option<&'static str>,
    /// Reason of the outcome, one of [`REASONS`].
    pub reason: Option<&'static str>,
    /// Id of the log line of a failed turn.
    pub error_id: Option<Box<str>>,
    /// Tokens that models have read.
    pub tokens_in: u64,
    /// Tokens that models have written.
    pub tokens_out: u64,
    /// Exit code of the command of the agent.
    pub exit_code: Option<i32>,
    /// Number of commits of the turn.
    pub commits: u32,
    /// Time that the commits took.
    pub commit_wait: Duration,
}

/// Encoded record. Times are in milliseconds: `accepted` since the creation of the task, the others since `accepted`.
#[derive(Clone, PartialEq, prost::Message)]
struct Encoded {
    #[prost(uint32, tag = "1")]
    number: u32,
    #[prost(uint32, tag = "2")]
    attempt: u32,
    #[prost(uint64, tag = "3")]
    fence: u64,
    #[prost(uint64, tag = "4")]
    message: u64,
    #[prost(int64, tag = "5")]
    accepted: i64,
    #[prost(int64, optional, tag = "6")]
    begun: Option<i64>,
    #[prost(int64, optional, tag = "7")]
    ended: Option<i64>,
    #[prost(string, optional, tag = "8")]
    caller: Option<String>,
    #[prost(uint32, tag = "9")]
    binding: u32,
    #[prost(uint32, tag = "10")]
    version: u32,
    #[prost(bytes = "vec", tag = "11")]
    trace: Vec<u8>,
    /// 16 bytes of a UUID in its usual form, otherwise the text.
    #[prost(bytes = "vec", tag = "12")]
    request_id: Vec<u8>,
    #[prost(uint32, tag = "13")]
    outcome: u32,
    #[prost(uint32, tag = "14")]
    reason: u32,
    #[prost(uint64, tag = "15")]
    tokens_in: u64,
    #[prost(uint64, tag = "16")]
    tokens_out: u64,
    #[prost(sint32, optional, tag = "17")]
    exit_code: Option<i32>,
    #[prost(uint32, tag = "18")]
    commits: u32,
    #[prost(uint64, tag = "19")]
    commit_wait: u64,
}

const BINDINGS: [Binding; 4] = [Binding::InProcess, Binding::Grpc, Binding::Rest, Binding::JsonRpc];
const VERSIONS: [Version; 2] = [Version::V0_3, Version::V1_0];

/// Returns the position of a value in its table, from 1. 0 stands for a missing value.
fn code<T: PartialEq>(table: &[T], value: Option<&T>) -> u32 {
    let position = value.and_then(|value| table.iter().position(|known| known == value));
    position.and_then(|position| u32::try_from(position + 1).ok()).unwrap_or(0)
}

/// Returns the value with this code, and for an unknown one `None`.
fn value<T: Copy>(table: &[T], code: u32) -> Option<T> {
    table.get(usize::try_from(code).ok()?.checked_sub(1)?).copied()
}

/// Returns the time at which a task was created, from its id: a UUID of version 7. Zero for another id.
pub fn created(task_id: &str) -> Millis {
    time_of(task_id).unwrap_or(0)
}

/// Returns the time in a UUID of version 7. `None` for another text.
pub(crate) fn time_of(id: &str) -> Option<Millis> {
    let id = uuid(id).filter(|id| id.get_version_num() == 7 && id.get_variant() == Variant::RFC4122)?;
    Millis::try_from(id.as_u128() >> 80).ok()
}

/// Parses a UUID in its usual form.
fn uuid(text: &str) -> Option<Uuid> {
    let id = Uuid::try_parse(text).ok()?;
    (*id.hyphenated().encode_lower(&mut Uuid::encode_buffer()) == *text).then_some(id)
}

impl TurnRecord {
    /// Returns whether the record has something that a task that ends with its first commit does not show.
    pub(crate) fn is_notable(&self) -> bool {
        let has_numbers = self.tokens_in > 0 || self.tokens_out > 0 || self.exit_code.is_some() || self.attempt > 1;
        self.trace.is_some() || self.error_id.is_some() || self.caller.is_some() || has_numbers
    }

    /// Returns the record as JSON, with times as texts.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        let time = |millis: Option<Millis>| millis.map(timestamp);
        let trace = self.trace.map(TraceContext);
        serde_json::json!({
            "n": self.number,
            "attempt": self.attempt,
            "start": self.fence,
            "message_seq": self.message,
            "queued": time(Some(self.accepted)),
            "begun": time(self.begun),
            "ended": time(self.ended),
            "outcome": self.outcome,
            "reason": self.reason,
            "error_id": self.error_id,
            "caller": self.caller,
            "binding": self.binding.map(Binding::name),
            "version": self.version.map(Version::as_str),
            "request_id": self.request_id,
            "trace": trace.map(|trace| trace.trace_id().to_string()),
            "span": trace.map(|trace| trace.span_id().to_string()),
            "tokens": {"input": self.tokens_in, "output": self.tokens_out},
            "exit_code": self.exit_code,
            "commits": self.commits,
            "commit_wait_ms": whole_millis(self.commit_wait),
        })
    }

    /// Returns what is stored of the record. If its beginning is stored before, only what has become known since.
    fn encoded(&self, created: Millis, is_begin_stored: bool) -> Encoded {
        let since = |start: Millis, time: Millis| time.saturating_sub(start).max(0);
        let end = Encoded {
            number: self.number,
            attempt: self.attempt,
            ended: self.ended.map(|time| since(self.accepted, time)),
            outcome: code(&OUTCOMES, self.outcome.as_ref()),
            reason: code(&REASONS, self.reason.as_ref()),
            tokens_in: self.tokens_in,
            tokens_out: self.tokens_out,
            exit_code: self.exit_code,
            commits: self.commits,
            commit_wait: u64::try_from(whole_millis(self.commit_wait)).unwrap_or(0),
            begun: self.begun.map(|time| since(self.accepted, time)),
            ..Encoded::default()
        };
        if is_begin_stored {
            return end;
        }
        let bytes = |text: &str| uuid(text).map_or_else(|| text.as_bytes().to_vec(), |id| id.into_bytes().to_vec());
        Encoded {
            fence: self.fence,
            message: self.message,
            accepted: since(created, self.accepted),
            caller: self.caller.as_deref().map(str::to_owned),
            binding: code(&BINDINGS, self.binding.as_ref()),
            version: code(&VERSIONS, self.version.as_ref()),
            trace: self.trace.map(Vec::from).unwrap_or_default(),
            request_id: self.request_id.as_deref().map(bytes).unwrap_or_default(),
            ..end
        }
    }

    fn decoded(encoded: &Encoded, created: Millis) -> Self {
        let accepted = created.saturating_add(encoded.accepted);
        let after = |time: i64| accepted.saturating_add(time);
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let request_id = Some(&*encoded.request_id).filter(|bytes| !bytes.is_empty());
        let request_id = request_id.map(|id| Uuid::from_slice(id).map_or_else(|_| text(id), |id| id.to_string()));
        Self {
            number: encoded.number,
            attempt: encoded.attempt,
            fence: encoded.fence,
            message: encoded.message,
            accepted,
            begun: encoded.begun.map(after),
            ended: encoded.ended.map(after),
            caller: encoded.caller.as_deref().map(Box::from),
            binding: value(&BINDINGS, encoded.binding),
            version: value(&VERSIONS, encoded.version),
            trace: encoded.trace.as_slice().try_into().ok(),
            request_id: request_id.map(Into::into),
            outcome: value(&OUTCOMES, encoded.outcome),
            reason: value(&REASONS, encoded.reason),
            error_id: None,
            tokens_in: encoded.tokens_in,
            tokens_out: encoded.tokens_out,
            exit_code: encoded.exit_code,
            commits: encoded.commits,
            commit_wait: Duration::from_millis(encoded.commit_wait),
        }
    }

    /// Encodes records of a task for [`Commit::turns`](super::Commit::turns), each with whether its beginning is stored before.
    ///
    /// The error id is at the beginning, for an index: only the last turn of a task can have failed.
    pub fn encode(task_id: &str, records: &[(&Self, bool)]) -> Vec<u8> {
        let error = records.last().and_then(|(last, _)| uuid(last.error_id.as_deref()?));
        let (created, mut bytes) = (created(task_id), vec![u8::from(error.is_some())]);
        bytes.extend(error.map(Uuid::into_bytes).into_iter().flatten());
        for (record, is_begin_stored) in records {
            let encoded = record.encoded(created, *is_begin_stored);
            encode_varint(to_u64(encoded.encoded_len()), &mut bytes);
            encoded.encode_raw(&mut bytes);
        }
        bytes
    }

    /// Decodes the stored records of a task, and joins the parts of each. Ordered by number and attempt. `None` if they are
    /// damaged.
    pub fn decode<'a>(task_id: &str, stored: impl IntoIterator<Item = &'a [u8]>) -> Option<Vec<Self>> {
        let (mut all, mut error) = (Vec::<Encoded>::new(), None);
        for bytes in stored {
            error = error_id(bytes).or(error);
            let mut rest = bytes.get(if bytes.first() == Some(&1) { 17 } else { 1 }..)?;
            while !rest.is_empty() {
                let length = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
                let (part, after) = rest.split_at_checked(length)?;
                let key = Encoded::decode(part).ok()?;
                let same = |known: &&mut Encoded| (known.number, known.attempt) == (key.number, key.attempt);
                match all.iter_mut().find(same) {
                    Some(known) => known.merge(part).ok()?,
                    None => all.push(key),
                }
                rest = after;
            }
        }
        all.sort_by_key(|encoded| (encoded.number, encoded.attempt));
        let mut records: Vec<Self> = all.iter().map(|encoded| Self::decoded(encoded, created(task_id))).collect();
        if let Some(last) = records.last_mut() {
            last.error_id = error.map(Into::into);
        }
        Some(records)
    }
}

/// Returns the error id at the beginning of encoded records.
pub fn error_id(encoded: &[u8]) -> Option<String> {
    let (1, id) = encoded.split_first()? else { return None };
    Some(Uuid::from_slice(id.get(..16)?).ok()?.to_string())
}

/// Returns an error id as it is at the beginning of encoded records, after the first byte. `None` if the text is no error id.
pub fn error_key(id: &str) -> Option<[u8; 16]> {
    Uuid::try_parse(id).ok().map(Uuid::into_bytes)
}
