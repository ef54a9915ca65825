//! The resource of all telemetry: which service and which process of it.

use super::attribute::{Attributes, text};
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use percent_encoding::percent_decode_str;

/// Most attributes that `OTEL_RESOURCE_ATTRIBUTES` adds.
const MAX_ATTRIBUTES: usize = 128;

/// The resource; `list` is `NAME=VALUE,…` with percent-encoded values. `service` names the service, before `list` does.
pub(super) fn resource(service: Option<String>, list: Option<String>) -> Resource {
    let mut attributes = Attributes::new();
    let mut set = |name: &str, value: &str| {
        attributes.retain(|attribute| attribute.key != name);
        attributes.push(text(name, value));
    };
    set("service.name", "corral");
    set("service.version", env!("CARGO_PKG_VERSION"));
    let instance = rand::random::<u128>();
    set("service.instance.id", &format!("{instance:032x}"));
    set("telemetry.sdk.name", "opentelemetry");
    set("telemetry.sdk.language", "rust");
    let list = list.unwrap_or_default();
    for entry in list.split(',').take(MAX_ATTRIBUTES) {
        if let Some((name, value)) = entry.split_once('=')
            && let Ok(value) = percent_decode_str(value.trim()).decode_utf8()
        {
            set(name.trim(), &value);
        }
    }
    if let Some(service) = service {
        set("service.name", &service);
    }
    Resource {
        attributes,
        ..Resource::default()
    }
}

/// What produces the telemetry.
pub(super) fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "corral".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(service: Option<&str>, list: Option<&str>) -> String {
        let resource = resource(service.map(str::to_owned), list.map(str::to_owned));
        let mut attributes = resource.attributes.into_iter();
        let name = attributes.find(|attribute| attribute.key == "service.name");
        format!("{:?}", name.expect("a name").value)
    }

    #[test]
    fn service_name_comes_first_from_its_variable() {
        assert!(service(None, None).contains("\"corral\""));
        let list = Some("deployment.environment=a%20b,service.name=listed,odd");
        assert!(service(None, list).contains("\"listed\""));
        assert!(service(Some("named"), list).contains("\"named\""));
    }
}
