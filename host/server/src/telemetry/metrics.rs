//! The metrics of `/metrics` as messages of OTLP: the same names and labels, with sums since the start of the process.

use super::attribute::{Attributes, text};
use super::exporter::ExportMessage;
use super::resource::scope;
use super::spans::nanos;
use crate::clock::now;
use crate::prometheus::{MetricFamilies, MetricFamily, MetricSample};
use corral_engine::MetricKind;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, Sum,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;

/// Label with the upper bound of a bucket.
const BOUND: &str = "le";

/// Most bytes of the tag and length before a metric in a message.
const FIELD_BYTES: usize = 6;

/// Messages with all metrics now, whose sums began at `started`. One has at most `max_bytes` of metrics, or a single metric.
pub(super) fn encode(
    families: &MetricFamilies,
    started: u64,
    resource: &Resource,
    max_bytes: usize,
) -> Vec<ExportMessage> {
    let time = (started, nanos(now()));
    let mut messages = Vec::new();
    let (mut part, mut bytes) = (Vec::new(), 0);
    for metric in families.iter().map(|family| metric(family, time)) {
        let length = metric.encoded_len() + FIELD_BYTES;
        if bytes + length > max_bytes && !part.is_empty() {
            messages.push(message(std::mem::take(&mut part), resource));
            bytes = 0;
        }
        part.push(metric);
        bytes += length;
    }
    messages.push(message(part, resource));
    messages
}

fn message(metrics: Vec<Metric>, resource: &Resource) -> ExportMessage {
    let points = |metric: &Metric| match &metric.data {
        Some(Data::Gauge(gauge)) => gauge.data_points.len(),
        Some(Data::Sum(sum)) => sum.data_points.len(),
        Some(Data::Histogram(histogram)) => histogram.data_points.len(),
        _ => 0,
    };
    let count = metrics.iter().map(points).sum::<usize>() as u64;
    let scope_metrics = ScopeMetrics {
        scope: Some(scope()),
        metrics,
        ..ScopeMetrics::default()
    };
    let resource_metrics = ResourceMetrics {
        resource: Some(resource.clone()),
        scope_metrics: vec![scope_metrics],
        ..ResourceMetrics::default()
    };
    super::message(
        &ExportMetricsServiceRequest {
            resource_metrics: vec![resource_metrics],
        },
        count,
    )
}

fn metric(family: &MetricFamily, time: (u64, u64)) -> Metric {
    let numbers = || {
        let points = family.samples.iter();
        points.map(|sample| number_point(sample, time)).collect()
    };
    let cumulative = AggregationTemporality::Cumulative.into();
    let data = match family.kind {
        MetricKind::Gauge => Data::Gauge(Gauge {
            data_points: numbers(),
        }),
        MetricKind::Counter => Data::Sum(Sum {
            data_points: numbers(),
            aggregation_temporality: cumulative,
            is_monotonic: true,
        }),
        MetricKind::Histogram => Data::Histogram(Histogram {
            data_points: histogram_points(family, time),
            aggregation_temporality: cumulative,
        }),
    };
    Metric {
        name: family.name.clone(),
        description: family.help.clone(),
        unit: unit(&family.name).to_owned(),
        data: Some(data),
        ..Metric::default()
    }
}

fn number_point(sample: &MetricSample, (started, now): (u64, u64)) -> NumberDataPoint {
    NumberDataPoint {
        attributes: attributes(&sample.labels),
        start_time_unix_nano: started,
        time_unix_nano: now,
        value: Some(Value::AsDouble(sample.value)),
        ..NumberDataPoint::default()
    }
}

