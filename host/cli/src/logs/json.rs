//! Events as JSON, one object a line: `time`, `level`, `target`, `message`, and the fields of the event and its spans.

use super::time_now;
use serde_json::{Map, Value};
use std::fmt;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

/// Formats an event with the fields of its spans.
pub(super) struct JsonEvents;

/// Formats the fields of a span, as an object.
pub(super) struct JsonFields;

struct Fields(Map<String, Value>);

impl Fields {
    fn add(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}"));
    }
}

impl<'writer> FormatFields<'writer> for JsonFields {
    fn format_fields<R: RecordFields>(
        &self,
        mut writer: Writer<'writer>,
        fields: R,
    ) -> fmt::Result {
        let mut object = Fields(Map::new());
        fields.record(&mut object);
        write!(writer, "{}", Value::Object(object.0))
    }
}

impl<S> FormatEvent<S, JsonFields> for JsonEvents
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, JsonFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = Fields(Map::new());
        let scope = context.event_scope();
        // The fields of the innermost span count.
        for span in scope.into_iter().flat_map(|scope| scope.from_root()) {
            let extensions = span.extensions();
            let fields = extensions.get::<FormattedFields<JsonFields>>();
            let fields = fields.and_then(|fields| serde_json::from_str(&fields.fields).ok());
            line.0.extend(fields.unwrap_or_else(Map::new));
        }
        event.record(&mut line);
        // Last, so that no field of an event replaces them.
        let metadata = event.metadata();
        for (name, value) in [
            ("time", time_now().to_string()),
            ("level", metadata.level().to_string()),
            ("target", metadata.target().to_owned()),
        ] {
            line.0.insert(name.to_owned(), value.into());
        }
        writeln!(writer, "{}", Value::Object(line.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::{Arc, Mutex};
    use tracing_subscriber::fmt;
    use tracing_subscriber::layer::SubscriberExt;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn event_has_fields_of_its_spans() {
        let lines = Lines::default();
        let writer = lines.clone();
        let layer = fmt::layer()
            .with_writer(move || writer.clone())
            .fmt_fields(JsonFields)
            .event_format(JsonEvents);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let span = tracing::info_span!("call", request_id = "7", level = "mine");
            let _in_span = span.enter();
            let none: Option<u64> = None;
            tracing::warn!(target: "corral::x", count = 3_u64, none, "two\n\"lines\"");
        });
        let bytes = lines.0.lock().expect("no panic").clone();
        let text = String::from_utf8(bytes).expect("text");
        assert_eq!(text.lines().count(), 1, "{text}");
        let mut line: Value = serde_json::from_str(&text).expect("JSON");
        let time = line["time"].take();
        let time = time.as_str().expect("a time");
        humantime::parse_rfc3339(time).expect(time);
        let expected = serde_json::json!({
            "time": null, "level": "WARN", "target": "corral::x", "message": "two\n\"lines\"",
            "request_id": "7", "count": 3,
        });
        assert_eq!(line, expected);
    }
}
