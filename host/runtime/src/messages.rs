//! Messages that plugins publish to other deployments.
//!
//! The plugin needs a grant for the subject. The server finds the deployments that subscribe to it, and stores the message
//! for each (see [`DeploymentLookup::publish`]). A message counts for the tenant of the call that published it. It
//! carries its depth, which is one more than that of the message that the call handles: a loop ends at [`MAX_DEPTH`].
//!
//! [`DeploymentLookup::publish`]: crate::DeploymentLookup::publish

pub(crate) mod bindings;

use crate::call_context::CallContext;
use crate::message_subject::Subject;
use bytes::Bytes;
use std::pin::Pin;
use std::sync::Arc;

/// Most messages in a row of which each was published while the last one was handled.
pub(crate) const MAX_DEPTH: u8 = 8;

/// A message.
#[derive(Clone, Debug)]
pub struct Message {
    /// Its subject.
    pub subject: Subject,
    /// Its content.
    pub body: Bytes,
    /// The subject for an answer.
    pub reply_to: Option<Subject>,
}

/// Who published a message.
#[derive(Clone, Debug)]
pub struct MessageSender {
    /// Name of the plugin's deployment.
    pub deployment: Arc<str>,
    /// Names of the tenant and of the API key of the call, if it has one.
    pub key: Option<[Arc<str>; 2]>,
    /// Messages in a row that led to this one.
    pub depth: u8,
}

/// Why a message was not stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublishError {
    /// The body is too large.
    TooLarge,
    /// A deployment has too many messages already.
    Full,
    /// The store failed or is busy.
    Unavailable,
    /// Another cause.
    Other(String),
}

/// A message on its way to the store.
pub type Publishing = Pin<Box<dyn Future<Output = Result<(), PublishError>> + Send>>;

/// Why a plugin could not handle a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageError {
    /// What the plugin returned.
    pub message: String,
    /// Whether another attempt may succeed.
    pub can_retry: bool,
}

impl MessageSender {
    /// The plugin of a call, for the next message.
    pub(crate) fn of(context: &CallContext) -> Self {
        let tenant = Some(&context.tenant_name).filter(|name| !name.is_empty());
        Self {
            deployment: Arc::clone(&context.log_origin.deployment),
            key: tenant
                .cloned()
                .zip(context.key_name.clone())
                .map(Into::into),
            depth: context.message_depth.saturating_add(1),
        }
    }
}
