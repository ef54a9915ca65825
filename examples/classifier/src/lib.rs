//! Classifies a text by the probabilities of the labels after it. Generates nothing.

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
    /// The label follows directly.
    prompt: String,
    /// 2 to 100 texts, none of which begins with another.
    labels: Vec<String>,
}

/// A label, and the text with its tokens so far.
struct Label {
    tokens: Vec<Token>,
    sequence: Sequence,
    logprob: f32,
}

async fn handle(mut request: Request) -> Result<Response, Error> {
    request.expect_method("POST")?;
    Ok(Response::json(&classify(request.json().await?).await?))
}

async fn run(command: &mut Command) -> Result<(), Error> {
    let answer = classify(command.json()?).await?;
    command.write(&format!("{answer}\n")).await
}

async fn classify(body: Body) -> Result<Value, Error> {
    check(&body.labels)?;
    let model = Model::open_default().await?;
    let prompt = model.sequence()?;
    prompt.append(&body.prompt)?;
    // One distribution after the prompt has the first tokens of all labels.
    let tokens = body.labels.iter().map(|label| model.tokenize(label));
    let tokens = tokens.collect::<Result<Vec<_>, _>>()?;
    let firsts = tokens.iter().filter_map(|tokens| tokens.first().copied());
    let request = NextTokenRequest::only(firsts.collect::<Vec<_>>()).with_statistics();
    let first = prompt.next(request).await?;
    let mut labels = Vec::new();
    for tokens in tokens {
        let logprob = tokens.first().and_then(|&token| first.logprob(token));
        labels.push(Label {
            tokens,
            sequence: prompt.fork()?,
            logprob: logprob.unwrap_or(f32::NEG_INFINITY),
        });
    }
    let longest = labels.iter().map(|label| label.tokens.len()).max();
    for at in 1..longest.unwrap_or(0) {
        extend(&mut labels, at).await?;
    }
    let probabilities: Vec<_> = labels.iter().map(|label| label.logprob.exp()).collect();
    let sum: f32 = probabilities.iter().sum();
    // The model finds none of the labels possible: no division by 0.
    let share = |probability: f32| rounded(probability / sum.max(f32::MIN_POSITIVE));
    let mut results: Vec<_> = body.labels.iter().zip(&probabilities).collect();
    results.sort_by(|one, other| other.1.total_cmp(one.1));
    let results = results
        .iter()
        .map(|(label, probability)| json!({"label": label, "share": share(**probability)}));
    let results: Vec<_> = results.collect();
    Ok(json!({
        "label": results[0]["label"],
        // Small if the model would rather write something else.
        "probability_of_any_label": rounded(sum),
        "labels": results,
    }))
}

fn check(labels: &[String]) -> Result<(), Error> {
    let invalid = |detail: String| Err(Error::bad_request("invalid-labels", detail));
    if !(2..=100).contains(&labels.len()) {
        return invalid(format!(
            "there are {} labels; expected 2 to 100",
            labels.len()
        ));
    }
    for (index, label) in labels.iter().enumerate() {
        let mut others = labels.iter().take(index).chain(&labels[index + 1..]);
        if let Some(other) = others.find(|other| other.starts_with(label.as_str())) {
            return invalid(format!(
                "the label {other:?} begins with the label {label:?}; expected labels that differ before their end"
            ));
        }
    }
    Ok(())
}

/// Adds the probability of the token at `at` to all labels that have one. One step computes them.
async fn extend(labels: &mut [Label], at: usize) -> Result<(), Error> {
    let mut open: Vec<_> = labels
        .iter_mut()
        .filter(|label| label.tokens.len() > at)
        .collect();
    for label in &open {
        label.sequence.append_tokens(&[label.tokens[at - 1]])?;
    }
    let requests = open.iter().map(|label| {
        let request = NextTokenRequest::only([label.tokens[at]]).with_statistics();
        (&label.sequence, request)
    });
    let distributions = next_many(requests).await;
    for (label, distribution) in open.iter_mut().zip(distributions) {
        let logprob = distribution?.logprob(label.tokens[at]);
        label.logprob += logprob.unwrap_or(f32::NEG_INFINITY);
    }
    Ok(())
}

/// Three decimals.
fn rounded(value: f32) -> f64 {
    (f64::from(value) * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::{HostCall, Script};

    /// "b" has a probability of 0.73, "a" of 0.27. "z" is 0.27 likely after "b", "y" 0.73.
    fn script() -> Script {
        Script::new()
            .next("?", &[("a", 1.0), ("b", 2.0)])
            .next("b", &[("y", 2.0), ("z", 1.0)])
    }

    fn ask(script: &Script, labels: Value) -> Result<Value, Error> {
        let body = json!({"prompt": "?", "labels": labels});
        script.run(classify(serde_json::from_value(body).unwrap()))
    }

    #[test]
    fn probabilities_of_all_tokens_count() {
        let answer = ask(&script(), json!(["a", "bz", "by"])).unwrap();
        assert_eq!(answer["label"], "by");
        assert_eq!(
            answer["labels"],
            json!([
                {"label": "by", "share": 0.534},
                {"label": "a", "share": 0.269},
                {"label": "bz", "share": 0.197},
            ])
        );
        assert_eq!(answer["probability_of_any_label"], 1.0);
        // Of two labels, their shares of what is left.
        let answer = ask(&script(), json!(["a", "bz"])).unwrap();
        assert_eq!(answer["label"], "a");
        assert_eq!(answer["probability_of_any_label"], 0.466);
    }

    #[test]
    fn nothing_is_generated() {
        let script = script();
        ask(&script, json!(["a", "bz", "by"])).unwrap();
        let calls = script.calls();
        let next = |after: &str| HostCall::Next(after.to_owned());
        let count = |call| calls.iter().filter(|known| **known == call).count();
        assert_eq!((count(next("?")), count(next("?b"))), (1, 2), "{calls:?}");
        assert_eq!(script.generations().len(), 0);
    }

    #[test]
    fn ambiguous_labels_are_refused() {
        for (labels, detail) in [
            (json!([]), "expected 2 to 100"),
            (json!(["a"]), "expected 2 to 100"),
            (json!(["a", ""]), "begins with"),
            (json!(["ab", "c", "a"]), "begins with the label \"a\""),
            (json!(["a", "a"]), "begins with"),
        ] {
            let error = ask(&script(), labels).unwrap_err();
            assert_eq!(error.status(), 400);
            assert!(error.to_string().contains(detail), "{error}");
        }
    }
}
