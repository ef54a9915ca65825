//! Makes spans of what a request recorded, with OpenTelemetry's names for HTTP and for generative AI.
//!
//! ```text
//! POST /v1                   the request, from its head to the end of its response
//! ├─ queue                   waiting for a permit to run
//! └─ call NAME               the plugin's instance
//!    ├─ POST                 a request that the plugin sent
//!    ├─ embeddings MODEL     texts that the plugin had embedded
//!    └─ text_completion MODEL   one generation, with queue, prefill, decode, delivery, and swap_in below it
//! ```
//!
//! <https://opentelemetry.io/docs/specs/semconv/http/http-spans/>,
//! <https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/>

use super::attribute::{Attributes, list, number, text};
use super::request_trace::{
    ClientRecord, FinishedTrace, HttpRecord, JobAttempt, Root, SpanBytes, TraceCaller, new_span_id,
};
use corral_engine::{FinishReason, GenerationRecord};
use corral_runtime::{EmbeddingRecord, OutboundRequest};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, SpanFlags, Status};
use std::time::{Duration, Instant};

/// Spans of a generation: itself, queue, prefill, decode, delivery.
const SPANS_OF_GENERATION: usize = 5;
/// Bytes of a span without attributes and the state of its trace: ids, times, kind, flags, a short name and an error.
const SPAN_BYTES: usize = 160;
/// Bytes of the attributes of a request or job, without their texts.
const ROOT_BYTES: usize = 480;
/// Bytes of the attributes of a use of a model, without its name and the caller.
const MODEL_USE_BYTES: usize = 480;
/// Bytes of the attributes of an outgoing request, without its texts.
const OUTBOUND_BYTES: usize = 160;
/// Bytes of the attributes of a caller, without their texts.
const CALLER_BYTES: usize = 140;
/// Longest method of a client that a span has.
const MAX_METHOD_CHARS: usize = 64;
/// Methods that a span may name.
const METHODS: [&str; 9] = [
    "CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE",
];

impl FinishedTrace {
    /// The number of spans, or slightly more.
    pub(super) fn span_count(&self) -> usize {
        let records = &self.records;
        let of_generation = |one: &GenerationRecord| SPANS_OF_GENERATION + one.swap_ins.len();
        let of_generations = records.generations.iter().map(of_generation);
        3 + records.outbound.len() + records.embeddings.len() + of_generations.sum::<usize>()
    }

    /// The encoded size of the spans, or somewhat more.
    pub(super) fn byte_count(&self) -> usize {
        let records = &self.records;
        let optional = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let (root, caller) = match &records.root {
            Some(Root::Http(http)) => {
                let client = &records.client;
                let texts = http.method.len() + http.path.len() + http.request_id.len();
                // The route is in the name, too.
                let texts = texts + 2 * optional(&http.route);
                let client = optional(&client.host) + optional(&client.user_agent);
                (texts + client, http.caller.byte_count())
            }
            Some(Root::Job(job)) => (job.id.len(), job.caller.byte_count()),
            None => (0, 0),
        };
        // Its span, that of the call, and those of uses of models name the caller; the call's also in its name.
        let callers = 3 + records.embeddings.len() + records.generations.len();
        let generations = records.generations.iter().map(|one| &one.model);
        let embeddings = records.embeddings.iter().map(|one| &one.model);
        let uses = generations.chain(embeddings);
        // The model is in the name and in two attributes.
        let uses = uses.map(|model| MODEL_USE_BYTES + 3 * model.len());
        let outbound = records.outbound.iter().map(|request| {
            let error = request.result.as_ref().err();
            OUTBOUND_BYTES + request.origin.len() + error.map_or(0, String::len)
        });
        self.span_count() * (SPAN_BYTES + self.context.state.len())
            + ROOT_BYTES
            + root
            + callers * caller
            + uses.sum::<usize>()
            + outbound.sum::<usize>()
    }

    /// The spans.
    pub(super) fn spans(self) -> Vec<Span> {
        let mut spans = Vec::with_capacity(self.span_count());
        let records = &self.records;
        let ended = records.ended.or(records.call.map(|(end, _)| end));
        let ended = ended.unwrap_or(self.began);
        let root = self.root_span(ended);
        let empty = TraceCaller::default();
        let caller = match &records.root {
            Some(Root::Http(http)) => &http.caller,
            Some(Root::Job(job)) => &job.caller,
            None => &empty,
        };
        spans.push(root);
        if let Some(queue) = records.queue {
            spans.push(self.span(new_span_id(), self.span, "queue", queue));
            if let Some((end, error)) = records.call {
                let name = caller.deployment.as_deref().unwrap_or_default();
                let name = format!("call {name}");
                let mut call = self.span(self.call_span, self.span, &name, (queue.1, end));
                call.attributes = caller.attributes();
                if let Some(code) = error {
                    fail(&mut call, code);
                }
                spans.push(call);
            }
        }
        for request in &records.outbound {
            spans.push(self.outbound_span(request));
        }
        for embedding in &records.embeddings {
            spans.push(self.embedding_span(embedding, caller));
        }
        for generation in &records.generations {
            self.add_generation(generation, caller, &mut spans);
        }
        spans
    }

