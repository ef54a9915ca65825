//! `generation_settings` of a response, and the default settings of `/props`.

use corral_sdk::{Error, Model};
use serde_json::{Value, json};

use conversation::Format;
use conversation::generation::Settings;
use conversation::generation::settings::{LlamaSamplers, shortest};

/// The settings in the names of llama.cpp's server. `samplers` is the order in which they apply.
/// Without a model, the tokens of `logit_bias` and of `ignore_eos` are unknown and left out.
pub fn json(settings: &Settings, format: &Format, model: Option<&Model>) -> Result<Value, Error> {
    let end = model.filter(|_| settings.ignore_eos);
    let end = end.map_or(&[][..], |model| &model.info().end_of_generation);
    // Without a bias: the tokens are banned.
    let end = end
        .iter()
        .map(|token| json!({"token": token, "bias": null}));
    let biases = match model {
        Some(model) => settings.logit_bias.tokens(model)?,
        None => Vec::new(),
    };
    let biases = biases.into_iter().map(|(token, bias)| {
        let bias = Some(bias).filter(|bias| bias.is_finite());
        json!({"token": token, "bias": bias.map(shortest)})
    });
    let grammar = match format {
        Format::Gbnf(text) | Format::Lark(text) => text.as_str(),
        _ => "",
    };
    let samplers = [
        "penalties",
        "dry",
        "top_n_sigma",
        "top_k",
        "typ_p",
        "top_p",
        "min_p",
        "xtc",
        "temperature",
    ];
    let llama = settings.llama_samplers.as_ref();
    let llama = llama.map(LlamaSamplers::values);
    let mut json = json!({
        "n_predict": settings.max_tokens.map_or(-1, i64::from),
        "max_tokens": settings.max_tokens.map_or(-1, i64::from),
        "seed": settings.seed,
        "temperature": shortest(settings.temperature),
        "top_k": settings.top_k.unwrap_or(0),
        "top_p": shortest(settings.top_p.unwrap_or(1.0)),
        "min_p": shortest(settings.min_p.unwrap_or(0.0)),
        "repeat_penalty": shortest(settings.repeat_penalty),
        "repeat_last_n": settings.repeat_last,
        "presence_penalty": shortest(settings.presence_penalty),
        "frequency_penalty": shortest(settings.frequency_penalty),
        "logit_bias": end.chain(biases).collect::<Vec<_>>(),
        "ignore_eos": settings.ignore_eos,
        "stop": settings.stop,
        "n_probs": settings.logprobs.unwrap_or(0),
        "grammar": grammar,
        "samplers": samplers,
    });
    if let (Value::Object(json), Some(Value::Object(llama))) = (&mut json, llama) {
        json.extend(llama);
    }
    Ok(json)
}
