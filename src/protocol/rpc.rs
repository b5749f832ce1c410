//! Dispatch of JSON requests to a service trait: decoding of parameters, encoding of replies and stream items, routes.
//!
//! REST, JSON-RPC and the clients of both share it. The server builds no tree of JSON values: messages are decoded from the
//! received bytes and encoded to bytes.

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

pub(crate) use self::cleared_secrets::ClearedSecrets;
use crate::{
    base::{decoding, surrogates::repaired},
    protocol::{
        call::{Call, EXTENSIONS},
        error::{Error, ErrorKind},
        event::{Cursor, Event},
        json::{self, Measure, Members, Merge, check_json, without_hints, wkt::Empty, write_to},
        validate::{At, Validate, Violations, check_uri},
    },
};

mod cleared_secrets;
pub mod codec;

/// A stream of replies.
pub type BoxStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Result of a method of a service trait.
pub type ServiceResult<T> = Result<tonic::Response<T>, Status>;

/// Future of a method of a service trait.
pub type ServiceFuture<'a, T> = Pin<Box<dyn Future<Output = ServiceResult<T>> + Send + 'a>>;

/// Parts of an HTTP request that carry the members of the request message (`body` of `google.api.http`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyMapping {
    /// Path and query.
    None,
    /// Path, and the body for all other members.
    Whole,
    /// Path, and the body for this field.
    Field(&'static str),
    /// Path, query and body, each with any members.
    Anywhere,
}

/// RPC of a request line.
#[derive(Debug, PartialEq, Eq)]
pub struct Route<R> {
    /// The RPC.
    pub rpc: R,
    /// Location of the members that the path does not carry.
    pub body: BodyMapping,
    /// Members that the path carries: JSON name and value.
    pub fields: Vec<(&'static str, String)>,
}

/// HTTP binding of an RPC (`google.api.http`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpRule {
    /// HTTP method, in upper case.
    pub verb: &'static str,
    /// Path template with the field names of the proto file, such as `/tasks/{id=*}:cancel`.
    pub template: &'static str,
    /// Fields in the body: `*` for all, the name of one, or empty.
    pub body: &'static str,
}

/// A request with encoded parameters. Its extensions are its [`Call`] alone, and its metadata is empty.
pub type Request<'a> = tonic::Request<Params<'a>>;

/// Encoded parameters of a request.
#[derive(Debug)]
pub struct Params<'a> {
    /// Body or query.
    pub source: ParamSource<'a>,
    /// Members that the path carries. They take precedence over `source`.
    pub path: Vec<(&'static str, String)>,
}

/// Encoding of the parameters of a request.
#[derive(Debug)]
pub enum ParamSource<'a> {
    /// JSON object. Empty text and `null` are an empty object.
    Json(Cow<'a, str>),
    /// Query string with a parameter for each member.
    Query(Cow<'a, str>),
    /// JSON object and query string. The object takes precedence.
    Both(Cow<'a, str>, &'a str),
    /// Protobuf, for a unary RPC. Its reply is a gRPC frame.
    Proto(Bytes),
}

/// Encoded reply of an RPC, with metadata that is sent as headers.
#[expect(missing_debug_implementations, reason = "a stream has none")]
pub enum Reply {
    /// A single message in JSON, or in a gRPC frame.
    Unary(Bytes, MetadataMap),
    /// Stream of messages in JSON.
    Stream(BoxStream<Frame>, MetadataMap),
}

impl Reply {
    /// Returns the single message.
    ///
    /// # Errors
    /// `InvalidAgentResponse` if the reply is a stream.
    pub(crate) fn into_unary(self) -> Result<(Bytes, MetadataMap), Error> {
        match self {
            Self::Unary(data, metadata) => Ok((data, metadata)),
            Self::Stream(..) => {
                Err(ErrorKind::InvalidAgentResponse.because("the response to a unary call is a stream"))
            }
        }
    }

    /// Returns the stream of messages. A single message becomes a stream of one item.
    pub(crate) fn into_stream(self) -> (BoxStream<Frame>, MetadataMap) {
        match self {
            Self::Unary(data, metadata) => {
                (Box::pin(tokio_stream::once(Ok(Frame { cursor: None, data: data.into() }))), metadata)
            }
            Self::Stream(frames, metadata) => (frames, metadata),
        }
    }
}

/// Stream item in JSON, with the cursor after which the stream can be resumed.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Cursor, sent as `id:` of a server-sent event.
    pub cursor: Option<Cursor>,
    /// JSON text.
    pub data: JsonLine,
}

