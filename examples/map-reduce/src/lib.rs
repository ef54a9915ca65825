//! Answers a question about many documents: the map step extracts a number from each, the reduce step adds them in
//! pairs. The instructions are computed once for all documents, and the steps of a level run side by side.

use corral_sdk::{Error, GenerateOptions, Model, Outcome, Request, Response, Sequence};
use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::cell::RefCell;

corral_sdk::handler!(map_reduce);

const MOST_DOCUMENTS: usize = 64;

/// Instructions with examples: the prefix of every map step.
const INSTRUCTIONS: &str = "\
    Read the document. Its last line has the name and the age of a person. Answer with JSON that has the members \
    name and age, in this order, and with nothing else. Two examples follow.\n\
    Nora is 27 years old\n{\"name\":\"Nora\",\"age\":27}\n\
    Otto is 50 years old\n{\"name\":\"Otto\",\"age\":50}\n";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MapRequest {
    documents: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct Person {
    name: String,
    age: u32,
}

async fn map_reduce(mut request: Request) -> Result<Response, Error> {
    request.expect_method("POST")?;
    let documents = request.json::<MapRequest>().await?.documents;
    if !(1..=MOST_DOCUMENTS).contains(&documents.len()) {
        let count = documents.len();
        let detail = format!("there are {count} documents; expected 1 to {MOST_DOCUMENTS}");
        return Err(Error::bad_request("documents", detail));
    }
    let model = Model::open_default().await?;
    let outcomes = RefCell::default();

    let instructions = model.sequence()?;
    instructions.append(INSTRUCTIONS)?;
    let map = documents.iter().map(async |document| {
        // A fork shares the state of the instructions.
        let sequence = instructions.fork()?;
        sequence.append(&format!("{document}\n"))?;
        let text = answer(sequence, &outcomes).await?;
        serde_json::from_str::<Person>(&text).map_err(|_| unexpected(&text))
    });
    let people = try_join_all(map).await?;

    let mut sums: Vec<u32> = people.iter().map(|person| person.age).collect();
    while sums.len() > 1 {
        let reduce = sums.chunks(2).map(async |pair| match pair {
            [one, other] => {
                let sequence = model.sequence()?;
                sequence.append(&format!("{one}+{other}="))?;
                let text = answer(sequence, &outcomes).await?;
                text.trim().parse().map_err(|_| unexpected(&text))
            }
            rest => Ok(rest.iter().sum()),
        });
        sums = try_join_all(reduce).await?;
    }

    let outcomes: Vec<Outcome> = outcomes.into_inner();
    let total = |count: fn(&Outcome) -> u32| outcomes.iter().map(count).sum::<u32>();
    Ok(Response::json(&json!({
        "people": people,
        "total": sums[0],
        "prompt_tokens": total(|outcome| outcome.prompt_tokens),
        "cached_tokens": total(|outcome| outcome.cached_tokens),
    })))
}

async fn answer(sequence: Sequence, outcomes: &RefCell<Vec<Outcome>>) -> Result<String, Error> {
    let generation = sequence.generate(&GenerateOptions::new(64))?;
    let (text, outcome) = generation.text_and_outcome().await?;
    outcomes.borrow_mut().push(outcome);
    Ok(text)
}

fn unexpected(text: &str) -> Error {
    Error::new(
        502,
        "unexpected-answer",
        format!("the model answered {text:?}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;
    use serde_json::Value;

    fn ask(documents: &[&str]) -> (u16, Value) {
        let script = Script::new()
            .answers("50}\nAda is 36 years old\n", r#"{"name":"Ada","age":36}"#)
            .answers(
                "50}\nOwls.\nTim is 4 years old\n",
                r#"{"name":"Tim","age":4}"#,
            )
            .answers("50}\nMax is 50 years old\n", r#"{"name":"Max","age":50}"#)
            .answers("50}\nnothing\n", "nothing")
            .answers("36+4=", "40")
            .answers("40+50=", "90");
        script.post(map_reduce, &json!({"documents": documents}))
    }

    #[test]
    fn documents_are_extracted_and_added_in_pairs() {
        let (status, body) = ask(&[
            "Ada is 36 years old",
            "Owls.\nTim is 4 years old",
            "Max is 50 years old",
        ]);
        assert_eq!((status, &body["total"]), (200, &json!(90)), "{body}");
        assert_eq!(body["people"][1], json!({"name": "Tim", "age": 4}));
        let (_, body) = ask(&["Ada is 36 years old"]);
        assert_eq!(body["total"], 36);
        assert_eq!(body["people"][0]["name"], "Ada");
    }

    #[test]
    fn wrong_requests_and_answers_are_errors() {
        let (status, body) = ask(&["Ada is 36 years old", "nothing"]);
        assert_eq!((status, &body["code"]), (502, &json!("unexpected-answer")));
        assert_eq!(ask(&[]).0, 400);
        assert_eq!(ask(&["nothing"; 65]).0, 400);
    }
}