/// One point for the series of the same labels, which stand together.
fn histogram_points(family: &MetricFamily, (started, now): (u64, u64)) -> Vec<HistogramDataPoint> {
    let mut points: Vec<(Vec<(String, String)>, HistogramDataPoint)> = Vec::new();
    for sample in &family.samples {
        let is_bound = |(name, _): &&(String, String)| name == BOUND;
        let bound = sample.labels.iter().find(is_bound);
        let labels = sample.labels.iter().filter(|label| !is_bound(label));
        let labels: Vec<_> = labels.cloned().collect();
        if points.last().is_none_or(|(known, _)| *known != labels) {
            let point = HistogramDataPoint {
                attributes: attributes(&labels),
                start_time_unix_nano: started,
                time_unix_nano: now,
                ..HistogramDataPoint::default()
            };
            points.push((labels, point));
        }
        let Some((_, point)) = points.last_mut() else {
            continue;
        };
        match bound {
            // Buckets of Prometheus contain the smaller ones.
            Some((_, bound)) => {
                let below: u64 = point.bucket_counts.iter().sum();
                point
                    .bucket_counts
                    .push((sample.value as u64).saturating_sub(below));
                let bound = bound.parse::<f64>().ok().filter(|bound| bound.is_finite());
                point.explicit_bounds.extend(bound);
            }
            None if sample.name.ends_with("_sum") => point.sum = Some(sample.value),
            None => point.count = sample.value as u64,
        }
    }
    points.into_iter().map(|(_, point)| point).collect()
}

fn attributes(labels: &[(String, String)]) -> Attributes {
    let labels = labels.iter();
    labels
        .map(|(name, value)| text(&**name, &**value))
        .collect()
}

/// The unit at the end of a name, as UCUM writes it.
fn unit(name: &str) -> &'static str {
    let name = name.strip_suffix("_total").unwrap_or(name);
    match name.rsplit('_').next() {
        Some("seconds") => "s",
        Some("bytes") => "By",
        Some("ratio") => "1",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_becomes_one_point_per_series() {
        let mut families = MetricFamilies::default();
        let mut sample = |end: &str, labels: &[(&str, &str)], value| {
            let name = format!("x_seconds_{end}");
            families.sample(&name, "X.", MetricKind::Histogram, labels, value);
        };
        for model in ["a", "b"] {
            sample("bucket", &[("model", model), ("le", "0.5")], 2.0);
            sample("bucket", &[("model", model), ("le", "1")], 2.0);
            sample("bucket", &[("model", model), ("le", "+Inf")], 5.0);
            sample("sum", &[("model", model)], 12.5);
            sample("count", &[("model", model)], 5.0);
        }
        families.sample("y_total", "Y.", MetricKind::Counter, &[], 3.0);
        let mut messages = encode(&families, 7, &Resource::default(), usize::MAX);
        let message = messages.pop().expect("one");
        assert_eq!((messages.len(), message.count), (0, 3));
        let request = ExportMetricsServiceRequest::decode(message.bytes).expect("a message");
        let metrics = &request.resource_metrics[0].scope_metrics[0].metrics;
        let Some(Data::Histogram(histogram)) = &metrics[0].data else {
            panic!("{metrics:?}");
        };
        assert_eq!((&*metrics[0].name, &*metrics[0].unit), ("x_seconds", "s"));
        assert_eq!(histogram.data_points.len(), 2);
        let point = &histogram.data_points[1];
        assert_eq!(point.attributes, [text("model", "b")]);
        assert_eq!(point.explicit_bounds, [0.5, 1.0]);
        assert_eq!(point.bucket_counts, [2, 0, 3]);
        assert_eq!((point.sum, point.count), (Some(12.5), 5));
        let Some(Data::Sum(sum)) = &metrics[1].data else {
            panic!("{metrics:?}");
        };
        assert!(sum.is_monotonic);
        assert_eq!(sum.data_points[0].value, Some(Value::AsDouble(3.0)));
        assert_eq!(sum.data_points[0].start_time_unix_nano, 7);
    }

    #[test]
    fn messages_are_bounded_in_bytes() {
        let mut families = MetricFamilies::default();
        for index in 0..10 {
            let name = format!("metric_{index}_total");
            families.sample(&name, "X.", MetricKind::Counter, &[], 1.0);
        }
        let encode = |max| encode(&families, 7, &Resource::default(), max);
        let all = encode(usize::MAX);
        assert_eq!((all.len(), all[0].count), (1, 10));
        let around = encode(0).len();
        assert_eq!(around, 10, "each alone");
        let parts = encode(150);
        assert!((2..10).contains(&parts.len()), "{}", parts.len());
        assert_eq!(parts.iter().map(|part| part.count).sum::<u64>(), 10);
        let most = parts.iter().map(|part| part.bytes.len()).max();
        // The scope's name stands around them.
        assert!(most < Some(250), "{most:?}");
    }
}
