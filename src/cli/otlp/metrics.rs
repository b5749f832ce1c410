//! Export of the metrics by OTLP over HTTP. The text of `/metrics` is converted by the table of metrics, so that both have equal values.

use std::{
    mem,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, header::CONTENT_TYPE};
use metrics::Unit;
use opentelemetry_proto::tonic::{
    collector::metrics::v1::ExportMetricsServiceRequest,
    common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value},
    metrics::v1::{
        AggregationTemporality::Cumulative, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
        ResourceMetrics, ScopeMetrics, Sum, metric::Data, number_data_point::Value,
    },
    resource::v1::Resource,
};
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use prost::Message as _;
use tokio::time::{Instant, sleep_until};

use super::Exporter;
use crate::{
    base::metric::{self, Kind, METRICS},
    cli::config,
    transport::MetricsSource,
};

/// Exporter of metrics.
pub(crate) struct MetricsExporter {
    source: MetricsSource,
    http: reqwest::Client,
    url: String,
    headers: HeaderMap,
    interval: Duration,
    resource: Resource,
    /// Start of the counters, in nanoseconds since 1970.
    start: u64,
}

impl Exporter {
    /// Returns the exporter of the metrics of a server.
    pub(crate) fn metrics(&self, source: MetricsSource) -> MetricsExporter {
        let (headers, interval) = config::metrics_export();
        let attributes = ResourceAttributesWithSchema::from(&self.resource).attributes.0;
        let resource = Resource { attributes, ..Resource::default() };
        let (http, url) = (self.http.clone(), format!("{}/v1/metrics", self.endpoint));
        MetricsExporter { source, http, url, headers, interval, resource, start: nanos() }
    }
}

impl MetricsExporter {
    /// Exports at intervals. Warns when that begins to fail. Runs until it is dropped.
    pub(crate) async fn run(&self) {
        let mut is_failing = false;
        loop {
            sleep_until(Instant::now() + self.interval).await;
            let exported = self.export().await;
            match &exported {
                Err(cause) if !is_failing => {
                    tracing::warn!(error.cause = cause, "metrics not exported to otlp.endpoint");
                }
                Ok(()) if is_failing => tracing::info!("metrics exported again"),
                Ok(()) | Err(_) => {}
            }
            is_failing = exported.is_err();
        }
    }

    /// Exports once.
    ///
    /// # Errors
    /// Why the collector has not taken the metrics.
    pub(crate) async fn export(&self) -> Result<(), String> {
        let metrics = convert(&(self.source)().await, self.start, nanos());
        let scope = Some(InstrumentationScope { name: "a2a_service".into(), ..InstrumentationScope::default() });
        let scope_metrics = vec![ScopeMetrics { scope, metrics, ..ScopeMetrics::default() }];
        let resource = Some(self.resource.clone());
        let resource_metrics = vec![ResourceMetrics { resource, scope_metrics, ..ResourceMetrics::default() }];
        let body = ExportMetricsServiceRequest { resource_metrics }.encode_to_vec();
        let request = self.http.post(&self.url).headers(self.headers.clone());
        let sent = request.header(CONTENT_TYPE, "application/x-protobuf").body(body).send().await;
        let sent = sent.and_then(reqwest::Response::error_for_status);
        sent.map(drop).map_err(|error| error.without_url().to_string())
    }
}

/// Time in nanoseconds since 1970.
fn nanos() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Converts the text format of Prometheus. Metrics that are not in the table are left out.
fn convert(text: &str, start: u64, now: u64) -> Vec<Metric> {
    let mut converted = Vec::new();
    let (mut metric, mut histogram) = (None, HistogramDataPoint::default());
    for line in text.lines() {
        if let Some(typed) = line.strip_prefix("# TYPE ") {
            metric = METRICS.iter().find(|metric| typed.split(' ').next() == Some(metric.name));
        }
        let series = line.rsplit_once(' ').filter(|_| !line.starts_with('#'));
        let (Some(metric), Some((series, text))) = (metric, series) else { continue };
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let (value, count): (f64, u64) = (text.parse().unwrap_or_default(), text.parse().unwrap_or_default());
        // The buckets of a series are followed by its sum and its count.
        if let Kind::Histogram(bounds) = metric.kind {
            if name.ends_with("_bucket") {
                let before: u64 = histogram.bucket_counts.iter().sum();
                histogram.bucket_counts.push(count.saturating_sub(before));
                continue;
            }
            if name.ends_with("_sum") {
                histogram.sum = Some(value);
                continue;
            }
            histogram.explicit_bounds = bounds.to_vec();
        }
        let labels = labels.trim_end_matches('}').split("\",");
        let labels: Vec<_> = labels.filter_map(|label| label.trim_end_matches('"').split_once("=\"")).collect();
        // OpenTelemetry has a metric for each kind of tokens.
        let (name, labels) = match &*labels {
            [("direction", direction), ("detail", detail), rest @ ..] => {
                let detail = if *detail == "all" { String::new() } else { format!("{detail}.") };
                (format!("{}.{detail}{direction}_tokens", metric.otlp), rest)
            }
            labels => (metric.otlp.to_owned(), labels),
        };
        let attributes = labels.iter().map(attribute).collect();
        let (time_unix_nano, start_time_unix_nano) = (now, start);
        let number = NumberDataPoint { time_unix_nano, ..NumberDataPoint::default() };
        match data(&mut converted, metric, name) {
            Some(Data::Gauge(gauge)) => {
                gauge.data_points.push(NumberDataPoint { attributes, value: Some(Value::AsDouble(value)), ..number });
            }
            Some(Data::Sum(sum)) => {
                let value = i64::try_from(count).ok().map(Value::AsInt);
                sum.data_points.push(NumberDataPoint { attributes, start_time_unix_nano, value, ..number });
            }
            Some(Data::Histogram(all)) => all.data_points.push(HistogramDataPoint {
                attributes,
                start_time_unix_nano,
                time_unix_nano,
                count,
                ..mem::take(&mut histogram)
            }),
            Some(Data::ExponentialHistogram(_) | Data::Summary(_)) | None => {}
        }
    }
    converted
}

