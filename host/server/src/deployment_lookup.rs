//! Finds deployments for plugins that call them or send them messages.

use crate::deployments::{Deployments, WeakDeployments};
use crate::problem::{ErrorFormat, Problem};
use crate::public_requests::unavailable;
use crate::triggers::attempt::HOST_HEADERS;
use crate::triggers::messages;
use corral_runtime::{
    Body, CallError, CallLimit, CallTarget, DeploymentLookup, Message, MessageSender, PublishError,
    Publishing, QuotaPermit,
};
use http::{HeaderMap, Response, StatusCode};
use std::sync::Arc;

/// Looks up deployments by name. Weak, because the deployments own the runtime, which owns this.
pub(crate) struct ServerDeploymentLookup(pub(crate) WeakDeployments);

impl ServerDeploymentLookup {
    fn deployments(&self) -> Result<Deployments, Box<Response<Body>>> {
        let stopping = || boxed(Problem::shutting_down(), ErrorFormat::Problem);
        self.0.upgrade().ok_or_else(stopping)
    }

    /// The response to a request that a deployment refuses, because of `limit` or for another reason. Counts it.
    fn refuse(&self, name: &str, problem: Problem, limit: Option<CallLimit>) -> Response<Body> {
        let deployments = self.deployments();
        let deployment = deployments
            .ok()
            .and_then(|deployments| deployments.get(name));
        let Some(deployment) = deployment else {
            return problem.into_response_as(ErrorFormat::Problem);
        };
        let state = &deployment.context.deployment;
        state.count_refused_request(problem.code());
        if let Some(limit) = limit {
            state.count_limit_hit(limit);
        }
        let format = deployment.first_policy().map(|policy| policy.error_format);
        problem.into_response_as(format.unwrap_or_default())
    }
}

fn boxed(problem: Problem, format: ErrorFormat) -> Box<Response<Body>> {
    Box::new(problem.into_response_as(format))
}

impl DeploymentLookup for ServerDeploymentLookup {
    fn find(
        &self,
        name: &str,
        headers: &mut HeaderMap,
        quota_permit: Option<Arc<QuotaPermit>>,
    ) -> Result<CallTarget, Box<Response<Body>>> {
        let deployment = self.deployments()?.get(name).ok_or_else(|| {
            let detail = format!("there is no deployment '{}'", name.escape_debug());
            let problem = Problem::new(StatusCode::NOT_FOUND, "no-deployment", detail);
            boxed(problem, ErrorFormat::Problem)
        })?;
        deployment.count_request();
        for name in HOST_HEADERS {
            headers.remove(name);
        }
        let refused = |problem: Problem, format| {
            let state = &deployment.context.deployment;
            state.count_refused_request(problem.code());
            boxed(problem, format)
        };
        let (plugin, policy) = deployment.pick().map_err(|reason| {
            let format = deployment.first_policy().map(|policy| policy.error_format);
            refused(
                unavailable(&deployment, &reason, false),
                format.unwrap_or_default(),
            )
        })?;
        let quota_permit = QuotaPermit::acquire_within(quota_permit, policy.quota.clone())
            .map_err(|error| refused(error.into(), policy.error_format))?;
        Ok(plugin.call_target(quota_permit))
    }

    fn failed(&self, name: &str, error: CallError) -> Response<Body> {
        self.refuse(name, error.into(), None)
    }

    fn too_large(&self, name: &str, limit: u64) -> Response<Body> {
        self.refuse(
            name,
            Problem::too_large(limit),
            Some(CallLimit::RequestBytes),
        )
    }

    fn publish(&self, message: Message, sender: MessageSender) -> Publishing {
        let deployments = self.0.upgrade();
        Box::pin(async move {
            let deployments = deployments.ok_or(PublishError::Unavailable)?;
            messages::publish_for_plugin(&deployments, message, sender).await
        })
    }
}
