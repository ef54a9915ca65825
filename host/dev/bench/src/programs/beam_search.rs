//! Beam search: each token depends on the likeliest next tokens of all beams.

use super::client::{ProgramClient, Settings};
use super::input::Input;
use corral_cli::Error;
use corral_engine::Token;
use serde_json::{Value, json};

const WIDTH: usize = 4;

pub(super) fn request(input: &Input) -> Value {
    json!({
        "prompt": input.text,
        "width": WIDTH,
        "max_tokens": input.lengths.output,
        "ignore_eos": true,
    })
}

/// A client has the next tokens of a beam only as the log probabilities of a generation of one token.
pub(super) async fn run(client: ProgramClient, input: Input) -> Result<u64, Error> {
    let settings = Settings::new(1).logprobs(WIDTH as u64);
    let mut beams: Vec<(Vec<Token>, f32)> = vec![(input.prompt.clone(), 0.0)];
    let mut distributions = 0;
    for _ in 0..input.lengths.output {
        let requests = beams
            .iter()
            .map(|(text, _)| (text.clone(), settings.clone()));
        let answers = client.complete_each(requests.collect()).await?;
        distributions += answers.len() as u64;
        let mut children: Vec<(usize, Token, f32)> = Vec::new();
        for (index, answer) in answers.iter().enumerate() {
            let top = answer.logprobs.first().map_or(&[][..], |token| &token.top);
            let logprob = |child: f32| beams[index].1 + child;
            children.extend(
                top.iter()
                    .map(|child| (index, child.id, logprob(child.logprob))),
            );
        }
        children.sort_by(|one, other| other.2.total_cmp(&one.2));
        let best = children.into_iter().take(WIDTH);
        let best = best.map(|(index, token, logprob)| {
            let text = [&beams[index].0[..], &[token]].concat();
            (text, logprob)
        });
        beams = best.collect();
    }
    std::hint::black_box(beams.first());
    Ok(distributions)
}
