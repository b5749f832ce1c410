//! Between JSON and a service trait: what REST, JSON-RPC and the clients of both have in common.
//!
//! Serving, no tree of JSON is built: a message is read from the bytes that came in and written to those that go out.

use std::{borrow::Cow, fmt, pin::Pin};

use bytes::Bytes;
use serde::{
    Deserializer, Serialize,
    de::{DeserializeOwned, DeserializeSeed as _, IgnoredAny, value::MapDeserializer},
};
use serde_json::Value;
use tokio_stream::{Stream, StreamExt as _};
pub use tonic::Status;
use tonic::{Extensions, metadata::MetadataMap};

use crate::{
    call::{Call, EXTENSIONS},
    check::{At, Check, Violations, check_uri},
    error::{Error, ErrorKind},
    event::{Cursor, Event},
    json::{self, Members, Merge, write_to},
};

pub mod grpc;

/// A stream of replies.
pub type BoxStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What a method of a service trait returns.
pub type ResponseFuture<'a, T> = Pin<Box<dyn Future<Output = Result<tonic::Response<T>, Status>> + Send + 'a>>;

/// Where in an HTTP request a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// In its path and its query.
    None,
    /// In its path and its body.
    Whole,
    /// In its path, and one field in its body.
    Field(&'static str),
    /// In its path, its query and its body, whatever is where.
    Anywhere,
}

/// What a request line stands for.
#[derive(Debug, PartialEq, Eq)]
pub struct Route<R> {
    /// What is called.
    pub rpc: R,
    /// Where the rest of its message is.
    pub body: Body,
    /// What of its message the path carries, by name.
    pub fields: Vec<(&'static str, String)>,
}

/// How an RPC is bound to HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpRule {
    /// In capitals.
    pub verb: &'static str,
    /// Such as `/tasks/{id=*}:cancel`, with the fields' names as the proto file has them.
    pub template: &'static str,
    /// `*`, the name of a field, or nothing.
    pub body: &'static str,
}

/// A call that came in. Its extensions have its [`Call`] and nothing else, and its metadata is empty.
pub type Request<'a> = tonic::Request<Params<'a>>;

/// A message as it came in.
#[derive(Debug)]
pub struct Params<'a> {
    /// Its body or its query.
    pub source: Source<'a>,
    /// What the path carries. It wins over the rest.
    pub path: Vec<(&'static str, String)>,
}

/// Where the members of a message are.
#[derive(Debug)]
pub enum Source<'a> {
    /// An object. Nothing at all and null are one without members.
    Json(Cow<'a, [u8]>),
    /// A query string, a member each parameter.
    Query(Cow<'a, str>),
    /// An object, and a query string that says more. The object wins.
    Both(Cow<'a, [u8]>, &'a str),
}

/// What a call gives back: JSON, and what becomes headers.
#[expect(missing_debug_implementations, reason = "a stream has none")]
pub enum Reply {
    /// One message.
    Unary(Bytes, MetadataMap),
    /// Messages as they come.
    Stream(BoxStream<Frame>, MetadataMap),
}

/// An item of a stream in JSON, on a line of its own, and what the stream can be taken up after.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The `id:` of a server-sent event.
    pub cursor: Option<Cursor>,
    /// A line of JSON.
    pub data: Line,
}

/// A line of JSON, made already or when it is written.
#[derive(Clone, Debug)]
pub enum Line {
    /// As it is.
    Made(Bytes),
    /// An event's. Where several read it, it is made once for all of them; else where it is to be.
    Of(Event),
}

impl Line {
    /// The text.
    pub fn bytes(&self) -> &Bytes {
        match self {
            Self::Made(it) => it,
            Self::Of(it) => it.json(),
        }
    }

    /// How long it is, or about so long.
    pub(crate) fn length(&self) -> usize {
        match self {
            Self::Made(it) => it.len(),
            Self::Of(it) => it.line_length(),
        }
    }

    /// Writes the text behind what is there.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Made(it) => out.extend_from_slice(it),
            Self::Of(it) => it.write_json(out),
        }
    }
}

