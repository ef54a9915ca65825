//! Answers a question from a cache if one of nearly the same meaning was answered before: embeddings find it. The first
//! model of the deployment answers, the last one embeds. A snapshot holds the entries, since an instance ends with its
//! request.

mod entries;

use corral_sdk::{Error, GenerateOptions, Model, Request, Response};
use entries::{Entries, cosine};
use serde::Deserialize;
use serde_json::json;

corral_sdk::handler!(ask);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    question: String,
    /// The least cosine similarity of a question whose answer may be used.
    #[serde(default = "default_threshold")]
    threshold: f32,
}

fn default_threshold() -> f32 {
    0.95
}

async fn ask(mut request: Request) -> Result<Response, Error> {
    request.expect_method("POST")?;
    let body: Question = request.json().await?;
    let names = Model::available();
    let answering = Model::open_default().await?;
    let embedding = Model::open(names.last().map_or("", String::as_str)).await?;
    let mut vectors = embedding.embed(&[&body.question]).await?;
    let vector = vectors
        .pop()
        .ok_or_else(|| Error::Failed("no embedding".to_owned()))?;

    let snapshot = snapshot_name(&embedding);
    let mut entries = match answering.restore(&snapshot).await {
        Ok(sequence) => Entries::from_tokens(sequence.tokens(0), vector.len()),
        // No entry yet, or those of another answering model.
        Err(Error::NotFound(_) | Error::Failed(_)) => Entries::default(),
        Err(error) => return Err(error),
    };
    let scored = entries
        .iter()
        .map(|entry| (cosine(&entry.vector, &vector), entry));
    let best = scored.max_by(|(one, _), (other, _)| one.total_cmp(other));
    if let Some((similarity, entry)) = best
        && similarity >= body.threshold
    {
        let text = answering.detokenize(&entry.answer)?;
        return Ok(Response::json(
            &json!({"text": text, "cached": true, "similarity": similarity}),
        ));
    }
    let similarity = best.map(|(similarity, _)| similarity);

    let sequence = answering.sequence()?;
    sequence.append(&format!("{}\n", body.question))?;
    let start = sequence.len();
    let text = sequence
        .generate(&GenerateOptions::new(256))?
        .text()
        .await?;
    entries.push(&vector, sequence.tokens(start));
    let stored = answering.empty_sequence()?;
    stored.append_tokens(&entries.to_tokens(answering.info().context))?;
    // Of two requests at once, one entry may be lost; then its question is answered anew.
    stored.snapshot(&snapshot).await?;
    Ok(Response::json(
        &json!({"text": text, "cached": false, "similarity": similarity}),
    ))
}

/// Vectors of different models are not comparable, so each embedding model has its own entries.
fn snapshot_name(embedding: &Model) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let name = embedding.name().chars().map(allowed).take(100);
    format!("entries-{}", name.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::{HostCall, Script};
    use serde_json::Value;

    fn send(script: &Script, question: &str) -> Value {
        script.run(async {
            let request = Request::post("/").with_json(&json!({"question": question}));
            let answer = ask(request).await.unwrap();
            serde_json::from_slice(&answer.read().await).unwrap()
        })
    }

    #[test]
    fn similar_question_gets_the_cached_answer() {
        let script = Script::new()
            .embedding("What is 12+7?", &[0.6, 0.8, 0.0, 0.0])
            .embedding("What's 12+7?", &[0.61, 0.79, 0.01, 0.0])
            .embedding("reverse: table", &[0.0, 0.6, -0.8, 0.0])
            .answers("What is 12+7?\n", "19")
            .answers("reverse: table\n", "elbat");
        let first = send(&script, "What is 12+7?");
        assert_eq!(
            first,
            json!({"text": "19", "cached": false, "similarity": null})
        );
        let other = send(&script, "reverse: table");
        assert_eq!(
            (&other["text"], &other["cached"]),
            (&json!("elbat"), &json!(false))
        );
        // The script has no answer to this question.
        let similar = send(&script, "What's 12+7?");
        assert_eq!(
            (&similar["text"], &similar["cached"]),
            (&json!("19"), &json!(true))
        );
        assert_eq!(send(&script, "reverse: table")["cached"], true);
        assert_eq!(script.generations().len(), 2);
        assert!(
            script
                .calls()
                .contains(&HostCall::Snapshot("entries-script".to_owned()))
        );
    }
}
