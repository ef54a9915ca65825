//! Arguments for the public listener: TLS, keys, quotas and error formats.

use super::parsers::{ForRoute, route_and_value, seconds, whole};
use crate::Error;
use crate::open_files::OpenFileShares;
use clap::Args;
use corral_runtime::{Quota, QuotaLimit, QuotaLimits};
use corral_server::{
    Access, ApiKeys, ApiKeysError, Cors, ErrorFormat, HttpLimits, Origin, RequestPolicy, Route,
    ServerOptions, Tls, TlsError, TrustedProxies,
};
use ipnet::IpNet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

#[derive(Args, Debug)]
#[command(next_help_heading = "Network")]
pub struct PublicArgs {
    /// Concurrent connections, fewer if the limit of open files is low; further clients wait
    #[arg(long, value_name = "N", default_value_t = 1024,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) max_connections: u64,
    /// Connections of one client address (one /64 for IPv6) [default: three for each free one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) max_connections_per_address: Option<u64>,
    /// Timeout for the head of the next request, in seconds; closes idle connections too
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub(crate) header_timeout: Duration,
    /// Idle timeout for reading a request body and writing a response, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub(crate) io_timeout: Duration,
    /// Seconds of silence after which a stream of server-sent events gets a comment; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = whole(0..=86_400))]
    pub(crate) event_keep_alive: u64,
    /// Serve /metrics and /v1/loads on the public listener too, for routers; they name models, not tenants
    #[arg(long)]
    pub(crate) metrics_public: bool,
    /// Network of proxies whose fairness and first-token headers count, e.g. 10.0.0.0/8; repeatable
    #[arg(long = "trusted-proxy", value_name = "CIDR", help_heading = "Security")]
    pub(crate) trusted_proxies: Vec<IpNet>,
    /// Free MiB below which caches shrink, then requests wait, then get 503; 0: never [default: 32 to 256]
    #[arg(
        long,
        value_name = "MIB",
        value_parser = clap::value_parser!(u64).range(0..=1 << 30),
        help_heading = "Memory"
    )]
    pub(crate) memory_reserve: Option<u64>,
    /// PEM certificate chain; enables TLS, for a remote admin listener too; reloaded when it changes
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_key",
        help_heading = "Security"
    )]
    pub(crate) tls_cert: Option<PathBuf>,
    /// PEM private key of the certificate
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_cert",
        help_heading = "Security"
    )]
    pub(crate) tls_key: Option<PathBuf>,
    /// File of API keys from 'corral keys new', required at every route; reloaded when it changes
    #[arg(long, value_name = "FILE", help_heading = "Security")]
    pub(crate) keys: Option<PathBuf>,
    /// Route that needs no API key; repeatable
    #[arg(
        long = "open-route",
        value_name = "ROUTE",
        requires = "keys",
        help_heading = "Security"
    )]
    pub(crate) open_routes: Vec<Route>,
    /// Quota of a route: concurrent-requests, requests-per-minute, tokens-per-request, -minute or -day; repeatable
    #[arg(
        long = "quota",
        value_name = "ROUTE=LIMIT:N[,LIMIT:N..]",
        value_parser = quota,
        help_heading = "Limits"
    )]
    pub(crate) quotas: Vec<ForRoute<QuotaLimits>>,
    /// Format of host errors at a route: problem (RFC 9457), openai, anthropic, ollama; repeatable [default: problem]
    #[arg(
        long = "error-format",
        value_name = "ROUTE=FORMAT",
        value_parser = error_format,
        help_heading = "Plugins"
    )]
    pub(crate) error_formats: Vec<ForRoute<ErrorFormat>>,
    /// Origins whose web pages may read a route's responses, or * for all; a route's last one counts; repeatable
    #[arg(
        long,
        value_name = "ROUTE=ORIGIN[,ORIGIN..]",
        value_parser = cors,
        help_heading = "Security"
    )]
    pub(crate) cors: Vec<ForRoute<Cors>>,
}

impl PublicArgs {
    /// The routes that options name, each with its option.
    pub(crate) fn routes(&self) -> impl Iterator<Item = (&'static str, &Route)> {
        let open = self.open_routes.iter();
        let open = open.map(|route| ("--open-route", route));
        let quotas = self.quotas.iter().map(|arg| ("--quota", &arg.route));
        let formats = self.error_formats.iter();
        let formats = formats.map(|arg| ("--error-format", &arg.route));
        let cors = self.cors.iter().map(|arg| ("--cors", &arg.route));
        open.chain(quotas).chain(formats).chain(cors)
    }

