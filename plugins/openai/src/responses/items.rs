//! The output items of a response and the events that build them.

use serde_json::{Value, json};

use super::encoded_reasoning;
use super::logprobs::{WaitingLogprobs, WithLogprobs};
use super::tool_names::{ToolKind, ToolNames, custom_input};
use crate::chat::logprob_list;
use conversation::OutputPart;
use conversation::generation::LogprobEntry;
use conversation::ids::unique_id;

/// What the request says about the items.
#[derive(Clone, Default)]
pub struct ItemOptions {
    /// What the names of tools stand for.
    pub names: ToolNames,
    /// Whether reasoning has `encrypted_content`.
    pub encodes_reasoning: bool,
}

/// The output items. An event is an object with a `type`. Items and events are serialized by
/// [`with_logprobs`](Items::with_logprobs).
#[derive(Default)]
pub struct Items {
    /// The completed items.
    pub completed: Vec<Value>,
    open: Option<OpenItem>,
    options: ItemOptions,
    waiting_logprobs: WaitingLogprobs,
    /// The log probabilities of each completed message that has any.
    logprobs: Vec<Vec<LogprobEntry>>,
}

/// An item in progress.
struct OpenItem {
    kind: ItemKind,
    id: String,
    /// The text or arguments so far.
    text: String,
    /// The log probabilities of a message so far.
    logprobs: Vec<LogprobEntry>,
    /// The index of their list, when the message is complete and has any.
    logprobs_index: Option<usize>,
    /// Whether reasoning has `encrypted_content`.
    encodes_reasoning: bool,
}

#[derive(PartialEq)]
enum ItemKind {
    Reasoning,
    Message,
    Call {
        id: String,
        name: String,
        kind: ToolKind,
    },
}

impl Items {
    pub fn new(options: ItemOptions) -> Self {
        Items {
            options,
            ..Items::default()
        }
    }

    /// Adds log probabilities of tokens whose parts follow.
    pub fn add_logprobs(&mut self, entries: Vec<LogprobEntry>) {
        self.waiting_logprobs.add(entries);
    }

    /// An event, or a response with completed items, as it is sent.
    pub fn with_logprobs<'a>(&'a self, value: &'a Value) -> WithLogprobs<'a> {
        WithLogprobs {
            value,
            lists: &self.logprobs,
        }
    }

    /// Adds a part and returns its events. `call_id` creates the id of a tool call.
    pub fn add(&mut self, part: OutputPart, call_id: impl FnOnce() -> String) -> Vec<Value> {
        let mut events = Vec::new();
        let mut logprobs = Vec::new();
        let text = match part {
            OutputPart::Reasoning(text) => {
                self.continue_or_open(ItemKind::Reasoning, &mut events);
                self.waiting_logprobs.take(&text, false);
                text
            }
            OutputPart::Content(text) => {
                let opens = self.continue_or_open(ItemKind::Message, &mut events);
                logprobs = self.waiting_logprobs.take(&text, opens);
                text
            }
            OutputPart::ToolCall(name) => {
                let id = call_id();
                let kind = self.options.names.kind(&name);
                self.open(ItemKind::Call { id, name, kind }, &mut events);
                self.waiting_logprobs.clear();
                return events;
            }
            OutputPart::Arguments(text) => {
                self.waiting_logprobs.clear();
                text
            }
        };
        let index = self.completed.len();
        if let Some(open) = &mut self.open {
            open.text += &text;
            if open.arrives_whole() {
                return events;
            }
            let list = serde_json::to_value(logprob_list(&logprobs));
            let mut event = open.event("delta", index, list.unwrap_or_default());
            event["delta"] = text.into();
            events.push(event);
            open.logprobs.append(&mut logprobs);
        }
        events
    }

    /// Whether it opens an item.
    fn continue_or_open(&mut self, kind: ItemKind, events: &mut Vec<Value>) -> bool {
        let opens = self.open.as_ref().is_none_or(|open| open.kind != kind);
        if opens {
            self.open(kind, events);
        }
        opens
    }

    fn open(&mut self, kind: ItemKind, events: &mut Vec<Value>) {
        self.close("completed", events);
        let prefix = match kind {
            ItemKind::Reasoning => "rs_",
            ItemKind::Message => "msg_",
            ItemKind::Call { .. } => "fc_",
        };
        let index = self.completed.len();
        let open = OpenItem {
            kind,
            id: unique_id(prefix),
            text: String::new(),
            logprobs: Vec::new(),
            logprobs_index: None,
            encodes_reasoning: self.options.encodes_reasoning,
        };
        events.push(json!({
            "type": "response.output_item.added",
            "output_index": index,
            "item": open.item("in_progress", false),
        }));
        if let Some(part) = open.content_part() {
            events.push(open.content_part_event("response.content_part.added", index, &part));
        }
        self.open = Some(open);
    }

