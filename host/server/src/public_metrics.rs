//! `/metrics` and `/v1/loads` on the public listener, for routers and autoscalers that ask servers at the address that
//! they send requests to. Off unless the operator asks for it. They name models, and no tenants or deployments.
//!
//! Beside Corral's metrics of the models there are those by which endpoint pickers of the Gateway API's inference
//! extension compare servers, under the names of vLLM.

use crate::clock::now;
use crate::json_response::{json_response, no_store};
use crate::problem::Problem;
use crate::prometheus::{self, MetricFamilies};
use crate::state::ServerState;
use corral_engine::{Metric, MetricKind, ModelPool};
use corral_runtime::Body;
use http::{Method, Response, StatusCode};
use serde_json::json;

const WAITING: &str = "corral_engine_requests_waiting";
const RUNNING: &str = "corral_engine_requests_running";
const USAGE: &str = "corral_engine_kv_cache_usage_ratio";

/// Metrics of each model under the names of vLLM: its name, ours, and the text.
const COMMON: [(&str, &str, &str); 3] = [
    (
        "vllm:num_requests_waiting",
        WAITING,
        "Requests in the queue, by model.",
    ),
    (
        "vllm:num_requests_running",
        RUNNING,
        "Running requests, by model.",
    ),
    (
        "vllm:kv_cache_usage_perc",
        USAGE,
        "Part of the KV cells in use, from 0 to 1, by model.",
    ),
];

/// Answers `path` if it is one of these.
pub(crate) fn answer(
    state: &ServerState,
    method: &Method,
    path: &str,
) -> Option<Result<Response<Body>, Problem>> {
    let make = match path {
        "/metrics" => metrics,
        "/v1/loads" => loads,
        _ => return None,
    };
    if !state.metrics_public {
        return None;
    }
    Some(match *method {
        Method::GET | Method::HEAD => Ok(make(state)),
        _ => Err(Problem::method("GET, HEAD")),
    })
}

fn metrics(state: &ServerState) -> Response<Body> {
    let mut families = MetricFamilies::default();
    let is_ready = state.not_ready_reasons().is_empty();
    families.sample(
        "corral_ready",
        "1 while requests can be served.",
        MetricKind::Gauge,
        &[],
        f64::from(u8::from(is_ready)),
    );
    if let Some(services) = state.services.get() {
        write(&services.models, &mut families);
    }
    no_store(families.text().into(), prometheus::CONTENT_TYPE)
}

fn write(models: &ModelPool, families: &mut MetricFamilies) {
    for (name, metrics) in models.metrics() {
        for metric in &metrics {
            families.metric(metric, &[("model", &name)]);
        }
        let label = [("model_name", name.as_str())];
        for (common, own, help) in COMMON {
            if let Some(value) = value(&metrics, own) {
                families.sample(common, help, MetricKind::Gauge, &label, value);
            }
        }
    }
    for engine in models.engines() {
        let cells = engine.cells().to_string();
        let labels = [
            ("model_name", engine.info().name.as_str()),
            ("block_size", "1"),
            ("num_gpu_blocks", &cells),
        ];
        families.sample(
            "vllm:cache_config_info",
            "The KV cache of each loaded model: blocks of one cell.",
            MetricKind::Gauge,
            &labels,
            1.0,
        );
        let adapters = &engine.info().adapters;
        if adapters.is_empty() {
            continue;
        }
        let (count, names) = (adapters.len().to_string(), adapters.join(","));
        let labels = [
            ("model_name", engine.info().name.as_str()),
            ("max_lora", &count),
            ("running_lora_adapters", &names),
            ("waiting_lora_adapters", ""),
        ];
        families.sample(
            "vllm:lora_requests_info",
            "The adapters of each loaded model, which are always in memory: the time now.",
            MetricKind::Gauge,
            &labels,
            now().as_secs_f64(),
        );
    }
}

fn value(metrics: &[Metric], name: &str) -> Option<f64> {
    let metric = metrics.iter().find(|metric| metric.name == name)?;
    Some(metric.value)
}

/// The load of all models together, in the form that SMG reads.
fn loads(state: &ServerState) -> Response<Body> {
    let models = state
        .services
        .get()
        .map(|services| services.models.metrics());
    let models = models.unwrap_or_default();
    let values = |name| {
        models
            .iter()
            .filter_map(move |(_, metrics)| value(metrics, name))
    };
    let load = json!({
        "num_running_reqs": count(values(RUNNING).sum()),
        "num_waiting_reqs": count(values(WAITING).sum()),
        "token_usage": values(USAGE).fold(0.0, f64::max),
    });
    let body = json!({
        "timestamp": now().as_secs_f64(),
        "dp_rank_count": 1,
        "loads": [load],
    });
    json_response(StatusCode::OK, body.to_string())
}

/// A gauge that counts.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn count(value: f64) -> u64 {
    value as u64
}
