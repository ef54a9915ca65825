//! Beam search: keeps the most likely texts at each token, and computes their next tokens together.

use corral_sdk::{
    Command, Error, Model, NextTokenRequest, Request, Response, Sequence, Token, next_many,
};
use serde::Deserialize;
use serde_json::{Value, json};

corral_sdk::handler!(handle);
corral_sdk::command!(run);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    prompt: String,
    /// The number of beams, from 1 to 32.
    #[serde(default = "default_width")]
    width: usize,
    #[serde(default = "default_max_tokens")]
    max_tokens: u32,
    /// Whether no beam ends before `max_tokens`.
    #[serde(default)]
    ignore_eos: bool,
}

fn default_width() -> usize {
    4
}

fn default_max_tokens() -> u32 {
    64
}

/// A text that may grow.
struct Beam {
    sequence: Sequence,
    /// The log probability of the text after the prompt, with its end.
    logprob: f32,
    ended: bool,
}

async fn handle(mut request: Request) -> Result<Response, Error> {
    request.expect_method("POST")?;
    Ok(Response::json(&search(request.json().await?).await?))
}

async fn run(command: &mut Command) -> Result<(), Error> {
    let answer = search(command.json()?).await?;
    command.write(&format!("{answer}\n")).await
}

async fn search(body: Body) -> Result<Value, Error> {
    if !(1..=32).contains(&body.width) {
        let detail = format!("`width` is {}; expected 1 to 32", body.width);
        return Err(Error::bad_request("invalid-width", detail));
    }
    let model = Model::open_default().await?;
    let sequence = model.sequence()?;
    sequence.append(&body.prompt)?;
    let start = sequence.len();
    let mut beams = vec![Beam {
        sequence,
        logprob: 0.0,
        ended: false,
    }];
    // So many of the most likely tokens may be dropped.
    let dropped = match body.ignore_eos {
        true => model.info().end_of_generation.len(),
        false => 0,
    };
    let mut distributions = 0;
    // A text never becomes more likely as it grows: once the best one has ended, it stays the best.
    while !beams[0].ended && beams[0].sequence.len() - start < body.max_tokens {
        let mut children = children(&beams, body.width + dropped).await?;
        if body.ignore_eos {
            children.retain(|&(_, token, _)| !model.is_end_of_generation(token));
        }
        if children.is_empty() {
            break;
        }
        distributions += beams.iter().filter(|beam| !beam.ended).count();
        beams = grow(&model, beams, children, body.width)?;
    }
    let texts = beams.iter().map(|beam| {
        let text = beam.sequence.text(start)?;
        Ok(json!({"text": text, "logprob": rounded(beam.logprob), "ended": beam.ended}))
    });
    let texts = texts.collect::<Result<Vec<_>, Error>>()?;
    Ok(json!({"text": texts[0]["text"], "distributions": distributions, "beams": texts}))
}

/// A beam's index, its next token, and the log probability of the text with it.
type Child = (usize, Token, f32);

/// The `count` most likely tokens after each beam that has not ended. One step computes all of them.
async fn children(beams: &[Beam], count: usize) -> Result<Vec<Child>, Error> {
    let open = || (0..).zip(beams).filter(|(_, beam)| !beam.ended);
    let requests = open().map(|(_, beam)| {
        let request = NextTokenRequest::top(count as u32).with_statistics();
        (&beam.sequence, request)
    });
    let mut children = Vec::new();
    for ((index, beam), distribution) in open().zip(next_many(requests).await) {
        let distribution = distribution?;
        for candidate in &distribution.candidates {
            let logprob = distribution.logprob(candidate.token);
            let logprob = beam.logprob + logprob.unwrap_or(f32::NEG_INFINITY);
            children.push((index, candidate.token, logprob));
        }
    }
    Ok(children)
}

/// The `width` most likely of the children and the beams that have ended, in descending order.
fn grow(
    model: &Model,
    beams: Vec<Beam>,
    mut children: Vec<Child>,
    width: usize,
) -> Result<Vec<Beam>, Error> {
    children.sort_by(|one, other| other.2.total_cmp(&one.2));
    let mut next = Vec::new();
    for (index, token, logprob) in children.into_iter().take(width) {
        // A fork shares the beam's state and computes only its own token.
        let sequence = beams[index].sequence.fork()?;
        let ended = model.is_end_of_generation(token);
        if !ended {
            sequence.append_tokens(&[token])?;
        }
        next.push(Beam {
            sequence,
            logprob,
            ended,
        });
    }
    next.extend(beams.into_iter().filter(|beam| beam.ended));
    next.sort_by(|one, other| other.logprob.total_cmp(&one.logprob));
    next.truncate(width);
    Ok(next)
}

/// Three decimals.
fn rounded(value: f32) -> f64 {
    // Adding 0 turns -0 into 0.
    (f64::from(value) * 1000.0).round() / 1000.0 + 0.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;

    /// "a" is the most likely first token, but what follows it is uncertain; after "b" it is not.
    fn script() -> Script {
        Script::new()
            .next("?", &[("a", 1.0), ("b", 0.5)])
            .next("a", &[("x", 1.0), ("y", 1.0), ("z", 1.0)])
            .next("b", &[("w", 9.0)])
            .next("w", &[("<|im_end|>", 9.0)])
            .next("x", &[("<|im_end|>", 9.0)])
            .next("y", &[("<|im_end|>", 9.0)])
            .next("z", &[("<|im_end|>", 9.0)])
    }

    fn ask(body: Value) -> Result<Value, Error> {
        script().run(search(serde_json::from_value(body).unwrap()))
    }

    #[test]
    fn two_beams_find_the_likeliest_text() {
        let answer = ask(json!({"prompt": "?", "width": 1})).unwrap();
        assert_eq!(answer["text"], "ax");
        assert_eq!(answer["distributions"], 3);
        let answer = ask(json!({"prompt": "?", "width": 2})).unwrap();
        assert_eq!(answer["text"], "bw", "{answer}");
        // ln(1 / (1 + e^0.5)), the probability of "b" among two.
        assert_eq!(answer["beams"][0]["logprob"], -0.974);
        assert_eq!(answer["beams"][0]["ended"], true);
    }

    #[test]
    fn limit_cuts_off_all_beams() {
        let answer = ask(json!({"prompt": "?", "width": 2, "max_tokens": 1})).unwrap();
        assert_eq!(answer["text"], "a");
        let expected = json!({"text": "b", "logprob": -0.974, "ended": false});
        assert_eq!(answer["beams"][1], expected);
    }

    #[test]
    fn beams_go_on_after_an_ignored_end() {
        let script = || script().next("ax", &[("<|im_end|>", 9.0), ("w", 1.0)]);
        let ask = |ignore_eos: bool| {
            let body =
                json!({"prompt": "?", "width": 1, "max_tokens": 3, "ignore_eos": ignore_eos});
            script().run(search(serde_json::from_value(body).unwrap()))
        };
        assert_eq!(ask(false).unwrap()["text"], "ax");
        assert_eq!(ask(true).unwrap()["text"], "axw");
    }

    #[test]
    fn width_out_of_range_is_refused() {
        for width in [0, 33] {
            let error = ask(json!({"prompt": "?", "width": width})).unwrap_err();
            assert_eq!((error.status(), error.code()), (400, "invalid-width"));
        }
    }
}
