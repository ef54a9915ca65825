//! The test plugin `roles`, with the plugins that it is linked with.

use crate::deployments::deploy_folder;
use crate::{Answer, Corral, scratch_folder};
use serde_json::Value;

/// The template without anything of the deployment's.
pub const TEMPLATE: &str = r#""templates.wasm""#;
/// The template with what the deployment grants.
pub const HEIR: &str = r#"{ component = "templates.wasm", inherit = true }"#;

/// A server where `roles` answers at `/roles`, linked with a template and two samplers, `any` and
/// `other`, which are the same plugin.
pub fn start(arguments: &[&str]) -> Corral {
    let folder = scratch_folder();
    let store = ["--store", folder.to_str().expect("ours")];
    let corral = Corral::start_with(&[&store, arguments].concat());
    deploy(&corral, "roles", TEMPLATE, "");
    corral
}

/// Deploys `roles` as `name`, at `/NAME`, with `template` as its link and `more` fields.
pub fn deploy(corral: &Corral, name: &str, template: &str, more: &str) {
    let manifest = format!(
        "name = '{name}'\ncomponent = 'roles.wasm'\nroutes = ['/{name}']\n{more}\n\
         [links]\ntemplating = {template}\n\
         [links.sampling]\nany = 'samplers.wasm'\nother = 'samplers.wasm'\n"
    );
    let ended = deploy_folder(corral, &manifest, &["roles", "samplers", "templates"]);
    assert_eq!(ended.code, Some(0), "{manifest}: {ended:?}");
}

/// Asks at a path of the plugin; it has to succeed.
pub fn ask(corral: &Corral, path: &str, body: &Value) -> Value {
    let answer = corral.post(path, body.to_string());
    assert_eq!(answer.status, 200, "{path} {body}: {answer:?}");
    answer.json()
}

/// What the plugin said of a call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Which call.
    pub at: String,
    /// The error's case, as `wit/` names it; `other` for one that is none of the host's.
    pub case: String,
    /// Its text; empty if it has none.
    pub text: String,
    /// Number of tokens that were generated before.
    pub tokens: usize,
}

impl Failed {
    /// Reads an answer of the plugin, which has to be one of these.
    pub fn read(answer: &Answer) -> Self {
        assert_eq!(answer.status, 400, "{answer:?}");
        let body = answer.json();
        let text = |name: &str| body["error"][name].as_str().expect("a text").to_owned();
        Failed {
            at: text("at"),
            case: text("case"),
            text: text("text"),
            tokens: body["tokens"].as_array().expect("a list").len(),
        }
    }
}

/// Asks at a path of the plugin, for what has to fail there.
pub fn fail(corral: &Corral, path: &str, body: &Value) -> Failed {
    Failed::read(&corral.post(path, body.to_string()))
}
