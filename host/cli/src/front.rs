//! How `corral serve` meets its clients: TLS, keys, quotas, and how errors look.

use crate::complaint::Complaint;
use clap::Args;
use corral_runtime::{Allowance, Limit, Quota};
use corral_server::{Access, ErrorFormat, Front, Keys, Limits, Prefix, Terms, Tls};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// What clients of the public listener meet.
#[derive(Args, Debug)]
pub(crate) struct FrontArguments {
    /// Connections at once; further clients wait.
    #[arg(long, value_name = "N", default_value_t = 1024,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) connections: u64,
    /// Connections of one client address (of one /64 for IPv6) at once; further ones are closed. Not for
    /// servers behind a proxy, where all clients have one address.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) connections_per_address: Option<u64>,
    /// Seconds from a connection's beginning, or the end of an answer, until the next request's head is
    /// there: also how long an idle connection is kept.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = crate::arguments::seconds)]
    pub(crate) head_time: Duration,
    /// Seconds that a client may neither read its answer nor send what is waited for of its request.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = crate::arguments::seconds)]
    pub(crate) stall_time: Duration,
    /// A certificate, and the chain that leads to it, in PEM format: connections are encrypted, also those
    /// of an admin listener that other machines can reach. Read again when it changes, and on SIGHUP.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The certificate's private key, in PEM format.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// A file of API keys, as 'corral keys new' prints their entries: every route asks for one. Read again
    /// when it changes, and on SIGHUP.
    #[arg(long, value_name = "FILE")]
    pub(crate) keys: Option<PathBuf>,
    /// A route that asks for no key all the same; may be given several times.
    #[arg(long, value_name = "ROUTE", requires = "keys")]
    pub(crate) open: Vec<Prefix>,
    /// How much of a route all its clients together may use. LIMIT is concurrent, requests-per-minute,
    /// tokens-per-request, tokens-per-minute or tokens-per-day. May be given several times.
    #[arg(long = "quota", value_name = "ROUTE=LIMIT:N[,LIMIT:N..]")]
    pub(crate) quotas: Vec<QuotaArgument>,
    /// How errors of the host look at a route: problem (RFC 9457) or openai. May be given several times.
    #[arg(long = "error-format", value_name = "ROUTE=FORMAT")]
    pub(crate) error_formats: Vec<FormatArgument>,
}

impl FrontArguments {
    /// The routes that are named, each with the option that names it.
    pub(crate) fn routes(&self) -> impl Iterator<Item = (&'static str, &Prefix)> {
        let open = self.open.iter().map(|route| ("--open", route));
        let quotas = self.quotas.iter().map(|said| ("--quota", &said.route));
        let formats = self.error_formats.iter();
        let formats = formats.map(|said| ("--error-format", &said.route));
        open.chain(quotas).chain(formats)
    }

    /// Reads the files that are named; what an operator should know of them is `tell`ed.
    pub(crate) fn front(&self, tell: impl Fn(String)) -> Result<Front, Complaint> {
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let mut limits = Limits::default();
        limits.connections = size(self.connections);
        limits.connections_per_address = self.connections_per_address.map(size);
        limits.head_time = self.head_time;
        limits.handshake_time = limits.handshake_time.min(self.head_time);
        limits.body_time = self.stall_time;
        limits.stall_time = self.stall_time;
        let mut front = Front::from(limits);
        if let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) {
            let tls = Tls::open(certificate, key)?;
            tls.warning().into_iter().for_each(&tell);
            front.tls = Some(Arc::new(tls));
        }
        if let Some(file) = &self.keys {
            let keys = Keys::open(file)?;
            if keys.count() == 0 {
                tell(format!(
                    "there is no key in {}, so nobody can call a route that asks for one; add what \
                     'corral keys new' prints",
                    file.display()
                ));
            }
            front.keys = Some(Arc::new(keys));
        }
        Ok(front)
    }

    /// On what terms a route is called.
    pub(crate) fn terms(&self, route: &Prefix) -> Terms {
        let quota = self.quotas.iter().rfind(|said| said.route == *route);
        let format = self.error_formats.iter().rfind(|said| said.route == *route);
        let asks = self.keys.is_some() && !self.open.contains(route);
        Terms {
            access: if asks { Access::Keys } else { Access::Open },
            quota: quota.map(|said| Quota::new("deployment", route.as_str(), said.allowance)),
            errors: format.map_or(ErrorFormat::default(), |said| said.format),
        }
    }
}

