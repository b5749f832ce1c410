//! Export of spans by OTLP over HTTP: bounded in memory and time, and never in the way of a call. Spans that do not fit are dropped and
//! counted.

use std::{
    env, fs,
    num::NonZero,
    process,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::Context as _;
use async_trait::async_trait;
use bytes::Bytes;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use http::{Request, Response};
use opentelemetry::{
    Context, InstrumentationScope, KeyValue, TraceId,
    global::BoxedTracer,
    trace::{Link, SpanKind, TraceContextExt as _, TracerProvider as _},
};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    resource::{EnvResourceDetector, TelemetryResourceDetector},
    trace::{
        BatchConfigBuilder, BatchSpanProcessor, Sampler, SamplingDecision, SamplingResult, SdkTracerProvider,
        ShouldSample, Span, SpanData, SpanExporter as Export, SpanProcessor,
    },
};
use tokio::runtime::Handle;

use super::config::{OtlpConfig, SpanContent};
use crate::base::{bounded_body::ResponseBody, metric, sources::Ids, trace::Tracing};

mod metrics;

/// Maximum number of spans that wait for their export.
const QUEUE: usize = 8192;

/// Maximum time that a span waits for others.
const DELAY: Duration = Duration::from_secs(1);

/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of a response of the collector in bytes.
const MAX_RESPONSE: usize = 64 << 10;

/// Maximum number of traces per second that begin at this server.
const TRACES_PER_SECOND: NonZero<u32> = NonZero::new(500).expect("not zero");

/// Maximum time of the last export when the server stops.
pub(crate) const STOP: Duration = Duration::from_secs(2);

/// Exporter of spans. It ends with [`stop`](Self::stop).
pub(crate) struct Exporter {
    provider: SdkTracerProvider,
    http: reqwest::Client,
    endpoint: String,
    resource: Resource,
    pub(crate) tracing: Tracing,
}

impl Exporter {
    /// Starts the exporter, with requests in a runtime. `None` without an endpoint.
    ///
    /// # Errors
    /// The HTTP client can't be created.
    pub(crate) fn start(config: &OtlpConfig, runtime: &Handle) -> anyhow::Result<Option<Self>> {
        let Some(endpoint) = &config.endpoint else { return Ok(None) };
        let http = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .timeout(TIMEOUT)
            .user_agent(concat!("a2a-service/", env!("CARGO_PKG_VERSION")))
            .build()
            .context("can't create the HTTP client of otlp.endpoint")?;
        let client = RuntimeClient { http: http.clone(), runtime: runtime.clone() };
        let exporter = SpanExporter::builder().with_http().with_http_client(client);
        let exporter = exporter.with_endpoint(format!("{}/v1/traces", endpoint.0)).with_timeout(TIMEOUT).build();
        let exporter = exporter.context("can't export to otlp.endpoint")?;
        let counts = Arc::new(Counts {
            queued: AtomicUsize::default(),
            lost: AtomicUsize::default(),
            warnings: RateLimiter::direct(Quota::per_minute(NonZero::<u32>::MIN)),
        });
        let config_of_batches = BatchConfigBuilder::default().with_max_queue_size(QUEUE).with_scheduled_delay(DELAY);
        let exporter = CountedExporter { exporter, counts: Arc::clone(&counts) };
        let batches = BatchSpanProcessor::builder(exporter).with_batch_config(config_of_batches.build()).build();
        let sampler = LimitedSampler {
            sampler: Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(config.sample.0))),
            limiter: Arc::new(RateLimiter::direct(Quota::per_second(TRACES_PER_SECOND))),
        };
        let resource = resource();
        let provider = SdkTracerProvider::builder()
            .with_sampler(sampler)
            .with_resource(resource.clone())
            .with_span_processor(BoundedProcessor { batches, counts })
            .build();
        let scope = InstrumentationScope::builder("a2a_service")
            .with_version(env!("CARGO_PKG_VERSION"))
            .with_schema_url("https://opentelemetry.io/schemas/1.44.0");
        let tracer = provider.tracer_with_scope(scope.build());
        let mut tracing = Tracing::of(BoxedTracer::new(Box::new(tracer)));
        tracing.has_content = config.content == SpanContent::Messages;
        if tracing.has_content {
            tracing::warn!("otlp.content: spans have the messages and tool calls of models");
        }
        Ok(Some(Self { provider, http, endpoint: endpoint.0.clone(), resource, tracing }))
    }

    /// Exports what is left, for at most two seconds.
    pub(crate) fn stop(self) {
        if let Err(error) = self.provider.shutdown_with_timeout(STOP) {
            tracing::warn!(error.cause = %error, "last spans not exported");
        }
    }
}

