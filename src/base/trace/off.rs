//! Spans without the feature `trace`: there are none.

use std::{borrow::Cow, time, time::SystemTime};

use serde_json::Value;

use super::{Parent, SpanKind, TraceContext};

pub(crate) fn is_used() -> bool {
    false
}

/// Tracer of a server or a client.
#[derive(Clone, Debug, Default)]
pub struct Tracing {
    pub(crate) has_content: bool,
}

impl Tracing {
    pub(crate) fn is_on(&self) -> bool {
        false
    }

    pub(crate) fn start(
        &self,
        _: SpanKind,
        _: impl Into<Cow<'static, str>>,
        _: Option<Parent<'_>>,
        _: Option<SystemTime>,
    ) -> Span {
        Span
    }
}

#[derive(Debug, Default)]
pub(crate) struct Span;

impl Span {
    pub(crate) fn set(&mut self, _: &'static str, _: impl Into<Value>) {}

    pub(crate) fn set_content(&mut self, _: &'static str, _: &str) {}

    pub(crate) fn event(&mut self, _: &'static str) {}

    pub(crate) fn retry(&mut self, _: u32, _: &'static str, _: time::Duration) {}

    pub(crate) fn link(&mut self, _: &'static str, _: TraceContext) {}

    pub(crate) fn rename(&mut self, _: impl Into<Cow<'static, str>>) {}

    pub(crate) fn fail(&mut self, _: &str) {}

    pub(crate) fn context(&self) -> Option<TraceContext> {
        None
    }

    pub(crate) fn state(&self) -> Option<String> {
        None
    }
}
