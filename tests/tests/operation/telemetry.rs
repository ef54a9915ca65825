//! Traces, metrics and logs at an OpenTelemetry collector.

use corral_tests::deployments::deploy_plugin;
use corral_tests::otlp_collector::{Collector, attribute, hex};
use corral_tests::{Corral, Identity, Upstream, artifacts, run, scratch_dir, wait_for};
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use serde_json::{Value, json};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const OTHER_TRACE: &str = "1bf7651916cd43dd8448eb211c80319d";
const PARENT: &str = "b7ad6b7169203331";
/// Sends soon.
const SOON: [(&str, &str); 3] = [
    ("OTEL_BSP_SCHEDULE_DELAY", "10"),
    ("OTEL_BLRP_SCHEDULE_DELAY", "10"),
    ("OTEL_METRIC_EXPORT_INTERVAL", "100"),
];

fn with<'a>(
    url: &'a str,
    protocol: &'a str,
    more: &[(&'a str, &'a str)],
) -> Vec<(&'a str, &'a str)> {
    let endpoint = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", url),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
    ];
    [&endpoint[..], &SOON, more].concat()
}

/// Sends a request to `/generate` below a span of this trace, and returns the answer.
fn generate(corral: &Corral, trace: &str, is_sampled: bool) -> Value {
    let flags = if is_sampled { "01" } else { "00" };
    let parent = format!("00-{trace}-{PARENT}-{flags}");
    let body = json!({"prompt": "12+7=", "max_tokens": 20}).to_string();
    let answer = corral.request("POST", "/generate", &[("traceparent", &parent)], &body);
    answer.ok_json()
}

fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let mut found = spans.iter().filter(|span| span.name == name);
    let span = found.next().unwrap_or_else(|| panic!("{name}: {spans:#?}"));
    assert!(found.next().is_none(), "two {name}: {spans:#?}");
    span
}

/// The child begins and ends within its parent.
fn check_below(child: &Span, parent: &Span) {
    check_begins_below(child, parent);
    let most = parent.end_time_unix_nano;
    assert!(child.end_time_unix_nano <= most, "{child:?} {parent:?}");
}

/// The child begins within its parent, but may end after it, as a call may after its response.
fn check_begins_below(child: &Span, parent: &Span) {
    let names = (&child.name, &parent.name);
    assert_eq!(child.parent_span_id, parent.span_id, "{names:?}");
    let (begin, end) = (child.start_time_unix_nano, child.end_time_unix_nano);
    assert!(begin >= parent.start_time_unix_nano, "{child:?} {parent:?}");
    assert!(begin <= end, "{child:?}");
}

fn text(span: &Span, name: &str) -> String {
    attribute(&span.attributes, name).unwrap_or_else(|| panic!("{name}: {span:#?}"))
}

