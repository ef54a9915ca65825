//! An agent with tools that computes each token of its history once: the whole loop runs on one sequence, to which
//! results of tools and later questions are appended.

mod tools;

use corral_sdk::template::{Chat, Prompt};
use corral_sdk::{Error, Finish, GenerateOptions, Model, Request, Response, Sequence};
use serde::Deserialize;
use serde_json::{Value, json};

corral_sdk::handler!(agent);

/// Most questions of a request, and most tool calls for one question.
const MOST_QUESTIONS: usize = 16;
const MOST_CALLS: usize = 8;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AgentRequest {
    questions: Vec<String>,
    /// Most tokens of a step.
    #[serde(default = "default_max_tokens")]
    max_tokens: u32,
    /// Whether steps go on after the model's end token. Then `max_tokens` ends them, and is no error.
    #[serde(default)]
    ignore_eos: bool,
}

fn default_max_tokens() -> u32 {
    256
}

async fn agent(mut request: Request) -> Result<Response, Error> {
    request.expect_method("POST")?;
    let body: AgentRequest = request.json().await?;
    let questions = &body.questions;
    let (Some(first), 1..=MOST_QUESTIONS) = (questions.first(), questions.len()) else {
        let detail = format!(
            "there are {} questions; expected 1 to {MOST_QUESTIONS}",
            questions.len()
        );
        return Err(Error::bad_request("questions", detail));
    };
    let model = Model::open_default().await?;
    let mut chat = Chat::new().message("user", first);
    chat.tools = tools::definitions();
    let mut run = Run {
        sequence: chat.sequence(&model)?,
        turn_end: "",
        max_tokens: body.max_tokens,
        ignore_eos: body.ignore_eos,
        calls: Vec::new(),
        prompt_tokens: 0,
        cached_tokens: 0,
    };
    let mut answers = vec![run.answer().await?];
    for question in &questions[1..] {
        run.append_user_turn("", question, "")?;
        answers.push(run.answer().await?);
    }
    Ok(Response::json(&json!({
        "answers": answers,
        "calls": run.calls,
        "tokens": run.sequence.len(),
        "prompt_tokens": run.prompt_tokens,
        "cached_tokens": run.cached_tokens,
    })))
}

/// A conversation of the model with its tools.
struct Run {
    sequence: Sequence,
    /// What the model's last turn lacks.
    turn_end: &'static str,
    max_tokens: u32,
    ignore_eos: bool,
    calls: Vec<Value>,
    /// Prompts of all steps, as a client that resends its history would count them, and the part that was computed
    /// before.
    prompt_tokens: u32,
    cached_tokens: u32,
}

impl Run {
    /// Lets the model call tools until it answers.
    async fn answer(&mut self) -> Result<String, Error> {
        for _ in 0..=MOST_CALLS {
            let mut options = GenerateOptions::new(self.max_tokens);
            if self.ignore_eos {
                options = options.ignore_eos();
            }
            let generation = self.sequence.generate(&options)?;
            let (text, outcome) = generation.text_and_outcome().await?;
            self.prompt_tokens += outcome.prompt_tokens;
            self.cached_tokens += outcome.cached_tokens;
            self.turn_end = match outcome.finish {
                Finish::End => "",
                _ if self.ignore_eos => "<|im_end|>",
                _ => {
                    let detail = format!("a step has more than {} tokens", self.max_tokens);
                    return Err(Error::new(422, "too-long", detail));
                }
            };
            let Some(call) = tool_call(&text) else {
                return Ok(text);
            };
            let name = call["name"].as_str().unwrap_or_default();
            let result = tools::run(name, &call["arguments"]);
            self.append_user_turn("<tool_response>\n", &result, "\n</tool_response>")?;
            self.calls
                .push(json!({"tool": name, "arguments": call["arguments"], "result": result}));
        }
        let detail = format!("there is no answer after {MOST_CALLS} tool calls");
        Err(Error::new(422, "too-many-calls", detail))
    }

