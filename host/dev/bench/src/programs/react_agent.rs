//! An agent that answers questions in one conversation. With random weights it calls no tool: each step is an answer, and
//! the next question continues the conversation as a tool's result would.

use super::client::{Endpoint, ProgramClient, Settings};
use super::input::Input;
use super::{TURN_AFTER_LIMIT, TURN_END};
use corral_cli::Error;
use serde_json::{Value, json};

const QUESTIONS: u64 = 6;
/// Digits of a question.
const DIGITS: u64 = 24;

fn questions(input: &Input) -> Vec<String> {
    (0..QUESTIONS)
        .map(|part| input.part(part, DIGITS))
        .collect()
}

pub(super) fn request(input: &Input) -> Value {
    json!({
        "questions": questions(input),
        "max_tokens": input.lengths.output,
        "ignore_eos": true,
    })
}

/// Renders the first question with the tools of the plugin.
pub(super) async fn prepare(input: Input, endpoint: &Endpoint) -> Result<Input, Error> {
    let tool = |name: &str, description: &str, parameter: &str| {
        json!({"type": "function", "function": {"name": name, "description": description, "parameters": {
            "type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}}})
    };
    let tools = json!([
        tool(
            "calculator",
            "Evaluates an arithmetic expression",
            "expression"
        ),
        tool("search", "Search for a text", "query"),
    ]);
    let first = input.part(0, DIGITS);
    input.render(endpoint, &first, &tools).await
}

/// The client sends its history again with each question.
pub(super) async fn run(client: ProgramClient, input: Input) -> Result<u64, Error> {
    let settings = Settings::new(input.lengths.output);
    let mut history = input.prompt.clone();
    let mut answers = 0;
    for question in questions(&input).iter().skip(1).map(Some).chain([None]) {
        let answer = client.complete(&history, &settings).await?;
        answers += 1;
        history.extend(answer.tokens);
        if let Some(question) = question {
            let turn = format!("{TURN_AFTER_LIMIT}{question}{TURN_END}");
            history = input.extended(&history, &turn)?;
        }
    }
    Ok(answers)
}
