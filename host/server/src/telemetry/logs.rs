//! Log records: the lines of the host's log, with the trace that they belong to.

use super::attribute::{Attributes, any, attribute, text};
use super::spans::nanos;
use crate::clock::now;
use opentelemetry::trace::TraceId;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::{LogRecord, SeverityNumber};
use tracing::Level;

/// One line of the log, for a collector.
#[derive(Debug)]
pub struct LogEvent {
    record: LogRecord,
    bytes: usize,
}

/// Field of events and spans with the id of a trace.
const TRACE_ID: &str = "trace_id";
/// Field with the text of an event.
const MESSAGE: &str = "message";
/// Bytes that a record counts as, beside its texts.
const RECORD_BYTES: usize = 200;
/// Bytes that a field counts as, beside its texts: tags, lengths and a number.
const FIELD_BYTES: usize = 20;

/// The value of a field.
#[derive(Clone, Debug, PartialEq)]
pub enum LogValue {
    /// A text.
    Text(String),
    /// An integer.
    Integer(i64),
    /// A number.
    Number(f64),
    /// True or false.
    Bool(bool),
}

impl LogEvent {
    /// An event that happens now, without fields.
    pub fn new(level: Level, target: &str) -> Self {
        let (severity, name) = match level {
            Level::ERROR => (SeverityNumber::Error, "ERROR"),
            Level::WARN => (SeverityNumber::Warn, "WARN"),
            Level::INFO => (SeverityNumber::Info, "INFO"),
            Level::DEBUG => (SeverityNumber::Debug, "DEBUG"),
            Level::TRACE => (SeverityNumber::Trace, "TRACE"),
        };
        let now = nanos(now());
        LogEvent {
            record: LogRecord {
                time_unix_nano: now,
                observed_time_unix_nano: now,
                severity_number: severity.into(),
                severity_text: name.to_owned(),
                attributes: Attributes::from([text("log.target", target)]),
                ..LogRecord::default()
            },
            bytes: RECORD_BYTES,
        }
    }

    /// Adds a field. The message becomes the record's body, and the id of a trace the record's trace.
    pub fn add(&mut self, name: &str, value: LogValue) {
        self.bytes += name.len() + FIELD_BYTES;
        if let LogValue::Text(text) = &value {
            self.bytes += text.len();
            if name == TRACE_ID
                && let Ok(id) = TraceId::from_hex(text)
            {
                self.record.trace_id = id.to_bytes().to_vec();
                return;
            }
        }
        let value = match value {
            LogValue::Text(text) => Value::StringValue(text),
            LogValue::Integer(number) => Value::IntValue(number),
            LogValue::Number(number) => Value::DoubleValue(number),
            LogValue::Bool(bool) => Value::BoolValue(bool),
        };
        match name {
            MESSAGE => self.record.body = Some(any(value)),
            _ => {
                // A field of an event replaces that of its span.
                self.record.attributes.retain(|known| known.key != name);
                self.record.attributes.push(attribute(name, value));
            }
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn into_record(self) -> LogRecord {
        self.record
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;

    #[test]
    fn message_and_trace_are_no_attributes() {
        let mut event = LogEvent::new(Level::WARN, "corral::access");
        event.add("message", LogValue::Text("request".to_owned()));
        let id = "0af7651916cd43dd8448eb211c80319c";
        event.add("trace_id", LogValue::Text(id.to_owned()));
        event.add("status", LogValue::Integer(200));
        let record = event.into_record();
        assert_eq!(record.severity_number, SeverityNumber::Warn as i32);
        assert_eq!(
            record.trace_id,
            TraceId::from_hex(id).expect("an id").to_bytes()
        );
        assert_eq!(
            record.body,
            Some(any(Value::StringValue("request".to_owned())))
        );
        let names: Vec<_> = record.attributes.iter().map(|one| &*one.key).collect();
        assert_eq!(names, ["log.target", "status"]);
    }

    #[test]
    fn estimate_covers_the_encoded_record() {
        let mut event = LogEvent::new(Level::WARN, "corral::access");
        event.add("message", LogValue::Text("request".repeat(100)));
        for index in 0..50 {
            event.add(&format!("integer_{index}"), LogValue::Integer(-1));
            event.add(&format!("number_{index}"), LogValue::Number(0.5));
            event.add(&format!("text_{index}"), LogValue::Text("x".repeat(index)));
            event.add(&format!("flag_{index}"), LogValue::Bool(true));
        }
        let estimate = event.bytes();
        let encoded = event.into_record().encoded_len();
        assert!(
            (encoded..2 * encoded).contains(&estimate),
            "{estimate} for {encoded}"
        );
    }
}
