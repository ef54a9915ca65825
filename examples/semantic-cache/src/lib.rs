//! Middleware that answers a question from a cache if one of nearly the same meaning was answered before: embeddings find it. The
//! last model of the deployment embeds. The question is the last message of a chat, or the prompt; everything else of the two
//! requests must be the same. The entries are values of the deployment, so each tenant has its own.

mod entries;

use corral_sdk::middleware::Next;
use corral_sdk::{Error, KeyValues, Model, Request, Response};
use entries::{Entries, Entry};
use serde_json::Value;

corral_sdk::middleware!(ask);

/// Largest request that is read, in bytes.
const MAX_REQUEST: usize = 8 << 20;
/// Largest answer that is kept, in bytes.
const MAX_ANSWER: usize = 256 << 10;

/// A question and what must be the same for its answer to be right.
struct Question {
    text: String,
    context: String,
}

async fn ask(request: Request, next: Next) -> Result<Response, Error> {
    let mut request = request.with_body_limit(MAX_REQUEST);
    let body = request.body().await?;
    let question = read_question(&request, &body);
    let request = request.with_body(body);
    let Some(question) = question else {
        return next.handle(request).await;
    };
    let (values, vector) = match prepare(&question).await {
        Ok(prepared) => prepared,
        Err(error) => {
            eprintln!("without the cache: {error}");
            return next.handle(request).await;
        }
    };
    let entries = Entries::read(&values, &question.context);
    if let Some((similarity, entry)) = entries.nearest(&question.context, &vector)
        && similarity >= threshold()
    {
        return Ok(
            Response::bytes(&entry.content_type, entry.answer.as_bytes())
                .with_header("x-cache", "hit")
                .with_header("x-cache-similarity", &format!("{similarity:.3}")),
        );
    }

    let mut response = next.handle(request).await?;
    if response.status() != 200 {
        return Ok(response);
    }
    let content_type = response.header("content-type").unwrap_or_default();
    let content_type = content_type.to_owned();
    let mut body = response.take_body();
    let response = response.with_header("x-cache", "miss");
    Ok(response.with_stream(async move |to| {
        let mut answer = Vec::new();
        let mut length = 0;
        while let Some(piece) = body.read().await? {
            length += piece.len();
            if length <= MAX_ANSWER {
                answer.extend_from_slice(&piece);
            }
            to.bytes(piece).await?;
        }
        let answer = String::from_utf8(answer).unwrap_or_default();
        if answer.len() == length && is_complete(&content_type, &answer) {
            let context = question.context;
            let entry = Entry::new(context, &vector, content_type, answer);
            if let Err(error) = Entries::add(&values, entry) {
                eprintln!("the answer is not kept: {error}");
            }
        }
        Ok(())
    }))
}

/// The question of a request; none if it has another form.
fn read_question(request: &Request, body: &[u8]) -> Option<Question> {
    request.expect_method("POST").ok()?;
    let mut json: Value = serde_json::from_slice(body).ok()?;
    let place = match json.get("messages") {
        Some(Value::Array(messages)) => {
            format!("/messages/{}/content", messages.len().checked_sub(1)?)
        }
        _ => "/prompt".to_owned(),
    };
    let Value::String(text) = json.pointer_mut(&place)?.take() else {
        return None;
    };
    let context = format!("{} {json}", request.path());
    Some(Question { text, context })
}

/// The deployment's values, and the embedding of a question.
async fn prepare(question: &Question) -> Result<(KeyValues, Vec<f32>), Error> {
    let values = KeyValues::open()?;
    let names = Model::available();
    let model = Model::open(names.last().map_or("", String::as_str)).await?;
    let vectors = model.embed(&[&question.text]).await?;
    let vector = vectors.into_iter().next();
    let vector = vector.ok_or_else(|| Error::Failed("no embedding".to_owned()))?;
    Ok((values, vector))
}

/// The least cosine similarity of a question whose answer may be used.
fn threshold() -> f32 {
    let configured = std::env::var("CACHE_THRESHOLD").ok();
    configured
        .and_then(|text| text.parse().ok())
        .unwrap_or(0.95)
}

/// Whether an event stream came to its regular end. Other bodies are complete, or reading them fails.
fn is_complete(content_type: &str, answer: &str) -> bool {
    let has_error = answer.contains("\nevent: error\n") || answer.contains("data: {\"error\":");
    let has_end = ["data: [DONE]\n", "event: message_stop\n"]
        .iter()
        .any(|end| answer.contains(end));
    !content_type.starts_with("text/event-stream") || (has_end && !has_error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;
    use serde_json::json;
    use std::cell::Cell;
    use std::rc::Rc;

    /// A handler that counts its calls and answers with this content type.
    fn counting(calls: &Rc<Cell<u32>>, content_type: &'static str, answer: &'static str) -> Next {
        let calls = Rc::clone(calls);
        Next::to(async move |_| {
            calls.set(calls.get() + 1);
            Ok::<_, Error>(Response::bytes(content_type, answer))
        })
    }

    fn chat(question: &str, temperature: f32) -> Request {
        let messages = json!([{"role": "user", "content": question}]);
        Request::post("/v1").with_json(&json!({"temperature": temperature, "messages": messages}))
    }

    #[test]
    fn similar_question_gets_the_cached_answer() {
        let script = Script::new()
            .key_values(1 << 20)
            .embedding("What is 12+7?", &[0.6, 0.8, 0.0, 0.0])
            .embedding("What's 12+7?", &[0.61, 0.79, 0.01, 0.0])
            .embedding("reverse: table", &[0.0, 0.6, -0.8, 0.0]);
        let calls = Rc::new(Cell::new(0));
        let send = |request| {
            script.run(async {
                let next = counting(&calls, "application/json", "{}");
                let response = ask(request, next).await.unwrap();
                let cache = response.header("x-cache").map(str::to_owned);
                assert_eq!(response.read().await, b"{}");
                (cache, calls.get())
            })
        };
        let (miss, hit) = (Some("miss".to_owned()), Some("hit".to_owned()));
        assert_eq!(send(chat("What is 12+7?", 0.0)), (miss.clone(), 1));
        assert_eq!(send(chat("reverse: table", 0.0)), (miss.clone(), 2));
        assert_eq!(send(chat("What's 12+7?", 0.0)), (hit, 2));
        // Other settings may have another answer.
        assert_eq!(send(chat("What's 12+7?", 1.0)), (miss, 3));
        // No question, and one without an embedding.
        assert_eq!(send(Request::get("/v1/models")), (None, 4));
        assert_eq!(send(chat("unknown", 0.0)), (None, 5));
    }

    #[test]
    fn incomplete_stream_is_not_kept() {
        let script = Script::new()
            .key_values(1 << 20)
            .embedding("a", &[1.0, 0.0, 0.0, 0.0]);
        let calls = Rc::new(Cell::new(0));
        for (answer, expected) in [
            ("data: 1\n\ndata: {\"error\":1}\n\ndata: [DONE]\n\n", 1),
            ("data: 1\n\n", 2),
            ("data: 1\n\ndata: [DONE]\n\n", 3),
            ("not asked for", 3),
        ] {
            script.run(async {
                let next = counting(&calls, "text/event-stream", answer);
                let response = ask(chat("a", 0.0), next).await.unwrap();
                response.read().await;
            });
            assert_eq!(calls.get(), expected, "{answer}");
        }
    }
}