/// JSON text on one line, encoded already or when it is first used.
#[derive(Clone, Debug)]
pub enum JsonLine {
    /// Encoded text.
    Encoded(Bytes),
    /// Event. Its text is shared by all readers if there are several, else encoded directly into the output.
    Event(Event),
}

impl JsonLine {
    /// Returns the text.
    pub fn bytes(&self) -> &Bytes {
        match self {
            Self::Encoded(text) => text,
            Self::Event(event) => event.json(),
        }
    }

    /// Returns the length in bytes; an estimate if the text is not encoded yet.
    pub(crate) fn approx_len(&self) -> usize {
        match self {
            Self::Encoded(text) => text.len(),
            Self::Event(event) => event.line_length(),
        }
    }

    /// Appends the text to a buffer.
    pub(crate) fn append_to(&self, out: &mut Vec<u8>) {
        match self {
            Self::Encoded(text) => out.extend_from_slice(text),
            Self::Event(event) => event.write_json(out),
        }
    }
}

conversions! {
    JsonLine:
    bytes: Bytes => Self::Encoded(bytes);
    bytes: Vec<u8> => Self::Encoded(bytes.into());
}

/// Response of a unary RPC. Generated messages implement it.
pub trait UnaryOutput: prost::Message + Serialize {
    /// Appends the message as JSON on one line.
    fn write_json(&self, out: &mut Vec<u8>) -> Result<(), Error> {
        write_to(out, self).map_err(Error::internal)
    }
}

impl UnaryOutput for Empty {}

impl<T: json::Message + prost::Message + Serialize> UnaryOutput for T {}

/// Item of a response stream.
pub trait StreamItem: prost::Message + Serialize + DeserializeOwned {
    /// Encodes the item.
    fn frame(&self) -> Result<Frame, Error> {
        Ok(Frame { cursor: None, data: to_json(self)?.into() })
    }

    /// Decodes a received item.
    fn from_frame(frame: Frame) -> Result<Self, Status> {
        Ok(from_json(frame.data.bytes())?)
    }
}

impl StreamItem for Event {
    fn frame(&self) -> Result<Frame, Error> {
        Ok(Frame { cursor: self.frame_cursor(), data: JsonLine::Event(self.clone()) })
    }

    fn from_frame(Frame { cursor, data }: Frame) -> Result<Self, Status> {
        // The received bytes are not cached as `json`: a line break in them would end the SSE line on which we write
        // it.
        Ok(Self::from_remote(cursor, from_json(data.bytes())?))
    }
}

/// Traits of an RPC that decide how it is served.
#[derive(Clone, Copy, Debug, Default)]
pub struct RpcTraits {
    /// The response is a stream.
    pub is_streaming: bool,
    /// The response is `google.protobuf.Empty`, which is `null` in JSON-RPC and not an empty object.
    pub has_empty_response: bool,
    /// The RPC changes nothing: its HTTP method is GET.
    pub is_read: bool,
}

