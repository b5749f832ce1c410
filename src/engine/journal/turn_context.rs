//! Request context of a message, as the turn sees it that processes the message. The contexts of unanswered messages are
//! stored with the task as JSON, so that a turn that is run again after a restart has them. Credentials are not stored. The
//! trace of the last turn is stored for as long as the task, because notifications may be sent long after the turn.

use std::{collections::BTreeSet, mem, sync::Arc};

use bytes::Bytes;
use http::HeaderMap;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    base::trace::{TraceContext, TraceScope},
    protocol::{
        call::{Binding, Principal, Scopes},
        event::Seq,
        message::secret::Secrets,
        pb::{v1::Task, wkt::Struct},
        version::Version,
    },
};

/// Maximum size of a stored context in bytes of JSON. Metadata that exceeds it is not stored, and
/// then neither are claims.
const MAX_CONTEXT_BYTES: usize = 64 << 10;

/// Maximum size of the stored contexts of a task in bytes of JSON. Contexts that exceed it are not stored.
const MAX_TASK_BYTES: usize = 1 << 20;

/// Request context of a message: caller, extensions, output media types, metadata, trace and referenced tasks.
#[derive(Clone, Debug, Default)]
pub(crate) struct TurnContext {
    pub(crate) principal: Option<Arc<Principal>>,
    pub(crate) extensions: Vec<String>,
    pub(crate) accepted_output_modes: Vec<String>,
    pub(crate) metadata: Option<Struct>,
    /// Valid `traceparent`: that of the message, and of the span of its turn once that has begun.
    pub(crate) trace: Option<String>,
    /// Further parts of the trace, if there are any.
    pub(crate) traced: Option<Box<TurnTrace>>,
    pub(crate) referenced: Vec<Task>,
    /// Binding of the call. Never stored, as the next two: the record of the turn has them.
    pub(crate) binding: Option<Binding>,
    /// Protocol version of the call.
    pub(crate) version: Option<Version>,
    /// Id of the request.
    pub(crate) request_id: Option<String>,
    /// Never stored.
    pub(crate) secrets: Secrets,
    /// Headers that the turn may pass on. Never stored.
    pub(crate) forwarded: Option<Arc<HeaderMap>>,
}

/// Trace of a message and of its turn.
#[derive(Clone, Debug, Default)]
pub(crate) struct TurnTrace {
    /// `tracestate`.
    pub(crate) state: Option<String>,
    /// `traceparent` of the span of the turn; before the turn begins, that of its last attempt.
    pub(crate) span: Option<String>,
    /// Span that the agent continues. Never stored.
    pub(crate) scope: TraceScope,
    /// Traces of the other messages of the turn. Never stored.
    pub(crate) others: Vec<TraceContext>,
}

/// Context of the message with this event number, as it is stored. Referenced tasks are loaded again.
#[derive(Default, Serialize, Deserialize)]
struct ContextRecord {
    seq: Seq,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    principal: Option<PrincipalRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    extensions: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    modes: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metadata: Option<Struct>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trace: Option<String>,
    /// `tracestate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state: Option<String>,
    /// `traceparent` of the span of the turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    span: Option<String>,
}

impl ContextRecord {
    /// Returns the part of the record that is kept after its turn: the trace. `None` without one.
    fn ended(&self) -> Option<Self> {
        let (trace, span) = (self.trace.clone(), self.span.clone());
        (trace.is_some() || span.is_some()).then(|| Self { seq: self.seq, trace, span, ..Self::default() })
    }

    /// Encodes the record as JSON.
    fn encode(&self) -> Option<EncodedContext> {
        Some((self.seq, serde_json::to_string(self).ok()?.into()))
    }
}

/// Principal as it is stored.
#[derive(Serialize, Deserialize)]
struct PrincipalRecord {
    id: String,
    /// Not set: the id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    /// Not set: all scopes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scopes: Option<BTreeSet<String>>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    claims: Map<String, Value>,
}

