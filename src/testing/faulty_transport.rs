//! Fault injection below the JSON bindings of a client.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use parking_lot::Mutex;
use tokio_stream::StreamExt as _;

use crate::{
    client::HttpTransport,
    protocol::{
        error::{Error, ErrorKind},
        rpc::BoxStream,
    },
};

/// Fault of one HTTP request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// No fault, to skip a request.
    Pass,
    /// The connection breaks before the server receives the request.
    DropRequest,
    /// The server handles the request, and the connection breaks before the response.
    DropResponse,
    /// The server receives the request twice, the second time after its first response. The client gets the second response.
    Duplicate,
    /// The server receives the request after this time of tokio's clock.
    Delay(Duration),
    /// The connection breaks after this many bytes of the response body.
    CutAfter(usize),
    /// The response body ends regularly after this many bytes.
    EndAfter(usize),
    /// A response with this status and an empty body. The server does not receive the request.
    Status(StatusCode),
}

type Filter = Arc<dyn Fn(&Request<Bytes>) -> bool + Send + Sync>;

/// Transport that injects faults into the requests of a client, one per request, in their order. Clones share their faults.
///
/// ```
/// use a2a_service::{client::Client, testing::{self, Fault, FaultyTransport, Script}};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let script = Script::new().echo();
/// let server = testing::serve(script.clone());
/// let network = FaultyTransport::new(server.transport()).matching(|request| request.uri().path() == "/message:send");
/// let agent = Client::builder().transport(network.clone()).rest(server.url())?;
///
/// // The response is lost, and the client sends the message again, with its idempotency key.
/// network.inject([Fault::DropResponse]);
/// let outcome = Client::from_service(agent).send("hello").await?;
/// assert_eq!((outcome.text().as_str(), script.received().len()), ("hello", 1));
/// # Ok::<_, a2a_service::error::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct FaultyTransport {
    transport: Arc<dyn HttpTransport>,
    filter: Filter,
    faults: Arc<Mutex<VecDeque<Fault>>>,
    requests: Arc<AtomicUsize>,
}

impl FaultyTransport {
    /// Wraps a transport. Faults apply to all requests, also to that of the agent card.
    pub fn new(transport: impl HttpTransport) -> Self {
        let filter: Filter = Arc::new(|_| true);
        Self { transport: Arc::new(transport), filter, faults: Arc::default(), requests: Arc::default() }
    }

    /// Limits the faults and the count to requests for which a function returns true.
    #[must_use]
    pub fn matching(self, filter: impl Fn(&Request<Bytes>) -> bool + Send + Sync + 'static) -> Self {
        Self { filter: Arc::new(filter), ..self }
    }

    /// Queues faults for the next requests, one per request. Requests without a fault pass.
    pub fn inject(&self, faults: impl IntoIterator<Item = Fault>) {
        self.faults.lock().extend(faults);
    }

    /// Number of faults that are left.
    pub fn pending(&self) -> usize {
        self.faults.lock().len()
    }

    /// Number of requests so far.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

debug_fields!(FaultyTransport { faults });

fn broken(point: &str) -> Error {
    ErrorKind::Unavailable.because(format!("connection broken {point} (fault injection)"))
}

#[tonic::async_trait]
impl HttpTransport for FaultyTransport {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<BoxStream<Bytes>>, Error> {
        let mut fault = Fault::Pass;
        if (self.filter)(&request) {
            self.requests.fetch_add(1, Ordering::SeqCst);
            fault = self.faults.lock().pop_front().unwrap_or(Fault::Pass);
        }
        match fault {
            Fault::Pass => self.transport.send(request).await,
            Fault::DropRequest => Err(broken("before the request")),
            Fault::DropResponse => {
                read_to_end(self.transport.send(request).await?).await;
                Err(broken("before the response"))
            }
            Fault::Duplicate => {
                read_to_end(self.transport.send(request.clone()).await?).await;
                self.transport.send(request).await
            }
            Fault::Delay(time) => {
                #[expect(clippy::disallowed_methods, reason = "the test asks for a delay")]
                tokio::time::sleep(time).await;
                self.transport.send(request).await
            }
            Fault::CutAfter(bytes) => {
                let response = self.transport.send(request).await?;
                let end = tokio_stream::once(Err(broken("within the response").into()));
                Ok(response.map(|body| -> BoxStream<Bytes> { Box::pin(first_bytes(body, bytes).chain(end)) }))
            }
            Fault::EndAfter(bytes) => {
                let response = self.transport.send(request).await?;
                Ok(response.map(|body| first_bytes(body, bytes)))
            }
            Fault::Status(status) => {
                let body: BoxStream<Bytes> = Box::pin(tokio_stream::empty());
                let mut response = Response::new(body);
                *response.status_mut() = status;
                Ok(response)
            }
        }
    }
}

/// Reads a response to its end, so that the server has finished.
async fn read_to_end(response: Response<BoxStream<Bytes>>) {
    let mut body = response.into_body();
    while let Some(Ok(_)) = body.next().await {}
}

/// Passes on at most `left` bytes of a body.
fn first_bytes(body: BoxStream<Bytes>, left: usize) -> BoxStream<Bytes> {
    Box::pin(futures_util::stream::try_unfold((body, left), |(mut body, left)| async move {
        if left == 0 {
            return Ok(None);
        }
        let Some(mut chunk) = body.next().await.transpose()? else { return Ok(None) };
        chunk.truncate(left);
        let left = left - chunk.len();
        Ok(Some((chunk, (body, left))))
    }))
}