/// Dispatcher of encoded requests to a service. `build/service.rs` generates one per protocol version.
pub trait Dispatch: Clone + Send + Sync + 'static {
    /// RPCs of the service.
    type Rpc: Copy + fmt::Debug + Send;

    /// Custom verbs: suffixes after a colon in the last segment of a path, such as `cancel`.
    const CUSTOM_VERBS: &'static [&'static str];

    /// HTTP methods of all routes.
    const VERBS: &'static [&'static str];

    /// Returns the RPC with this name, which is also the JSON-RPC method.
    fn rpc(name: &str) -> Option<Self::Rpc>;

    /// Returns the name of the RPC in the proto file.
    fn name(rpc: Self::Rpc) -> &'static str;

    /// Returns the traits of the RPC.
    fn traits(rpc: Self::Rpc) -> RpcTraits;

    /// Returns the RPC that `google.api.http` binds to an HTTP method and a path, and the fields that the path carries.
    fn route(verb: &str, segments: &[&str], custom_verb: &str) -> Option<Route<Self::Rpc>>;

    /// Decodes the parameters of an RPC, calls it, and encodes its reply.
    fn call(&self, rpc: Self::Rpc, request: Request<'_>) -> impl Future<Output = Result<Reply, Status>> + Send;
}

/// Validates a request and the extension URIs of its call.
///
/// # Errors
/// `InvalidParams` with the violations, and with the name of the first exceeded limit.
pub fn validate<T: Validate>(request: &tonic::Request<T>) -> Result<(), Error> {
    let mut found = Violations::default();
    if let Some(call) = request.extensions().get::<Call>() {
        for uri in &call.extensions {
            check_uri(uri, &At::Field(&At::Top, EXTENSIONS.as_str()), &mut found);
        }
    }
    request.get_ref().validate(&At::Top, &mut found);
    let (rows, limit) = found.into_parts();
    if rows.is_empty() {
        return Ok(());
    }
    let error = Error::invalid(rows);
    Err(match limit {
        Some(limit) => error.limit(limit),
        None => error,
    })
}

/// Removes metadata and all extensions except the [`Call`] from a request, so that no credential reaches the service.
pub fn strip_metadata_and_extensions<T>(request: &mut tonic::Request<T>) {
    request.metadata_mut().clear();
    let extensions = request.extensions_mut();
    if extensions.len() == 1 && extensions.get::<Call>().is_some() {
        return;
    }
    match extensions.remove::<Call>() {
        Some(call) => call.replace_extensions(extensions),
        None => extensions.clear(),
    }
}

/// Serves a unary RPC: decodes the parameters, calls it and encodes the response. While the service runs, the future stores
/// only the service's future.
pub fn unary<Req, Res, Fut>(
    request: Request<'_>,
    rpc: impl FnOnce(tonic::Request<Req>) -> Fut,
) -> impl Future<Output = Result<Reply, Status>>
where
    Req: Members + Measure + prost::Message,
    Res: UnaryOutput,
    Fut: Future<Output = ServiceResult<Res>>,
{
    let is_proto = matches!(request.get_ref().source, ParamSource::Proto(_));
    let response = decode_unary(request).map(rpc);
    async move {
        let (metadata, message, _) = response?.await?.into_parts();
        let data = if is_proto {
            codec::frame(&message)?
        } else {
            let mut json = Vec::with_capacity(json_capacity(message.encoded_len()));
            message.write_json(&mut json)?;
            json
        };
        Ok(Reply::Unary(data.into(), metadata))
    }
}

/// Serves a streaming RPC: decodes the parameters, calls it and encodes the items.
pub fn streaming<Req, Res, Items, Fut>(
    request: Request<'_>,
    rpc: impl FnOnce(tonic::Request<Req>) -> Fut,
) -> impl Future<Output = Result<Reply, Status>>
where
    Req: Members,
    Res: StreamItem,
    Items: Stream<Item = Result<Res, Status>> + Send + 'static,
    Fut: Future<Output = ServiceResult<Items>>,
{
    let response = decode(request).map(rpc);
    async move {
        let (metadata, items, _) = response?.await?.into_parts();
        let frames = items.map(|item| item.and_then(|item| Ok(item.frame()?)));
        Ok(Reply::Stream(Box::pin(frames), metadata))
    }
}

