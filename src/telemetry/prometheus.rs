//! Export of the metrics in the text format of Prometheus.

use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::metric::{self, Kind, METRICS};

/// Upper bounds of durations in seconds.
const SECONDS: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0];

/// Upper bounds of numbers of tasks and events.
const COUNTS: [f64; 10] = [0.0, 1.0, 2.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 65536.0];

/// Upper bounds of sizes in bytes.
const BYTES: [f64; 8] = [256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262_144.0, 1_048_576.0, 16_777_216.0];

/// Interval at which recorded values are moved to the buckets.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Recorder of this process.
#[derive(Clone)]
pub(crate) struct Recorder(PrometheusHandle);

impl Recorder {
    /// Installs the recorder.
    ///
    /// # Errors
    /// The process has a recorder already.
    pub(crate) fn install() -> anyhow::Result<Self> {
        let mut builder = PrometheusBuilder::new();
        for metric in METRICS.iter().filter(|metric| metric.kind == Kind::Histogram) {
            let buckets: &[f64] = match metric.name.rsplit('_').next() {
                Some("seconds") => &SECONDS,
                Some("bytes") => &BYTES,
                _ => &COUNTS,
            };
            builder = builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), buckets)?;
        }
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder)?;
        metric::describe();
        Ok(Self(handle))
    }

    /// Renders the metrics.
    pub(crate) fn render(&self) -> String {
        self.0.render()
    }

    /// Moves recorded values to the buckets from time to time, so that they do not accumulate without a scrape. Runs until it
    /// is dropped.
    pub(crate) async fn keep_up(self) {
        let mut interval = tokio::time::interval(UPKEEP_INTERVAL);
        loop {
            interval.tick().await;
            self.0.run_upkeep();
        }
    }
}