/// Returns the description of this server. `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` take precedence.
fn resource() -> Resource {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.is_empty());
    Resource::builder_empty()
        .with_service_name("a2a")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(KeyValue::new("service.instance.id", Ids::default().random()))
        .with_attribute(KeyValue::new("process.pid", i64::from(process::id())))
        .with_attributes(host.map(|name| KeyValue::new("host.name", name.trim().to_owned())))
        .with_detectors(&[Box::new(TelemetryResourceDetector), Box::new(EnvResourceDetector::new())])
        .with_attributes(name.map(|name| KeyValue::new("service.name", name)))
        .build()
}

/// HTTP client of the exporter. The thread of the exporter has no reactor, in which a request of reqwest would panic.
#[derive(Debug)]
struct RuntimeClient {
    http: reqwest::Client,
    runtime: Handle,
}

#[async_trait]
impl HttpClient for RuntimeClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (http, request) = (self.http.clone(), request.try_into()?);
        let sent = self.runtime.spawn(async move {
            let response = http.execute(request).await.map_err(reqwest::Error::without_url)?;
            let (status, headers) = (response.status(), response.headers().clone());
            let body = ResponseBody::of(response, MAX_RESPONSE).all().await.map_err(|error| error.to_string())?;
            let mut response = Response::new(body);
            (*response.status_mut(), *response.headers_mut()) = (status, headers);
            Ok::<_, HttpError>(response)
        });
        sent.await?
    }
}

/// Numbers of spans.
#[derive(Debug)]
struct Counts {
    queued: AtomicUsize,
    /// Neither exported nor queued.
    lost: AtomicUsize,
    warnings: DefaultDirectRateLimiter,
}

impl Counts {
    /// Counts lost spans. Warns of them at most once a minute.
    fn lose(&self, result: &'static str, count: usize, cause: &str) {
        record(result, count);
        let lost = self.lost.fetch_add(count, Relaxed) + count;
        if self.warnings.check().is_ok() {
            tracing::warn!(lost, error.cause = cause, "spans lost, not exported to otlp.endpoint");
        }
    }
}

fn record(result: &'static str, count: usize) {
    metric::OTLP_SPANS.add(None, &[result], count.try_into().unwrap_or(u64::MAX));
}

/// Exporter that counts.
#[derive(Debug)]
struct CountedExporter {
    exporter: SpanExporter,
    counts: Arc<Counts>,
}

impl Export for CountedExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let size = batch.len();
        let result = self.exporter.export(batch).await;
        let left = self.counts.queued.fetch_sub(size, Relaxed).saturating_sub(size);
        metric::OTLP_QUEUE.set(None, &[], metric::number(left));
        match &result {
            Ok(()) => record("exported", size),
            Err(error) => self.counts.lose("failed", size, &error.to_string()),
        }
        result
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// Queue of the exporter, which drops and counts what does not fit.
#[derive(Debug)]
struct BoundedProcessor {
    batches: BatchSpanProcessor,
    counts: Arc<Counts>,
}

impl SpanProcessor for BoundedProcessor {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.counts.queued.fetch_add(1, Relaxed) < QUEUE {
            self.batches.on_end(span);
        } else {
            self.counts.queued.fetch_sub(1, Relaxed);
            self.counts.lose("dropped", 1, "the collector is too slow");
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batches.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.batches.set_resource(resource);
    }
}

/// Sampler with a maximum number of traces per second, which bounds the processor time of the export.
#[derive(Clone, Debug)]
struct LimitedSampler {
    sampler: Sampler,
    limiter: Arc<DefaultDirectRateLimiter>,
}

impl ShouldSample for LimitedSampler {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let mut result = self.sampler.should_sample(parent, trace, name, kind, attributes, links);
        // Other spans belong to a trace of this process, which is complete or absent.
        let is_local =
            parent.is_some_and(|parent| parent.has_active_span() && !parent.span().span_context().is_remote());
        let is_sampled = result.decision == SamplingDecision::RecordAndSample;
        if is_sampled && !is_local && self.limiter.check().is_err() {
            result.decision = SamplingDecision::Drop;
        }
        result
    }
}
