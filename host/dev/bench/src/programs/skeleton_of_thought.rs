//! Skeleton of thought: an outline, then its numbered points.

use super::client::{ProgramClient, Settings};
use super::input::Input;
use super::{TURN_AFTER_LIMIT, TURN_END};
use corral_cli::Error;
use serde_json::{Value, json};

const POINTS: u64 = 8;
/// The question for a point.
const QUESTION: &str = "Point {}:";

pub(super) fn request(input: &Input) -> Value {
    json!({
        "outline": input.text,
        "point": QUESTION,
        "count": POINTS,
        "max_tokens": input.lengths.output,
        "ignore_eos": true,
    })
}

pub(super) async fn run(client: ProgramClient, input: Input) -> Result<u64, Error> {
    let settings = Settings::new(input.lengths.output);
    let outline = format!("<|im_start|>user\n{}{TURN_END}", input.text);
    let outline = input.extended(&input.begin(), &outline)?;
    let answer = client.complete(&outline, &settings).await?;
    let outline = [outline, answer.tokens].concat();
    let points = (1..=POINTS).map(|number| {
        let question = QUESTION.replace("{}", &number.to_string());
        let turn = format!("{TURN_AFTER_LIMIT}{question}{TURN_END}");
        Ok((input.extended(&outline, &turn)?, settings.clone()))
    });
    let points = points.collect::<Result<_, Error>>()?;
    let answers = client.complete_each(points).await?;
    let texts: Vec<_> = answers.into_iter().map(|answer| answer.content).collect();
    Ok(texts.len() as u64)
}
