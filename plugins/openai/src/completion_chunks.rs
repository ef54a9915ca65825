//! The events of streamed chat completions and completions.

use corral_sdk::{Error, EventWriter, Model, Outcome};
use serde::Serialize;
use serde_json::{Value, json};

use crate::sse::DONE;
use crate::timings::{self, SYSTEM_FINGERPRINT};
use conversation::generation::Usage;
use conversation::ids::{now, unique_id};

/// The fields that all events of a stream share.
pub struct CompletionChunks {
    id: String,
    object: &'static str,
    /// Seconds since 1970.
    created: u64,
    model: String,
    /// Whether the last event has the usage; in the others the field is then null.
    usage: bool,
}

impl CompletionChunks {
    pub fn new(id_prefix: &str, object: &'static str, model: &Model, usage: bool) -> Self {
        CompletionChunks {
            id: unique_id(id_prefix),
            object,
            created: now(),
            model: model.name().to_owned(),
            usage,
        }
    }

    /// The event of these choices.
    pub fn chunk(&self, choices: &[impl Serialize]) -> Value {
        let mut chunk = json!({
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": SYSTEM_FINGERPRINT,
            "choices": choices,
        });
        if self.usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// Writes `finish`, if any, and the events after all choices. `first`: the outcome of the first choice.
    pub async fn close(
        &self,
        finish: Option<&Value>,
        usage: Usage,
        first: &Outcome,
        events: &mut EventWriter,
    ) -> Result<(), Error> {
        let mut all: Vec<_> = finish.map(Value::to_string).into_iter().collect();
        if self.usage {
            let mut last = self.chunk(&[(); 0]);
            last["usage"] = usage.to_json();
            last["timings"] = timings::of_outcome(first);
            all.push(last.to_string());
        }
        all.push(DONE.to_owned());
        events.data_events(&all).await
    }
}