#[test]
fn chat_over_grpc_has_nested_spans() {
    let collector = Collector::start_grpc();
    let plugin = artifacts::plugin("openai");
    let plugin = format!("/v1={}", plugin.to_str().expect("UTF-8"));
    let url = collector.url();
    let corral = Corral::start_with_env(&with(&url, "grpc", &[]), &["--plugin", &plugin]);
    let body = json!({
        "model": "tiny",
        "messages": [{"role": "user", "content": "a private riddle 12+7="}],
        "max_tokens": 8,
    });
    let headers = [
        ("traceparent", format!("00-{TRACE}-{PARENT}-01")),
        ("tracestate", "vendor=1".to_owned()),
        ("content-type", "application/json".to_owned()),
    ];
    let headers = headers.each_ref().map(|(name, value)| (*name, &**value));
    let path = "/v1/chat/completions?secret=query";
    let answer = corral.request("POST", path, &headers, &body.to_string());
    let usage = &answer.ok_json()["usage"];
    let spans = collector.wait_for_trace(TRACE);
    let request = named(&spans, "POST /v1");
    assert_eq!(hex(&request.parent_span_id), PARENT);
    assert_eq!(request.kind(), SpanKind::Server);
    assert_eq!(request.trace_state, "vendor=1");
    for (name, value) in [
        ("http.request.method", "POST"),
        ("http.response.status_code", "200"),
        ("http.route", "/v1"),
        ("url.path", "/v1/chat/completions"),
        ("url.scheme", "http"),
        ("corral.deployment", "/v1"),
        ("network.protocol.version", "1.1"),
    ] {
        assert_eq!(text(request, name), value, "{name}");
    }
    let id = answer.header("x-request-id").expect("an id");
    assert_eq!(text(request, "corral.request_id"), id);
    let call = named(&spans, "call /v1");
    check_begins_below(call, request);
    let generation = named(&spans, "text_completion tiny");
    check_below(generation, call);
    for (name, value) in [
        ("gen_ai.operation.name", &json!("text_completion")),
        ("gen_ai.request.model", &json!("tiny")),
        ("gen_ai.usage.input_tokens", &usage["prompt_tokens"]),
        ("gen_ai.usage.output_tokens", &usage["completion_tokens"]),
        (
            "gen_ai.usage.cache_read.input_tokens",
            &usage["prompt_tokens_details"]["cached_tokens"],
        ),
        (
            "gen_ai.response.finish_reasons",
            &answer.json()["choices"][0]["finish_reason"],
        ),
    ] {
        let value = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        assert_eq!(text(generation, name), value, "{name}");
    }
    let ids = |parent: &Span| {
        let children = spans
            .iter()
            .filter(|span| span.parent_span_id == parent.span_id);
        children.map(|span| &*span.name).collect::<Vec<_>>()
    };
    assert_eq!(ids(request), ["queue", "call /v1"]);
    assert_eq!(&ids(generation)[..3], ["queue", "prefill", "decode"]);
    let mut end = generation.start_time_unix_nano;
    for span in spans
        .iter()
        .filter(|span| span.parent_span_id == generation.span_id)
    {
        check_below(span, generation);
        assert_eq!(
            span.start_time_unix_nano, end,
            "one after another: {span:?}"
        );
        end = span.end_time_unix_nano;
    }
    let all = format!("{spans:?}");
    assert!(!all.contains("riddle") && !all.contains("secret"), "{all}");
    let resource = &collector.resources()[0];
    let expected = Some("corral");
    assert_eq!(attribute(resource, "service.name").as_deref(), expected);
}

#[test]
fn http_collector_gets_headers_and_resource() {
    let collector = Collector::start_http();
    let url = collector.url();
    let more = [
        (
            "OTEL_EXPORTER_OTLP_HEADERS",
            "x-tenant=a%20b,api-key=secret-key",
        ),
        ("OTEL_SERVICE_NAME", "my-corral"),
        (
            "OTEL_RESOURCE_ATTRIBUTES",
            "deployment.environment.name=test",
        ),
    ];
    let corral = Corral::start_with_env(&with(&url, "http/protobuf", &more), &[]);
    let answer = generate(&corral, TRACE, true);
    let spans = collector.wait_for_trace(TRACE);
    let generation = named(&spans, "text_completion tiny");
    let found = text(generation, "gen_ai.usage.output_tokens");
    assert_eq!(found, answer["tokens"].to_string());
    for headers in collector.headers() {
        assert_eq!(headers["x-tenant"], "a b");
        assert_eq!(headers["api-key"], "secret-key");
    }
    let resource = &collector.resources()[0];
    for (name, value) in [
        ("service.name", "my-corral"),
        ("deployment.environment.name", "test"),
    ] {
        assert_eq!(attribute(resource, name).as_deref(), Some(value));
    }
    let text = corral.stderr();
    assert!(!text.contains("secret-key"), "{text}");
}

/// Asserts that no trace has been sent yet. Traces are sent in the order of their ends.
fn check_next_trace_is_first(corral: &Corral, collector: &Collector) {
    generate(corral, TRACE, true);
    collector.wait_for_trace(TRACE);
    let spans = collector.spans();
    let mut traces = spans.iter().map(|span| hex(&span.trace_id));
    assert!(traces.all(|trace| trace == TRACE), "{spans:#?}");
}