    fn root_span(&self, ended: Instant) -> Span {
        let time = (self.began, ended);
        let mut root = match &self.records.root {
            Some(Root::Http(http)) => {
                let method = known_method(&http.method);
                let shown = if method == "_OTHER" { "HTTP" } else { method };
                let name = match &http.route {
                    Some(route) => format!("{shown} {route}"),
                    None => shown.to_owned(),
                };
                let mut span = self.span(self.span, [0; 8], &name, time);
                span.kind = SpanKind::Server.into();
                span.attributes = http.attributes(method, &self.records.client);
                match http.status {
                    Some(status) if status >= 500 => fail(&mut span, &status.to_string()),
                    None => fail(&mut span, "client_disconnected"),
                    Some(_) if !http.is_complete => fail(&mut span, "response_incomplete"),
                    Some(_) => {}
                }
                span
            }
            Some(Root::Job(job)) => {
                let deployment = job.caller.deployment.as_deref().unwrap_or_default();
                let mut span = self.span(self.span, [0; 8], &format!("job {deployment}"), time);
                span.kind = SpanKind::Consumer.into();
                span.attributes = job.attributes();
                if let Some((_, Some(code))) = self.records.call {
                    fail(&mut span, code);
                }
                span
            }
            None => self.span(self.span, [0; 8], "request", time),
        };
        root.parent_span_id = match self.context.parent {
            Some(parent) => {
                root.flags |= (SpanFlags::ContextHasIsRemoteMask as u32)
                    | (SpanFlags::ContextIsRemoteMask as u32);
                parent.to_bytes().to_vec()
            }
            None => Vec::new(),
        };
        root
    }

    fn outbound_span(&self, request: &OutboundRequest) -> Span {
        let method = known_method(request.method.as_str());
        let shown = if method == "_OTHER" { "HTTP" } else { method };
        let time = (request.began, request.ended);
        let mut span = self.span(request.span, self.call_span, shown, time);
        span.kind = SpanKind::Client.into();
        span.attributes = vec![text("http.request.method", method)];
        if let Some((host, port)) = host_and_port(&request.origin) {
            span.attributes.push(text("server.address", host));
            span.attributes
                .extend(port.map(|port| number("server.port", port)));
        }
        match &request.result {
            Ok(status) => {
                let status_attribute = number("http.response.status_code", (*status).into());
                span.attributes.push(status_attribute);
                if *status >= 400 {
                    fail(&mut span, &status.to_string());
                }
            }
            Err(error) => fail(&mut span, error),
        }
        span
    }

    fn embedding_span(&self, embedding: &EmbeddingRecord, caller: &TraceCaller) -> Span {
        let name = format!("embeddings {}", embedding.model);
        let time = (embedding.began, embedding.ended);
        let mut span = self.span(new_span_id(), self.call_span, &name, time);
        span.attributes = generative("embeddings", &embedding.model, embedding.tokens);
        span.attributes.extend(caller.attributes());
        if let Some(kind) = embedding.error {
            fail(&mut span, kind);
        }
        span
    }

