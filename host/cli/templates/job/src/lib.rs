//! Works through a list of prompts and streams each answer as a line of JSON.

use corral_sdk::{Error, GenerateOptions, Generation, Model, Request, Response};
use serde::Deserialize;
use serde_json::json;

corral_sdk::handler!(job);

const MAX_PROMPTS: usize = 10_000;
/// Prompts that are generated at once. The engine computes them in one batch.
const MAX_CONCURRENT: usize = 16;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Job {
    prompts: Vec<String>,
    #[serde(default = "default_max_tokens")]
    max_tokens: u32,
}

fn default_max_tokens() -> u32 {
    64
}

async fn job(mut request: Request) -> Result<Response, Error> {
    request.expect_method("POST")?;
    let job: Job = request.json().await?;
    if job.prompts.len() > MAX_PROMPTS {
        let detail = format!(
            "a job may have {MAX_PROMPTS} prompts, not {}",
            job.prompts.len()
        );
        return Err(Error::bad_request("too-many-prompts", detail));
    }
    let model = Model::open_default().await?;
    Ok(Response::json_lines(async move |lines| {
        let mut index = 0;
        for prompts in job.prompts.chunks(MAX_CONCURRENT) {
            let generations: Vec<_> = prompts
                .iter()
                .map(|prompt| start(&model, prompt, job.max_tokens))
                .collect();
            for generation in generations {
                // A prompt that fails does not stop the job.
                let line = match finish(generation).await {
                    Ok(text) => json!({"prompt": index, "text": text}),
                    Err(error) => json!({"prompt": index, "error": error.to_string()}),
                };
                lines.json_line(&line).await?;
                index += 1;
            }
        }
        Ok(())
    }))
}

fn start(model: &Model, prompt: &str, max_tokens: u32) -> Result<Generation, Error> {
    let sequence = model.sequence()?;
    sequence.append(prompt)?;
    sequence.generate(&GenerateOptions::new(max_tokens))
}

async fn finish(generation: Result<Generation, Error>) -> Result<String, Error> {
    generation?.text().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;
    use serde_json::Value;

    fn run(script: &Script, prompts: Value) -> Vec<Value> {
        let body = script.run(async {
            let request = Request::post("/").with_json(&json!({"prompts": prompts}));
            job(request).await.unwrap().read().await
        });
        let text = String::from_utf8(body).unwrap();
        let lines = text.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn each_prompt_gets_a_line() {
        let script = Script::new()
            .answers("1+1=", "2")
            .fails_after("2+2=", "", Error::Deadline)
            .answers("3+3=", "6");
        let lines = run(&script, json!(["1+1=", "2+2=", "3+3="]));
        assert_eq!(lines[0], json!({"prompt": 0, "text": "2"}));
        assert_eq!(lines[1]["error"], Error::Deadline.to_string());
        assert_eq!(lines[2], json!({"prompt": 2, "text": "6"}));
    }
}