    /// Continues the chat after the end of the model's turn. `text` is untrusted: control tokens in it are plain
    /// characters.
    fn append_user_turn(&self, before: &str, text: &str, after: &str) -> Result<(), Error> {
        Prompt::default()
            .trusted(format!("{}\n<|im_start|>user\n{before}", self.turn_end))
            .text(text)
            .trusted(format!("{after}<|im_end|>\n<|im_start|>assistant\n"))
            .append_to(&self.sequence)
    }
}

/// The tool call in the model's output, if there is one.
fn tool_call(text: &str) -> Option<Value> {
    let (_, rest) = text.split_once("<tool_call>")?;
    let (call, _) = rest.split_once("</tool_call>")?;
    serde_json::from_str(call.trim()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;

    fn script() -> Script {
        let template = "{{ tools[1].function.name }}<|im_start|>user\n{{ messages[0].content }}<|im_end|>\n\
                        <|im_start|>assistant{{ '\\n' }}";
        let call = |tool: &str, argument: &str, value: &str| {
            let arguments = json!({ argument: value });
            let call = json!({"name": tool, "arguments": arguments});
            format!("<tool_call>\n{call}\n</tool_call>")
        };
        let begin = "<|im_end|>\n<|im_start|>assistant\n";
        Script::new()
            .chat_template(template)
            .answers(
                &format!("search<|im_start|>user\nOwls and mice?{begin}"),
                &call("search", "query", "owls and mice"),
            )
            .answers(
                &format!("The old barn has 12 owls and 7 mice.\n</tool_response>{begin}"),
                &call("calculator", "expression", "12+7"),
            )
            .answers(
                &format!("<tool_response>\n19\n</tool_response>{begin}"),
                "19",
            )
            .answers(
                &format!("19<|im_end|>\n<|im_start|>user\nHi{begin}"),
                "Hello!",
            )
            .answers(&format!("search<|im_start|>user\nHi{begin}"), "Hello!")
            .answers(
                &format!("Hello!<|im_end|>\n<|im_start|>user\nBye{begin}"),
                "So long!",
            )
            .answers(&format!("again{begin}"), &call("search", "query", "again"))
            .answers(
                &format!("nothing found\n</tool_response>{begin}"),
                &call("search", "query", "?"),
            )
    }

    fn ask(questions: &[&str]) -> (u16, Value) {
        ask_for(json!({"questions": questions}))
    }

    fn ask_for(body: Value) -> (u16, Value) {
        script().post(agent, &body)
    }

    #[test]
    fn results_of_tools_lead_to_the_answer() {
        let (status, body) = ask(&["Owls and mice?", "Hi"]);
        assert_eq!(status, 200, "{body}");
        assert_eq!(body["answers"], json!(["19", "Hello!"]), "{body}");
        let results: Vec<_> = body["calls"]
            .as_array()
            .unwrap()
            .iter()
            .map(|call| &call["result"])
            .collect();
        assert_eq!(results, ["The old barn has 12 owls and 7 mice.", "19"]);
    }

    #[test]
    fn ignored_end_stops_at_the_step_limit() {
        let ask = |ignore_eos: bool| {
            ask_for(json!({"questions": ["Hi", "Bye"], "max_tokens": 6, "ignore_eos": ignore_eos}))
        };
        let (status, body) = ask(true);
        let answers = json!(["Hello!", "So lon"]);
        assert_eq!((status, &body["answers"]), (200, &answers), "{body}");
        let (status, body) = ask(false);
        assert_eq!((status, &body["code"]), (422, &json!("too-long")), "{body}");
    }

    #[test]
    fn endless_calls_and_wrong_requests_are_errors() {
        let (status, body) = ask(&["again"]);
        assert_eq!(status, 422, "{body}");
        assert_eq!(body["code"], "too-many-calls", "{body}");
        assert_eq!(ask(&[]).0, 400);
        assert_eq!(ask(&["again"; 17]).0, 400);
    }
}
