//! Fields of requests that can't change the answer. They are accepted in every API.
//!
//! Each has its reason, which the README of `openai` lists too.

use corral_sdk::fields::Fields;

/// Fields of a request.
pub const OF_REQUEST: [(&str, &str); 18] = [
    ("user", "the operator identifies clients by API keys"),
    (
        "safety_identifier",
        "the operator identifies clients by API keys",
    ),
    ("metadata", "labels of stored responses"),
    ("client_metadata", "labels of the client's own records"),
    ("store", "this deployment stores no responses"),
    ("thread", "there are no threads"),
    ("service_tier", "there is one tier"),
    ("priority", "tenants share the model fairly"),
    ("request_id", "the host's is in `x-request-id`"),
    ("prediction", "it would only save time"),
    ("prompt_cache_key", "prefixes are always cached"),
    ("prompt_cache_retention", "prefixes are always cached"),
    ("prompt_cache_options", "prefixes are always cached"),
    ("cache_control", "prefixes are always cached"),
    ("cache_prompt", "prefixes are always cached"),
    ("n_cache_reuse", "prefixes are always cached"),
    ("id_slot", "requests are not bound to slots"),
    (
        "spaces_between_special_tokens",
        "the text of special tokens is never part of an answer",
    ),
];

/// Fields of a message.
pub const OF_MESSAGE: [(&str, &str); 4] = [
    ("id", "messages are not stored"),
    ("status", "they describe an earlier answer"),
    ("annotations", "they describe an earlier answer"),
    ("cache_control", "prefixes are always cached"),
];

/// Fields of a content part or block.
pub const OF_PART: [(&str, &str); 5] = [
    ("annotations", "they describe an earlier answer"),
    ("citations", "they describe an earlier answer"),
    ("logprobs", "they describe an earlier answer"),
    ("cache_control", "prefixes are always cached"),
    ("prompt_cache_breakpoint", "prefixes are always cached"),
];

/// Fields of a tool, or of its function.
pub const OF_TOOL: [(&str, &str); 4] = [
    ("cache_control", "prefixes are always cached"),
    (
        "defer_loading",
        "all tools are in the prompt, except in `messages`",
    ),
    (
        "eager_input_streaming",
        "arguments are streamed as they are generated",
    ),
    (
        "input_examples",
        "templates show names, descriptions and schemas",
    ),
];

/// Drops the fields of a table.
pub fn drop(fields: &mut Fields, table: &[(&str, &str)]) {
    for (name, _) in table {
        fields.take(name);
    }
}