#[test]
fn unsampled_parent_gives_no_spans() {
    let collector = Collector::start_grpc();
    let url = collector.url();
    let corral = Corral::start_with_env(&with(&url, "grpc", &[]), &[]);
    generate(&corral, OTHER_TRACE, false);
    assert_eq!(corral.get("/healthz").status, 200);
    check_next_trace_is_first(&corral, &collector);
}

#[test]
fn sampler_decides_without_parent() {
    let collector = Collector::start_grpc();
    let url = collector.url();
    let more = [
        ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
        ("OTEL_TRACES_SAMPLER_ARG", "0"),
    ];
    let corral = Corral::start_with_env(&with(&url, "grpc", &more), &[]);
    let body = json!({"prompt": "1+1=", "max_tokens": 20}).to_string();
    assert_eq!(corral.post("/generate", &body).status, 200);
    check_next_trace_is_first(&corral, &collector);
}

#[test]
fn failed_and_canceled_requests_have_errors() {
    let collector = Collector::start_grpc();
    let url = collector.url();
    let corral = Corral::start_with_store_and_env(&with(&url, "grpc", &[]), &[]);
    let parent = format!("00-{TRACE}-{PARENT}-01");
    let headers = [("traceparent", &*parent)];
    let answer = corral.request("POST", "/misbehave/trap", &headers, "");
    assert_eq!(answer.status, 500, "{answer:?}");
    let spans = collector.wait_for_trace(TRACE);
    let request = named(&spans, "POST /misbehave");
    assert_eq!(text(request, "error.type"), "500");
    let call = named(&spans, "call /misbehave");
    assert_eq!(text(call, "error.type"), "trapped");
    // A client that leaves.
    drop(corral.endless("/generate"));
    let left = wait_for("a canceled generation", || {
        let spans = collector.spans();
        let mut generations = spans
            .into_iter()
            .filter(|span| span.name == "text_completion tiny");
        generations.next()
    });
    assert_eq!(text(&left, "error.type"), "canceled");
}

/// The value of a metric's point without attributes, or the number of a histogram's observations.
fn value(metrics: &[Metric], name: &str) -> Option<f64> {
    let mut of_name = metrics.iter().filter(|metric| metric.name == name);
    let number = |value: &Option<Number>| match value {
        Some(Number::AsDouble(value)) => *value,
        other => panic!("{other:?}"),
    };
    match of_name.next_back()?.data.as_ref()? {
        Data::Gauge(gauge) => Some(number(&gauge.data_points.first()?.value)),
        Data::Sum(sum) => Some(number(&sum.data_points.first()?.value)),
        Data::Histogram(histogram) => Some(histogram.data_points.first()?.count as f64),
        other => panic!("{other:?}"),
    }
}

#[test]
fn metrics_and_log_lines_arrive() {
    for collector in [Collector::start_grpc(), Collector::start_http()] {
        let url = collector.url();
        let protocol = if collector.is_grpc() {
            "grpc"
        } else {
            "http/protobuf"
        };
        let corral = Corral::start_with_env(&with(&url, protocol, &[]), &[]);
        let answer = generate(&corral, TRACE, true);
        let metrics = wait_for("metrics", || {
            let metrics = collector.metrics();
            let generated = value(&metrics, "corral_engine_generated_tokens_total");
            (generated == answer["tokens"].as_f64()).then_some(metrics)
        });
        assert_eq!(value(&metrics, "corral_ready"), Some(1.0));
        let first_tokens = value(&metrics, "corral_engine_time_to_first_token_seconds");
        assert_eq!(first_tokens, Some(1.0));
        let unit = |name: &str| {
            let metric = metrics.iter().find(|metric| metric.name == name);
            metric.expect(name).unit.clone()
        };
        assert_eq!(unit("corral_engine_time_to_first_token_seconds"), "s");
        let line = wait_for("the request's line", || {
            let logs = collector.logs();
            let mut lines = logs.into_iter();
            lines.find(|line| hex(&line.trace_id) == TRACE)
        });
        assert_eq!(line.severity_text, "INFO");
        let field = |name: &str| attribute(&line.attributes, name);
        assert_eq!(field("log.target").as_deref(), Some("corral::access"));
        assert_eq!(field("status").as_deref(), Some("200"));
        assert_eq!(field("path").as_deref(), Some("/generate"));
        // The same on standard error.
        corral.wait_for_stderr(&format!("trace_id=\"{TRACE}\""));
    }
}