    /// Reads the certificate and the keys; reports warnings to `note`.
    pub(crate) fn open(
        &self,
        shares: OpenFileShares,
        note: impl Fn(String),
    ) -> Result<ServerOptions, Error> {
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let mut limits = HttpLimits::default();
        let max_connections = self.max_connections.min(shares.public);
        if max_connections < self.max_connections {
            note(format!(
                "the limit of open files is {}, so at most {max_connections} clients are connected at once, \
                 not {}; raise it, e.g. with 'ulimit -n 65536' or LimitNOFILE= of systemd",
                shares.open_files, self.max_connections
            ));
        }
        limits.max_connections = size(max_connections);
        limits.max_connections_per_address = self.max_connections_per_address.map(size);
        limits.max_admin_connections = size(shares.admin);
        limits.header_timeout = self.header_timeout;
        limits.handshake_timeout = limits.handshake_timeout.min(self.header_timeout);
        limits.body_idle_timeout = self.io_timeout;
        limits.write_timeout = self.io_timeout;
        let keep_alive = Duration::from_secs(self.event_keep_alive);
        limits.event_keep_alive = (!keep_alive.is_zero()).then_some(keep_alive);
        let mut options = ServerOptions::from(limits);
        options.memory.reserve = self.memory_reserve.map(|mebibytes| mebibytes << 20);
        options.metrics_public = self.metrics_public;
        options.trusted_proxies = TrustedProxies::new(self.trusted_proxies.iter().copied());
        options.tls = self.open_tls(&note)?.map(Arc::new);
        options.api_keys = self.open_keys(&note)?.map(Arc::new);
        Ok(options)
    }

    /// Reads the certificate; reports a warning to `note`.
    pub(crate) fn open_tls(&self, note: impl FnMut(String)) -> Result<Option<Tls>, TlsError> {
        let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) else {
            return Ok(None);
        };
        let tls = Tls::open(certificate, key)?;
        tls.warning().into_iter().for_each(note);
        Ok(Some(tls))
    }

    /// Reads the keys; reports to `note` if there are none.
    pub(crate) fn open_keys(
        &self,
        mut note: impl FnMut(String),
    ) -> Result<Option<ApiKeys>, ApiKeysError> {
        let Some(file) = &self.keys else {
            return Ok(None);
        };
        let keys = ApiKeys::open(file)?;
        if keys.count() == 0 {
            note(format!(
                "{} contains no key, so every request is refused; add the output of 'corral keys new'",
                file.display()
            ));
        }
        Ok(Some(keys))
    }

    /// Reloads the certificate and the keys of a server with `options`, from the files that these arguments name. What
    /// fails to load stays as it was, and `warn` gets the error.
    pub(crate) fn reload_files(
        &self,
        options: &ServerOptions,
        note: impl Fn(String),
        warn: impl Fn(String),
    ) {
        if let Some(tls) = &options.tls {
            let reloaded = match (&self.tls_cert, &self.tls_key) {
                (Some(certificate), Some(key)) => tls.reload_from(certificate, key),
                _ => tls.reload(),
            };
            match reloaded {
                Ok(()) => match tls.warning() {
                    Some(warning) => warn(warning),
                    None => note("reloaded the certificate".to_owned()),
                },
                Err(error) => warn(format!("{error}; the old certificate stays in use")),
            }
        }
        if let Some(keys) = &options.api_keys {
            let reloaded = match &self.keys {
                Some(file) => keys.reload_from(file),
                None => keys.reload(),
            };
            match reloaded {
                Ok(()) => note(format!("reloaded the keys: there are {}", keys.count())),
                Err(error) => warn(format!("{error}; the old keys stay in use")),
            }
        }
    }

    /// Access, quota and error format of a route.
    pub(crate) fn request_policy(&self, route: &Route) -> RequestPolicy {
        let quota = self.quotas.iter().rfind(|arg| arg.route == *route);
        let format = self.error_formats.iter().rfind(|arg| arg.route == *route);
        let cors = self.cors.iter().rfind(|arg| arg.route == *route);
        let needs_key = self.keys.is_some() && !self.open_routes.contains(route);
        RequestPolicy {
            access: if needs_key {
                Access::Keys
            } else {
                Access::Open
            },
            quota: quota.map(|arg| Quota::new("deployment", route.as_str(), arg.value)),
            error_format: format.map_or(ErrorFormat::default(), |arg| arg.value),
            cors: cors.map_or_else(Cors::default, |arg| arg.value.clone()),
        }
    }
}

