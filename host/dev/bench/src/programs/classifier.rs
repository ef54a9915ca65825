//! A classifier by the probabilities of labels of several tokens.

use super::client::{ProgramClient, Settings};
use super::input::Input;
use corral_cli::Error;
use corral_engine::Token;
use serde_json::{Value, json};

/// Ten labels of three digits, that is of three tokens, which differ in the first.
fn labels() -> [String; 10] {
    std::array::from_fn(|first| format!("{first}{}{}", (first + 3) % 10, (first + 7) % 10))
}

pub(super) fn request(input: &Input) -> Value {
    json!({"prompt": input.text, "labels": labels()})
}

/// A client learns the probability of a token by a generation of this token. A request per token of a label: the bias is
/// the same for all tokens of a generation.
pub(super) async fn run(client: ProgramClient, input: Input) -> Result<u64, Error> {
    let mut requests = Vec::new();
    let mut labels_of = Vec::new();
    for (index, label) in labels().iter().enumerate() {
        let label: Vec<Token> = input.tokens(label)?;
        for (at, token) in label.iter().enumerate() {
            let prompt = [&input.prompt[..], &label[..at]].concat();
            requests.push((prompt, Settings::new(1).logprobs(1).only(&[*token])));
            labels_of.push((index, *token));
        }
    }
    let mut sums = [0.0; 10];
    for ((index, token), answer) in labels_of.iter().zip(client.complete_each(requests).await?) {
        let chosen = answer.logprobs.first().filter(|chosen| chosen.id == *token);
        let missing = || Error::failed("the server did not generate the token of a bias");
        sums[*index] += chosen.ok_or_else(missing)?.logprob;
    }
    let best = (0..sums.len()).max_by(|&one, &other| sums[one].total_cmp(&sums[other]));
    std::hint::black_box(best);
    Ok(sums.len() as u64)
}