impl From<Bytes> for Line {
    fn from(bytes: Bytes) -> Self {
        Self::Made(bytes)
    }
}

impl From<Vec<u8>> for Line {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Made(bytes.into())
    }
}

/// What a unary RPC gives back. Messages are one as they are.
pub trait Output: prost::Message + Serialize {
    /// Writes it on a line, behind what is there.
    fn write_json(&self, out: &mut Vec<u8>) -> Result<(), Error> {
        write_to(out, self).map_err(Error::internal)
    }
}

impl<T: json::Message + prost::Message + Serialize> Output for T {}

/// What a stream carries. Plain messages are one as they are.
pub trait Item: prost::Message + Serialize + DeserializeOwned {
    /// This item as it is sent.
    fn frame(&self) -> Result<Frame, Error> {
        Ok(Frame { cursor: None, data: to_json(self)?.into() })
    }

    /// An item as it was received.
    fn from_frame(frame: Frame) -> Result<Self, Status> {
        Ok(from_json(frame.data.bytes())?)
    }
}

impl Item for Event {
    fn frame(&self) -> Result<Frame, Error> {
        Ok(Frame { cursor: self.frame_cursor(), data: Line::Of(self.clone()) })
    }

    fn from_frame(Frame { cursor, data }: Frame) -> Result<Self, Status> {
        // The received bytes are not cached as `json`: a line break in them would end the SSE line on which we write
        // it.
        Ok(Self::elsewhere(cursor, from_json(data.bytes())?))
    }
}

/// A service and how it is bound, as REST and JSON-RPC see it. `build/service.rs` writes one for each protocol version.
pub trait Dispatch: Clone + Send + Sync + 'static {
    /// What the service can be asked.
    type Rpc: Copy + fmt::Debug + Send;

    /// What may follow a colon in the last segment of a path.
    const ACTIONS: &'static [&'static str];

    /// The verbs of HTTP that something is bound to.
    const VERBS: &'static [&'static str];

    /// The RPC of this name, which is its JSON-RPC method.
    fn rpc(name: &str) -> Option<Self::Rpc>;

    /// Answers with a stream.
    fn is_streaming(rpc: Self::Rpc) -> bool;

    /// Answers with nothing, which is null in JSON-RPC. What a message says whose members are all left out is another thing.
    fn is_silent(rpc: Self::Rpc) -> bool;

    /// Changes nothing: it is bound to GET.
    fn is_read(rpc: Self::Rpc) -> bool;

    /// The RPC that `google.api.http` binds a request line to, and the fields that its path carries.
    fn route(verb: &str, segments: &[&str], action: &str) -> Option<Route<Self::Rpc>>;

    /// Decodes the parameters of an RPC, calls it, and encodes its reply.
    fn call(&self, rpc: Self::Rpc, request: Request<'_>) -> impl Future<Output = Result<Reply, Status>> + Send;
}

/// Validates a request and the extension URIs of its call.
///
/// # Errors
/// `InvalidParams` with the violations, and with the name of the first exceeded limit.
pub fn check<T: Check>(request: &tonic::Request<T>) -> Result<(), Error> {
    let mut found = Violations::default();
    if let Some(call) = request.extensions().get::<Call>() {
        for uri in &call.extensions {
            check_uri(uri, &At::Field(&At::Top, EXTENSIONS.as_str()), &mut found);
        }
    }
    request.get_ref().check(&At::Top, &mut found);
    let (rows, limit) = found.into_parts();
    if rows.is_empty() {
        return Ok(());
    }
    let error = Error::invalid(rows);
    Err(match limit {
        Some(limit) => error.with("limit", limit),
        None => error,
    })
}

/// Leaves of what came with a request its [`Call`] alone, so that no credential is ever passed on by accident.
pub fn admit<T>(request: &mut tonic::Request<T>) {
    request.metadata_mut().clear();
    let extensions = request.extensions_mut();
    if extensions.len() == 1 && extensions.get::<Call>().is_some() {
        return;
    }
    match extensions.remove::<Call>() {
        Some(call) => call.alone(extensions),
        None => extensions.clear(),
    }
}

