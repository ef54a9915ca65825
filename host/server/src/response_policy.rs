//! The part of a request policy that responses follow, errors included: the format of errors, and CORS.
//!
//! It is known before models and plugins are loaded, so that a 503 meanwhile has the route's format too.

use crate::cors::Cors;
use crate::deployments::Store;
use crate::problem::ErrorFormat;
use crate::request_policy::RequestPolicy;
use crate::routes::{Route, RouteTable};

/// What the host adds to the responses of a route.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResponsePolicy {
    pub(crate) format: ErrorFormat,
    pub(crate) cors: Cors,
}

impl ResponsePolicy {
    /// The policy of responses to requests for `path`.
    pub(crate) fn of(policy: &RequestPolicy, path: &str) -> Self {
        ResponsePolicy {
            format: policy.error_format.at(path),
            cors: policy.cors.clone(),
        }
    }
}

/// How a starting server answers at the routes that it will serve.
#[derive(Clone, Debug, Default)]
pub struct StartingRoutes(RouteTable<RequestPolicy>);

impl StartingRoutes {
    /// Adds a route. If it exists already, it keeps its policy: plugins of the command line come before those of the
    /// store.
    pub fn add(&mut self, route: Route, policy: RequestPolicy) {
        let _ = self.0.add(route, policy);
    }

    /// Adds the routes of the stored deployments.
    pub fn add_stored(&mut self, store: &Store) {
        for stored in store.list().into_values() {
            // The first revision that receives requests, as when a deployment serves.
            let mut shares = stored.record.traffic.iter();
            let first = shares.find_map(|share| stored.revisions.get(&share.revision));
            let Some(manifest) = first.map(|revision| &revision.manifest) else {
                continue;
            };
            for route in &manifest.routes {
                let policy = RequestPolicy {
                    error_format: manifest.error_format,
                    cors: manifest.cors.clone(),
                    ..RequestPolicy::default()
                };
                self.add(route.clone(), policy);
            }
        }
    }

    /// The policy of responses to requests for `path`.
    pub(crate) fn find(&self, path: &str) -> ResponsePolicy {
        let policy = self.0.find(path);
        policy.map_or_else(ResponsePolicy::default, |policy| {
            ResponsePolicy::of(policy, path)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_format(error_format: ErrorFormat) -> RequestPolicy {
        RequestPolicy {
            error_format,
            ..RequestPolicy::default()
        }
    }

    #[test]
    fn first_policy_of_a_route_stays() {
        let mut routes = StartingRoutes::default();
        for (route, format) in [
            ("/v1", ErrorFormat::OpenAi),
            ("/v1", ErrorFormat::Problem),
            ("/other", ErrorFormat::Anthropic),
        ] {
            routes.add(route.parse().expect("a route"), with_format(format));
        }
        for (path, format) in [
            ("/v1/chat/completions", ErrorFormat::OpenAi),
            ("/v1/messages", ErrorFormat::Anthropic),
            ("/other/v1/messages", ErrorFormat::Anthropic),
            ("/nowhere", ErrorFormat::Problem),
        ] {
            assert_eq!(routes.find(path).format, format, "{path}");
        }
    }
}