impl PrincipalRecord {
    fn new(principal: &Principal) -> Self {
        // Work goes on after the credentials have become invalid.
        let Principal { id, owner, tenant, scopes, claims, validity: _ } = principal;
        Self {
            id: (**id).to_owned(),
            owner: Some(&**owner).filter(|owner| **owner != **id).map(str::to_owned),
            tenant: tenant.as_deref().map(str::to_owned),
            scopes: match scopes {
                Scopes::All => None,
                Scopes::Only(scopes) => Some(scopes.clone()),
            },
            claims: claims.clone(),
        }
    }

    fn principal(&self) -> Principal {
        let Self { id, owner, tenant, scopes, claims } = self;
        let principal = Principal::new(id.as_str()).owner(owner.as_ref().unwrap_or(id).as_str());
        let principal = match tenant {
            Some(tenant) => principal.tenant(tenant.as_str()),
            None => principal,
        };
        principal.claims(claims.clone()).scopes(scopes.clone().map_or(Scopes::All, Scopes::Only))
    }
}

/// Event number of a message, and its context in JSON.
type EncodedContext = (Seq, Box<str>);

/// Stored contexts of the messages of a task.
pub(crate) struct StoredContexts(Vec<ContextRecord>);

impl TurnContext {
    /// Continues the trace of the first one of several messages, and links the others.
    pub(super) fn join_traces(&mut self, traces: Vec<(Option<String>, Option<Box<TurnTrace>>)>) {
        let mut traces = traces.into_iter();
        let Some(first) = traces.next() else { return };
        let others: Vec<_> = traces.filter_map(|(trace, _)| TraceContext::parse(trace.as_deref()?)).collect();
        (self.trace, self.traced) = first;
        if !others.is_empty() {
            self.traced.get_or_insert_default().others = others;
        }
    }

    /// Encodes the whole context for another process, which decodes it as [`StoredContexts`].
    pub(crate) fn encode_all(&self) -> String {
        serde_json::to_string(&[self.record(0)]).unwrap_or_default()
    }

    /// Returns the record of the context of message `seq`.
    fn record(&self, seq: Seq) -> ContextRecord {
        ContextRecord {
            seq,
            principal: self.principal.as_deref().map(PrincipalRecord::new),
            extensions: self.extensions.clone(),
            modes: self.accepted_output_modes.clone(),
            metadata: self.metadata.clone(),
            trace: self.trace.clone(),
            state: self.traced.as_ref().and_then(|trace| trace.state.clone()),
            span: None,
        }
    }

    /// Encodes the context of message `seq` as JSON. `None` if it is empty or too large.
    fn encode(&self, seq: Seq) -> Option<EncodedContext> {
        let is_anonymous = self.principal.is_none() && self.metadata.is_none();
        if is_anonymous && self.trace.is_none() && self.extensions.is_empty() && self.accepted_output_modes.is_empty() {
            return None;
        }
        let mut record = self.record(seq);
        let encode = |record: &ContextRecord| record.encode().filter(|(_, text)| text.len() <= MAX_CONTEXT_BYTES);
        if let Some(encoded) = encode(&record) {
            return Some(encoded);
        }
        record.metadata = None;
        encode(&record).or_else(|| {
            record.principal.iter_mut().for_each(|principal| principal.claims.clear());
            encode(&record)
        })
    }
}

impl StoredContexts {
    /// Decodes the stored contexts. If they can't be decoded, turns run without.
    pub(crate) fn decode(stored: Option<&[u8]>) -> Self {
        let text = stored.filter(|text| !text.is_empty());
        Self(text.and_then(|text| serde_json::from_slice(text).ok()).unwrap_or_default())
    }

    /// Returns the context of a message.
    pub(crate) fn context(&self, seq: Seq, referenced: Vec<Task>) -> Box<TurnContext> {
        let none = ContextRecord::default();
        let record = self.0.iter().find(|record| record.seq == seq).unwrap_or(&none);
        let (state, span) = (record.state.clone(), record.span.clone());
        let has_trace = state.is_some() || span.is_some();
        Box::new(TurnContext {
            principal: record.principal.as_ref().map(|stored| Arc::new(stored.principal())),
            extensions: record.extensions.clone(),
            accepted_output_modes: record.modes.clone(),
            metadata: record.metadata.clone(),
            trace: record.trace.clone(),
            traced: has_trace.then(|| Box::new(TurnTrace { state, span, ..TurnTrace::default() })),
            referenced,
            ..TurnContext::default()
        })
    }

