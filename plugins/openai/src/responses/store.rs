//! Stored responses, in the deployment's values for the tenant.
//!
//! The key is the response's id, which begins with the time in microseconds: keys sort by age, and what has expired shows
//! without reading values. A value is JSON with the response and all items before its output, so that a later request reads
//! one value, and an earlier response may be deleted. If the grant is full, the oldest responses are deleted. A response
//! that fails, or whose client disconnects, is not stored.

use corral_sdk::fields::{Fields, out_of_range};
use corral_sdk::{Error, KeyValues, Request, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use conversation::ids::{now_micros, random_letters, unique_id};
use conversation::unsupported;

const PREFIX: &str = "resp_";
/// Hexadecimal digits of the time in an id.
const TIME_DIGITS: usize = 14;
/// Letters and digits after it.
const RANDOM_LETTERS: usize = 18;

/// Items in a list unless the request says so, and at most.
const LIST_LENGTHS: (usize, usize) = (20, 100);

/// A stored response.
#[derive(Serialize, Deserialize)]
struct StoredResponse<R = Value> {
    response: R,
    /// The items before its output, those of earlier responses included.
    input: Vec<Value>,
}

/// A new id.
pub fn new_id() -> String {
    id_at(now_micros())
}

fn id_at(micros: u64) -> String {
    format!(
        "{PREFIX}{micros:0TIME_DIGITS$x}{}",
        random_letters(RANDOM_LETTERS)
    )
}

/// When the response of this id was created, in microseconds since 1970; `None` for what is no id.
fn created(id: &str) -> Option<u64> {
    let rest = id.strip_prefix(PREFIX)?;
    let digits = rest.get(..TIME_DIGITS)?;
    let is_id = rest.len() == TIME_DIGITS + RANDOM_LETTERS;
    u64::from_str_radix(digits, 16).ok().filter(|_| is_id)
}

fn has_expired(id: &str, seconds: u64) -> bool {
    let micros = seconds.saturating_mul(1_000_000);
    created(id).is_none_or(|created| created.saturating_add(micros) <= now_micros())
}

/// The values, and how long responses stay, in seconds.
struct Store {
    values: KeyValues,
    seconds: u64,
}

impl Store {
    fn open(seconds: u64) -> Result<Self, Error> {
        let values = KeyValues::open()?;
        Ok(Store { values, seconds })
    }

    /// Reads a response that has not expired.
    fn get(&self, id: &str) -> Result<Option<StoredResponse>, Error> {
        if has_expired(id, self.seconds) {
            return Ok(None);
        }
        let value = self.values.get(id)?;
        let parse = |bytes: Vec<u8>| {
            let parsed = serde_json::from_slice(&bytes);
            parsed.map_err(|error| Error::Failed(format!("the response {id} is damaged: {error}")))
        };
        value.map(parse).transpose()
    }

    /// Stores a response, and deletes those that have expired and the oldest that leave it no room.
    fn put(&self, id: &str, value: &[u8]) -> Result<(), Error> {
        let keys = self.values.first_keys()?;
        let ours = keys.into_iter().filter(|key| created(key).is_some());
        let (expired, others): (Vec<_>, Vec<_>) =
            ours.partition(|key| has_expired(key, self.seconds));
        for key in expired {
            self.values.delete(&key)?;
        }
        let mut oldest = others.into_iter();
        loop {
            match (self.values.set(id, value), oldest.next()) {
                (Err(Error::NotGranted(_)), Some(key)) => self.values.delete(&key)?,
                (result, _) => return result,
            }
        }
    }
}

/// Whether and how the response to a request is stored.
#[derive(Default)]
pub struct Storing {
    /// The response that the request continues.
    pub previous: Option<String>,
    /// The items of the request and those before them; `None` if the response is not stored.
    stored: Option<(Store, Vec<Value>)>,
}

impl Storing {
    pub fn is_on(&self) -> bool {
        self.stored.is_some()
    }

    /// Stores the complete response. Returns false if it is not stored: it may be larger than the grant.
    pub fn save(&self, id: &str, response: &impl Serialize) -> bool {
        let Some((store, input)) = &self.stored else {
            return false;
        };
        let stored = StoredResponse {
            response,
            input: input.clone(),
        };
        let bytes = serde_json::to_vec(&stored);
        bytes.is_ok_and(|bytes| match store.put(id, &bytes) {
            Ok(()) => true,
            Err(error) => {
                eprintln!("a response is not stored: {error}");
                false
            }
        })
    }
}

/// Takes the fields about stored responses, if responses are stored. The input becomes a list that begins with the
/// items of the conversation that the request continues. Returns their number, too.
pub fn begin(mut fields: Fields, seconds: Option<u64>) -> Result<(Fields, usize, Storing), Error> {
    let Some(seconds) = seconds else {
        return Ok((fields, 0, Storing::default()));
    };
    let previous = fields.text("previous_response_id")?;
    let stores = fields.boolean("store")?.unwrap_or(true);
    if previous.is_none() && !stores {
        return Ok((fields, 0, Storing::default()));
    }
    let store = Store::open(seconds)?;
    let mut items = match &previous {
        None => Vec::new(),
        Some(id) => conversation_after(&store, id)?,
    };
    let earlier = items.len();
    let mut request_fields = fields.into_map();
    match request_fields.remove("input") {
        Some(Value::String(text)) => items.push(item(json!({"role": "user", "content": text}))),
        Some(Value::Array(own)) if !own.is_empty() => items.extend(own.into_iter().map(item)),
        // The reader of the input reports these.
        Some(other) => {
            request_fields.insert("input".to_owned(), other);
            return Ok((Fields::from_map(request_fields), 0, Storing::default()));
        }
        None => return Ok((Fields::from_map(request_fields), 0, Storing::default())),
    }
    let storing = Storing {
        previous,
        stored: stores.then(|| (store, items.clone())),
    };
    request_fields.insert("input".to_owned(), items.into());
    Ok((Fields::from_map(request_fields), earlier, storing))
}

/// All items up to the end of a response.
fn conversation_after(store: &Store, id: &str) -> Result<Vec<Value>, Error> {
    let Some(StoredResponse {
        mut response,
        mut input,
    }) = store.get(id)?
    else {
        let text = format!(
            "the response `previous_response_id` {id:?} was not found: it was never stored or was deleted, has \
             expired, or gave way to newer ones; send the whole conversation as `input`"
        );
        let error = Error::bad_request("previous_response_not_found", text);
        return Err(error.with_field("previous_response_id"));
    };
    if let Value::Array(output) = response["output"].take() {
        input.extend(output);
    }
    Ok(input)
}

/// An item in the form of lists: a message has its type and parts, and every item an id.
fn item(mut item: Value) -> Value {
    let Some(item_fields) = item.as_object_mut() else {
        return item;
    };
    let kind = item_fields.get("type").and_then(Value::as_str);
    let is_message = matches!(kind, None | Some("message"));
    if is_message {
        item_fields.insert("type".to_owned(), "message".into());
        let is_answer = item_fields
            .get("role")
            .is_some_and(|role| role == "assistant");
        let part = if is_answer {
            "output_text"
        } else {
            "input_text"
        };
        if let Some(Value::String(text)) = item_fields.get("content") {
            let parts = json!([{"type": part, "text": text}]);
            item_fields.insert("content".to_owned(), parts);
        }
    }
    if !item_fields.get("id").is_some_and(Value::is_string) {
        let prefix = if is_message { "msg_" } else { "item_" };
        item_fields.insert("id".to_owned(), unique_id(prefix).into());
    }
    item
}

/// What a path below `/v1/responses/` names.
#[derive(Debug, PartialEq)]
pub struct StoredPath {
    id: String,
    of: StoredPart,
}

#[derive(Debug, PartialEq)]
enum StoredPart {
    Response,
    InputItems,
    Cancel,
}

/// Reads a path of a stored response.
pub fn stored_path(path: &str) -> Option<StoredPath> {
    let path = path.strip_prefix("/v1").unwrap_or(path);
    let rest = path.strip_prefix("/responses/")?;
    let (id, below) = match rest.split_once('/') {
        None => (rest, None),
        Some((id, below)) => (id, Some(below)),
    };
    let of = match below {
        None if id.starts_with(PREFIX) => StoredPart::Response,
        Some("input_items") => StoredPart::InputItems,
        Some("cancel") => StoredPart::Cancel,
        _ => return None,
    };
    let id = id.to_owned();
    Some(StoredPath { id, of })
}

/// `/v1/responses/ID` and below: answers a request about a stored response. `seconds`: how long they are stored, if at all.
pub fn answer_stored(
    request: &Request,
    StoredPath { id, of }: StoredPath,
    seconds: Option<u64>,
) -> Result<Response, Error> {
    let deletes = of == StoredPart::Response && request.method() == "DELETE";
    match of {
        _ if deletes => {}
        StoredPart::Response if request.expect_method("GET").is_err() => {
            let text = format!("a response takes GET or DELETE, not {}", request.method());
            return Err(Error::method_not_allowed("GET, DELETE", text));
        }
        StoredPart::Cancel => request.expect_method("POST")?,
        _ => request.expect_method("GET")?,
    }
    let Some(seconds) = seconds else {
        let text = "this deployment stores no responses; its operator can set `store` in `[configuration]`";
        return Err(Error::new(404, "response_not_found", text));
    };
    let store = Store::open(seconds)?;
    let Some(stored) = store.get(&id)? else {
        let text = format!(
            "the response {id:?} was not found: it was never stored or was deleted, has expired, or gave way to \
             newer ones"
        );
        return Err(Error::new(404, "response_not_found", text));
    };
    match of {
        _ if deletes => {
            store.values.delete(&id)?;
            let deleted = json!({"id": id, "object": "response", "deleted": true});
            Ok(Response::json(&deleted))
        }
        StoredPart::Response => match request.query_parameter("stream").as_deref() {
            None | Some("false") => Ok(Response::json(&stored.response)),
            Some(_) => Err(unsupported("stream", "a stored response is complete")),
        },
        StoredPart::InputItems => list(request, stored.input),
        StoredPart::Cancel => Err(unsupported("cancel", "no response runs in the background")),
    }
}

/// A page of items: the latest first unless `order` is `asc`.
fn list(request: &Request, mut items: Vec<Value>) -> Result<Response, Error> {
    match request.query_parameter("order").as_deref() {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(other) => return Err(out_of_range("order", &other.into(), "asc or desc")),
    }
    let (default, max) = LIST_LENGTHS;
    let limit = match request.query_parameter("limit") {
        None => default,
        Some(text) => match text.parse() {
            Ok(limit) if (1..=max).contains(&limit) => limit,
            _ => return Err(out_of_range("limit", &text.into(), &format!("1 to {max}"))),
        },
    };
    if let Some(after) = request.query_parameter("after") {
        let Some(place) = items.iter().position(|item| item["id"] == *after) else {
            let expected = "the id of an item of the list";
            return Err(out_of_range("after", &after.into(), expected));
        };
        items.drain(..=place);
    }
    let has_more = items.len() > limit;
    items.truncate(limit);
    let id = |item: Option<&Value>| item.map(|item| item["id"].clone());
    Ok(Response::json(&json!({
        "object": "list",
        "first_id": id(items.first()),
        "last_id": id(items.last()),
        "has_more": has_more,
        "data": items,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_their_time_and_sort_by_it() {
        let (early, late) = (id_at(255), id_at(256));
        assert!(early < late);
        assert_eq!(created(&late), Some(256));
        assert_eq!(created("resp_x"), None);
        // The host takes no key of any length.
        assert_eq!(created(&(late + "x")), None);
        assert!(has_expired(&id_at(now_micros() - 10_000_000), 10));
        assert!(!has_expired(&new_id(), 10));
        assert!(has_expired("other", u64::MAX));
    }

    #[test]
    fn paths_of_stored_responses_are_read() {
        for (path, of) in [
            ("/v1/responses/resp_1", Some(StoredPart::Response)),
            (
                "/responses/resp_1/input_items",
                Some(StoredPart::InputItems),
            ),
            ("/v1/responses/resp_1/cancel", Some(StoredPart::Cancel)),
            ("/v1/responses/input_tokens", None),
            ("/v1/responses/resp_1/other", None),
            ("/v1/responses", None),
        ] {
            let id = "resp_1".to_owned();
            let found = stored_path(path);
            assert_eq!(found, of.map(|of| StoredPath { id, of }), "{path}");
        }
    }
}
