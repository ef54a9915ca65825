//! Attributes of spans, metrics, log records and resources.

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue};

pub(super) type Attributes = Vec<KeyValue>;

pub(super) fn any(value: Value) -> AnyValue {
    AnyValue { value: Some(value) }
}

pub(super) fn attribute(name: impl Into<String>, value: Value) -> KeyValue {
    KeyValue {
        key: name.into(),
        value: Some(any(value)),
        ..KeyValue::default()
    }
}

pub(super) fn text(name: impl Into<String>, value: impl Into<String>) -> KeyValue {
    attribute(name, Value::StringValue(value.into()))
}

pub(super) fn number(name: &str, value: u64) -> KeyValue {
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    attribute(name, Value::IntValue(value))
}

pub(super) fn list(name: &str, values: &[&str]) -> KeyValue {
    let values = values
        .iter()
        .map(|text| any(Value::StringValue((*text).to_owned())));
    let values = ArrayValue {
        values: values.collect(),
    };
    attribute(name, Value::ArrayValue(values))
}
