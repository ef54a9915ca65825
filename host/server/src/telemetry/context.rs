//! W3C Trace Context: which trace a request belongs to, and whether it is sampled.
//!
//! <https://www.w3.org/TR/trace-context/>

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, TraceContextExt, TraceId};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, ShouldSample};

pub(crate) const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");
pub(crate) const TRACE_STATE: HeaderName = HeaderName::from_static("tracestate");

/// Longest `tracestate` that is passed on, as much as every system must: each span has it.
const MAX_STATE_BYTES: usize = 512;
/// Length of `traceparent` in version 00, the shortest.
const PARENT_LENGTH: usize = 55;

/// A trace, and the span of it that a request belongs to.
#[derive(Clone, Debug)]
pub(super) struct TraceContext {
    pub(super) trace_id: TraceId,
    /// The caller's span.
    pub(super) parent: Option<SpanId>,
    /// The caller's `tracestate`.
    pub(super) state: String,
    pub(super) is_sampled: bool,
}

impl TraceContext {
    /// The context of a request with these headers. Without a valid `traceparent` it begins a trace.
    pub(super) fn of(headers: &HeaderMap, sampler: &Sampler) -> Self {
        let extracted = TraceContextPropagator::new()
            .extract_with_context(&Context::new(), &Headers::of(headers));
        let parent = extracted.span().span_context().clone();
        Self::below(&parent, &extracted, sampler)
    }

    /// A new trace.
    pub(super) fn new(sampler: &Sampler) -> Self {
        Self::below(&SpanContext::NONE, &Context::new(), sampler)
    }

    fn below(parent: &SpanContext, context: &Context, sampler: &Sampler) -> Self {
        let has_parent = parent.is_valid();
        let trace_id = match has_parent {
            true => parent.trace_id(),
            false => TraceId::from(rand::random::<u128>()),
        };
        let context = has_parent.then_some(context);
        let sampled = sampler.should_sample(context, trace_id, "", &SpanKind::Server, &[], &[]);
        TraceContext {
            trace_id,
            parent: has_parent.then(|| parent.span_id()),
            state: Some(sampled.trace_state.header())
                .filter(|state| state.len() <= MAX_STATE_BYTES)
                .unwrap_or_default(),
            is_sampled: sampled.decision == SamplingDecision::RecordAndSample,
        }
    }

    /// The value of `traceparent` for requests below this span.
    pub(super) fn header(&self, span: [u8; 8]) -> HeaderValue {
        let (trace, span) = (self.trace_id, SpanId::from(u64::from_be_bytes(span)));
        let text = format!("00-{trace}-{span}-{:02x}", u8::from(self.is_sampled));
        // Hexadecimal digits.
        HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
    }

    /// The value of `tracestate`, if there is one.
    pub(super) fn state_header(&self) -> Option<HeaderValue> {
        let state = HeaderValue::from_str(&self.state).ok();
        state.filter(|state| !state.is_empty())
    }
}

/// The two headers of a request.
struct Headers {
    parent: Option<String>,
    state: String,
}

impl Headers {
    fn of(headers: &HeaderMap) -> Self {
        let texts = |name: &HeaderName| {
            let values = headers.get_all(name).into_iter();
            values.filter_map(|value| value.to_str().ok())
        };
        let mut parents = texts(&TRACE_PARENT);
        let parent = match (parents.next(), parents.next()) {
            // The propagator takes shorter ids, too.
            (Some(parent), None) if parent.len() >= PARENT_LENGTH => Some(parent.to_owned()),
            // Two are not valid.
            _ => None,
        };
        Headers {
            parent,
            state: texts(&TRACE_STATE).collect::<Vec<_>>().join(","),
        }
    }
}

impl Extractor for Headers {
    fn get(&self, name: &str) -> Option<&str> {
        match name {
            "traceparent" => self.parent.as_deref(),
            "tracestate" => Some(&self.state),
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent", "tracestate"]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn context(headers: &[(&'static str, &str)], sampler: &Sampler) -> TraceContext {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).expect("a value"));
        }
        TraceContext::of(&map, sampler)
    }

    fn parent_based(root: Sampler) -> Sampler {
        Sampler::ParentBased(Box::new(root))
    }

    #[test]
    fn parent_decides_over_ratio() {
        let off = parent_based(Sampler::AlwaysOff);
        let sampled = context(&[("traceparent", PARENT)], &off);
        assert!(sampled.is_sampled);
        assert_eq!(
            sampled.trace_id.to_string(),
            "0af7651916cd43dd8448eb211c80319c"
        );
        assert_eq!(
            sampled.parent.map(|span| span.to_string()).as_deref(),
            Some("b7ad6b7169203331")
        );
        let unsampled = PARENT.replace("-01", "-00");
        let on = parent_based(Sampler::AlwaysOn);
        assert!(!context(&[("traceparent", &unsampled)], &on).is_sampled);
        assert!(!TraceContext::new(&off).is_sampled);
        assert!(TraceContext::new(&on).is_sampled);
    }

    #[test]
    fn invalid_parent_begins_trace() {
        let on = parent_based(Sampler::AlwaysOn);
        let zero = PARENT.replace("b7ad6b7169203331", "0000000000000000");
        for parents in [vec![], vec!["00-1-2-3"], vec![&*zero], vec![PARENT, PARENT]] {
            let headers: Vec<_> = parents
                .iter()
                .map(|value| ("traceparent", *value))
                .collect();
            let context = context(&headers, &on);
            assert_eq!(context.parent, None, "{parents:?}");
            assert_ne!(context.trace_id, TraceId::INVALID);
        }
    }

    #[test]
    fn headers_carry_trace_and_joined_state() {
        let headers = [
            ("traceparent", PARENT),
            ("tracestate", "a=1"),
            ("tracestate", "b=2"),
        ];
        let context = context(&headers, &Sampler::AlwaysOn);
        let header = context.header([0xab; 8]);
        let expected = "00-0af7651916cd43dd8448eb211c80319c-abababababababab-01";
        assert_eq!(header, expected);
        assert_eq!(context.state_header().expect("a state"), "a=1,b=2");
        assert_eq!(TraceContext::new(&Sampler::AlwaysOn).state_header(), None);
    }
}
