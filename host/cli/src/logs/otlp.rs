//! Sends events to the collector of telemetry, with the fields of their spans.

use corral_server::{LogEvent, LogValue, Telemetry};
use std::fmt;
use std::sync::Arc;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// A layer of the log's subscriber.
pub(super) struct OtlpEvents(pub(super) Arc<Telemetry>);

/// Fields of a span.
#[derive(Default)]
struct SpanFields(Vec<(&'static str, LogValue)>);

impl SpanFields {
    fn add(&mut self, field: &Field, value: LogValue) {
        self.0.push((field.name(), value));
    }
}

impl Visit for SpanFields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, LogValue::Number(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, LogValue::Integer(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        self.add(field, LogValue::Integer(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, LogValue::Bool(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, LogValue::Text(value.to_owned()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, LogValue::Text(format!("{value:?}")));
    }
}

impl<S> Layer<S> for OtlpEvents
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else {
            return;
        };
        let mut fields = SpanFields::default();
        attributes.record(&mut fields);
        span.extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else {
            return;
        };
        if let Some(fields) = span.extensions_mut().get_mut::<SpanFields>() {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let metadata = event.metadata();
        let (level, target) = (*metadata.level(), metadata.target());
        // Sending makes libraries log, which would have to be sent.
        let is_own = target.starts_with("corral") || target == "llama";
        if !is_own && level > Level::WARN {
            return;
        }
        // What the export logs must not be exported: it would fail again.
        if target.starts_with("corral_server::telemetry") {
            return;
        }
        let mut fields = SpanFields::default();
        event.record(&mut fields);
        let mut log = LogEvent::new(level, target);
        let scope = context.event_scope(event);
        // The fields of the innermost span count.
        for span in scope.into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(of_span) = span.extensions().get::<SpanFields>() {
                for (name, value) in &of_span.0 {
                    log.add(name, value.clone());
                }
            }
        }
        for (name, value) in fields.0 {
            log.add(name, value);
        }
        self.0.log(log);
    }
}
