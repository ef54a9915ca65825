//! Retrieval-augmented generation with cached documents. The prompt begins with the document and ends with the
//! question, so the host finds the document's state in its prefix cache and computes only the question.

use corral_sdk::template::Prompt;
use corral_sdk::{Error, GenerateOptions, Model, Request, Response};
use serde::Deserialize;
use serde_json::json;

corral_sdk::handler!(answer);

/// Names and texts.
const DOCUMENTS: [(&str, &str); 3] = [
    ("barn", include_str!("../documents/barn.txt")),
    ("ferry", include_str!("../documents/ferry.txt")),
    ("lighthouse", include_str!("../documents/lighthouse.txt")),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    question: String,
}

async fn answer(mut request: Request) -> Result<Response, Error> {
    request.expect_method("POST")?;
    let question = request.json::<Question>().await?.question;
    let (name, document) = retrieve(&question)?;
    let model = Model::open_default().await?;
    // Nothing that varies may precede the document: a date or a user's name there would end the common prefix.
    let prompt = Prompt::default()
        .trusted("<|im_start|>system\nAnswer from this document.\n")
        .text(document)
        .trusted("<|im_end|>\n<|im_start|>user\n")
        .text(question)
        .trusted("<|im_end|>\n<|im_start|>assistant\n");
    let generation = prompt
        .sequence(&model)?
        .generate(&GenerateOptions::new(128))?;
    let (text, outcome) = generation.text_and_outcome().await?;
    Ok(Response::json(&json!({
        "document": name,
        "text": text,
        "prompt_tokens": outcome.prompt_tokens,
        "cached_tokens": outcome.cached_tokens,
    })))
}

/// The document that has the most words of the question. A few long documents are better searched by embeddings; see
/// `semantic-cache`.
fn retrieve(question: &str) -> Result<(&'static str, &'static str), Error> {
    let wanted = words(question);
    let score = |document: &str| {
        let words = words(document);
        wanted.iter().filter(|word| words.contains(word)).count()
    };
    let best = DOCUMENTS
        .into_iter()
        .max_by_key(|(_, document)| score(document));
    best.filter(|(_, document)| score(document) > 0)
        .ok_or_else(|| {
            Error::new(
                404,
                "no-document",
                "no document has a word of the question with four letters or more",
            )
        })
}

fn words(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_alphanumeric());
    words
        .filter(|word| word.len() >= 4)
        .map(str::to_lowercase)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;
    use serde_json::Value;

    fn ask(question: &str) -> (u16, Value) {
        let script = Script::new().answers(
            "rocks below.\n<|im_end|>\n<|im_start|>user\nHow high is the lighthouse?<|im_end|>\n\
                <|im_start|>assistant\n",
            "Very high.",
        );
        script.post(answer, &json!({"question": question}))
    }

    #[test]
    fn prompt_begins_with_the_retrieved_document() {
        let (status, body) = ask("How high is the lighthouse?");
        assert_eq!(status, 200, "{body}");
        assert_eq!(body["document"], "lighthouse", "{body}");
        assert_eq!(body["text"], "Very high.");
    }

    #[test]
    fn question_without_a_document_is_404() {
        let (status, body) = ask("xylophones?");
        assert_eq!((status, &body["code"]), (404, &json!("no-document")));
    }

    #[test]
    fn questions_find_their_documents() {
        for (question, name) in [
            ("Which birds live in the barn? Owls?", "barn"),
            ("When does the last ferry leave?", "ferry"),
        ] {
            assert_eq!(retrieve(question).unwrap().0, name, "{question}");
        }
    }
}
