//! The other deployments of the server, as plugins see them: what they may call, to what they may publish, and the server's
//! lookup that finds it.

use crate::call_error::CallError;
use crate::message_subject::{Subject, SubjectPattern};
use crate::messages::{Message, MessageSender, Publishing};
use crate::outbound::RequestBody;
use crate::quota::QuotaPermit;
use crate::response_body::Body;
use crate::runtime_config::CallOptions;
use http::{HeaderMap, Request, Response};
use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

/// The deployments of the server, for plugins that call them or send them messages.
pub trait DeploymentLookup: Send + Sync {
    /// What answers a request to a deployment. Removes headers that only the server may set. The permit counts the request
    /// in the deployment's quota, and holds the caller's.
    ///
    /// # Errors
    /// The response, if the deployment cannot answer.
    fn find(
        &self,
        name: &str,
        headers: &mut HeaderMap,
        quota_permit: Option<Arc<QuotaPermit>>,
    ) -> Result<CallTarget, Box<Response<Body>>>;

    /// The response of a deployment whose call failed, as its clients get it.
    fn failed(&self, name: &str, error: CallError) -> Response<Body>;

    /// The response of a deployment to a request whose body has more than `limit` bytes, as its clients get it.
    fn too_large(&self, name: &str, limit: u64) -> Response<Body>;

    /// Stores a message for each deployment that subscribes to its subject; there may be none.
    fn publish(&self, message: Message, sender: MessageSender) -> Publishing;
}

/// What answers a call: a plugin and the permit of all quotas. See [`Plugin::call_target`](crate::Plugin::call_target).
pub struct CallTarget {
    pub(crate) plugin: Box<dyn CalledPlugin>,
    pub(crate) quota_permit: Option<Arc<QuotaPermit>>,
}

/// The plugin of the revision that was picked.
pub(crate) trait CalledPlugin: Send + Sync {
    /// Largest body of a request.
    fn request_bytes(&self) -> usize;

    /// Lets an instance answer the request.
    fn answer(&self, request: Request<RequestBody>, options: CallOptions) -> Calling<'_>;
}

/// A call on its way to the head of its response.
pub(crate) type Calling<'a> =
    Pin<Box<dyn Future<Output = Result<Response<Body>, CallError>> + Send + 'a>>;

/// The server's lookup, once it is set.
pub(crate) type DeploymentLookupSlot = Arc<OnceLock<Arc<dyn DeploymentLookup>>>;

/// The deployments that a plugin may call.
pub(crate) struct DeploymentGrants {
    pub(crate) names: BTreeSet<String>,
    pub(crate) deployment_lookup: DeploymentLookupSlot,
}

/// The subjects to which a plugin may publish.
pub(crate) struct MessageGrants {
    pub(crate) subjects: Vec<SubjectPattern>,
    pub(crate) deployment_lookup: DeploymentLookupSlot,
}

impl MessageGrants {
    /// Whether messages with this subject are granted.
    pub(crate) fn allow(&self, subject: &Subject) -> bool {
        self.subjects.iter().any(|granted| granted.matches(subject))
    }
}
