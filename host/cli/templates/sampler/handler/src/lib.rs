//! A handler to try the sampling plugin with. Any handler may be linked with it instead.

use corral_sdk::{Error, GenerateOptions, Model, Request, Response};
use serde::Deserialize;
use serde_json::{Map, Value};

corral_sdk::handler!(complete);

/// The plugin's name in corral.toml.
const SAMPLER: &str = "{{name}}";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    prompt: String,
    /// Settings of the sampling plugin.
    #[serde(default)]
    settings: Map<String, Value>,
}

async fn complete(mut request: Request) -> Result<Response, Error> {
    request.expect_method("POST")?;
    let body: Body = request.json().await?;
    let sequence = Model::open_default().await?.sequence()?;
    sequence.append(&body.prompt)?;
    let settings = Value::from(body.settings).to_string();
    let options = GenerateOptions::new(64)
        .sample_with(SAMPLER, &settings)
        .await?;
    let text = sequence.generate(&options)?.text().await?;
    Ok(Response::text(text))
}
