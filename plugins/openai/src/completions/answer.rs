//! Texts that are told at once.

use corral_sdk::{Error, Finish, Response};
use serde_json::{Map, Value, json};

use crate::asking::{Choices, Likely};
use crate::chat::logarithm;
use crate::identity::{now, unique};

/// How texts are told.
pub struct Told {
    /// Whether to tell how likely tokens were, and how many of the likeliest.
    pub likely: Option<u8>,
    /// Texts of each prompt.
    pub each: usize,
    /// What each prompt's texts begin with; nothing at all, if with nothing.
    pub echo: Vec<String>,
}

impl Told {
    /// What a text begins with.
    pub fn beginning(&self, index: usize) -> String {
        self.echo
            .get(index / self.each)
            .cloned()
            .unwrap_or_default()
    }

    /// A text or a piece of one.
    pub fn choice(
        &self,
        index: usize,
        text: &str,
        likely: &[Likely],
        finish: Option<Finish>,
    ) -> Value {
        json!({
            "index": index,
            "text": text,
            "logprobs": self.likely.map(|top| logprobs(likely, top)),
            "finish_reason": finish.map(|finish| match finish {
                Finish::End | Finish::Stop => "stop",
                Finish::Length => "length",
            }),
        })
    }
}

/// Waits for all of it.
pub async fn whole(mut choices: Choices, told: &Told) -> Result<Response, Error> {
    let mut texts: Vec<_> = (0..choices.len())
        .map(|index| told.beginning(index))
        .collect();
    let mut likely = vec![Vec::new(); texts.len()];
    let mut finish = vec![None; texts.len()];
    while let Some(piece) = choices.next().await? {
        texts[piece.index] += &piece.text;
        likely[piece.index].extend(piece.likely);
        finish[piece.index] = piece.end.map(|end| end.finish);
    }
    let all = (0..texts.len()).map(|at| told.choice(at, &texts[at], &likely[at], finish[at]));
    Ok(Response::json(&json!({
        "id": unique("cmpl-"),
        "object": "text_completion",
        "created": now(),
        "model": choices.model().name(),
        "choices": all.collect::<Vec<_>>(),
        "usage": choices.usage().to_json(),
    })))
}

/// In the shape of this older API: lists side by side.
fn logprobs(likely: &[Likely], top: u8) -> Value {
    let tops = likely.iter().map(|likely| {
        let mut members = Map::new();
        // Of tokens with the same text the likelier one is told.
        for token in &likely.top {
            members
                .entry(token.text())
                .or_insert_with(|| logarithm(token.logprob));
        }
        members
    });
    let list = |each: &dyn Fn(&Likely) -> Value| likely.iter().map(each).collect::<Vec<_>>();
    json!({
        "tokens": list(&|likely| likely.token.text().into()),
        "token_logprobs": list(&|likely| logarithm(likely.token.logprob)),
        "top_logprobs": (top > 0).then(|| tops.collect::<Vec<_>>()),
        "text_offset": list(&|likely| likely.offset.into()),
    })
}