    fn add_generation(
        &self,
        generation: &GenerationRecord,
        caller: &TraceCaller,
        spans: &mut Vec<Span>,
    ) {
        let arrived = generation.arrived;
        let ended = generation.ended.or(generation.delivered).unwrap_or(arrived);
        let whole = (arrived, generation.delivered.unwrap_or(ended).max(ended));
        let id = new_span_id();
        let name = format!("text_completion {}", generation.model);
        let mut span = self.span(id, self.call_span, &name, whole);
        let prompt_tokens = generation.prompt_tokens.into();
        span.attributes = generative("text_completion", &generation.model, prompt_tokens);
        for (name, count) in [
            ("gen_ai.request.max_tokens", generation.max_tokens),
            ("gen_ai.usage.output_tokens", generation.generated_tokens),
            (
                "gen_ai.usage.cache_read.input_tokens",
                generation.cached_tokens,
            ),
        ] {
            span.attributes.push(number(name, count.into()));
        }
        span.attributes.extend(caller.attributes());
        for (name, count) in [
            ("corral.preemptions", generation.preemptions),
            ("corral.recomputed_tokens", generation.recomputed_tokens),
        ] {
            if count > 0 {
                span.attributes.push(number(name, count.into()));
            }
        }
        match generation.end {
            Some(Ok(reason)) => {
                let reason = match reason {
                    FinishReason::End | FinishReason::Stop => "stop",
                    FinishReason::Length => "length",
                };
                let reasons = list("gen_ai.response.finish_reasons", &[reason]);
                span.attributes.push(reasons);
            }
            Some(Err(kind)) => fail(&mut span, kind),
            None => fail(&mut span, "failed"),
        }
        spans.push(span);
        let mut add = |name, begin: Instant, end: Instant| {
            let time = (begin, end.max(begin));
            spans.push(self.span(new_span_id(), id, name, time));
        };
        add("queue", arrived, generation.admitted.unwrap_or(ended));
        if let Some(admitted) = generation.admitted {
            add("prefill", admitted, generation.first_token.unwrap_or(ended));
        }
        if let Some(first) = generation.first_token {
            add("decode", first, ended);
        }
        for (begin, end) in &generation.swap_ins {
            add("swap_in", *begin, end.unwrap_or(ended));
        }
        if let Some(delivered) = generation.delivered.filter(|time| *time > ended) {
            add("delivery", ended, delivered);
        }
    }

    fn span(
        &self,
        id: SpanBytes,
        parent: SpanBytes,
        name: &str,
        (begin, end): (Instant, Instant),
    ) -> Span {
        Span {
            trace_id: self.context.trace_id.to_bytes().to_vec(),
            span_id: id.to_vec(),
            trace_state: self.context.state.clone(),
            parent_span_id: parent.to_vec(),
            // Sampled, and the parent is in this process.
            flags: 1 | SpanFlags::ContextHasIsRemoteMask as u32,
            name: name.to_owned(),
            kind: SpanKind::Internal.into(),
            start_time_unix_nano: self.nanos(begin),
            end_time_unix_nano: self.nanos(end),
            ..Span::default()
        }
    }

    /// The time of day of a moment, in nanoseconds since 1970.
    fn nanos(&self, time: Instant) -> u64 {
        let before = self.began.saturating_duration_since(time);
        let after = time.saturating_duration_since(self.began);
        nanos((self.began_at + after).saturating_sub(before))
    }
}

/// Nanoseconds of a time of day since 1970.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The attributes of every use of a model.
fn generative(operation: &str, model: &str, input_tokens: u64) -> Attributes {
    vec![
        text("gen_ai.operation.name", operation),
        text("gen_ai.provider.name", "corral"),
        text("gen_ai.request.model", model),
        text("gen_ai.response.model", model),
        number("gen_ai.usage.input_tokens", input_tokens),
    ]
}

impl TraceCaller {
    fn byte_count(&self) -> usize {
        let names = [&self.deployment, &self.tenant, &self.key];
        let names = names.map(|name| name.as_ref().map_or(0, |name| name.len()));
        CALLER_BYTES + names.iter().sum::<usize>()
    }

    fn attributes(&self) -> Attributes {
        let mut attributes = Attributes::new();
        for (name, value) in [
            ("corral.deployment", self.deployment.as_deref()),
            ("corral.tenant", self.tenant.as_deref()),
            ("corral.key", self.key.as_deref()),
        ] {
            attributes.extend(value.map(|value| text(name, value)));
        }
        attributes.extend(
            self.revision
                .map(|number_| number("corral.revision", number_)),
        );
        attributes
    }
}

impl HttpRecord {
    fn attributes(&self, method: &str, client: &ClientRecord) -> Attributes {
        let mut attributes = vec![
            text("http.request.method", method),
            text("url.path", &*self.path),
            text("url.scheme", if client.is_tls { "https" } else { "http" }),
            text("network.protocol.version", client.version),
            text("corral.request_id", &*self.request_id),
            number("http.response.body.size", self.response_bytes),
        ];
        if method == "_OTHER" {
            let original: String = self.method.chars().take(MAX_METHOD_CHARS).collect();
            attributes.push(text("http.request.method_original", original));
        }
        let status = self.status.map(u64::from);
        attributes.extend(status.map(|code| number("http.response.status_code", code)));
        if let Some((host, port)) = client.host.as_deref().and_then(host_and_port) {
            attributes.push(text("server.address", host));
            attributes.extend(port.map(|port| number("server.port", port)));
        }
        for (name, value) in [
            ("http.route", &self.route),
            ("user_agent.original", &client.user_agent),
        ] {
            attributes.extend(value.as_deref().map(|value| text(name, value)));
        }
        attributes.extend(self.caller.attributes());
        attributes
    }
}