/// Decodes the request message of a unary RPC, which may be in protobuf.
fn decode_unary<T: Members + Measure + prost::Message>(request: Request<'_>) -> Result<tonic::Request<T>, Error> {
    let ParamSource::Proto(proto) = &request.get_ref().source else { return decode(request) };
    let message = decoding::decode_request(proto.len(), || codec::decode(proto))?;
    Ok(request.map(|_| message))
}

/// Decodes the request message from its parameters.
pub(crate) fn decode<T: Members>(request: Request<'_>) -> Result<tonic::Request<T>, Error> {
    let (metadata, mut extensions, Params { source, path }) = request.into_parts();
    let mut message = T::default();
    if let ParamSource::Json(text) | ParamSource::Both(text, _) = &source
        && let Some(cleared) = ClearedSecrets::of(T::NAME, text)
    {
        extensions.insert(cleared);
    }
    match source {
        ParamSource::Json(text) => read_json(&text, &mut message)?,
        ParamSource::Query(query) => read_query(&query, &mut message)?,
        ParamSource::Both(text, query) => {
            read_query(query, &mut message)?;
            read_json(&text, &mut message)?;
        }
        ParamSource::Proto(_) => return Err(Error::internal("these parameters can't be in protobuf")),
    }
    if !path.is_empty() {
        // `Value`s, since serde does not deserialize an `Option` from a bare string.
        let path = MapDeserializer::new(path.into_iter().map(|(name, value)| (name, Value::String(value))));
        Merge(&mut message).deserialize(path).map_err(|error: serde_json::Error| Error::invalid_params(error))?;
    }
    Ok(tonic::Request::from_parts(metadata, extensions, message))
}

fn read_json<T: Members>(text: &str, message: &mut T) -> Result<(), Error> {
    if matches!(text.trim_ascii(), "" | "null") {
        return Ok(());
    }
    let mut json = serde_json::Deserializer::from_str(text);
    let read = || Merge(message).deserialize(&mut json).and_then(|()| json.end());
    let Err(error) = decoding::decode_request(text.len(), read) else {
        return Ok(());
    };
    // serde stops at the first invalid member. The rest of the text may still be invalid JSON, which takes precedence.
    if let Err(syntax) = serde_json::from_str::<IgnoredAny>(text) {
        return Err(ErrorKind::Parse.because(syntax.to_string()));
    }
    Err(locate_error::<T, _>(&mut serde_json::Deserializer::from_str(text))
        .unwrap_or_else(|| Error::invalid_params(error)))
}

fn read_query<T: Members>(query: &str, message: &mut T) -> Result<(), Error> {
    if query.is_empty() {
        return Ok(());
    }
    // HTML forms send empty fields too. An empty value is not a valid number, enum value or timestamp, so it is ignored.
    let is_set = |pair: &&str| pair.split_once('=').is_some_and(|(_, value)| !value.is_empty());
    let all_set = query.split('&').all(|pair| is_set(&pair));
    let query =
        if all_set { query.into() } else { Cow::from(query.split('&').filter(is_set).collect::<Vec<_>>().join("&")) };
    let parameters = || serde_html_form::Deserializer::from_bytes(query.as_bytes());
    Merge(message)
        .deserialize(parameters())
        .map_err(|error| locate_error::<T, _>(parameters()).unwrap_or_else(|| Error::invalid_params(error)))
}

/// Decodes invalid parameters a second time to find the path of the invalid field. Tracking it is too slow for valid ones.
fn locate_error<'de, T: Members, D: Deserializer<'de>>(deserializer: D) -> Option<Error> {
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(deserializer, &mut track);
    let error = Merge(&mut T::default()).deserialize(tracked).err()?.to_string();
    // Line and column count from the start of the parameters, which is not that of the client's request.
    let description = brief(error.rsplit_once(" at line ").map_or(error.as_str(), |(description, _)| description));
    let path = track.path().to_string();
    Some(match path.as_str() {
        "." => Error::invalid_params(description),
        path => Error::invalid_field(brief(path), description),
    })
}