/// Serves a unary RPC. What the future holds while the service works is that of the service, and no more.
pub fn unary<Req, Res, Fut>(
    request: Request<'_>,
    rpc: impl FnOnce(tonic::Request<Req>) -> Fut,
) -> impl Future<Output = Result<Reply, Status>>
where
    Req: Members,
    Res: Output,
    Fut: Future<Output = Result<tonic::Response<Res>, Status>>,
{
    let answer = decode(request).map(rpc);
    async move {
        let (metadata, message, _) = answer?.await?.into_parts();
        let mut json = Vec::with_capacity(room(message.encoded_len()));
        message.write_json(&mut json)?;
        Ok(Reply::Unary(json.into(), metadata))
    }
}

/// Serves a streaming RPC.
pub fn streaming<Req, Res, Items, Fut>(
    request: Request<'_>,
    rpc: impl FnOnce(tonic::Request<Req>) -> Fut,
) -> impl Future<Output = Result<Reply, Status>>
where
    Req: Members,
    Res: Item,
    Items: Stream<Item = Result<Res, Status>> + Send + 'static,
    Fut: Future<Output = Result<tonic::Response<Items>, Status>>,
{
    let answer = decode(request).map(rpc);
    async move {
        let (metadata, items, _) = answer?.await?.into_parts();
        let frames = items.map(|it| it.and_then(|it| Ok(it.frame()?)));
        Ok(Reply::Stream(Box::pin(frames), metadata))
    }
}

/// Reads the message of a call.
pub(crate) fn decode<T: Members>(request: Request<'_>) -> Result<tonic::Request<T>, Error> {
    let (metadata, extensions, Params { source, path }) = request.into_parts();
    let mut message = T::default();
    match source {
        Source::Json(text) => read_json(&text, &mut message)?,
        Source::Query(query) => read_query(&query, &mut message)?,
        Source::Both(text, query) => {
            read_query(query, &mut message)?;
            read_json(&text, &mut message)?;
        }
    }
    // As values, since serde gives an `Option` nothing that is bare text.
    let path = MapDeserializer::new(path.into_iter().map(|(name, value)| (name, Value::String(value))));
    Merge(&mut message).deserialize(path).map_err(|e: serde_json::Error| Error::invalid_params(e))?;
    Ok(tonic::Request::from_parts(metadata, extensions, message))
}

fn read_json<T: Members>(text: &[u8], message: &mut T) -> Result<(), Error> {
    if matches!(text.trim_ascii(), b"" | b"null") {
        return Ok(());
    }
    // Looked at as a whole, which is faster than text by text.
    let text = std::str::from_utf8(text).map_err(|e| ErrorKind::Parse.because(e.to_string()))?;
    let mut json = serde_json::Deserializer::from_str(text);
    let Err(error) = Merge(message).deserialize(&mut json).and_then(|()| json.end()) else {
        return Ok(());
    };
    // What has the wrong shape may not be JSON either, further on. Those who err wait a little longer.
    if let Err(e) = serde_json::from_str::<IgnoredAny>(text) {
        return Err(ErrorKind::Parse.because(e.to_string()));
    }
    Err(blame::<T, _>(&mut serde_json::Deserializer::from_str(text)).unwrap_or_else(|| Error::invalid_params(error)))
}

fn read_query<T: Members>(query: &str, message: &mut T) -> Result<(), Error> {
    if query.is_empty() {
        return Ok(());
    }
    // Forms send the parameters that nobody filled in too, and an empty text is no number, no name and no time.
    let filled = |it: &&str| it.split_once('=').is_some_and(|it| !it.1.is_empty());
    let all = query.split('&').all(|it| filled(&it));
    let query =
        if all { query.into() } else { Cow::from(query.split('&').filter(filled).collect::<Vec<_>>().join("&")) };
    let parameters = || serde_html_form::Deserializer::from_bytes(query.as_bytes());
    Merge(message)
        .deserialize(parameters())
        .map_err(|e| blame::<T, _>(parameters()).unwrap_or_else(|| Error::invalid_params(e)))
}

