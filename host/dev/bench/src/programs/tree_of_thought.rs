//! A tree of thought over a puzzle without a solution: the search ends after a fixed number of thoughts. All results have
//! two digits, so none is dropped: the number of thoughts at each node does not depend on the model.

use super::client::{ProgramClient, Settings};
use super::input::Input;
use corral_cli::Error;
use corral_engine::Token;
use serde_json::{Value, json};
use std::cmp::Reverse;

const NUMBERS: [u32; 5] = [12, 7, 45, 20, 31];
/// No result reaches it.
const TARGET: u32 = 100;
/// Four levels, and two returns to earlier steps.
const MOST_THOUGHTS: usize = 24;
const DIGITS: u64 = 2;

pub(super) fn request(input: &Input) -> Value {
    json!({
        "numbers": NUMBERS,
        "target": TARGET,
        "instructions": input.text,
        "max_thoughts": MOST_THOUGHTS,
        "digits": DIGITS,
    })
}

struct Node {
    text: Vec<Token>,
    value: u32,
    rest: Vec<u32>,
}

/// The client biases the logits, which costs llama.cpp's server less than a grammar.
pub(super) async fn run(client: ProgramClient, input: Input) -> Result<u64, Error> {
    let digits = ('0'..='9').map(|digit| input.tokens(&digit.to_string()));
    let digits = digits.collect::<Result<Vec<_>, _>>()?.concat();
    let settings = Settings::new(DIGITS).only(&digits);
    let mut open = vec![Node {
        text: input.prompt.clone(),
        value: NUMBERS[0],
        rest: NUMBERS[1..].to_vec(),
    }];
    let mut thoughts = 0;
    while let Some(node) = open.pop() {
        let steps = node.rest.iter().enumerate().flat_map(|(index, number)| {
            ['+', '-'].map(|sign| (index, format!("\n{}{sign}{number}=", node.value)))
        });
        let steps = steps.map(|(index, question)| {
            let text = input.extended(&node.text, &question)?;
            Ok((index, text))
        });
        let steps: Vec<(usize, Vec<Token>)> = steps.collect::<Result<_, Error>>()?;
        if thoughts + steps.len() > MOST_THOUGHTS {
            break;
        }
        thoughts += steps.len();
        let requests = steps
            .iter()
            .map(|(_, text)| (text.clone(), settings.clone()));
        let answers = client.complete_each(requests.collect()).await?;
        let mut next = Vec::new();
        for ((index, text), answer) in steps.into_iter().zip(answers) {
            let Ok(value) = answer.content.trim().parse::<u32>() else {
                continue;
            };
            let mut rest = node.rest.clone();
            rest.remove(index);
            next.push(Node {
                text: input.extended(&text, &value.to_string())?,
                value,
                rest,
            });
        }
        next.sort_by_key(|node| Reverse(node.value.abs_diff(TARGET)));
        open.extend(next);
    }
    Ok(thoughts as u64)
}
