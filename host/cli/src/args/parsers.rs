//! Parsers of values that several arguments share.

use crate::Error;
use corral_server::Route;
use corral_server::deployments::DeploymentName;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Parses a whole number in a range.
pub fn whole(range: RangeInclusive<u64>) -> clap::builder::RangedU64ValueParser<u64> {
    clap::value_parser!(u64).range(range)
}

/// The seconds that [`seconds`] accepts, up to a month.
pub(crate) const SECONDS: RangeInclusive<f64> = 0.001..=2_678_400.0;

/// Parses seconds, with a fraction if needed.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(number) if SECONDS.contains(&number) => Ok(Duration::from_secs_f64(number)),
        _ => Err("write seconds, e.g. 30 or 0.5".to_owned()),
    }
}

/// Parses a duration with its unit.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| "write a number and its unit, e.g. 30s, 10m or 1h".to_owned())
}

/// Checks the names that the values of a repeatable option define: at most `max`, each once.
pub(super) fn check_names<'a>(
    option: &str,
    names: impl ExactSizeIterator<Item = &'a String>,
    max: usize,
) -> Result<(), Error> {
    let count = names.len();
    if count > max {
        return Err(Error::usage(format!(
            "{option} is given {count} times; at most {max} are allowed"
        )));
    }
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(Error::usage(format!(
                "{option} names '{name}' twice; remove one of them"
            )));
        }
    }
    Ok(())
}

/// `ROUTE=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForRoute<T> {
    pub(super) route: Route,
    pub(super) value: T,
}

/// Splits `ROUTE=VALUE`, where no value contains `=`. `expected` tells what to write.
pub(super) fn route_and_value<'a>(
    text: &'a str,
    expected: &str,
) -> Result<(Route, &'a str), String> {
    let (route, value) = text.rsplit_once('=').ok_or(expected)?;
    let route = route.parse::<Route>().map_err(|error| error.to_string())?;
    Ok((route, value))
}

/// The name of a deployment, or the route of a `--plugin`.
pub(crate) fn deployment_or_route(text: &str) -> Result<String, String> {
    match text.starts_with('/') {
        true => text
            .parse::<Route>()
            .map(|route| route.to_string())
            .map_err(|error| error.to_string()),
        false => text
            .parse::<DeploymentName>()
            .map(|name| name.to_string())
            .map_err(|error| error.to_string()),
    }
}
