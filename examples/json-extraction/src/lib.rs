//! Extracts data from texts as JSON that matches the caller's schema. A constraint keeps the model
//! to the schema: no answer is invalid, and none is asked for twice.

use corral_sdk::template::Chat;
use corral_sdk::{
    Command, Constraint, Error, Finish, GenerateOptions, Generation, Model, Request, Response,
};
use serde::Deserialize;
use serde_json::{Value, json};

corral_sdk::handler!(handle);
corral_sdk::command!(run);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    /// 1 to 64 texts.
    texts: Vec<String>,
    /// The JSON schema of each result.
    schema: Value,
    /// What to extract; becomes the system message.
    instructions: Option<String>,
    #[serde(default = "default_max_tokens")]
    max_tokens: u32,
}

fn default_max_tokens() -> u32 {
    256
}

async fn handle(mut request: Request) -> Result<Response, Error> {
    request.expect_method("POST")?;
    Ok(Response::json(&extract(request.json().await?).await?))
}

async fn run(command: &mut Command) -> Result<(), Error> {
    let answer = extract(command.json()?).await?;
    command.write(&format!("{answer}\n")).await
}

async fn extract(body: Body) -> Result<Value, Error> {
    if !(1..=64).contains(&body.texts.len()) {
        let detail = format!("there are {} texts; expected 1 to 64", body.texts.len());
        return Err(Error::bad_request("invalid-texts", detail));
    }
    let model = Model::open_default().await?;
    // Compiled once for all texts. A malformed schema is a 400 with its mistake.
    let constraint = Constraint::json_schema(&model, &body.schema).await?;
    let options = GenerateOptions::new(body.max_tokens).constrain(&constraint);
    let mut generations = Vec::new();
    for text in &body.texts {
        let mut chat = Chat::new();
        if let Some(instructions) = &body.instructions {
            chat = chat.message("system", instructions);
        }
        let chat = chat.message("user", text);
        // The host computes the beginning that the prompts share once.
        generations.push(chat.sequence(&model)?.generate(&options)?);
    }
    let mut results = Vec::new();
    for generation in generations {
        results.push(read(generation).await?);
    }
    Ok(json!({"results": results}))
}

/// The value, or an error if the limit cut it off.
async fn read(generation: Generation) -> Result<Value, Error> {
    let (text, outcome) = generation.text_and_outcome().await?;
    match (outcome.finish, serde_json::from_str::<Value>(&text)) {
        (Finish::Length, Err(_)) => Ok(json!({
            "error": "the JSON is longer than `max_tokens`",
            "text": text,
        })),
        (_, Ok(value)) => Ok(json!({"value": value})),
        (_, Err(error)) => Err(Error::Failed(format!("{text:?} is not JSON: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::{HostCall, Script};

    const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}";
    const SCHEMA: &str = r#"{"type":"object"}"#;

    fn script() -> Script {
        let values = [r#"{"age":36}"#, r#"{"age":7}"#];
        Script::new()
            .chat_template(TEMPLATE)
            .grammar(SCHEMA, &values)
            .answers("[user] Ada is 36\n", values[0])
            .answers("[user] Bob is 7\n", values[1])
    }

    fn ask(script: &Script, body: Value) -> Result<Value, Error> {
        script.run(extract(serde_json::from_value(body).unwrap()))
    }

    fn body(texts: &[&str]) -> Value {
        json!({"texts": texts, "schema": {"type": "object"}})
    }

    #[test]
    fn each_text_gives_a_value() {
        let script = script();
        let mut body = body(&["Ada is 36", "Bob is 7"]);
        body["instructions"] = json!("Be exact.");
        let answer = ask(&script, body).unwrap();
        let results = json!([{"value": {"age": 36}}, {"value": {"age": 7}}]);
        assert_eq!(answer["results"], results);
        let after = &script.generations()[1].after;
        assert_eq!(after, "[system] Be exact.\n[user] Bob is 7\n");
        // One constraint for both.
        let calls = script.calls();
        let compiled = HostCall::Compile(SCHEMA.to_owned());
        assert_eq!(calls.iter().filter(|call| **call == compiled).count(), 1);
    }

    #[test]
    fn cut_off_value_is_an_error() {
        let mut body = body(&["Ada is 36"]);
        body["max_tokens"] = json!(4);
        let answer = ask(&script(), body).unwrap();
        assert_eq!(answer["results"][0]["text"], r#"{"ag"#, "{answer}");
    }

    #[test]
    fn wrong_requests_are_refused() {
        let error = ask(&script(), body(&[])).unwrap_err();
        assert_eq!(error.code(), "invalid-texts");
        let mut body = body(&["Ada is 36"]);
        body["schema"] = json!({"type": "oject"});
        assert_eq!(ask(&script(), body).unwrap_err().status(), 400);
    }
}