#[test]
fn outgoing_request_carries_trace() {
    let collector = Collector::start_grpc();
    let url = collector.url();
    let corral = Corral::start_with_store_and_env(&with(&url, "grpc", &[]), &[]);
    let upstream = Upstream::start();
    let grants = json!({"grants": {"outbound": [{"url": upstream.url("")}]}});
    deploy_plugin(&corral, "sender", "outbound", grants);
    let wanted = json!({
        "url": upstream.url("/trace"),
        "headers": {"traceparent": "a plugin's own"},
    });
    for (trace, flags) in [(TRACE, "01"), (OTHER_TRACE, "00")] {
        let parent = format!("00-{trace}-{PARENT}-{flags}");
        let headers = [("traceparent", &*parent), ("tracestate", "vendor=1")];
        let answer = corral.request("POST", "/sender", &headers, &wanted.to_string());
        let got = answer.json()["text"].as_str().expect("a text").to_owned();
        let (got, state) = got.split_once(' ').expect("two headers");
        assert_eq!(state, "vendor=1");
        let parts: Vec<_> = got.split('-').collect();
        assert_eq!(parts[0], "00", "{got}");
        assert_eq!(parts[1], trace, "{got}");
        assert_eq!(parts[3], flags, "{got}");
        assert_ne!(parts[2], PARENT, "a span of the host is the parent");
        if flags == "01" {
            let spans = collector.wait_for_trace(TRACE);
            let request = named(&spans, "GET");
            assert_eq!(hex(&request.span_id), parts[2]);
            assert_eq!(request.kind(), SpanKind::Client);
            assert_eq!(text(request, "http.response.status_code"), "200");
            assert_eq!(text(request, "server.port"), upstream.port().to_string());
            check_below(request, named(&spans, "call sender"));
        }
    }
}

#[test]
fn job_has_a_trace() {
    let collector = Collector::start_grpc();
    let url = collector.url();
    let corral = Corral::start_with_store_and_env(&with(&url, "grpc", &[]), &[]);
    deploy_plugin(&corral, "sums", "generate", json!({"jobs": {}}));
    let body = json!({"prompt": "1+1=", "max_tokens": 20}).to_string();
    assert_eq!(corral.post("/jobs/sums", &body).status, 202);
    let spans = wait_for("a job's trace", || {
        let spans = collector.spans();
        let job = spans.iter().find(|span| span.name == "job sums")?.clone();
        Some((job, spans))
    });
    let (job, mut spans) = spans;
    spans.retain(|span| span.trace_id == job.trace_id);
    assert_eq!(job.kind(), SpanKind::Consumer);
    assert_eq!(text(&job, "corral.job.attempt"), "1");
    let call = named(&spans, "call sums");
    check_below(call, &job);
    check_below(named(&spans, "text_completion tiny"), call);
}

#[test]
fn dead_collector_fails_no_request() {
    // Nothing listens there.
    let url = "http://127.0.0.1:1";
    for protocol in ["grpc", "http/protobuf"] {
        let more = [
            ("OTEL_BSP_EXPORT_TIMEOUT", "10"),
            ("OTEL_BLRP_EXPORT_TIMEOUT", "10"),
            ("OTEL_METRIC_EXPORT_TIMEOUT", "10"),
        ];
        let mut corral = Corral::start_with_env(&with(url, protocol, &more), &[]);
        for round in 1..=3 {
            generate(&corral, TRACE, true);
            corral.wait_until("dropped spans", |metrics| {
                let dropped = |signal: &str| {
                    metrics.get(&format!(
                        "corral_telemetry_dropped_total{{signal=\"{signal}\"}}"
                    ))
                };
                // Each trace has more than five spans.
                dropped("traces") >= 5.0 * f64::from(round)
                    && dropped("logs") > 0.0
                    && dropped("metrics") > 0.0
            });
        }
        let stderr = corral.stderr();
        let told = "traces cannot be sent to the collector";
        assert_eq!(stderr.matches(told).count(), 1, "{stderr}");
        corral.shut_down();
    }
}

