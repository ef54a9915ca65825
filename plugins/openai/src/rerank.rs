//! Reranking: `/rerank`, `/v1/rerank`, `/v1/reranking`, in the formats of Jina, Cohere and TEI.
//!
//! A reranking model scores each document together with the query, in the template of its file or else with separators
//! between them. Other models answer 501: a plugin can't tell whether their embeddings are made for comparison.

use conversation::context_limit::check_prompt;
use conversation::silently_ignored;
use corral_sdk::fields::Fields;
use corral_sdk::model::Pooling;
use corral_sdk::template::Chat;
use corral_sdk::{Error, Model, Response, Token};
use serde_json::{Value, json};

/// The host's limit for inputs of a call.
const DOCUMENT_LIMIT: usize = 2047;

/// The format of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// Jina's and Cohere's: `documents`, and an object with `results`.
    Jina,
    /// TEI's (text embeddings inference): `texts`, and a list.
    Tei,
}

struct RerankRequest {
    model: Option<String>,
    query: String,
    documents: Vec<String>,
    /// The documents as they came, if the response has them.
    returned: Option<Vec<Value>>,
    top: usize,
    shape: Shape,
    /// TEI's scores without the logistic function.
    raw: bool,
}

pub async fn respond(fields: Fields) -> Result<Response, Error> {
    let request = read(fields)?;
    let model = Model::open_requested(request.model.as_deref()).await?;
    let (scores, tokens) = score(&request, &model).await?;
    let mut order: Vec<_> = scores.iter().copied().enumerate().collect();
    order.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    order.truncate(request.top);
    let (score_name, text_name) = match request.shape {
        Shape::Jina => ("relevance_score", "document"),
        Shape::Tei => ("score", "text"),
    };
    let results = order.into_iter().map(|(index, score)| {
        let mut result = json!({"index": index, score_name: score});
        if let Some(documents) = &request.returned {
            result[text_name] = documents[index].clone();
        }
        result
    });
    let results: Vec<_> = results.collect();
    Ok(match request.shape {
        Shape::Tei => Response::json(&results),
        Shape::Jina => Response::json(&json!({
            "model": model.name(),
            "object": "list",
            "results": results,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        })),
    })
}

fn read(mut fields: Fields) -> Result<RerankRequest, Error> {
    let model = fields.text("model")?;
    let query = fields.required_text("query")?;
    let (name, shape) = match fields.peek("texts") {
        Some(_) => ("texts", Shape::Tei),
        None => ("documents", Shape::Jina),
    };
    let list = fields.required_list(name, "a list of strings")?;
    if !(1..=DOCUMENT_LIMIT).contains(&list.len()) {
        let text = format!(
            "`{name}` has {} entries; expected 1 to {DOCUMENT_LIMIT}",
            list.len()
        );
        return Err(Error::bad_request("out-of-range", text).with_field(name));
    }
    let texts = list.iter().enumerate();
    let texts = texts.map(|(index, document)| text_of(&format!("{name}[{index}]"), document));
    let documents = texts.collect::<Result<Vec<_>, _>>()?;
    let top = fields.integer("top_n", 1..=u32::MAX)?;
    let returned = match shape {
        Shape::Jina => fields.flag("return_documents")?.then(|| {
            let documents = documents.iter();
            documents.map(|text| json!({"text": text})).collect()
        }),
        Shape::Tei => fields.flag("return_text")?.then_some(list),
    };
    let raw = fields.flag("raw_scores")?;
    silently_ignored::drop(&mut fields, &silently_ignored::OF_REQUEST);
    fields.ignore_unknown(&[])?;
    Ok(RerankRequest {
        model,
        query,
        top: top.map_or(documents.len(), |top| top as usize),
        documents,
        returned,
        shape,
        raw,
    })
}

/// A document is a string, or an object with `text`.
fn text_of(path: &str, document: &Value) -> Result<String, Error> {
    match document {
        Value::String(text) => Ok(text.clone()),
        Value::Object(_) => Fields::at(path.to_owned(), document.clone())?.required_text("text"),
        other => Err(corral_sdk::fields::wrong_type(path, "a string", other)),
    }
}

/// The score of each document, and the number of tokens computed.
async fn score(request: &RerankRequest, model: &Model) -> Result<(Vec<f32>, usize), Error> {
    let template = model.rerank_template().map(|text| jinja(&text));
    let pairs = request.documents.iter();
    let pairs = pairs.map(|document| match &template {
        Some(template) => filled(template, &request.query, document, model),
        None => pair(&request.query, document, model),
    });
    let pairs = pairs.collect::<Result<Vec<_>, Error>>()?;
    for pair in &pairs {
        check_prompt(model, pair, 0, "documents")?;
    }
    let tokens = pairs.iter().map(Vec::len).sum();
    let vectors = model.embed_tokens(pairs, Some(Pooling::Rank), None).await;
    let vectors = vectors.map_err(|error| match error {
        Error::Invalid(text) => {
            let text = format!("the model {} can't rerank: {text}", model.name());
            Error::new(501, "unsupported", text).with_field("model")
        }
        other => other,
    })?;
    let scores = vectors.iter();
    let scores = scores.map(|vector| {
        let score = vector.first().copied();
        let score = score.ok_or_else(|| Error::Failed("the model returned no score".to_owned()))?;
        // TEI's default is the logistic function of the score.
        Ok(match request.shape == Shape::Tei && !request.raw {
            true => 1.0 / (1.0 + (-score).exp()),
            false => score,
        })
    });
    Ok((scores.collect::<Result<_, Error>>()?, tokens))
}

/// The model's template in Jinja, whose renderer reads no control tokens in texts. The last expression keeps a line
/// break at the end, which Jinja drops.
fn jinja(template: &str) -> String {
    let template = template.replace("{query}", "{{ query }}");
    template.replace("{document}", "{{ document }}") + "{{ '' }}"
}

/// The input of a reranking model with a template.
fn filled(template: &str, query: &str, document: &str, model: &Model) -> Result<Vec<Token>, Error> {
    let mut chat = Chat::new();
    for (name, text) in [("query", query), ("document", document)] {
        chat.variables.insert(name.to_owned(), text.into());
    }
    chat.tokens_with(template, model)
}

/// The input of a reranking model without one: `[CLS]query[SEP]document[SEP]` for BERT, and
/// `<s>query</s></s>document</s>` for RoBERTa and others with these tokens.
fn pair(query: &str, document: &str, model: &Model) -> Result<Vec<Token>, Error> {
    let (between, after) = match model.tokenize_trusted("[SEP]")?[..] {
        [separator] => (vec![separator], Some(separator)),
        _ => match (model.info().bos, model.info().eos) {
            (Some(_), Some(end)) => (vec![end, end], Some(end)),
            (_, end) => (Vec::from_iter(end), end),
        },
    };
    let mut tokens = model.tokenize(query)?;
    model.add_begin_token(&mut tokens);
    tokens.extend(between);
    tokens.extend(model.tokenize(document)?);
    tokens.extend(after);
    Ok(tokens)
}