    /// Returns the context of the last message with a stored one.
    pub(crate) fn last_context(&self) -> Box<TurnContext> {
        self.context(self.0.last().map_or(0, |record| record.seq), Vec::new())
    }

    /// Returns the trace of an event: that of the span of its turn, or else of the last message before it. `None` if that is no
    /// longer stored.
    #[cfg(feature = "push")]
    pub(crate) fn trace(self, seq: Seq) -> Option<String> {
        self.0.into_iter().rev().find(|record| record.seq <= seq).and_then(|record| record.span.or(record.trace))
    }
}

/// Contexts of the messages of a task that are not answered yet, as far as they are stored.
#[derive(Default)]
pub(super) struct MessageContexts {
    contexts: Vec<EncodedContext>,
    /// The contexts have changed since the last commit.
    is_changed: bool,
    /// Span of the newest turn, if it has one.
    span: Option<TraceContext>,
}

impl MessageContexts {
    /// Creates the contexts of a task that was loaded from the store.
    pub(super) fn loaded(stored: Option<&[u8]>) -> Self {
        let StoredContexts(records) = StoredContexts::decode(stored);
        let span = records.last().and_then(|record| TraceContext::parse(record.span.as_deref()?));
        Self { contexts: records.iter().filter_map(ContextRecord::encode).collect(), is_changed: false, span }
    }

    /// Returns the span of the newest turn, if it has one.
    pub(super) fn last_span(&self) -> Option<TraceContext> {
        self.span
    }

    /// Stores the `traceparent` of the span of the turn of a message with the next commit.
    pub(super) fn set_span(&mut self, seq: Seq, header: &str) {
        self.span = TraceContext::parse(header);
        let index = self.contexts.iter().position(|context| context.0 == seq);
        let stored = index.map(|index| self.contexts.remove(index));
        let record = stored.and_then(|(_, text)| serde_json::from_str(&text).ok()).unwrap_or_default();
        let record = ContextRecord { seq, span: Some(header.to_owned()), ..record };
        if let Some(encoded) = record.encode() {
            self.contexts.insert(index.unwrap_or(self.contexts.len()), encoded);
            self.is_changed = true;
        }
    }

    /// Stores the context of a message with the next commit.
    pub(super) fn add(&mut self, seq: Seq, context: &TurnContext) {
        let size: usize = self.contexts.iter().map(|context| context.1.len()).sum();
        if let Some(context) = context.encode(seq).filter(|new| size + new.1.len() <= MAX_TASK_BYTES) {
            self.contexts.push(context);
            self.is_changed = true;
        }
    }

    /// Drops the contexts of messages before this one. With `None`, drops all, except for the trace of the last message.
    pub(super) fn drop_before(&mut self, before: Option<Seq>) {
        let last = || serde_json::from_str::<ContextRecord>(&self.contexts.last()?.1).ok();
        let kept = match before {
            Some(before) => self.contexts.iter().filter(|context| context.0 >= before).cloned().collect(),
            None => last().and_then(|last| last.ended()?.encode()).into_iter().collect(),
        };
        if self.contexts != kept {
            self.contexts = kept;
            self.is_changed = true;
        }
    }

    /// Drops the contexts of messages after event `last`. `is_changed`: the others are for the next commit.
    pub(super) fn reset_to(&mut self, last: Seq, is_changed: bool) {
        self.contexts.retain(|context| context.0 <= last);
        self.is_changed = is_changed;
    }

    /// Takes changed contexts for the next commit as a JSON array; empty if there are none left.
    pub(super) fn take_changed(&mut self) -> Option<Bytes> {
        if !mem::take(&mut self.is_changed) {
            return None;
        }
        let contexts: Vec<&str> = self.contexts.iter().map(|context| &*context.1).collect();
        let text = if contexts.is_empty() { String::new() } else { format!("[{}]", contexts.join(",")) };
        Some(text.into())
    }
}
