//! Where telemetry goes, from options of the server and OpenTelemetry's variables.
//!
//! <https://opentelemetry.io/docs/specs/otel/protocol/exporter/> and
//! <https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/>. A value that cannot be used is a
//! warning and counts as unset, except for endpoints and protocols: a server that would send nothing does not start.

use super::resource::resource;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_sdk::trace::Sampler;
use percent_encoding::percent_decode_str;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use strum::{EnumString, IntoStaticStr};

/// Options of the server that replace variables.
#[derive(Clone, Debug, Default)]
pub struct TelemetryOptions {
    /// In place of `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub endpoint: Option<String>,
    /// In place of `OTEL_EXPORTER_OTLP_PROTOCOL`.
    pub protocol: Option<String>,
}

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub(super) enum Signal {
    Traces,
    Metrics,
    Logs,
}

impl Signal {
    pub(super) const ALL: [Self; 3] = [Self::Traces, Self::Metrics, Self::Logs];

    /// Its name in variables, in lower case.
    pub(super) fn name(self) -> &'static str {
        self.into()
    }
}

/// How messages are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString)]
#[strum(serialize_all = "lowercase")]
pub(super) enum Protocol {
    Grpc,
    #[strum(serialize = "http/protobuf")]
    HttpProtobuf,
}

/// Where and how one signal is sent.
#[derive(Clone, Debug)]
pub(super) struct Destination {
    pub(super) signal: Signal,
    pub(super) protocol: Protocol,
    /// With the whole path.
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    /// Of one attempt.
    pub(super) timeout: Duration,
    /// PEM file of the certificates to trust in place of the system's.
    pub(super) certificate: Option<PathBuf>,
}

/// When spans or log records are sent, and how many may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchSettings {
    pub(super) delay: Duration,
    pub(super) max_queue: usize,
    pub(super) max_batch: usize,
    /// Of all attempts.
    pub(super) timeout: Duration,
}

/// Everything that telemetry needs to know.
#[derive(Debug)]
pub struct TelemetrySettings {
    pub(super) destinations: Vec<Destination>,
    pub(super) resource: Resource,
    pub(super) sampler: Sampler,
    pub(super) spans: BatchSettings,
    pub(super) logs: BatchSettings,
    pub(super) metrics_interval: Duration,
    pub(super) metrics_timeout: Duration,
    warnings: Vec<String>,
}

/// Why telemetry cannot be set up.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TelemetrySettingsError(String);

impl TelemetrySettings {
    /// The settings of these options and of the process's variables. `None` if there is no endpoint, so nothing to send.
    ///
    /// # Errors
    /// If an endpoint or a protocol cannot be used.
    pub fn read(options: &TelemetryOptions) -> Result<Option<Self>, TelemetrySettingsError> {
        Self::with(options, |name| std::env::var(name).ok())
    }

    fn with(
        options: &TelemetryOptions,
        get: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, TelemetrySettingsError> {
        let mut variables = Variables {
            get,
            warnings: Vec::new(),
        };
        let is_disabled = variables.text("OTEL_SDK_DISABLED");
        if is_disabled.is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let mut destinations = Vec::new();
        for signal in Signal::ALL {
            destinations.extend(variables.destination(signal, options)?);
        }
        if destinations.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self {
            destinations,
            resource: resource(
                variables.text("OTEL_SERVICE_NAME"),
                variables.text("OTEL_RESOURCE_ATTRIBUTES"),
            ),
            sampler: variables.sampler(),
            spans: variables.batches("OTEL_BSP", Duration::from_secs(5)),
            logs: variables.batches("OTEL_BLRP", Duration::from_secs(1)),
            metrics_interval: variables
                .millis("OTEL_METRIC_EXPORT_INTERVAL", Duration::from_secs(60)),
            metrics_timeout: variables
                .millis("OTEL_METRIC_EXPORT_TIMEOUT", Duration::from_secs(30)),
            warnings: variables.warnings,
        }))
    }

    /// Variables that cannot be used, for the log.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    pub(super) fn destination(&self, signal: Signal) -> Option<&Destination> {
        let mut destinations = self.destinations.iter();
        destinations.find(|destination| destination.signal == signal)
    }
}

/// What is sent to where, without secrets.
impl fmt::Display for TelemetrySettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, destination) in self.destinations.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            let authority = destination.uri.authority();
            let host = authority.map_or("", |one| without_user(one.as_str()));
            write!(f, "{separator}{} to {host}", destination.signal.name())?;
        }
        Ok(())
    }
}

fn without_user(authority: &str) -> &str {
    authority.rsplit('@').next().unwrap_or_default()
}

struct Variables<G> {
    get: G,
    warnings: Vec<String>,
}

