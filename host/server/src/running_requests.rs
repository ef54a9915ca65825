//! The requests that deployments answer at the moment, so that an operator can see and cancel them.
//!
//! A request is listed from its admission to the end of its response. Requests that were refused, and probes, are not.

use crate::request_id::HttpRequestId;
use corral_engine::TokenUsage;
use corral_runtime::CallCanceler;
use http::Method;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::oneshot;

/// Longest part of a path that is listed.
const MAX_PATH_CHARS: usize = 256;

/// The way by which a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestSource {
    /// The public listener.
    Public,
    /// `/call` of the admin listener. A caller with the admin token needs no API key.
    Console {
        /// Whether the caller has the admin token.
        has_token: bool,
    },
}

impl RequestSource {
    /// Its name in status reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            RequestSource::Public => "public",
            RequestSource::Console { .. } => "console",
        }
    }
}

/// A listed request.
#[derive(Debug)]
pub(crate) struct RunningRequest {
    pub(crate) id: HttpRequestId,
    pub(crate) source: RequestSource,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) deployment: Arc<str>,
    pub(crate) revision: Option<u64>,
    /// Names of the API key and its tenant.
    pub(crate) key: Option<[Arc<str>; 2]>,
    pub(crate) usage: Arc<TokenUsage>,
    pub(crate) started: Instant,
    cancel: Mutex<Cancel>,
}

/// What cancels a request.
#[derive(Debug)]
enum Cancel {
    /// Before its response: who waits for the response.
    Waiting(oneshot::Sender<()>),
    /// During its response: the call that writes it.
    Call(CallCanceler),
    /// Nothing: the whole response is there, or it is canceled already.
    Done,
}

/// What is known of a request when it is listed.
pub(crate) struct AdmittedRequest<'a> {
    pub(crate) id: HttpRequestId,
    pub(crate) source: RequestSource,
    pub(crate) method: &'a Method,
    pub(crate) path: &'a str,
    pub(crate) deployment: &'a Arc<str>,
    pub(crate) revision: Option<u64>,
    pub(crate) key: Option<[Arc<str>; 2]>,
    pub(crate) usage: &'a Arc<TokenUsage>,
    /// Tells who waits for the response that the request is canceled.
    pub(crate) cancel: oneshot::Sender<()>,
}

/// The listed requests, oldest first.
#[derive(Debug, Default)]
pub(crate) struct RunningRequests(Mutex<BTreeMap<HttpRequestId, Arc<RunningRequest>>>);

/// Keeps a request listed.
#[derive(Debug)]
pub(crate) struct ListedRequest {
    all: Arc<RunningRequests>,
    request: Arc<RunningRequest>,
}

impl RunningRequests {
    /// Lists a request until the guard is dropped.
    pub(crate) fn list(self: &Arc<Self>, admitted: AdmittedRequest<'_>) -> ListedRequest {
        let request = Arc::new(RunningRequest {
            id: admitted.id,
            source: admitted.source,
            method: admitted.method.clone(),
            path: admitted.path.chars().take(MAX_PATH_CHARS).collect(),
            deployment: Arc::clone(admitted.deployment),
            revision: admitted.revision,
            key: admitted.key,
            usage: Arc::clone(admitted.usage),
            started: Instant::now(),
            cancel: Mutex::new(Cancel::Waiting(admitted.cancel)),
        });
        self.lock().insert(request.id, Arc::clone(&request));
        ListedRequest {
            all: Arc::clone(self),
            request,
        }
    }

    /// At most `most` of the requests, oldest first, and the number of all.
    pub(crate) fn oldest(&self, most: usize) -> (Vec<Arc<RunningRequest>>, usize) {
        let all = self.lock();
        (all.values().take(most).cloned().collect(), all.len())
    }

    /// Cancels a request. False if none of this id runs, or if its whole response is there.
    pub(crate) fn cancel(&self, id: &str) -> bool {
        let found = match id.parse() {
            Ok(id) => self.lock().get(&id).cloned(),
            Err(_) => None,
        };
        let Some(request) = found else {
            return false;
        };
        let cancel = std::mem::replace(&mut *request.cancel(), Cancel::Done);
        match cancel {
            Cancel::Waiting(sender) => {
                // Without a receiver, the response begins just now; `answered` cancels it.
                let _ = sender.send(());
                true
            }
            Cancel::Call(call) => {
                call.cancel();
                true
            }
            Cancel::Done => false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<HttpRequestId, Arc<RunningRequest>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RunningRequest {
    fn cancel(&self) -> MutexGuard<'_, Cancel> {
        self.cancel.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ListedRequest {
    /// The response has begun; `call` writes the rest. A request that was canceled at the same moment is canceled now.
    pub(crate) fn answered(&self, call: Option<CallCanceler>) {
        let mut cancel = self.request.cancel();
        match (&*cancel, call) {
            (Cancel::Waiting(_), Some(call)) => *cancel = Cancel::Call(call),
            (Cancel::Waiting(_), None) => *cancel = Cancel::Done,
            (Cancel::Done, Some(call)) => call.cancel(),
            (Cancel::Done, None) | (Cancel::Call(_), _) => {}
        }
    }
}

impl Drop for ListedRequest {
    fn drop(&mut self) {
        self.all.lock().remove(&self.request.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_id::RequestIdGenerator;

    fn list(all: &Arc<RunningRequests>) -> (ListedRequest, oneshot::Receiver<()>) {
        let ids = RequestIdGenerator::default();
        ids.next();
        let (cancel, canceled) = oneshot::channel();
        let listed = all.list(AdmittedRequest {
            id: ids.next(),
            source: RequestSource::Public,
            method: &Method::GET,
            path: &"x".repeat(1000),
            deployment: &"a".into(),
            revision: None,
            key: None,
            usage: &Arc::default(),
            cancel,
        });
        (listed, canceled)
    }

    #[test]
    fn request_is_listed_until_its_end() {
        let all = Arc::new(RunningRequests::default());
        let (listed, _canceled) = list(&all);
        let (requests, count) = all.oldest(10);
        assert_eq!((requests.len(), count), (1, 1));
        assert_eq!(requests[0].path.len(), MAX_PATH_CHARS);
        assert!(all.oldest(0).0.is_empty());
        drop(listed);
        assert_eq!(all.oldest(10).1, 0);
    }

    #[test]
    fn waiting_request_is_canceled_once() {
        let all = Arc::new(RunningRequests::default());
        let (listed, mut canceled) = list(&all);
        let id = listed.request.id.to_string();
        for bad in ["", "x", "-", "0-0", "00000000-1", &format!("{id}0"), "ü-1"] {
            assert!(!all.cancel(bad), "{bad:?}");
        }
        canceled.try_recv().expect_err("not canceled");
        assert!(all.cancel(&id));
        canceled.try_recv().expect("canceled");
        assert!(!all.cancel(&id), "already");
    }

    #[test]
    fn complete_response_cannot_be_canceled() {
        let all = Arc::new(RunningRequests::default());
        let (listed, _canceled) = list(&all);
        listed.answered(None);
        assert!(!all.cancel(&listed.request.id.to_string()));
    }
}