/// Reads what could not be read once more, now with an eye on where that is.
fn blame<'de, T: Members, D: Deserializer<'de>>(again: D) -> Option<Error> {
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(again, &mut track);
    let error = Merge(&mut T::default()).deserialize(tracked).err()?.to_string();
    // The line and the column are those of the parameters, which the caller sees as a part of something.
    let description = brief(error.rsplit_once(" at line ").map_or(error.as_str(), |it| it.0));
    let path = track.path().to_string();
    Some(match path.as_str() {
        "." => Error::invalid_params(description),
        path => Error::invalid_field(brief(path), description),
    })
}

/// The beginning of a text that may be as long as a caller likes.
fn brief(text: &str) -> String {
    // Enough for the names of all task states.
    const LENGTH: usize = 300;
    match text.char_indices().nth(LENGTH) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// About how long what is so long in protobuf is in JSON. Names and quotes make a small message twice as long, and a
/// large one hardly longer.
fn room(length: usize) -> usize {
    length + length.min(16 << 10) + 64
}

/// Writes a message on a line.
pub fn to_json(message: &(impl prost::Message + Serialize)) -> Result<Bytes, Error> {
    line(message.encoded_len(), message)
}

/// Writes what is so long in protobuf on a line.
pub(crate) fn line(length: usize, message: &impl Serialize) -> Result<Bytes, Error> {
    let mut json = Vec::with_capacity(room(length));
    write_to(&mut json, message).map_err(Error::internal)?;
    Ok(json.into())
}

/// Reads what an agent elsewhere sent.
pub fn from_json<T: DeserializeOwned>(json: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(json).map_err(|e| ErrorKind::InvalidAgentResponse.because(brief(&e.to_string())))
}

/// A way to send JSON to an agent and to hear back.
#[tonic::async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Sends a message and gives back what comes.
    async fn send(&self, rpc: &'static str, rule: HttpRule, request: tonic::Request<Value>) -> Result<Reply, Status>;
}

/// An agent at the other end of a transport.
#[derive(Clone, Debug)]
pub struct Remote<T>(pub T);

impl<T: Transport> Remote<T> {
    /// Calls a unary RPC.
    pub async fn unary<Req: Serialize, Res: DeserializeOwned>(
        &self,
        rpc: &'static str,
        rule: HttpRule,
        request: tonic::Request<Req>,
    ) -> Result<tonic::Response<Res>, Status> {
        match self.send(rpc, rule, request).await? {
            // No body at all is how some agents say nothing, which is an answer where the reply has no members.
            Reply::Unary(data, metadata) if data.is_empty() => Ok(response(from_json(b"null")?, metadata)),
            Reply::Unary(data, metadata) => Ok(response(from_json(&data)?, metadata)),
            Reply::Stream(..) => {
                Err(ErrorKind::InvalidAgentResponse.because("a stream in answer to a unary call").into())
            }
        }
    }

    /// Calls a streaming RPC. A reply that is one message is a stream of that.
    pub async fn streaming<Req: Serialize, Res: Item + Send + 'static>(
        &self,
        rpc: &'static str,
        rule: HttpRule,
        request: tonic::Request<Req>,
    ) -> Result<tonic::Response<BoxStream<Res>>, Status> {
        let (frames, metadata): (BoxStream<Frame>, _) = match self.send(rpc, rule, request).await? {
            Reply::Unary(data, metadata) => {
                (Box::pin(tokio_stream::once(Ok(Frame { cursor: None, data: data.into() }))), metadata)
            }
            Reply::Stream(frames, metadata) => (frames, metadata),
        };
        Ok(response(Box::pin(frames.map(|it| it.and_then(Res::from_frame))), metadata))
    }

    async fn send<Req: Serialize>(
        &self,
        rpc: &'static str,
        rule: HttpRule,
        request: tonic::Request<Req>,
    ) -> Result<Reply, Status> {
        let (metadata, extensions, message) = request.into_parts();
        let message = serde_json::to_value(message).map_err(Error::internal)?;
        self.0.send(rpc, rule, tonic::Request::from_parts(metadata, extensions, message)).await
    }
}

fn response<T>(message: T, metadata: MetadataMap) -> tonic::Response<T> {
    tonic::Response::from_parts(metadata, message, Extensions::new())
}
