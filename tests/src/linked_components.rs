//! The test plugin `linked-handler`, deployed as `roles`, and its linked components.

use crate::deployments::deploy_dir;
use crate::{Corral, Response};
use serde_json::Value;

/// A templating component without grants.
pub const TEMPLATE: &str = r#""templates.wasm""#;
/// A templating component that inherits the deployment's grants.
pub const INHERITING_TEMPLATE: &str = r#"{ component = "templates.wasm", inherit = true }"#;

/// Starts a server with the plugin at `/roles`, linked with a template and the samplers `any` and `other`
/// (one component under two names).
pub fn start(arguments: &[&str]) -> Corral {
    let corral = Corral::start_with_store(arguments);
    deploy(&corral, "roles", TEMPLATE, "");
    corral
}

/// Deploys the plugin as `name` at `/NAME`, linked with `template`; `more` is added to the manifest.
pub fn deploy(corral: &Corral, name: &str, template: &str, more: &str) {
    let manifest = format!(
        "name = '{name}'\ncomponent = 'linked-handler.wasm'\nroutes = ['/{name}']\n{more}\n\
         [linked]\ntemplating = {template}\n\
         [linked.sampling]\nany = 'samplers.wasm'\nother = 'samplers.wasm'\n"
    );
    deploy_dir(
        corral,
        &manifest,
        &["linked-handler", "samplers", "templates"],
    );
}

/// The plugin's report of a failed host call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestError {
    /// The call that failed.
    pub at: String,
    /// The error's case as in `wit/`; `other` for an error that the host did not make.
    pub case: String,
    /// The error's text; empty if it has none.
    pub text: String,
    /// Number of tokens generated before the error.
    pub tokens: usize,
}

impl GuestError {
    /// Asserts the call and the case.
    pub fn check(&self, at: &str, case: &str) {
        assert_eq!((&*self.at, &*self.case), (at, case), "{self:?}");
    }

    /// Reads the report from a 400 response.
    pub fn read(answer: &Response) -> Self {
        assert_eq!(answer.status, 400, "{answer:?}");
        let body = answer.json();
        let text = |name: &str| body["error"][name].as_str().expect("a text").to_owned();
        GuestError {
            at: text("at"),
            case: text("case"),
            text: text("text"),
            tokens: body["tokens"].as_array().expect("a list").len(),
        }
    }
}

/// Posts to a path of the plugin a request that must fail.
pub fn post_failing(corral: &Corral, path: &str, body: &Value) -> GuestError {
    GuestError::read(&corral.post(path, body.to_string()))
}