    /// Completes the last item.
    pub fn close(&mut self, status: &str, events: &mut Vec<Value>) {
        let Some(mut open) = self.open.take() else {
            return;
        };
        if !open.logprobs.is_empty() {
            open.logprobs_index = Some(self.logprobs.len());
            self.logprobs.push(std::mem::take(&mut open.logprobs));
        }
        let index = self.completed.len();
        let (field, text) = match &open.kind {
            ItemKind::Call {
                kind: ToolKind::Custom,
                ..
            } => ("input", custom_input(&open.text)),
            ItemKind::Call { .. } => ("arguments", open.text.clone()),
            ItemKind::Reasoning | ItemKind::Message => ("text", open.text.clone()),
        };
        if open.has_text_events() {
            if open.arrives_whole() {
                let mut event = open.event("delta", index, Value::Null);
                event["delta"] = text.as_str().into();
                events.push(event);
            }
            let mut event = open.event("done", index, open.listed_logprobs());
            event[field] = text.into();
            events.push(event);
        }
        if let Some(part) = open.content_part() {
            events.push(open.content_part_event("response.content_part.done", index, &part));
        }
        let item = open.item(status, true);
        events.push(json!({
            "type": "response.output_item.done",
            "output_index": index,
            "item": item,
        }));
        self.completed.push(item);
    }

    /// Completes the response. Without output it gets an empty message.
    pub fn end(&mut self, status: &str) -> Vec<Value> {
        let mut events = Vec::new();
        if self.open.is_none() && self.completed.is_empty() {
            self.open(ItemKind::Message, &mut events);
        }
        self.close(status, &mut events);
        events
    }
}

impl OpenItem {
    /// Whether the text is known only at its end: a custom tool's input, which is inside JSON.
    fn arrives_whole(&self) -> bool {
        matches!(
            &self.kind,
            ItemKind::Call {
                kind: ToolKind::Custom | ToolKind::Search,
                ..
            }
        )
    }

    /// Whether there are events about the text besides those about the item.
    fn has_text_events(&self) -> bool {
        !matches!(
            &self.kind,
            ItemKind::Call {
                kind: ToolKind::Search,
                ..
            }
        )
    }

    /// An event about the item's text, with the log probabilities if it is a message's.
    fn event(&self, change: &str, index: usize, logprobs: Value) -> Value {
        let kind = match self.kind {
            ItemKind::Reasoning => "reasoning_text",
            ItemKind::Message => "output_text",
            ItemKind::Call {
                kind: ToolKind::Custom,
                ..
            } => "custom_tool_call_input",
            ItemKind::Call { .. } => "function_call_arguments",
        };
        let mut event = json!({
            "type": format!("response.{kind}.{change}"),
            "item_id": self.id,
            "output_index": index,
        });
        if !matches!(self.kind, ItemKind::Call { .. }) {
            event["content_index"] = 0.into();
        }
        if let ItemKind::Message = self.kind {
            event["logprobs"] = logprobs;
        }
        event
    }

    /// The index of the list of log probabilities, or an empty list.
    fn listed_logprobs(&self) -> Value {
        self.logprobs_index.map_or_else(|| json!([]), Value::from)
    }

    /// An event about the item's only content part.
    fn content_part_event(&self, kind: &str, index: usize, part: &Value) -> Value {
        json!({
            "type": kind,
            "item_id": self.id,
            "output_index": index,
            "content_index": 0,
            "part": part,
        })
    }

    /// The item's content part; a call has none.
    fn content_part(&self) -> Option<Value> {
        match self.kind {
            ItemKind::Reasoning => Some(json!({"type": "reasoning_text", "text": self.text})),
            ItemKind::Message => Some(json!({
                "type": "output_text",
                "text": self.text,
                "annotations": [],
                "logprobs": self.listed_logprobs(),
            })),
            ItemKind::Call { .. } => None,
        }
    }

    fn item(&self, status: &str, complete: bool) -> Value {
        let parts: Vec<_> = self
            .content_part()
            .into_iter()
            .filter(|_| complete)
            .collect();
        match &self.kind {
            ItemKind::Reasoning => {
                let mut item = json!({
                    "id": self.id,
                    "type": "reasoning",
                    "status": status,
                    "summary": [],
                    "content": parts,
                });
                if complete && self.encodes_reasoning {
                    item["encrypted_content"] = encoded_reasoning::encode(&self.text).into();
                }
                item
            }
            ItemKind::Message => json!({
                "id": self.id,
                "type": "message",
                "status": status,
                "role": "assistant",
                "content": parts,
            }),
            ItemKind::Call { id, name, kind } => self.call_item(id, name, kind, status),
        }
    }

    fn call_item(&self, call_id: &str, name: &str, kind: &ToolKind, status: &str) -> Value {
        let mut item = json!({"id": self.id, "status": status, "call_id": call_id});
        let item_fields = match kind {
            ToolKind::Function => {
                json!({"type": "function_call", "name": name, "arguments": self.text})
            }
            ToolKind::Namespaced { namespace, name } => json!({
                "type": "function_call",
                "namespace": namespace,
                "name": name,
                "arguments": self.text,
            }),
            ToolKind::Custom => {
                json!({"type": "custom_tool_call", "name": name, "input": custom_input(&self.text)})
            }
            ToolKind::Search => json!({
                "type": "tool_search_call",
                "execution": "client",
                "arguments": serde_json::from_str(&self.text).unwrap_or_else(|_| json!({})),
            }),
        };
        if let (Value::Object(item), Value::Object(item_fields)) = (&mut item, item_fields) {
            item.extend(item_fields);
        }
        item
    }
}
