//! Generates `openapi.json` from the types of the API; a test compares it with the file. Written by hand are
//! only paths, statuses and descriptions.

use super::types::{
    ClusterStatus, ComponentInfo, DeployResponse, DeploymentDetails, DeploymentList,
    DeploymentStatus, LogLine, PauseRequest, ProblemDocument, PurgeResponse, RemoveResponse,
    RollbackRequest, TrafficRequest,
};
use crate::deployments::Manifest;
use crate::deployments::artifact::ArtifactRequest;
use crate::triggers::{JobList, JobStatus};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Value, json};

/// One operation.
struct Operation {
    id: &'static str,
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    query: &'static [QueryParameter],
    /// Content type and schema of the request's body.
    request: Option<(&'static str, Value)>,
    /// Its successes.
    responses: Vec<Success>,
    /// Status and meaning of its problems, apart from the common ones.
    problems: &'static [(u16, &'static str)],
}

const JSON: &str = "application/json";
const DIGEST: &str = "^sha256:[0-9a-f]{64}$";
const NAME: &str = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$";
const ANY_NAME: &str = "^.+$";
/// Parameters in paths: the name in the document, that in the path, pattern and meaning.
const PATH_PARAMETERS: [(&str, &str, &str, &str); 4] = [
    ("Digest", "digest", DIGEST, "The component's digest."),
    ("Deployment", "name", NAME, "The deployment."),
    (
        "LoggedDeployment",
        "name",
        ANY_NAME,
        "The deployment. One of the command line is named by its route, percent-encoded.",
    ),
    ("Job", "id", ANY_NAME, "The job."),
];
const NO_DEPLOYMENT: (u16, &str) = (404, "The deployment or its revision does not exist.");
const BAD_BODY: (u16, &str) = (400, "The body is invalid.");
const LARGE_BODY: (u16, &str) = (413, "The body is too large.");
/// The problems of every operation, with their names in the document.
const COMMON: [(&str, (u16, &str)); 5] = [
    (
        "Unauthorized",
        (401, "The admin token is missing or wrong."),
    ),
    (
        "OtherHost",
        (
            421,
            "The server is reachable from its own machine only, and not by this host name.",
        ),
    ),
    ("Failed", (500, "The server failed; its log says why.")),
    (
        "Unavailable",
        (
            503,
            "Unavailable: models are loading, other changes are in progress, the server has no store, or it cannot reach the cluster's.",
        ),
    ),
    (
        "Unconfirmed",
        (
            504,
            "The cluster's store did not confirm the change in time: it may have been made.",
        ),
    ),
];
/// The problems of several operations.
const SHARED: [(&str, (u16, &str)); 3] = [
    ("NoDeployment", NO_DEPLOYMENT),
    ("InvalidBody", BAD_BODY),
    ("LargeBody", LARGE_BODY),
];
const CONFLICT: &str =
    "A route belongs to another deployment, or another change in the cluster came first.";
const OVERTAKEN: (u16, &str) = (409, "Another change in the cluster came first.");
const AFTER_CHANGE: &str = "The deployment after the change.";
const TRAFFIC: [QueryParameter; 1] = [(
    "traffic",
    "boolean",
    "False routes no requests to the new revision yet, unless it is the first.",
)];