impl<G: Fn(&str) -> Option<String>> Variables<G> {
    /// A variable's value; an empty one counts as unset.
    fn text(&self, name: &str) -> Option<String> {
        let value = (self.get)(name)?;
        let value = value.trim();
        (!value.is_empty()).then(|| value.to_owned())
    }

    /// The variable of one signal, else that of all, with the name of the one that is set.
    fn of_signal(&self, signal: Signal, end: &str) -> Option<(String, String)> {
        let own = format!(
            "OTEL_EXPORTER_OTLP_{}_{end}",
            signal.name().to_ascii_uppercase()
        );
        let names = [own, format!("OTEL_EXPORTER_OTLP_{end}")];
        names
            .into_iter()
            .find_map(|name| Some((self.text(&name)?, name)))
    }

    fn destination(
        &mut self,
        signal: Signal,
        options: &TelemetryOptions,
    ) -> Result<Option<Destination>, TelemetrySettingsError> {
        let upper = signal.name().to_ascii_uppercase();
        let exporter = format!("OTEL_{upper}_EXPORTER");
        match self.text(&exporter).as_deref() {
            None | Some("otlp") => {}
            Some("none") => return Ok(None),
            Some(other) => {
                self.warn(format!(
                    "{exporter} is {other:?}, and only otlp and none are supported; {} are not sent",
                    signal.name()
                ));
                return Ok(None);
            }
        }
        let protocol = self.protocol(signal, options)?;
        let own_name = format!("OTEL_EXPORTER_OTLP_{upper}_ENDPOINT");
        let own = self.text(&own_name);
        let base_name = "OTEL_EXPORTER_OTLP_ENDPOINT";
        let base = options.endpoint.clone().or_else(|| self.text(base_name));
        let base = base.filter(|endpoint| !endpoint.trim().is_empty());
        let uri = match (own, base) {
            (Some(own), _) => {
                endpoint(&own_name, &own).and_then(|uri| with_path(uri, signal, protocol, true))
            }
            (None, Some(base)) => endpoint("--otlp-endpoint or OTEL_EXPORTER_OTLP_ENDPOINT", &base)
                .and_then(|uri| with_path(uri, signal, protocol, false)),
            (None, None) => return Ok(None),
        }?;
        if let Some((compression, name)) = self.of_signal(signal, "COMPRESSION")
            && compression != "none"
        {
            self.warn(format!(
                "{name} is {compression:?}, which is not supported; messages are not compressed"
            ));
        }
        let timeout = match self.of_signal(signal, "TIMEOUT") {
            Some((_, name)) => self.millis(&name, DEFAULT_TIMEOUT),
            None => DEFAULT_TIMEOUT,
        };
        let certificate = self.of_signal(signal, "CERTIFICATE");
        Ok(Some(Destination {
            signal,
            protocol,
            uri,
            headers: self.headers(signal),
            timeout,
            certificate: certificate.map(|(file, _)| file.into()),
        }))
    }

    fn protocol(
        &self,
        signal: Signal,
        options: &TelemetryOptions,
    ) -> Result<Protocol, TelemetrySettingsError> {
        let upper = signal.name().to_ascii_uppercase();
        let own = self.text(&format!("OTEL_EXPORTER_OTLP_{upper}_PROTOCOL"));
        let text = own.or_else(|| options.protocol.clone());
        let text = text.or_else(|| self.text("OTEL_EXPORTER_OTLP_PROTOCOL"));
        match text.filter(|text| !text.is_empty()) {
            None => Ok(Protocol::HttpProtobuf),
            Some(text) => text.parse().map_err(|_| {
                TelemetrySettingsError(format!(
                    "the protocol of {} is {text:?}; write grpc or http/protobuf in --otlp-protocol or \
                     OTEL_EXPORTER_OTLP_PROTOCOL",
                    signal.name()
                ))
            }),
        }
    }

