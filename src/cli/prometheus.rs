//! Export of the metrics in the text format of Prometheus.

use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::base::metric::{self, Kind, METRICS};

/// Interval at which recorded values are moved to the buckets.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Installs the recorder of this process.
///
/// # Errors
/// The process has a recorder already.
pub(crate) fn install() -> anyhow::Result<PrometheusHandle> {
    let mut builder = PrometheusBuilder::new();
    for metric in METRICS {
        if let Kind::Histogram(buckets) = metric.kind {
            builder = builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), buckets)?;
        }
    }
    let recorder = builder.build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder)?;
    Ok(handle)
}

/// Records the build of this program.
pub(crate) fn record_build() {
    let features =
        [("docs", cfg!(feature = "docs")), ("openapi", cfg!(feature = "openapi")), ("otlp", cfg!(feature = "otlp"))];
    let features: Vec<_> = features.into_iter().filter_map(|(name, is_enabled)| is_enabled.then_some(name)).collect();
    let revision = option_env!("A2A_COMMIT").unwrap_or("debug");
    let build = [env!("CARGO_PKG_VERSION"), revision, env!("A2A_RUSTC"), &features.join(",")];
    metric::BUILD_INFO.set(None, &build, 1.0);
}

/// Moves recorded values to the buckets from time to time, so that they do not accumulate without a scrape. Runs until it is
/// dropped.
pub(crate) async fn keep_up(recorder: PrometheusHandle) {
    let mut interval = tokio::time::interval(UPKEEP_INTERVAL);
    loop {
        interval.tick().await;
        recorder.run_upkeep();
    }
}
