//! What the server does at one moment, as JSON, from counters and gauges alone: no engine thread is asked.

use super::models;
use super::types::ServingState;
use crate::clock::now_ms;
use crate::deployments::ServingDeployment;
use crate::process_metrics;
use crate::running_requests::RunningRequest;
use crate::services::Services;
use crate::state::ServerState;
use corral_engine::{Metric, ModelState, ModelStatus};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Most requests in a snapshot; further ones are only counted.
const MAX_REQUESTS: usize = 500;
/// Counters of a model, by their names in the snapshot.
const COUNTERS: [(&str, &str); 12] = [
    ("steps", "corral_engine_steps_total"),
    ("rows", "corral_engine_rows_total"),
    ("computed_tokens", "corral_engine_computed_tokens_total"),
    (
        "generated_tokens",
        "corral_engine_live_generated_tokens_total",
    ),
    ("prompt_tokens", "corral_engine_prompt_tokens_total"),
    (
        "prefix_cache_hit_tokens",
        "corral_engine_prefix_cache_hit_tokens_total",
    ),
    ("requests_finished", "corral_engine_requests_finished_total"),
    ("requests_failed", "corral_engine_requests_failed_total"),
    ("requests_canceled", "corral_engine_requests_canceled_total"),
    ("requests_expired", "corral_engine_requests_expired_total"),
    ("requests_refused", "corral_engine_requests_refused_total"),
    ("preemptions", "corral_engine_preemptions_total"),
];
/// Histograms of a model, by their names in the snapshot.
const HISTOGRAMS: [(&str, &str); 2] = [
    (
        "time_to_first_token_seconds",
        "corral_engine_time_to_first_token_seconds",
    ),
    (
        "inter_token_latency_seconds",
        "corral_engine_inter_token_latency_seconds",
    ),
];

/// A snapshot of the server, on one line.
pub(super) fn snapshot(server: &ServerState) -> String {
    let reasons = server.not_ready_reasons();
    let (requests, count) = server.running.oldest(MAX_REQUESTS);
    let responses = server.counters.responses();
    let mut json = json!({
        "time_ms": now_ms(),
        "started_ms": process_metrics::started_milliseconds(),
        "version": env!("CARGO_PKG_VERSION"),
        "ready": reasons.is_empty(),
        "not_ready": reasons,
        "http": {
            "in_flight": server.counters.in_flight(),
            "connections": server.counters.connections_open(),
            "responses": responses.map(|(status, count)| (status, json!(count as u64))).collect::<Map<_, _>>(),
        },
        "memory": {},
        "models": [],
        "requests": requests.iter().map(|request| request_json(request)).collect::<Vec<_>>(),
        "requests_omitted": count - requests.len(),
        "deployments": [],
    });
    if let Some(bytes) = process_metrics::resident_bytes() {
        json["memory"]["resident_bytes"] = json!(bytes);
    }
    if let Some(services) = server.services.get() {
        json["models"] = models_json(services);
        let deployments = services.deployments.all();
        let deployments = deployments.iter().map(|one| deployment_json(one));
        json["deployments"] = deployments.collect();
    }
    json.to_string()
}

fn models_json(services: &Services) -> Value {
    let cells: HashMap<_, _> = services
        .models
        .engines()
        .iter()
        .map(|engine| (engine.info().name.clone(), engine.cells()))
        .collect();
    let mut metrics: HashMap<_, _> = services.models.metrics().into_iter().collect();
    let models = services.models.status().into_iter();
    let models = models.map(|status| {
        let metrics = metrics.remove(&status.name).unwrap_or_default();
        model_json(&status, cells.get(&status.name).copied(), &metrics)
    });
    models.collect()
}

fn model_json(status: &ModelStatus, cells: Option<u32>, metrics: &[Metric]) -> Value {
    let mut model = models::status_json(status);
    let (ModelState::Loaded, Some(cells)) = (status.state, cells) else {
        return model;
    };
    let value = |name: &str| {
        let found = metrics.iter().find(|metric| metric.name == name);
        // Gauges and counters of tokens, cells and bytes are whole numbers.
        found.map_or(0, |metric| metric.value as u64)
    };
    let (running, cached) = (
        value("corral_engine_kv_cells_used"),
        value("corral_engine_kv_cells_cached"),
    );
    model["cells"] = json!({
        "total": cells,
        "running": running,
        "cached": cached,
        "free": u64::from(cells).saturating_sub(running + cached),
    });
    model["requests_running"] = json!(value("corral_engine_requests_running"));
    model["requests_waiting"] = json!(value("corral_engine_requests_waiting"));
    model["swapped_bytes"] = json!({
        "memory": value("corral_engine_swap_ram_bytes"),
        "disk": value("corral_engine_swap_disk_bytes"),
    });
    model["offloaded_prefix_bytes"] = json!(value("corral_engine_prefix_offload_ram_bytes"));
    model["prefix_disk_bytes"] = json!(value("corral_engine_prefix_disk_bytes"));
    let counters = COUNTERS.map(|(name, metric)| (name.to_owned(), json!(value(metric))));
    model["counters"] = Map::from_iter(counters).into();
    let histograms =
        HISTOGRAMS.map(|(name, family)| (name.to_owned(), histogram_json(family, metrics)));
    model["histograms"] = Map::from_iter(histograms).into();
    model
}