    /// `NAME=VALUE,…`, with percent-encoded values.
    fn headers(&mut self, signal: Signal) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let Some((list, variable)) = self.of_signal(signal, "HEADERS") else {
            return headers;
        };
        for entry in list.split(',').filter(|entry| !entry.trim().is_empty()) {
            let header = entry.split_once('=').and_then(|(name, value)| {
                let name = HeaderName::from_str(name.trim()).ok()?;
                let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
                let mut value = HeaderValue::from_str(&value).ok()?;
                value.set_sensitive(true);
                Some((name, value))
            });
            match header {
                Some((name, value)) => {
                    headers.append(name, value);
                }
                // Without the entry, which may be a secret.
                None => self.warn(format!(
                    "an entry of {variable} is no header and is left out; write NAME=VALUE,NAME=VALUE"
                )),
            }
        }
        headers
    }

    fn sampler(&mut self) -> Sampler {
        let name = "OTEL_TRACES_SAMPLER";
        let text = self.text(name);
        let parent_based = |root: Sampler| Sampler::ParentBased(Box::new(root));
        match text.as_deref() {
            None | Some("parentbased_always_on") => parent_based(Sampler::AlwaysOn),
            Some("parentbased_always_off") => parent_based(Sampler::AlwaysOff),
            Some("parentbased_traceidratio") => {
                parent_based(Sampler::TraceIdRatioBased(self.ratio()))
            }
            Some("always_on") => Sampler::AlwaysOn,
            Some("always_off") => Sampler::AlwaysOff,
            Some("traceidratio") => Sampler::TraceIdRatioBased(self.ratio()),
            Some(other) => {
                self.warn(format!(
                    "{name} is {other:?}, which is not supported; it counts as parentbased_always_on"
                ));
                parent_based(Sampler::AlwaysOn)
            }
        }
    }

    fn ratio(&mut self) -> f64 {
        let name = "OTEL_TRACES_SAMPLER_ARG";
        let Some(text) = self.text(name) else {
            return 1.0;
        };
        let ratio = text.parse::<f64>().ok();
        ratio
            .filter(|ratio| (0.0..=1.0).contains(ratio))
            .unwrap_or_else(|| {
                self.warn(format!(
                    "{name} is {text:?}; write a number from 0 to 1; it counts as 1"
                ));
                1.0
            })
    }

    fn batches(&mut self, prefix: &str, delay: Duration) -> BatchSettings {
        let mut size = |end: &str, default: usize, most: usize| {
            let value = self.number(&format!("{prefix}_{end}"), default as u64);
            usize::try_from(value).unwrap_or(most).clamp(1, most)
        };
        let max_queue = size("MAX_QUEUE_SIZE", 2048, 1 << 20);
        let max_batch = size("MAX_EXPORT_BATCH_SIZE", 512, max_queue);
        BatchSettings {
            max_queue,
            max_batch,
            delay: self.millis(&format!("{prefix}_SCHEDULE_DELAY"), delay),
            timeout: self.millis(&format!("{prefix}_EXPORT_TIMEOUT"), Duration::from_secs(30)),
        }
    }

    /// At least a millisecond, at most an hour.
    fn millis(&mut self, name: &str, default: Duration) -> Duration {
        let default = u64::try_from(default.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(self.number(name, default).clamp(1, 3_600_000))
    }

    fn number(&mut self, name: &str, default: u64) -> u64 {
        let Some(text) = self.text(name) else {
            return default;
        };
        text.parse().unwrap_or_else(|_| {
            self.warn(format!(
                "{name} is {text:?}; write a whole number; it counts as {default}"
            ));
            default
        })
    }

    fn warn(&mut self, text: String) {
        self.warnings.push(text);
    }
}

/// OpenTelemetry's default.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

fn endpoint(name: &str, text: &str) -> Result<Uri, TelemetrySettingsError> {
    let uri = text.trim().parse::<Uri>().ok();
    let is_usable = |uri: &Uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri
                .authority()
                .is_some_and(|authority| !authority.host().is_empty())
            && uri
                .authority()
                .is_some_and(|authority| !authority.as_str().contains('@'))
    };
    uri.filter(is_usable).ok_or_else(|| {
        TelemetrySettingsError(format!(
            "{name} is no URL of a collector; write e.g. http://localhost:4318, or port 4317 for grpc, and secrets in \
             OTEL_EXPORTER_OTLP_HEADERS"
        ))
    })
}