#[test]
fn silent_collector_loses_spans_above_the_queue() {
    // It accepts connections, by its backlog, and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", silent.local_addr().expect("bound"));
    let more = [
        ("OTEL_BSP_MAX_QUEUE_SIZE", "16"),
        ("OTEL_BSP_EXPORT_TIMEOUT", "3600000"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "3600000"),
        ("OTEL_LOGS_EXPORTER", "none"),
        ("OTEL_METRICS_EXPORTER", "none"),
    ];
    let corral = Corral::start_with_env(&with(&url, "http/protobuf", &more), &[]);
    for _ in 0..6 {
        generate(&corral, TRACE, true);
    }
    corral.wait_until("spans that do not fit", |metrics| {
        metrics.get("corral_telemetry_dropped_total{signal=\"traces\"}") > 0.0
    });
}

#[test]
fn stop_sends_what_is_left() {
    let collector = Collector::start_grpc();
    let url = collector.url();
    let later = [
        ("OTEL_BSP_SCHEDULE_DELAY", "3600000"),
        ("OTEL_BLRP_SCHEDULE_DELAY", "3600000"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "3600000"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &url),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
    ];
    let mut corral = Corral::start_with_env(&later, &[]);
    generate(&corral, TRACE, true);
    assert!(collector.spans().is_empty());
    corral.shut_down();
    named(&collector.wait_for_trace(TRACE), "POST /generate");
    assert!(value(&collector.metrics(), "corral_build_info").is_some());
    let is_request = |name: &Option<String>| name.as_deref() == Some("corral::access");
    let targets = collector.logs();
    let mut targets = targets
        .iter()
        .map(|line| attribute(&line.attributes, "log.target"));
    assert!(targets.any(|target| is_request(&target)));
}

#[test]
fn collector_with_own_certificate_is_trusted() {
    let identity = Identity::new();
    let collector = Collector::start_grpc_tls(&identity);
    let [certificate, _] = identity.write(&scratch_dir());
    let url = collector.url();
    let file = certificate.to_str().expect("UTF-8");
    let more = [("OTEL_EXPORTER_OTLP_CERTIFICATE", file)];
    let corral = Corral::start_with_env(&with(&url, "grpc", &more), &[]);
    generate(&corral, TRACE, true);
    named(&collector.wait_for_trace(TRACE), "POST /generate");
}

#[test]
fn option_and_file_name_collector() {
    let collector = Collector::start_http();
    let url = collector.url();
    let corral = Corral::start_with_env(&SOON, &["--otlp-endpoint", &url]);
    generate(&corral, TRACE, true);
    collector.wait_for_trace(TRACE);
    let file = scratch_dir().join("server.toml");
    std::fs::write(
        &file,
        format!("otlp-endpoint = \"{url}\"\notlp-protocol = \"http/protobuf\"\n"),
    )
    .expect("written");
    let arguments = ["--config", file.to_str().expect("UTF-8")];
    let corral = Corral::start_with_env(&SOON, &arguments);
    generate(&corral, OTHER_TRACE, true);
    collector.wait_for_trace(OTHER_TRACE);
}

#[test]
fn unusable_endpoint_is_a_usage_error() {
    for check in [&[][..], &["--check"]] {
        let line = [
            &[
                "serve",
                "--model",
                "m.gguf",
                "--otlp-endpoint",
                "localhost:4317",
            ],
            check,
        ]
        .concat();
        let ended = run(line);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        let expected = "is no URL of a collector; write e.g. http://localhost:4318";
        assert!(ended.stderr.contains(expected), "{ended:?}");
    }
}
