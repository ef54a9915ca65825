//! The part of a request policy that responses follow, errors included: the format of errors, and CORS.
//!
//! It is known before models and plugins are loaded, so that a 503 meanwhile has the route's format too.

use crate::cors::Cors;
use crate::deployments::Store;
use crate::problem::{ErrorFormat, StreamFormat};
use crate::request_policy::RequestPolicy;
use crate::routes::{Route, RouteTable, is_below};

/// What the host adds to the responses of a route.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResponsePolicy {
    pub(crate) format: ErrorFormat,
    /// Whether the response is one of OpenAI's Responses API.
    is_responses: bool,
    pub(crate) cors: Cors,
}

impl ResponsePolicy {
    /// The policy of responses to requests for `path`.
    pub(crate) fn of(policy: &RequestPolicy, path: &str) -> Self {
        let is_responses = is_below(path, "/v1/responses") || is_below(path, "/responses");
        ResponsePolicy {
            format: policy.error_format.at(path),
            is_responses: is_responses && policy.error_format == ErrorFormat::OpenAi,
            cors: policy.cors.clone(),
        }
    }

    /// The form of a stream with this content type. `None` if an error can only cut it off.
    pub(crate) fn stream_format(&self, content_type: &[u8]) -> Option<StreamFormat> {
        let kind = content_type.split(|byte| *byte == b';').next()?;
        let kind = kind.trim_ascii().to_ascii_lowercase();
        match (&*kind, self.format) {
            (b"text/event-stream", _) if self.is_responses => Some(StreamFormat::ResponsesEvents),
            (b"text/event-stream", format) => Some(StreamFormat::Events(format)),
            (b"application/x-ndjson", ErrorFormat::Ollama) => Some(StreamFormat::JsonLines),
            _ => None,
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

    #[test]
    fn streams_have_form_of_their_api() {
        let (events, lines) = ("Text/Event-Stream ; charset=utf-8", "application/x-ndjson");
        let of = |format, path, content_type: &str| {
            let policy = ResponsePolicy::of(&with_format(format), path);
            policy.stream_format(content_type.as_bytes())
        };
        for (format, path, content_type, expected) in [
            (
                ErrorFormat::OpenAi,
                "/v1/responses",
                events,
                Some(StreamFormat::ResponsesEvents),
            ),
            (
                ErrorFormat::Problem,
                "/v1/responses",
                events,
                Some(StreamFormat::Events(ErrorFormat::Problem)),
            ),
            (
                ErrorFormat::OpenAi,
                "/v1/responses2",
                events,
                Some(StreamFormat::Events(ErrorFormat::OpenAi)),
            ),
            (
                ErrorFormat::OpenAi,
                "/v1/messages",
                events,
                Some(StreamFormat::Events(ErrorFormat::Anthropic)),
            ),
            (
                ErrorFormat::Ollama,
                "/api/chat",
                lines,
                Some(StreamFormat::JsonLines),
            ),
            (ErrorFormat::Problem, "/api/chat", lines, None),
            (ErrorFormat::Ollama, "/api/chat", "application/json", None),
        ] {
            assert_eq!(of(format, path, content_type), expected, "{path}");
        }
    }
}
