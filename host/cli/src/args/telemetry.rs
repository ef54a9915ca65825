//! Arguments for OpenTelemetry collectors. OpenTelemetry's variables set the rest.

use crate::Error;
use clap::Args;
use corral_client_tls::client_config;
use corral_server::{Telemetry, TelemetryOptions, TelemetrySettings};
use std::sync::Arc;

#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Telemetry")]
pub struct TelemetryArgs {
    /// URL of an OpenTelemetry collector for traces, metrics and logs, e.g. http://localhost:4318 [default: none]
    #[arg(
        long,
        value_name = "URL",
        env = "OTEL_EXPORTER_OTLP_ENDPOINT",
        hide_env_values = true
    )]
    pub(crate) otlp_endpoint: Option<String>,
    /// Protocol of the collector: grpc or http/protobuf [default: http/protobuf]
    #[arg(
        long,
        value_name = "PROTOCOL",
        env = "OTEL_EXPORTER_OTLP_PROTOCOL",
        hide_env_values = true
    )]
    pub(crate) otlp_protocol: Option<String>,
}

impl TelemetryArgs {
    /// What these arguments and OpenTelemetry's variables say; `None` without an endpoint.
    pub(crate) fn settings(&self) -> Result<Option<TelemetrySettings>, Error> {
        let options = TelemetryOptions {
            endpoint: self.otlp_endpoint.clone(),
            protocol: self.otlp_protocol.clone(),
        };
        TelemetrySettings::read(&options).map_err(|error| Error::Usage(error.to_string()))
    }

    /// Telemetry that is collected from now on.
    pub(crate) fn open(&self) -> Result<Option<Arc<Telemetry>>, Error> {
        let settings = self.settings()?;
        Ok(settings.map(|settings| Telemetry::new(settings, client_config)))
    }
}