/// Shortens a text of a client or an agent to 300 characters.
pub(crate) fn brief(text: &str) -> String {
    // Long enough for a list of all task states.
    const LENGTH: usize = 300;
    match text.char_indices().nth(LENGTH) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Estimates the JSON length of a message from its protobuf length in bytes. Member names and quotes double a small message,
/// and add little to a large one.
fn json_capacity(proto_len: usize) -> usize {
    proto_len + proto_len.min(16 << 10) + 64
}

/// Encodes a message as JSON on one line.
pub fn to_json(message: &(impl prost::Message + Serialize)) -> Result<Bytes, Error> {
    encode_line(message.encoded_len(), message)
}

/// Encodes a value as JSON on one line, with a capacity for a message of this protobuf length in bytes.
pub(crate) fn encode_line(proto_len: usize, message: &impl Serialize) -> Result<Bytes, Error> {
    let mut json = Vec::with_capacity(json_capacity(proto_len));
    write_to(&mut json, message).map_err(Error::internal)?;
    Ok(json.into())
}

/// Decodes JSON from a remote agent. Lone surrogates are replaced.
///
/// # Errors
/// `InvalidAgentResponse`.
pub fn from_json<T: DeserializeOwned>(json: &[u8]) -> Result<T, Error> {
    check_json(json).map_err(|error| ErrorKind::InvalidAgentResponse.because(format!("the response {error}")))?;
    let decoded = without_hints(|| {
        let repaired = |error| repaired(json).map_or(Err(error), |json| serde_json::from_slice(&json));
        serde_json::from_slice(json).or_else(repaired)
    });
    decoded.map_err(|error| ErrorKind::InvalidAgentResponse.because(brief(&error.to_string())))
}

/// Client transport of a JSON binding: sends a request and returns the reply.
#[tonic::async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Sends a request.
    async fn send(&self, rpc: &'static str, rule: HttpRule, request: tonic::Request<Value>) -> Result<Reply, Status>;
}

/// Client of a remote agent over a JSON transport.
#[derive(Clone, Debug)]
pub struct Remote<T>(pub T);

impl<T: Transport> Remote<T> {
    /// Calls a unary RPC.
    pub async fn unary<Req: Serialize, Res: DeserializeOwned + Send + 'static>(
        &self,
        rpc: &'static str,
        rule: HttpRule,
        request: tonic::Request<Req>,
    ) -> ServiceResult<Res> {
        let (data, metadata) = self.send(rpc, rule, request).await?.into_unary()?;
        // Some agents send an empty body for an empty response.
        let data = if data.is_empty() { Bytes::from_static(b"null") } else { data };
        Ok(response(decoding::decode(data.len(), move || from_json(&data)).await?, metadata))
    }

    /// Calls a streaming RPC. A unary reply becomes a stream of one item.
    pub async fn streaming<Req: Serialize, Res: StreamItem + Send + 'static>(
        &self,
        rpc: &'static str,
        rule: HttpRule,
        request: tonic::Request<Req>,
    ) -> ServiceResult<BoxStream<Res>> {
        let (frames, metadata) = self.send(rpc, rule, request).await?.into_stream();
        let items = frames.then(async |frame| {
            let frame = frame?;
            decoding::decode(frame.data.approx_len(), move || Res::from_frame(frame)).await
        });
        Ok(response(Box::pin(items), metadata))
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

/// Returns the 128-bit FNV-1a hash of bytes, for entity tags and for recognizing repeated requests. It is not
/// cryptographic: a client that creates a collision affects only itself.
pub(crate) fn fingerprint(bytes: &[u8]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(BASIS, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}
