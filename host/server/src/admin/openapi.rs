//! Makes `openapi.json` from the structures that the API reads and answers, so that it can't drift; a
//! test compares. What stands here by hand is what Rust's types don't say: paths, statuses, words.

use super::view::{
    ComponentView, DeployedView, DeploymentView, DetailView, LineView, ListView, PauseWanted,
    ProblemView, RemovedView, RollbackWanted, TrafficWanted,
};
use crate::deployments::Manifest;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

/// One operation.
struct Operation {
    id: &'static str,
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    /// Name, type and meaning of each query parameter.
    query: &'static [(&'static str, &'static str, &'static str)],
    /// What its body holds.
    request: Option<(&'static str, Value)>,
    /// Status, meaning, content type and schema of each success.
    answers: Vec<(u16, &'static str, &'static str, Value)>,
    /// Statuses and meanings of its problems, apart from those that all have.
    problems: &'static [(u16, &'static str)],
}

const JSON: &str = "application/json";
const DIGEST: &str = "^sha256:[0-9a-f]{64}$";
const NAME: &str = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$";
const NO_DEPLOYMENT: (u16, &str) = (
    404,
    "There is no such deployment, or no such revision of it.",
);
const BAD_BODY: (u16, &str) = (400, "The body is not what is wanted here.");
const LARGE_BODY: (u16, &str) = (413, "The body is too large.");

/// The operations; `schemas` gets what they refer to.
fn operations(schemas: &mut SchemaGenerator) -> Vec<Operation> {
    let schema = |schema: schemars::Schema| Value::from(schema);
    let changed = |schemas: &mut SchemaGenerator| {
        let now = schema(schemas.subschema_for::<DeploymentView>());
        vec![(200, "The deployment as it is now.", JSON, now)]
    };
    let bytes = json!({"type": "string", "format": "binary"});
    let component = schema(schemas.subschema_for::<ComponentView>());
    vec![
        Operation {
            id: "getComponent",
            method: "get",
            path: "/components/{digest}",
            summary: "Whether the server has a component.",
            query: &[],
            request: None,
            answers: vec![(200, "It has.", JSON, component.clone())],
            problems: &[(400, "This is no digest."), (404, "It has not.")],
        },
        Operation {
            id: "putComponent",
            method: "put",
            path: "/components/{digest}",
            summary: "Uploads a component. One that no deployment uses soon may be dropped again.",
            query: &[],
            request: Some(("application/wasm", bytes)),
            answers: vec![
                (200, "The server had it already.", JSON, component.clone()),
                (201, "The server has it now.", JSON, component),
            ],
            problems: &[
                BAD_BODY,
                (408, "The body did not arrive in time."),
                (413, "The component is larger than the server takes."),
                (422, "These bytes have another digest."),
                (507, "The store is full."),
            ],
        },
        Operation {
            id: "listDeployments",
            method: "get",
            path: "/deployments",
            summary: "All deployments.",
            query: &[],
            request: None,
            answers: vec![(
                200,
                "The deployments.",
                JSON,
                schema(schemas.subschema_for::<ListView>()),
            )],
            problems: &[],
        },
        Operation {
            id: "getDeployment",
            method: "get",
            path: "/deployments/{name}",
            summary: "A deployment with its revisions.",
            query: &[],
            request: None,
            answers: vec![(
                200,
                "The deployment.",
                JSON,
                schema(schemas.subschema_for::<DetailView>()),
            )],
            problems: &[(400, "This is no name."), NO_DEPLOYMENT],
        },
        Operation {
            id: "deploy",
            method: "post",
            path: "/deployments/{name}",
            summary: "Deploys a component that was uploaded, with those that it is linked with: checks them, compiles them, keeps them as a new revision, and gives that all requests.",
            query: &[(
                "traffic",
                "boolean",
                "False gives the new revision no requests yet, unless it is the first.",
            )],
            request: Some((JSON, schema(schemas.subschema_for::<Manifest>()))),
            answers: vec![(
                201,
                "The new revision. It is kept, and new requests go there.",
                JSON,
                schema(schemas.subschema_for::<DeployedView>()),
            )],
            problems: &[
                BAD_BODY,
                (404, "A component has not been uploaded."),
                (409, "One of the routes belongs to another deployment."),
                LARGE_BODY,
                (
                    422,
                    "The manifest or a component can't be deployed: not a component, an unknown import, no role, links that don't fit, a model that there is not, or it takes too long to compile.",
                ),
                (507, "There are as many deployments as are kept."),
            ],
        },
        Operation {
            id: "removeDeployment",
            method: "delete",
            path: "/deployments/{name}",
            summary: "Removes a deployment with all its revisions. Its running requests end as they would have.",
            query: &[],
            request: None,
            answers: vec![(
                200,
                "It is removed.",
                JSON,
                schema(schemas.subschema_for::<RemovedView>()),
            )],
            problems: &[(400, "This is no name."), NO_DEPLOYMENT],
        },
        Operation {
            id: "setTraffic",
            method: "put",
            path: "/deployments/{name}/traffic",
            summary: "Shares requests out among revisions with the same routes.",
            query: &[],
            request: Some((JSON, schema(schemas.subschema_for::<TrafficWanted>()))),
            answers: changed(schemas),
            problems: &[
                BAD_BODY,
                NO_DEPLOYMENT,
                (409, "Their routes differ, or belong to another deployment."),
                LARGE_BODY,
                (
                    422,
                    "The weights are none, or a component can't serve any more.",
                ),
            ],
        },
        Operation {
            id: "rollBack",
            method: "post",
            path: "/deployments/{name}/rollback",
            summary: "Gives all requests to one revision, or shares them out as before the last change.",
            query: &[],
            request: Some((JSON, schema(schemas.subschema_for::<RollbackWanted>()))),
            answers: changed(schemas),
            problems: &[
                BAD_BODY,
                NO_DEPLOYMENT,
                (
                    409,
                    "There is nothing to roll back to, or its routes belong to another deployment.",
                ),
                LARGE_BODY,
                (422, "The component can't serve any more."),
            ],
        },
        Operation {
            id: "setPaused",
            method: "put",
            path: "/deployments/{name}/paused",
            summary: "Refuses a deployment's requests, or serves them again. Running ones go on.",
            query: &[],
            request: Some((JSON, schema(schemas.subschema_for::<PauseWanted>()))),
            answers: changed(schemas),
            problems: &[BAD_BODY, NO_DEPLOYMENT, LARGE_BODY],
        },
        Operation {
            id: "getLogs",
            method: "get",
            path: "/deployments/{name}/logs",
            summary: "The last lines that a deployment's plugins wrote, one JSON object on each line.",
            query: &[
                (
                    "follow",
                    "boolean",
                    "True goes on with what comes, for 16 at a time.",
                ),
                ("after", "integer", "Begins after the line of this number."),
            ],
            request: None,
            answers: vec![(
                200,
                "The lines.",
                "application/x-ndjson",
                schema(schemas.subschema_for::<LineView>()),
            )],
            problems: &[(400, "The name or the query is none."), NO_DEPLOYMENT],
        },
    ]
}

