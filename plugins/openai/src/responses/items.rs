//! What an answer is made of: items, and the events by which they come.

use serde_json::{Value, json};

use crate::identity::unique;
use crate::talk::Part;

/// The items of an answer. An event is an object with a `type`.
#[derive(Default)]
pub struct Items {
    /// Those that are complete.
    pub done: Vec<Value>,
    open: Option<Open>,
}

/// An item in the making.
struct Open {
    kind: Kind,
    id: String,
    /// What was said so far: text, or arguments.
    text: String,
}

enum Kind {
    Reasoning,
    Message,
    Call { id: String, name: String },
}

impl Items {
    /// Goes on by a part; a call gets this name.
    pub fn part(&mut self, part: Part, call: impl FnOnce() -> String) -> Vec<Value> {
        let mut events = Vec::new();
        let text = match part {
            Part::Reasoning(text) => {
                if !matches!(
                    self.open,
                    Some(Open {
                        kind: Kind::Reasoning,
                        ..
                    })
                ) {
                    self.open(Kind::Reasoning, "rs_", &mut events);
                }
                text
            }
            Part::Content(text) => {
                if !matches!(
                    self.open,
                    Some(Open {
                        kind: Kind::Message,
                        ..
                    })
                ) {
                    self.open(Kind::Message, "msg_", &mut events);
                }
                text
            }
            Part::Call(name) => {
                self.open(Kind::Call { id: call(), name }, "fc_", &mut events);
                return events;
            }
            Part::Arguments(text) => text,
        };
        let index = self.done.len();
        if let Some(open) = &mut self.open {
            open.text += &text;
            let mut event = open.event("delta", index);
            event["delta"] = text.into();
            events.push(event);
        }
        events
    }

    fn open(&mut self, kind: Kind, prefix: &str, events: &mut Vec<Value>) {
        self.close("completed", events);
        let index = self.done.len();
        let open = Open {
            kind,
            id: unique(prefix),
            text: String::new(),
        };
        events.push(json!({
            "type": "response.output_item.added",
            "output_index": index,
            "item": open.item("in_progress", false),
        }));
        if let Some(part) = open.part() {
            events.push(open.content("response.content_part.added", index, &part));
        }
        self.open = Some(open);
    }

    /// Completes the last item.
    pub fn close(&mut self, status: &str, events: &mut Vec<Value>) {
        let Some(open) = self.open.take() else {
            return;
        };
        let index = self.done.len();
        let mut done = open.event("done", index);
        let member = match open.kind {
            Kind::Call { .. } => "arguments",
            Kind::Reasoning | Kind::Message => "text",
        };
        done[member] = open.text.as_str().into();
        events.push(done);
        if let Some(part) = open.part() {
            events.push(open.content("response.content_part.done", index, &part));
        }
        let item = open.item(status, true);
        events.push(json!({
            "type": "response.output_item.done",
            "output_index": index,
            "item": item,
        }));
        self.done.push(item);
    }

    /// Completes the answer. One in which nothing was said is an empty message.
    pub fn end(&mut self, status: &str) -> Vec<Value> {
        let mut events = Vec::new();
        if self.open.is_none() && self.done.is_empty() {
            self.open(Kind::Message, "msg_", &mut events);
        }
        self.close(status, &mut events);
        events
    }
}

impl Open {
    /// An event about what is said.
    fn event(&self, what: &str, index: usize) -> Value {
        let kind = match self.kind {
            Kind::Reasoning => "reasoning_text",
            Kind::Message => "output_text",
            Kind::Call { .. } => "function_call_arguments",
        };
        let mut event = json!({
            "type": format!("response.{kind}.{what}"),
            "item_id": self.id,
            "output_index": index,
        });
        if !matches!(self.kind, Kind::Call { .. }) {
            event["content_index"] = 0.into();
        }
        if let Kind::Message = self.kind {
            event["logprobs"] = json!([]);
        }
        event
    }

    /// An event about the one part of a message or a thought.
    fn content(&self, kind: &str, index: usize, part: &Value) -> Value {
        json!({
            "type": kind,
            "item_id": self.id,
            "output_index": index,
            "content_index": 0,
            "part": part,
        })
    }

    /// What an item consists of; a call has no parts.
    fn part(&self) -> Option<Value> {
        match self.kind {
            Kind::Reasoning => Some(json!({"type": "reasoning_text", "text": self.text})),
            Kind::Message => Some(
                json!({"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}),
            ),
            Kind::Call { .. } => None,
        }
    }

    fn item(&self, status: &str, whole: bool) -> Value {
        let parts: Vec<_> = self.part().into_iter().filter(|_| whole).collect();
        match &self.kind {
            Kind::Reasoning => json!({
                "id": self.id,
                "type": "reasoning",
                "status": status,
                "summary": [],
                "content": parts,
            }),
            Kind::Message => json!({
                "id": self.id,
                "type": "message",
                "status": status,
                "role": "assistant",
                "content": parts,
            }),
            Kind::Call { id, name } => json!({
                "id": self.id,
                "type": "function_call",
                "status": status,
                "call_id": id,
                "name": name,
                "arguments": self.text,
            }),
        }
    }
}