/// Bounds and cumulative counts of a histogram's buckets, without the last bucket, which has no bound.
fn histogram_json(family: &str, metrics: &[Metric]) -> Value {
    let (mut bounds, mut counts) = (Vec::new(), Vec::new());
    let (mut sum, mut count) = (0.0, 0);
    for metric in metrics {
        match metric.name.strip_prefix(family) {
            Some("_bucket") => {
                let bound = metric.labels.iter().find(|(label, _)| *label == "le");
                let bound = bound.and_then(|(_, bound)| bound.parse::<f64>().ok());
                if let Some(bound) = bound.filter(|bound| bound.is_finite()) {
                    bounds.push(bound);
                    counts.push(metric.value as u64);
                }
            }
            Some("_sum") => sum = metric.value,
            Some("_count") => count = metric.value as u64,
            _ => {}
        }
    }
    json!({"bounds": bounds, "counts": counts, "sum": sum, "count": count})
}

fn request_json(request: &RunningRequest) -> Value {
    let usage = &request.usage;
    let mut json = json!({
        "request_id": request.id.to_string(),
        "deployment": &*request.deployment,
        "method": request.method.as_str(),
        "path": request.path,
        "from": request.source.name(),
        "state": usage.phase().map_or("plugin", |phase| phase.name()),
        "prompt_tokens": usage.prompt(),
        "cached_tokens": usage.cached(),
        "generated_tokens": usage.generated(),
        "age_seconds": request.started.elapsed().as_secs_f64(),
    });
    if let Some(revision) = request.revision {
        json["revision"] = json!(revision);
    }
    if let Some([key, tenant]) = &request.key {
        json["key"] = json!(&**key);
        json["tenant"] = json!(&**tenant);
    }
    if let Some(model) = usage.model() {
        json["model"] = json!(model);
    }
    json
}

fn deployment_json(deployment: &ServingDeployment) -> Value {
    let routes = deployment.routes.iter();
    json!({
        "name": &*deployment.name,
        "stored": deployment.stored,
        "state": ServingState::of(deployment),
        "routes": routes.map(|route| route.as_str()).collect::<Vec<_>>(),
        "requests": deployment.context.deployment.requests(),
        "limit_hits": deployment.context.limit_hits(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_engine::MetricKind;

    fn metric(name: &'static str, le: Option<&str>, value: f64) -> Metric {
        let metric = Metric::new(name, "", MetricKind::Histogram, value);
        match le {
            Some(le) => metric.with_label("le", le),
            None => metric,
        }
    }

    #[test]
    fn histogram_has_bounds_and_cumulative_counts() {
        let metrics = [
            metric("x_seconds_bucket", Some("0.5"), 1.0),
            metric("x_seconds_bucket", Some("2"), 3.0),
            metric("x_seconds_bucket", Some("+Inf"), 4.0),
            metric("x_seconds_sum", None, 7.5),
            metric("x_seconds_count", None, 4.0),
            metric("x_seconds_other_count", None, 9.0),
        ];
        let expected = json!({"bounds": [0.5, 2.0], "counts": [1, 3], "sum": 7.5, "count": 4});
        assert_eq!(histogram_json("x_seconds", &metrics), expected);
    }

    #[test]
    fn loaded_model_has_cells_and_counters() {
        let status = ModelStatus {
            name: "tiny".to_owned(),
            state: ModelState::Loaded,
            memory: 7,
            leases: 0,
            waiting: 0,
            unused_for: None,
            error: None,
            stopped: false,
        };
        let metrics = [
            metric("corral_engine_kv_cells_used", None, 3.0),
            metric("corral_engine_kv_cells_cached", None, 4.0),
            metric("corral_engine_steps_total", None, 5.0),
        ];
        let model = model_json(&status, Some(10), &metrics);
        let cells = json!({"total": 10, "running": 3, "cached": 4, "free": 3});
        assert_eq!(model["cells"], cells);
        assert_eq!(model["counters"]["steps"], 5);
        assert_eq!(model_json(&status, None, &metrics)["cells"], Value::Null);
    }
}
