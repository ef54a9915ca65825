//! Reads configuration and secrets, and logs with levels. The body is JSON:
//!
//! | field | value |
//! |---|---|
//! | `get` | responds with the value of this key, or null |
//! | `require` | responds with the value of this key, or fails |
//! | `all` | `{}`: responds with all keys and values of the configuration |
//! | `environment` | `{}`: responds with the environment variables |
//! | `log` | logs a line for each level of this list, and a line to standard output and standard error |

use corral_sdk::log::Level;
use corral_sdk::{Error, Request, Response, config, log};
use serde::Deserialize;
use serde_json::json;

corral_sdk::handler!(handle);

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Call {
    Get(String),
    Require(String),
    All {},
    Environment {},
    Log(Vec<String>),
}

async fn handle(mut request: Request) -> Result<Response, Error> {
    let call = serde_json::from_str(&request.text().await?);
    let call = call.map_err(|error| Error::Invalid(error.to_string()))?;
    Ok(Response::json(&match call {
        Call::Get(key) => json!(config::get(&key)?),
        Call::Require(key) => json!(config::require(&key)?),
        Call::All {} => json!(config::all()?),
        Call::Environment {} => json!(std::env::vars().collect::<Vec<_>>()),
        Call::Log(levels) => {
            println!("to standard output");
            eprintln!("to standard error");
            for level in &levels {
                log_at(level);
            }
            json!("ok")
        }
    }))
}

fn log_at(level: &str) {
    match level {
        "trace" => log::trace("a value"),
        "debug" => log::log(Level::Debug, "cache", "a miss"),
        "info" => log::info("two\nlines\n"),
        "warn" => log::warn(format_args!("{} left", 2)),
        "error" => log::error("it failed"),
        _ => log::critical("x".repeat(5000)),
    }
}