/// Name, type and meaning.
type QueryParameter = (&'static str, &'static str, &'static str);
/// Status, meaning, content type and schema.
type Success = (u16, &'static str, &'static str, Value);

/// The only success of an operation, a `T` in JSON.
fn ok<T: JsonSchema>(schemas: &mut SchemaGenerator, meaning: &'static str) -> Vec<Success> {
    let schema = schemas.subschema_for::<T>();
    vec![(200, meaning, JSON, schema.into())]
}

/// The operations. Adds the types they use to `schemas`.
fn operations(schemas: &mut SchemaGenerator) -> Vec<Operation> {
    let schema = |schema: schemars::Schema| Value::from(schema);
    let deployed = |schemas: &mut SchemaGenerator| {
        let response = schema(schemas.subschema_for::<DeployResponse>());
        let meaning = "The new revision is stored and receives requests.";
        vec![(201, meaning, JSON, response)]
    };
    let bytes = json!({"type": "string", "format": "binary"});
    let component = schema(schemas.subschema_for::<ComponentInfo>());
    vec![
        Operation {
            id: "getComponent",
            method: "get",
            path: "/components/{digest}",
            summary: "Get a component's size.",
            query: &[],
            request: None,
            responses: vec![(200, "The component.", JSON, component.clone())],
            problems: &[
                (400, "The digest is malformed."),
                (404, "The server does not have the component."),
            ],
        },
        Operation {
            id: "putComponent",
            method: "put",
            path: "/components/{digest}",
            summary: "Upload a component. The server may drop it again if no deployment uses it soon.",
            query: &[],
            request: Some(("application/wasm", bytes)),
            responses: vec![
                (
                    200,
                    "The server had the component already.",
                    JSON,
                    component.clone(),
                ),
                (201, "The component is stored.", JSON, component),
            ],
            problems: &[
                BAD_BODY,
                (408, "The body did not arrive in time."),
                (413, "The component is too large."),
                (422, "The bytes have another digest."),
                (507, "The store is full."),
            ],
        },
        Operation {
            id: "getCluster",
            method: "get",
            path: "/cluster",
            summary: "List the hosts of the cluster, and what each of them serves.",
            query: &[],
            request: None,
            responses: ok::<ClusterStatus>(schemas, "The cluster."),
            problems: &[(404, "The server is in no cluster.")],
        },
        Operation {
            id: "listDeployments",
            method: "get",
            path: "/deployments",
            summary: "List all deployments.",
            query: &[],
            request: None,
            responses: ok::<DeploymentList>(schemas, "The deployments."),
            problems: &[],
        },
        Operation {
            id: "getDeployment",
            method: "get",
            path: "/deployments/{name}",
            summary: "Get a deployment with its revisions.",
            query: &[],
            request: None,
            responses: ok::<DeploymentDetails>(schemas, "The deployment."),
            problems: &[(400, "The name is malformed."), NO_DEPLOYMENT],
        },
        Operation {
            id: "deploy",
            method: "post",
            path: "/deployments/{name}",
            summary: "Deploy an uploaded component with its linked components: validates and compiles them, stores them as a new revision, and routes all requests to it.",
            query: &TRAFFIC,
            request: Some((JSON, schema(schemas.subschema_for::<Manifest>()))),
            responses: deployed(schemas),
            problems: &[
                BAD_BODY,
                NOT_SIGNED,
                (404, "A component has not been uploaded."),
                (409, CONFLICT),
                LARGE_BODY,
                (
                    422,
                    "The manifest or a component cannot be deployed: invalid component, unknown import, missing export, linked components that do not fit, unknown model, or compilation takes too long.",
                ),
                (507, "The store holds the maximum number of deployments."),
            ],
        },
        Operation {
            id: "deployArtifact",
            method: "post",
            path: "/deployments/{name}/artifact",
            summary: "Deploy an artifact of a registry, whose components are uploaded. The new revision records its source. The server does not ask the registry: it checks that the image manifest has the source's digest and names all components.",
            query: &TRAFFIC,
            request: Some((JSON, schema(schemas.subschema_for::<ArtifactRequest>()))),
            responses: deployed(schemas),
            problems: &[
                BAD_BODY,
                NOT_SIGNED,
                (404, "A component has not been uploaded."),
                (409, CONFLICT),
                LARGE_BODY,
                (
                    422,
                    "The artifact, its manifest or a component cannot be deployed.",
                ),
                (507, "The store holds the maximum number of deployments."),
            ],
        },
        Operation {
            id: "removeDeployment",
            method: "delete",
            path: "/deployments/{name}",
            summary: "Remove a deployment with all its revisions. Running requests continue.",
            query: &[],
            request: None,
            responses: ok::<RemoveResponse>(schemas, "The deployment is removed."),
            problems: &[(400, "The name is malformed."), NO_DEPLOYMENT, OVERTAKEN],
        },
        Operation {
            id: "setTraffic",
            method: "put",
            path: "/deployments/{name}/traffic",
            summary: "Distribute requests among revisions with the same routes.",
            query: &[],
            request: Some((JSON, schema(schemas.subschema_for::<TrafficRequest>()))),
            responses: ok::<DeploymentStatus>(schemas, AFTER_CHANGE),
            problems: &[
                BAD_BODY,
                NO_DEPLOYMENT,
                (
                    409,
                    "The routes of the revisions differ, or belong to another deployment; or another change in the cluster came first.",
                ),
                LARGE_BODY,
                (
                    422,
                    "A weight is invalid, or a component cannot be loaded any more.",
                ),
            ],
        },
        Operation {
            id: "rollBack",
            method: "post",
            path: "/deployments/{name}/rollback",
            summary: "Route all requests to one revision, or restore the previous traffic.",
            query: &[],
            request: Some((JSON, schema(schemas.subschema_for::<RollbackRequest>()))),
            responses: ok::<DeploymentStatus>(schemas, AFTER_CHANGE),
            problems: &[
                BAD_BODY,
                NO_DEPLOYMENT,
                (
                    409,
                    "There is no previous traffic, or a route belongs to another deployment; or another change in the cluster came first.",
                ),
                LARGE_BODY,
                (422, "The component cannot be loaded any more."),
            ],
        },
        Operation {
            id: "setPaused",
            method: "put",
            path: "/deployments/{name}/paused",
            summary: "Refuse a deployment's requests, or serve them again. Running requests continue.",
            query: &[],
            request: Some((JSON, schema(schemas.subschema_for::<PauseRequest>()))),
            responses: ok::<DeploymentStatus>(schemas, AFTER_CHANGE),
            problems: &[BAD_BODY, NO_DEPLOYMENT, OVERTAKEN, LARGE_BODY],
        },
        Operation {
            id: "getLogs",
            method: "get",
            path: "/deployments/{name}/logs",
            summary: "Get the last lines that a deployment's plugins wrote, one JSON object per line.",
            query: &[
                (
                    "follow",
                    "boolean",
                    "True streams future lines too; at most 16 clients at once.",
                ),
                ("after", "integer", "Start after the line with this number."),
                ("tail", "integer", "At most this many of the last lines."),
                ("since", "integer", "Only lines of this many last seconds."),
                (
                    "level",
                    "string",
                    "Only lines of this level or a higher one, such as 'warn', and those of standard error.",
                ),
            ],
            request: None,
            responses: vec![(
                200,
                "The lines.",
                "application/x-ndjson",
                schema(schemas.subschema_for::<LogLine>()),
            )],
            problems: &[(400, "The name or the query is malformed."), NO_DEPLOYMENT],
        },
    ]
}

const NOT_SIGNED: (u16, &str) = (
    403,
    "The server deploys only signed artifacts, and no signature fits.",
);
const NO_JOB: (u16, &str) = (404, "The deployment or the job does not exist.");
const JOB_STATE: (&str, &str, &str) = (
    "state",
    "string",
    "Only jobs in this state: waiting, running, succeeded, dead or canceled.",
);

/// The operations on jobs.
fn job_operations(schemas: &mut SchemaGenerator) -> Vec<Operation> {
    let schema = |schema: schemars::Schema| Value::from(schema);
    let job = schema(schemas.subschema_for::<JobStatus>());
    let change = |id, path, summary, conflict| Operation {
        id,
        method: "post",
        path,
        summary,
        query: &[],
        request: None,
        responses: vec![(200, "The job after the change.", JSON, job.clone())],
        problems: conflict,
    };
    vec![
        Operation {
            id: "listJobs",
            method: "get",
            path: "/deployments/{name}/jobs",
            summary: "List the jobs of a deployment, newest first, runs of its schedules included.",
            query: &[
                JOB_STATE,
                (
                    "limit",
                    "integer",
                    "Most jobs, from 1 to 1000; by default 100.",
                ),
            ],
            request: None,
            responses: ok::<JobList>(schemas, "The jobs."),
            problems: &[(400, "The name or the query is malformed."), NO_DEPLOYMENT],
        },
        Operation {
            id: "purgeJobs",
            method: "delete",
            path: "/deployments/{name}/jobs",
            summary: "Remove finished jobs of a deployment, with their results.",
            query: &[JOB_STATE],
            request: None,
            responses: ok::<PurgeResponse>(schemas, "Their number."),
            problems: &[(400, "The name or the query is malformed."), NO_DEPLOYMENT],
        },
        change(
            "retryJob",
            "/deployments/{name}/jobs/{id}/retry",
            "Make a dead or canceled job wait again, with all its attempts.",
            &[NO_JOB, (409, "The job is neither dead nor canceled.")],
        ),
        change(
            "cancelJob",
            "/deployments/{name}/jobs/{id}/cancel",
            "Cancel a job that waits or runs.",
            &[NO_JOB, (409, "The job has finished.")],
        ),
    ]
}

/// The complete document.
fn document() -> Value {
    let settings = SchemaSettings::draft2020_12()
        .with(|settings| settings.definitions_path = "/components/schemas".into());
    let mut schemas = settings.into_generator();
    let problem = Value::from(schemas.subschema_for::<ProblemDocument>());
    let described_problem = |what: &str| {
        let content = json!({"application/problem+json": {"schema": problem}});
        json!({"description": what, "content": content})
    };
    let mut paths = json!({});
    let mut all = operations(&mut schemas);
    all.extend(job_operations(&mut schemas));
    for operation in all {
        let mut parameters = Vec::new();
        for (key, name, ..) in PATH_PARAMETERS {
            let is_used = operation.path.contains(&format!("{{{name}}}"));
            let is_of_logs = key == "LoggedDeployment";
            if is_used && (name != "name" || is_of_logs == (operation.id == "getLogs")) {
                parameters.push(json!({"$ref": format!("#/components/parameters/{key}")}));
            }
        }
        for (name, kind, what) in operation.query {
            parameters.push(json!({
                "name": name, "in": "query", "required": false, "description": what,
                "schema": {"type": kind},
            }));
        }
        let mut responses = json!({});
        for (status, what, content, schema) in operation.responses {
            responses[status.to_string()] =
                json!({"description": what, "content": {content: {"schema": schema}}});
        }
        let problems = COMMON.iter().map(|(_, problem)| problem);
        for (status, what) in problems.chain(operation.problems) {
            let mut named = COMMON.iter().chain(&SHARED);
            let named = named.find(|(_, problem)| *problem == (*status, *what));
            responses[status.to_string()] = match named {
                Some((name, _)) => json!({"$ref": format!("#/components/responses/{name}")}),
                None => described_problem(what),
            };
        }
        let mut described = json!({
            "operationId": operation.id,
            "summary": operation.summary,
            "responses": responses,
        });
        if !parameters.is_empty() {
            described["parameters"] = parameters.into();
        }
        if let Some((content, schema)) = operation.request {
            described["requestBody"] =
                json!({"required": true, "content": {content: {"schema": schema}}});
        }
        paths[operation.path][operation.method] = described;
    }
    let schemas = schemas.take_definitions(true);
    let mut named = json!({});
    for (name, (_, what)) in COMMON.iter().chain(&SHARED) {
        named[*name] = described_problem(what);
    }
    let mut parameters = json!({});
    for (key, name, pattern, what) in PATH_PARAMETERS {
        parameters[key] = json!({
            "name": name, "in": "path", "required": true, "description": what,
            "schema": {"type": "string", "pattern": pattern},
        });
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Corral's admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Lists and changes the deployments of a server. A deploy takes two steps: PUT the component, then POST its manifest.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:8081"}],
        "security": [{"adminToken": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": named,
            "parameters": parameters,
            "securitySchemes": {"adminToken": {"type": "http", "scheme": "bearer"}},
        },
    })
}

#[test]
fn openapi_json_matches_the_types() {
    let generated = document();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
    if std::env::var_os("CORRAL_WRITE_SCHEMAS").is_some() {
        let text = serde_json::to_string_pretty(&generated).expect("serializable");
        std::fs::write(file, text + "\n").expect("the source can be written");
        return;
    }
    // Compared as values: the order of members depends on features of other crates.
    let served: Value = serde_json::from_str(crate::api_description::OPENAPI).expect("JSON");
    assert_eq!(
        served, generated,
        "the API has changed; regenerate its description: CORRAL_WRITE_SCHEMAS=1 cargo test"
    );
}
