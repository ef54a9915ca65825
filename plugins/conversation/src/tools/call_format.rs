//! The formats of tool calls, detected from the chat template.

use corral_sdk::{Error, Model};

use crate::unsupported;

/// A format of tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallFormat {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`, repeated: Hermes, Qwen, and the demo
    /// model.
    Hermes,
    /// `{"name": …, "parameters": …}` as the whole answer: Llama 3.
    Llama,
    /// `[TOOL_CALLS][{"name": …, "arguments": …}, …]`: Mistral.
    Mistral,
}

/// Texts in a template that identify a format.
const SIGNATURES: [(&str, CallFormat); 4] = [
    ("<tool_call>", CallFormat::Hermes),
    ("[TOOL_CALLS]", CallFormat::Mistral),
    ("<|python_tag|>", CallFormat::Llama),
    ("\"parameters\"", CallFormat::Llama),
];

/// Texts in templates of unsupported formats that also contain an identifying text of a supported
/// one: parameters in tags (Qwen3-Coder, GLM), a name before the arguments (newer Mistral), other
/// tags (DeepSeek, Command).
const UNSUPPORTED_SIGNATURES: [&str; 5] = [
    "<function=",
    "<arg_key>",
    "[ARGS]",
    "tool▁call",
    "<|START_ACTION|>",
];

impl CallFormat {
    /// Detects the format of a model's calls.
    pub fn detect(model: &Model) -> Result<Self, Error> {
        let template = model.info().chat_template.as_deref().unwrap_or_default();
        if !template.contains("tools") {
            let why = format!(
                "the chat template of the model {} does not use tools",
                model.name()
            );
            return Err(unsupported("tools", &why));
        }
        let unsupported_format = UNSUPPORTED_SIGNATURES
            .iter()
            .any(|signature| template.contains(signature));
        let mut signatures = SIGNATURES.iter();
        match signatures.find(|(signature, _)| template.contains(signature)) {
            Some((_, format)) if !unsupported_format => Ok(*format),
            _ => {
                let why = format!(
                    "the chat template of the model {} has an unknown format of calls; expected that of \
                     Hermes and Qwen, of Llama 3, or of Mistral as a list",
                    model.name()
                );
                Err(unsupported("tools", &why))
            }
        }
    }

    /// The text before a call or a list of calls.
    pub fn opening(self) -> &'static str {
        match self {
            CallFormat::Hermes => "<tool_call>",
            CallFormat::Llama => "<|python_tag|>",
            CallFormat::Mistral => "[TOOL_CALLS]",
        }
    }

    /// The text after a call.
    pub fn closing(self) -> Option<&'static str> {
        match self {
            CallFormat::Hermes => Some("</tool_call>"),
            CallFormat::Llama | CallFormat::Mistral => None,
        }
    }

    /// The name of the arguments' field.
    pub fn arguments_field(self) -> &'static str {
        match self {
            CallFormat::Llama => "parameters",
            CallFormat::Hermes | CallFormat::Mistral => "arguments",
        }
    }

    /// Creates an id for a call. Mistral's templates accept only nine letters and digits.
    pub fn new_call_id(self) -> String {
        match self {
            CallFormat::Mistral => crate::ids::random_letters(9),
            CallFormat::Hermes | CallFormat::Llama => crate::ids::unique_id("call_"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;

    /// The format for a template that shows tools and contains this call.
    fn detect(call: &str) -> Result<CallFormat, Error> {
        let template = format!("{{{{ tools }}}}{{# {call} #}}");
        let script = Script::new().chat_template(&template);
        script.run(async { CallFormat::detect(&Model::open_default().await?) })
    }

    #[test]
    fn formats_are_detected_from_the_template() {
        for (call, format) in [
            (
                "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
                CallFormat::Hermes,
            ),
            ("[TOOL_CALLS] [{\"name\": \"f\"}]", CallFormat::Mistral),
            ("{\"name\": \"f\", \"parameters\": {}}", CallFormat::Llama),
            ("<|python_tag|>f.call(a=1)", CallFormat::Llama),
        ] {
            assert_eq!(detect(call), Ok(format), "{call}");
        }
    }

    #[test]
    fn similar_formats_are_rejected() {
        for (call, model) in [
            (
                "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
                "Qwen3-Coder",
            ),
            (
                "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
                "GLM",
            ),
            ("[TOOL_CALLS]f[ARGS]{\"a\": 1}", "newer Mistral"),
            (
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f \"parameters\"",
                "DeepSeek",
            ),
            (
                "<|START_ACTION|>[{\"tool_name\": \"f\", \"parameters\": {}}]<|END_ACTION|>",
                "Command",
            ),
            ("f(a=1)", "another"),
        ] {
            let error = detect(call).err();
            let result = error.as_ref().map(|error| (error.status(), error.field()));
            assert_eq!(result, Some((400, Some("tools"))), "{model}");
        }
    }
}