/// Reads certificate and keys again.
pub(crate) fn reload(front: &Front, tell: impl Fn(String)) {
    if let Some(tls) = &front.tls {
        match tls.reload() {
            Ok(()) => tell(
                tls.warning()
                    .unwrap_or("the certificate was read again".into()),
            ),
            Err(error) => tell(format!("{error}; the old certificate goes on")),
        }
    }
    if let Some(keys) = &front.keys {
        match keys.reload() {
            Ok(()) => tell(format!(
                "the keys were read again: there are {}",
                keys.count()
            )),
            Err(error) => tell(format!("{error}; the old keys go on")),
        }
    }
}

/// `ROUTE=LIMIT:N[,LIMIT:N..]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QuotaArgument {
    pub(crate) route: Prefix,
    pub(crate) allowance: Allowance,
}

impl FromStr for QuotaArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected =
            || "write ROUTE=LIMIT:N, e.g. /chat=requests-per-minute:60,tokens-per-day:100000";
        let (route, limits) = text.rsplit_once('=').ok_or_else(expected)?;
        let mut allowance = Allowance::default();
        for limit in limits.split(',') {
            let (name, number) = limit.split_once(':').ok_or_else(expected)?;
            let wrong = || format!("'{number}' is no number for {name}; {}", expected());
            let number = || number.parse::<u64>().map_err(|_| wrong());
            let small = || u32::try_from(number()?).map_err(|_| wrong());
            let known = Limit::ALL.into_iter().find(|limit| limit.name() == name);
            match known {
                Some(Limit::Concurrent) => allowance.concurrent = Some(small()?),
                Some(Limit::RequestsPerMinute) => allowance.requests_per_minute = Some(small()?),
                Some(Limit::TokensPerRequest) => allowance.tokens_per_request = Some(number()?),
                Some(Limit::TokensPerMinute) => allowance.tokens_per_minute = Some(number()?),
                Some(Limit::TokensPerDay) => allowance.tokens_per_day = Some(number()?),
                None => {
                    let names = Limit::ALL.map(Limit::name).join(", ");
                    return Err(format!("there is no limit '{name}'; there are {names}"));
                }
            }
        }
        Ok(QuotaArgument {
            route: route.parse::<Prefix>().map_err(|error| error.to_string())?,
            allowance,
        })
    }
}

/// `ROUTE=FORMAT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FormatArgument {
    pub(crate) route: Prefix,
    pub(crate) format: ErrorFormat,
}

impl FromStr for FormatArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (route, format) = text
            .rsplit_once('=')
            .ok_or("write ROUTE=FORMAT, e.g. /v1=openai")?;
        Ok(FormatArgument {
            route: route.parse::<Prefix>().map_err(|error| error.to_string())?,
            format: format.parse()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_read() {
        let said: QuotaArgument = "/a=b=concurrent:0,tokens-per-day:5000000000"
            .parse()
            .expect("good");
        assert_eq!(said.route.as_str(), "/a=b");
        let allowance = Allowance {
            concurrent: Some(0),
            tokens_per_day: Some(5_000_000_000),
            ..Allowance::default()
        };
        assert_eq!(said.allowance, allowance);
        for (text, expected) in [
            ("/a", "write ROUTE=LIMIT:N"),
            ("/a=", "write ROUTE=LIMIT:N"),
            ("/a=concurrent", "write ROUTE=LIMIT:N"),
            ("/a=concurrent:x", "'x' is no number for concurrent"),
            ("/a=concurrent:5000000000", "is no number for concurrent"),
            ("/a=tokens:5", "there are concurrent, requests-per-minute"),
            ("a=concurrent:5", "write '/a'"),
        ] {
            let error = text.parse::<QuotaArgument>().expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn formats_are_read() {
        let said: FormatArgument = "/v1=openai".parse().expect("good");
        assert_eq!(said.format, ErrorFormat::OpenAi);
        for (text, expected) in [
            ("/v1", "write ROUTE=FORMAT"),
            ("/v1=xml", "write problem or openai"),
        ] {
            let error = text.parse::<FormatArgument>().expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