/// The whole document.
fn document() -> Value {
    let settings = SchemaSettings::draft2020_12()
        .with(|settings| settings.definitions_path = "/components/schemas".into());
    let mut schemas = settings.into_generator();
    let problem = Value::from(schemas.subschema_for::<ProblemView>());
    let mut paths = json!({});
    for operation in operations(&mut schemas) {
        let mut parameters = Vec::new();
        for (name, pattern, what) in [
            ("digest", DIGEST, "The component's digest."),
            ("name", NAME, "The deployment."),
        ] {
            if operation.path.contains(&format!("{{{name}}}")) {
                parameters.push(json!({
                    "name": name, "in": "path", "required": true, "description": what,
                    "schema": {"type": "string", "pattern": pattern},
                }));
            }
        }
        for (name, kind, what) in operation.query {
            parameters.push(json!({
                "name": name, "in": "query", "required": false, "description": what,
                "schema": {"type": kind},
            }));
        }
        let mut responses = json!({});
        for (status, what, content, schema) in operation.answers {
            responses[status.to_string()] =
                json!({"description": what, "content": {content: {"schema": schema}}});
        }
        let common = [
            (401, "The admin token is missing or wrong."),
            (
                421,
                "The server can be asked from its own machine alone, and not by this name of it.",
            ),
            (500, "The server failed; its log says why."),
            (
                503,
                "Not now: models are being loaded, other changes are under way, or the server keeps no deployments.",
            ),
        ];
        for (status, what) in common.iter().chain(operation.problems) {
            responses[status.to_string()] = json!({
                "description": what,
                "content": {"application/problem+json": {"schema": problem}},
            });
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
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Corral's admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Sees and changes what a server has deployed. A deploy takes two steps: PUT the component, then POST its manifest.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:8081"}],
        "security": [{"adminToken": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"adminToken": {"type": "http", "scheme": "bearer"}},
        },
    })
}

#[test]
fn the_served_document_is_that_of_the_structures() {
    let made = document();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
    if std::env::var_os("CORRAL_WRITE_SCHEMAS").is_some() {
        let text = serde_json::to_string_pretty(&made).expect("serialisable");
        std::fs::write(file, text + "\n").expect("the source can be written");
        return;
    }
    // Not as texts: in which order members are written depends on features of other crates.
    let served: Value = serde_json::from_str(super::api::OPENAPI).expect("JSON");
    assert_eq!(
        served, made,
        "the API has changed; write its description anew: CORRAL_WRITE_SCHEMAS=1 cargo test"
    );
}
