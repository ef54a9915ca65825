//! One prompt applied to many inputs.

use super::client::{ProgramClient, Settings};
use super::input::Input;
use corral_cli::Error;
use serde_json::{Value, json};

const INPUTS: u64 = 16;
/// Digits of an input.
const DIGITS: u64 = 6;
/// The prompt's text after the input.
const AFTER: &str = "=";

fn inputs(input: &Input) -> impl Iterator<Item = String> + '_ {
    (0..INPUTS).map(|part| input.part(part, DIGITS))
}

pub(super) fn request(input: &Input) -> Value {
    json!({
        "prompt": format!("{}{{}}{AFTER}", input.text),
        "inputs": inputs(input).collect::<Vec<_>>(),
        "concurrency": INPUTS,
        "max_tokens": input.lengths.output,
        "ignore_eos": true,
    })
}

pub(super) async fn run(client: ProgramClient, input: Input) -> Result<u64, Error> {
    let settings = Settings::new(input.lengths.output);
    let requests = inputs(&input).map(|text| {
        let prompt = input.extended(&input.prompt, &format!("{text}{AFTER}"))?;
        Ok((prompt, settings.clone()))
    });
    let requests = requests.collect::<Result<_, Error>>()?;
    let answers = client.complete_each(requests).await?;
    let texts: Vec<_> = answers.into_iter().map(|answer| answer.content).collect();
    Ok(texts.len() as u64)
}
