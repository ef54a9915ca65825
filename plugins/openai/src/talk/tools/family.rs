//! How models write a call, by the family that their template shows.

use corral_sdk::{Error, Model};

use crate::error::unsupported;

/// A way to write calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`, one after the other: Hermes, Qwen, and the
    /// demo model.
    Hermes,
    /// `{"name": …, "parameters": …}` as the whole answer: Llama 3.
    Llama,
    /// `[TOOL_CALLS][{"name": …, "arguments": …}, …]`: Mistral.
    Mistral,
}

/// All of them, as their templates are told apart.
const SIGNS: [(&str, Family); 4] = [
    ("<tool_call>", Family::Hermes),
    ("[TOOL_CALLS]", Family::Mistral),
    ("<|python_tag|>", Family::Llama),
    ("\"parameters\"", Family::Llama),
];

/// What stands in calls of other families, though their templates have a sign of one of these too:
/// parameters in tags (Qwen3-Coder, GLM), a name before the arguments (newer Mistral), tags of their own
/// (DeepSeek, Command).
const FOREIGN: [&str; 5] = [
    "<function=",
    "<arg_key>",
    "[ARGS]",
    "tool▁call",
    "<|START_ACTION|>",
];

impl Family {
    /// The family of a model that is offered tools.
    pub fn of(model: &Model) -> Result<Self, Error> {
        let template = model.info().chat_template.as_deref().unwrap_or_default();
        if !template.contains("tools") {
            let why = format!(
                "the chat template of the model {} shows it none",
                model.name()
            );
            return Err(unsupported("tools", &why));
        }
        let foreign = FOREIGN.iter().any(|sign| template.contains(sign));
        let mut signs = SIGNS.iter();
        match signs.find(|(sign, _)| template.contains(sign)) {
            Some((_, family)) if !foreign => Ok(*family),
            _ => {
                let why = format!(
                    "the chat template of the model {} has calls written in a way that is not known; \
                     known are those of Hermes and Qwen, of Llama 3, and of Mistral as a list",
                    model.name()
                );
                Err(unsupported("tools", &why))
            }
        }
    }

    /// What a call, or a list of them, begins with.
    pub fn opening(self) -> &'static str {
        match self {
            Family::Hermes => "<tool_call>",
            Family::Llama => "<|python_tag|>",
            Family::Mistral => "[TOOL_CALLS]",
        }
    }

    /// What a call ends with.
    pub fn closing(self) -> Option<&'static str> {
        match self {
            Family::Hermes => Some("</tool_call>"),
            Family::Llama | Family::Mistral => None,
        }
    }

    /// What the arguments are called.
    pub fn arguments(self) -> &'static str {
        match self {
            Family::Llama => "parameters",
            Family::Hermes | Family::Mistral => "arguments",
        }
    }

    /// A name for a call: Mistral's templates take no other than nine letters and digits.
    pub fn name_for_call(self) -> String {
        match self {
            Family::Mistral => crate::identity::letters(9),
            Family::Hermes | Family::Llama => crate::identity::unique("call_"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;

    /// The family of a template that shows the tools and has calls written so.
    fn of(call: &str) -> Result<Family, Error> {
        let template = format!("{{{{ tools }}}}{{# {call} #}}");
        let script = Script::new().chat_template(&template);
        script.run(async { Family::of(&Model::first().await?) })
    }

    #[test]
    fn families_are_told_by_how_they_write_a_call() {
        for (call, family) in [
            (
                "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
                Family::Hermes,
            ),
            ("[TOOL_CALLS] [{\"name\": \"f\"}]", Family::Mistral),
            ("{\"name\": \"f\", \"parameters\": {}}", Family::Llama),
            ("<|python_tag|>f.call(a=1)", Family::Llama),
        ] {
            assert_eq!(of(call), Ok(family), "{call}");
        }
    }

    #[test]
    fn what_only_looks_like_a_known_family_is_refused() {
        for (call, who) in [
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
            let error = of(call).err();
            let told = error.as_ref().map(|error| (error.status(), error.member()));
            assert_eq!(told, Some((400, Some("tools"))), "{who}");
        }
    }
}