/// `ROUTE=LIMIT:N[,LIMIT:N..]`.
fn quota(text: &str) -> Result<ForRoute<QuotaLimits>, String> {
    let expected = "write ROUTE=LIMIT:N, e.g. /chat=requests-per-minute:60,tokens-per-day:100000";
    let (route, limits) = route_and_value(text, expected)?;
    let mut value = QuotaLimits::default();
    for limit in limits.split(',') {
        let (name, number) = limit.split_once(':').ok_or(expected)?;
        let wrong = || format!("'{number}' is not a valid number for {name}; {expected}");
        let number = || number.parse::<u64>().map_err(|_| wrong());
        let small = || u32::try_from(number()?).map_err(|_| wrong());
        match name.parse::<QuotaLimit>() {
            Ok(QuotaLimit::Concurrent) => value.concurrent = Some(small()?),
            Ok(QuotaLimit::RequestsPerMinute) => value.requests_per_minute = Some(small()?),
            Ok(QuotaLimit::TokensPerRequest) => value.tokens_per_request = Some(number()?),
            Ok(QuotaLimit::TokensPerMinute) => value.tokens_per_minute = Some(number()?),
            Ok(QuotaLimit::TokensPerDay) => value.tokens_per_day = Some(number()?),
            Err(_) => {
                let names = QuotaLimit::ALL.iter().map(|limit| limit.name());
                let names = names.collect::<Vec<_>>().join(", ");
                return Err(format!("unknown limit '{name}'; write one of {names}"));
            }
        }
    }
    Ok(ForRoute { route, value })
}

/// `ROUTE=ORIGIN[,ORIGIN..]`.
fn cors(text: &str) -> Result<ForRoute<Cors>, String> {
    let expected = "write ROUTE=ORIGIN, e.g. /v1=https://app.example";
    let (route, origins) = route_and_value(text, expected)?;
    let origins = origins.split(',').map(str::parse::<Origin>);
    let origins: Result<Vec<_>, _> = origins.collect();
    let origins = origins.map_err(|error| error.to_string())?;
    if origins.len() > Cors::MAX_ORIGINS {
        return Err(format!(
            "{} origins are named; at most {} are allowed",
            origins.len(),
            Cors::MAX_ORIGINS
        ));
    }
    let value = Cors::new(origins);
    Ok(ForRoute { route, value })
}

/// `ROUTE=FORMAT`.
fn error_format(text: &str) -> Result<ForRoute<ErrorFormat>, String> {
    let (route, format) = route_and_value(text, "write ROUTE=FORMAT, e.g. /v1=openai")?;
    let value = format.parse().map_err(|_| {
        "unknown error format; write problem, openai, anthropic or ollama".to_owned()
    })?;
    Ok(ForRoute { route, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_parse() {
        let arg = quota("/a=b=concurrent-requests:0,tokens-per-day:5000000000");
        let arg = arg.expect("a valid argument");
        assert_eq!(arg.route.as_str(), "/a=b");
        let limits = QuotaLimits {
            concurrent: Some(0),
            tokens_per_day: Some(5_000_000_000),
            ..QuotaLimits::default()
        };
        assert_eq!(arg.value, limits);
        for (text, expected) in [
            ("/a", "write ROUTE=LIMIT:N"),
            ("/a=", "write ROUTE=LIMIT:N"),
            ("/a=concurrent-requests", "write ROUTE=LIMIT:N"),
            (
                "/a=concurrent-requests:x",
                "'x' is not a valid number for concurrent-requests",
            ),
            (
                "/a=concurrent-requests:5000000000",
                "is not a valid number for concurrent-requests",
            ),
            (
                "/a=tokens:5",
                "write one of concurrent-requests, requests-per-minute",
            ),
            ("a=concurrent-requests:5", "write '/a'"),
        ] {
            let error = quota(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn cors_origins_parse() {
        let arg = cors("/v1=https://a.example,http://localhost:3000").expect("a valid argument");
        let origins = ["https://a.example", "http://localhost:3000"];
        let origins = origins.map(|origin| origin.parse().expect(origin));
        assert_eq!(arg.value, Cors::new(origins.to_vec()));
        for (text, expected) in [
            ("/v1", "write ROUTE=ORIGIN"),
            ("/v1=", "write SCHEME://HOST"),
            ("/v1=https://a/b", "'https://a/b' is not an origin"),
            ("v1=*", "write '/v1'"),
        ] {
            let error = cors(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
        let origins = |count: usize| {
            let text = format!("/v1={}", vec!["https://a.example"; count].join(","));
            cors(&text)
        };
        assert!(origins(Cors::MAX_ORIGINS).is_ok());
        let error = origins(Cors::MAX_ORIGINS + 1).expect_err("too many");
        assert!(error.contains("at most 32 are allowed"), "{error}");
    }

    #[test]
    fn error_formats_parse() {
        let arg = error_format("/v1=openai").expect("a valid argument");
        assert_eq!(arg.value, ErrorFormat::OpenAi);
        for (text, expected) in [
            ("/v1", "write ROUTE=FORMAT"),
            ("/v1=xml", "write problem, openai, anthropic or ollama"),
        ] {
            let error = error_format(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