/// The URL to send a signal to. `is_whole`: over HTTP the path is complete.
fn with_path(
    uri: Uri,
    signal: Signal,
    protocol: Protocol,
    is_whole: bool,
) -> Result<Uri, TelemetrySettingsError> {
    let path = uri.path().trim_end_matches('/');
    let path = match (protocol, is_whole) {
        (Protocol::Grpc, _) => {
            let (package, service) = match signal {
                Signal::Traces => ("trace", "TraceService"),
                Signal::Metrics => ("metrics", "MetricsService"),
                Signal::Logs => ("logs", "LogsService"),
            };
            format!("{path}/opentelemetry.proto.collector.{package}.v1.{service}/Export")
        }
        (Protocol::HttpProtobuf, true) => return Ok(uri),
        (Protocol::HttpProtobuf, false) => format!("{path}/v1/{}", signal.name()),
    };
    let mut parts = uri.into_parts();
    let invalid = || TelemetrySettingsError(format!("the path {path:?} of an endpoint is invalid"));
    let path_and_query = path.parse::<PathAndQuery>().map_err(|_| invalid())?;
    parts.path_and_query = Some(path_and_query);
    Uri::from_parts(parts).map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(
        options: &TelemetryOptions,
        variables: &[(&str, &str)],
    ) -> Result<Option<TelemetrySettings>, TelemetrySettingsError> {
        TelemetrySettings::with(options, |name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn settings(variables: &[(&str, &str)]) -> TelemetrySettings {
        let read = read(&TelemetryOptions::default(), variables);
        read.expect("valid").expect("an endpoint")
    }

    fn uri(settings: &TelemetrySettings, signal: Signal) -> String {
        let destination = settings.destination(signal).expect("a destination");
        destination.uri.to_string()
    }

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/base/");

    #[test]
    fn nothing_is_sent_without_endpoint_or_when_disabled() {
        let none = TelemetryOptions::default();
        assert!(read(&none, &[]).expect("valid").is_none());
        assert!(read(&none, &[(ENDPOINT.0, " ")]).expect("valid").is_none());
        let disabled = [ENDPOINT, ("OTEL_SDK_DISABLED", "True")];
        assert!(read(&none, &disabled).expect("valid").is_none());
    }

    #[test]
    fn variables_of_signals_replace_common_ones() {
        let all = settings(&[
            ENDPOINT,
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://t/own"),
            ("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=b"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "key=x%20y, , broken"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "250"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem"),
        ]);
        assert_eq!(uri(&all, Signal::Traces), "https://t/own");
        assert_eq!(uri(&all, Signal::Metrics), "http://c:4318/base/v1/metrics");
        assert_eq!(
            uri(&all, Signal::Logs),
            "http://c:4318/base/opentelemetry.proto.collector.logs.v1.LogsService/Export"
        );
        let traces = all.destination(Signal::Traces).expect("traces");
        assert_eq!(traces.headers["key"], "x y");
        assert_eq!(traces.headers.len(), 1);
        assert_eq!(traces.timeout, Duration::from_millis(250));
        assert_eq!(traces.certificate, Some("/ca.pem".into()));
        let metrics = all.destination(Signal::Metrics).expect("metrics");
        assert_eq!(metrics.headers["a"], "b");
        assert_eq!(all.warnings().len(), 1, "{:?}", all.warnings());
        assert_eq!(
            all.to_string(),
            "traces to t, metrics to c:4318, logs to c:4318"
        );
    }

    #[test]
    fn options_replace_common_variables() {
        let options = TelemetryOptions {
            endpoint: Some("http://d:1".to_owned()),
            protocol: Some("grpc".to_owned()),
        };
        let variables = [ENDPOINT, ("OTEL_METRICS_EXPORTER", "none")];
        let settings = read(&options, &variables).expect("valid").expect("on");
        assert_eq!(
            uri(&settings, Signal::Traces),
            "http://d:1/opentelemetry.proto.collector.trace.v1.TraceService/Export"
        );
        assert!(settings.destination(Signal::Metrics).is_none());
    }

    #[test]
    fn unusable_endpoint_or_protocol_is_an_error() {
        let none = TelemetryOptions::default();
        for endpoint in [
            "localhost:4317",
            "ftp://c",
            "http://",
            "http://a:b@c",
            "no url",
        ] {
            read(&none, &[(ENDPOINT.0, endpoint)]).expect_err(endpoint);
        }
        let json = [ENDPOINT, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")];
        let error = read(&none, &json).expect_err("not supported");
        assert!(
            error.to_string().contains("write grpc or http/protobuf"),
            "{error}"
        );
    }

    #[test]
    fn samplers_and_batches_are_read() {
        let read = |variables: &[(&str, &str)]| settings(&[&[ENDPOINT], variables].concat());
        let sampler = |name, ratio| {
            let settings = read(&[
                ("OTEL_TRACES_SAMPLER", name),
                ("OTEL_TRACES_SAMPLER_ARG", ratio),
            ]);
            (format!("{:?}", settings.sampler), settings.warnings.len())
        };
        assert_eq!(sampler("always_off", "").0, "AlwaysOff");
        assert_eq!(sampler("traceidratio", "0.25").0, "TraceIdRatioBased(0.25)");
        let (ratio, warnings) = sampler("parentbased_traceidratio", "2");
        assert!(
            ratio.contains("ParentBased") && ratio.contains("(1.0)"),
            "{ratio}"
        );
        assert_eq!(warnings, 1);
        assert_eq!(sampler("jaeger_remote", ""), sampler_default(&read(&[]), 1));
        let settings = read(&[
            ("OTEL_BSP_MAX_QUEUE_SIZE", "8"),
            ("OTEL_BSP_SCHEDULE_DELAY", "20"),
            ("OTEL_BLRP_MAX_EXPORT_BATCH_SIZE", "many"),
        ]);
        assert_eq!((settings.spans.max_queue, settings.spans.max_batch), (8, 8));
        assert_eq!(settings.spans.delay, Duration::from_millis(20));
        assert_eq!(settings.logs.max_batch, 512);
        assert_eq!(settings.warnings.len(), 1);
    }

    fn sampler_default(settings: &TelemetrySettings, warnings: usize) -> (String, usize) {
        (format!("{:?}", settings.sampler), warnings)
    }
}
