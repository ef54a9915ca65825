//! `/deployments/NAME/jobs`: an operator lists, retries, cancels and purges the jobs of a deployment.

use super::types::PurgeResponse;
use crate::deployments::{ChangeError, DeploymentName, Deployments};
use crate::json_response::json;
use crate::problem::Problem;
use crate::triggers::job_routes::list_query;
use crate::triggers::{JobKey, ScheduleStatus};
use corral_runtime::Body;
use http::request::Parts;
use http::{Method, Response, StatusCode};

/// Answers a request; `rest` follows `/deployments/NAME/jobs`.
pub(super) async fn answer(
    deployments: &Deployments,
    name: &DeploymentName,
    head: &Parts,
    rest: &[&str],
) -> Result<Response<Body>, Problem> {
    let triggers = deployments.triggers().ok_or(ChangeError::NoStore)?;
    let key = |id: &str| JobKey {
        deployment: name.to_string(),
        id: id.to_owned(),
    };
    match (rest, &head.method) {
        ([], &Method::GET | &Method::HEAD) => {
            let (state, most) = list_query(head.uri.query())?;
            let list = triggers.list(name.to_string(), None, state, most).await?;
            Ok(json(StatusCode::OK, &list))
        }
        ([], &Method::DELETE) => {
            let (state, _) = list_query(head.uri.query())?;
            let removed = triggers.purge(name.to_string(), state).await?;
            Ok(json(StatusCode::OK, &PurgeResponse { removed }))
        }
        ([], _) => Err(Problem::method("DELETE, GET, HEAD")),
        ([id, "retry"], &Method::POST) => Ok(json(StatusCode::OK, &triggers.retry(key(id)).await?)),
        ([id, "cancel"], &Method::POST) => {
            Ok(json(StatusCode::OK, &triggers.cancel(key(id)).await?))
        }
        ([_, "retry" | "cancel"], _) => Err(Problem::method("POST")),
        _ => Err(Problem::no_route(head.uri.path())),
    }
}

/// The schedules of a deployment, with their last runs.
pub(super) async fn schedules(
    deployments: &Deployments,
    name: &DeploymentName,
) -> Result<Vec<ScheduleStatus>, Problem> {
    let Some((triggers, deployment)) = deployments.triggers().zip(deployments.get(name.as_str()))
    else {
        return Ok(Vec::new());
    };
    let settings = deployment.triggers().unwrap_or_default();
    Ok(triggers.schedules(name.to_string(), settings).await?)
}