impl JobAttempt {
    fn attributes(&self) -> Attributes {
        let mut attributes = vec![
            text("corral.job.id", &*self.id),
            text("corral.job.trigger", self.trigger),
            number("corral.job.attempt", self.attempt),
        ];
        attributes.extend(self.caller.attributes());
        attributes
    }
}

fn fail(span: &mut Span, kind: &str) {
    span.attributes.push(text("error.type", kind));
    span.status = Some(Status {
        message: String::new(),
        code: StatusCode::Error.into(),
    });
}

/// The method, or `_OTHER`: a client can invent any number of others.
fn known_method(method: &str) -> &'static str {
    let known = METHODS.into_iter().find(|known| *known == method);
    known.unwrap_or("_OTHER")
}

/// Host and port of `HOST`, `HOST:PORT` or a URL without a path.
fn host_and_port(text: &str) -> Option<(String, Option<u64>)> {
    let authority = text.rsplit("://").next()?;
    let authority = authority.parse::<http::uri::Authority>().ok()?;
    let port = authority.port_u16().map(u64::from);
    Some((authority.host().to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::context::TraceContext;
    use crate::telemetry::encode_traces;
    use crate::telemetry::request_trace::Records;
    use opentelemetry::trace::TraceId;
    use opentelemetry_proto::tonic::resource::v1::Resource;

    /// A trace of a request with so many generations, embeddings and outgoing requests, with texts of this length.
    fn trace(count: usize, length: usize) -> FinishedTrace {
        let now = Instant::now();
        let text = || "x".repeat(length);
        let generation = GenerationRecord {
            model: text(),
            max_tokens: 4096,
            arrived: now,
            admitted: Some(now),
            first_token: Some(now),
            ended: Some(now),
            delivered: Some(now + Duration::from_secs(1)),
            swap_ins: vec![(now, None); 2],
            prompt_tokens: 4096,
            cached_tokens: 4096,
            generated_tokens: 4096,
            recomputed_tokens: 4096,
            preemptions: 3,
            end: Some(Ok(FinishReason::Length)),
        };
        let embedding = || EmbeddingRecord {
            model: text(),
            tokens: 4096,
            began: now,
            ended: now,
            error: Some("overloaded"),
        };
        let outbound = || OutboundRequest {
            span: new_span_id(),
            began: now,
            ended: now,
            method: http::Method::POST,
            origin: format!("https://{}.example:8443", "x".repeat(length.min(60))),
            result: Err(text()),
        };
        let http = HttpRecord {
            method: "POST".to_owned(),
            path: text(),
            request_id: text(),
            status: Some(503),
            route: Some(text()),
            response_bytes: 1 << 20,
            is_complete: true,
            caller: TraceCaller {
                deployment: Some(text().into()),
                revision: Some(7),
                tenant: Some(text().into()),
                key: Some(text().into()),
            },
        };
        FinishedTrace {
            context: TraceContext {
                trace_id: TraceId::from(1_u128),
                parent: None,
                state: text(),
                is_sampled: true,
            },
            span: new_span_id(),
            call_span: new_span_id(),
            began: now,
            began_at: Duration::from_secs(2_000_000_000),
            records: Records {
                root: Some(Root::Http(http)),
                client: ClientRecord {
                    is_tls: true,
                    host: Some("corral.example:8443".to_owned()),
                    version: "1.1",
                    user_agent: Some(text()),
                },
                ended: Some(now),
                queue: Some((now, now)),
                call: Some((now, Some("trapped"))),
                generations: vec![generation; count],
                embeddings: std::iter::repeat_with(embedding).take(count).collect(),
                outbound: std::iter::repeat_with(outbound).take(count).collect(),
                dropped: 0,
            },
        }
    }

    #[test]
    fn estimate_covers_the_encoded_spans() {
        for count in [0, 1, 128] {
            for length in [0, 1, 60, 500] {
                let (estimate, spans) = {
                    let trace = trace(count, length);
                    (trace.byte_count(), trace.span_count())
                };
                let encoded = encode_traces(vec![trace(count, length)], &Resource::default());
                let encoded = encoded.bytes.len();
                assert!(
                    encoded <= estimate,
                    "{count} {length}: {encoded} > {estimate}"
                );
                let most = 2 * encoded + 200 * spans;
                assert!(
                    estimate <= most,
                    "{count} {length}: {estimate} for {encoded}"
                );
            }
        }
    }
}