fn attribute((name, value): &(&str, &str)) -> KeyValue {
    let value = Some(AnyValue { value: Some(any_value::Value::StringValue((*value).to_owned())) });
    KeyValue { key: (*name).to_owned(), value, ..KeyValue::default() }
}

/// Returns the data of a metric, which is added if there is none.
fn data<'a>(converted: &'a mut Vec<Metric>, metric: &metric::Metric, name: String) -> Option<&'a mut Data> {
    let aggregation_temporality = Cumulative.into();
    let at = converted.iter().position(|known| known.name == name).unwrap_or_else(|| {
        let units = [(Unit::Seconds, "s"), (Unit::Bytes, "By")];
        let unit = units.iter().find_map(|(unit, name)| (*unit == metric.unit).then_some(*name)).unwrap_or("1");
        let data = match metric.kind {
            Kind::Gauge => Data::Gauge(Gauge::default()),
            Kind::Counter => Data::Sum(Sum { data_points: Vec::new(), aggregation_temporality, is_monotonic: true }),
            Kind::Histogram(_) => Data::Histogram(Histogram { data_points: Vec::new(), aggregation_temporality }),
        };
        let description = metric.description.into();
        converted.push(Metric { name, unit: unit.into(), description, data: Some(data), ..Metric::default() });
        converted.len() - 1
    });
    converted.get_mut(at).and_then(|metric| metric.data.as_mut())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_prometheus_becomes_points_with_equal_values() {
        let text = r#"# HELP a2a_turns_started_total Turns.
# TYPE a2a_turns_started_total counter
a2a_turns_started_total{kind="new",agent="geo"} 3
a2a_turns_started_total{kind="follow_up",agent="geo"} 1

# TYPE a2a_turn_wait_seconds histogram
a2a_turn_wait_seconds_bucket{queue="exec",le="0.005"} 2
a2a_turn_wait_seconds_bucket{queue="exec",le="0.01"} 2
a2a_turn_wait_seconds_bucket{queue="exec",le="+Inf"} 5
a2a_turn_wait_seconds_sum{queue="exec"} 7.5
a2a_turn_wait_seconds_count{queue="exec"} 5

# TYPE a2a_model_tokens_total counter
a2a_model_tokens_total{direction="input",detail="all"} 11
a2a_model_tokens_total{direction="output",detail="reasoning"} 2
# TYPE a2a_ready gauge
a2a_ready 1
# TYPE unknown counter
unknown 1
"#;
        let converted = convert(text, 1, 2);
        let names: Vec<_> = converted.iter().map(|metric| (&*metric.name, &*metric.unit)).collect();
        let tokens = "gen_ai.client.inference.usage";
        let (input, reasoning) = (format!("{tokens}.input_tokens"), format!("{tokens}.reasoning.output_tokens"));
        let expected =
            [("a2a.turns.started", "1"), ("a2a.turn.wait", "s"), (&input, "1"), (&reasoning, "1"), ("a2a.ready", "1")];
        assert_eq!(names, expected);
        let Some(Data::Sum(started)) = &converted[0].data else { panic!("{converted:?}") };
        let values: Vec<_> = started.data_points.iter().map(|point| point.value).collect();
        assert_eq!(values, [Some(Value::AsInt(3)), Some(Value::AsInt(1))]);
        let labels = [("kind", "new"), ("agent", "geo")].map(|label| attribute(&label));
        assert_eq!(started.data_points[0].attributes, labels);
        assert!(started.is_monotonic && started.aggregation_temporality == i32::from(Cumulative));
        let Some(Data::Histogram(waits)) = &converted[1].data else { panic!("{converted:?}") };
        let point = &waits.data_points[0];
        assert_eq!((&*point.bucket_counts, point.sum, point.count), (&[2, 0, 3][..], Some(7.5), 5));
        assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (1, 2));
        let Some(Data::Gauge(ready)) = &converted[4].data else { panic!("{converted:?}") };
        assert_eq!(ready.data_points[0].value, Some(Value::AsDouble(1.0)));
    }
}
