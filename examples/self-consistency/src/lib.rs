//! Samples several answers and returns the most frequent one (Wang et al., 2022). Samples no more
//! than a majority needs.

use corral_sdk::{Command, Error, GenerateOptions, Model, Request, Response};
use serde::Deserialize;
use serde_json::{Value, json};

corral_sdk::handler!(handle);
corral_sdk::command!(run);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    prompt: String,
    /// Most answers, from 1 to 63.
    #[serde(default = "default_votes")]
    votes: usize,
    #[serde(default = "default_temperature")]
    temperature: f32,
    /// The answers have this seed and the following ones.
    #[serde(default)]
    seed: u64,
    #[serde(default = "default_max_tokens")]
    max_tokens: u32,
    /// Whether to go on after the model's end token, to `max_tokens`.
    #[serde(default)]
    ignore_eos: bool,
}

fn default_votes() -> usize {
    9
}

fn default_temperature() -> f32 {
    0.7
}

fn default_max_tokens() -> u32 {
    64
}

async fn handle(mut request: Request) -> Result<Response, Error> {
    request.expect_method("POST")?;
    Ok(Response::json(&vote(request.json().await?).await?))
}

async fn run(command: &mut Command) -> Result<(), Error> {
    let answer = vote(command.json()?).await?;
    command.write(&format!("{answer}\n")).await
}

async fn vote(body: Body) -> Result<Value, Error> {
    if !(1..=63).contains(&body.votes) {
        let detail = format!("`votes` is {}; expected 1 to 63", body.votes);
        return Err(Error::bad_request("invalid-votes", detail));
    }
    let prompt = Model::open_default().await?.sequence()?;
    prompt.append(&body.prompt)?;
    let majority = body.votes / 2 + 1;
    // Answers and their votes, the most frequent first; of equal ones the earliest.
    let mut tally: Vec<(String, usize)> = Vec::new();
    let (mut cast, mut tokens) = (0, 0);
    loop {
        let leading = tally.first().map_or(0, |first| first.1);
        // Fewer cannot give the leading answer its majority.
        let wave = (majority - leading).min(body.votes - cast);
        if wave == 0 {
            break;
        }
        let mut generations = Vec::new();
        for index in cast..cast + wave {
            let mut options = GenerateOptions::new(body.max_tokens)
                .temperature(body.temperature)
                .seed(body.seed.wrapping_add(index as u64));
            if body.ignore_eos {
                options = options.ignore_eos();
            }
            generations.push(prompt.fork()?.generate(&options)?);
        }
        cast += wave;
        for generation in generations {
            let (text, outcome) = generation.text_and_outcome().await?;
            tokens += outcome.generated_tokens;
            let answer = answer(&text);
            match tally.iter_mut().find(|(known, _)| known == answer) {
                Some((_, votes)) => *votes += 1,
                None => tally.push((answer.to_owned(), 1)),
            }
        }
        // A stable sort.
        tally.sort_by_key(|(_, votes)| std::cmp::Reverse(*votes));
    }
    let answers = tally
        .iter()
        .map(|(answer, votes)| json!({"answer": answer, "votes": votes}));
    Ok(json!({
        "answer": tally[0].0,
        "votes": tally[0].1,
        "samples": cast,
        "generated_tokens": tokens,
        "answers": answers.collect::<Vec<_>>(),
    }))
}

/// The last number of a text, so that answers can differ in their reasoning; a text without one is
/// the answer itself.
fn answer(text: &str) -> &str {
    let is_digit = |character: char| character.is_ascii_digit();
    let Some(end) = text.rfind(is_digit) else {
        return text.trim();
    };
    let before = text[..end].trim_end_matches(is_digit);
    let start = before.len() - usize::from(before.ends_with('-'));
    &text[start..=end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;

    fn ask(script: &Script, votes: usize) -> Result<Value, Error> {
        let body = json!({"prompt": "12+7=", "votes": votes});
        script.run(vote(serde_json::from_value(body).unwrap()))
    }

    #[test]
    fn unanimous_answers_end_the_vote_early() {
        // The scripted host gives the same answer to every seed.
        for (votes, majority) in [(1, 1), (2, 2), (9, 5)] {
            let script = Script::new().answers("12+7=", "so it is 19.");
            let answer = ask(&script, votes).unwrap();
            assert_eq!(answer["answer"], "19");
            assert_eq!(answer["votes"], json!(majority));
            assert_eq!(answer["samples"], json!(majority));
            assert_eq!(script.generations().len(), majority);
        }
    }

    #[test]
    fn last_number_is_the_answer() {
        for (text, expected) in [
            ("12 and 7 are 19.", "19"),
            ("it is -5", "-5"),
            ("3", "3"),
            ("yes\n", "yes"),
            ("é7é", "7"),
            ("", ""),
        ] {
            assert_eq!(answer(text), expected);
        }
    }

    #[test]
    fn votes_out_of_range_are_refused() {
        for votes in [0, 64] {
            let error = ask(&Script::new(), votes).unwrap_err();
            assert_eq!((error.status(), error.code()), (400, "invalid-votes"));
        }
    }
}
