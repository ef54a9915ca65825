//! Answers that have to be a call, or of a form, as Lark grammars.

use corral_sdk::{Error, Model};
use serde_json::{Value, json};

use super::{Family, Tools};
use crate::talk::markers::Spelling;
use crate::talk::reasoning::CLOSE;

/// White space within JSON, as the host has it for a schema alone.
const BETWEEN: &str = r" |\r?\n[ \t]{0,64}";

/// A grammar in the making.
pub struct Lark {
    /// What `body` refers to.
    rules: String,
    /// What the answer is.
    body: String,
    /// What of it follows the first tag.
    free: String,
}

impl Lark {
    /// An answer that is one call, or several where the tools allow that.
    pub fn calls(tools: &Tools, family: Family, model: &Model) -> Result<Self, Error> {
        let mut rules = String::new();
        let mut names = Vec::new();
        for (index, tool) in tools.callable().enumerate() {
            let head = format!(
                "{{\"name\": {}, \"{}\": ",
                Value::from(tool.name.as_str()),
                family.arguments()
            );
            let schema = tool
                .parameters
                .clone()
                .unwrap_or_else(|| json!({"type": "object"}));
            rules += &format!("call_{index}: {} arguments_{index} \"}}\"\n", quoted(&head));
            rules += &format!("arguments_{index}: %json {}\n", spaced(schema));
            names.push(format!("call_{index}"));
        }
        rules += &format!("call: {}\n", names.join(" | "));
        let opening = tag(family.opening(), model)?;
        let (body, free) = match family {
            Family::Hermes => {
                let closing = tag(family.closing().unwrap_or_default(), model)?;
                rules += &format!("tagged: \"\\n\" call \"\\n\" {closing}\n");
                let more = format!("\"\\n\" {opening} tagged");
                let tagged = several("tagged", &more, tools.parallel);
                (format!("{opening} {tagged}"), tagged)
            }
            Family::Mistral => {
                let list = several("call", "\", \" call", tools.parallel);
                let list = format!("\"[\" {list} \"]\"");
                (format!("{opening} {list}"), list)
            }
            // Its templates show one call in an answer.
            Family::Llama => ("call".to_owned(), String::new()),
        };
        Ok(Lark { rules, body, free })
    }

    /// The same, or an answer without calls, or both one after the other: what the model likes, but a
    /// call is always one.
    pub fn if_any(self, family: Family, model: &Model) -> Result<Self, Error> {
        let Lark {
            mut rules, free, ..
        } = self;
        let body = match (family, Spelling::of(family.opening(), model)?) {
            (Family::Llama, _) => {
                rules += "PLAIN: /([^{](.|\\n)*)?/\n";
                "(PLAIN | call)".to_owned()
            }
            (_, Spelling::Control(token)) => {
                rules += "PLAIN: /(.|\\n)*/\n";
                format!("PLAIN (<[{token}]> {free})?")
            }
            (_, Spelling::Text) => {
                let opening = quoted(family.opening());
                rules += "PLAIN: /(.|\\n)*/\n";
                rules += &format!("lead[lazy]: /(.|\\n)*/ {opening}\n");
                format!("(PLAIN | lead {free})")
            }
        };
        Ok(Lark {
            rules,
            body,
            free: String::new(),
        })
    }

    /// An answer that fits a schema.
    pub fn value(schema: &Value) -> Self {
        Lark {
            rules: format!("value: %json {}\n", spaced(schema.clone())),
            body: "value".to_owned(),
            free: String::new(),
        }
    }

    /// An answer that is either.
    pub fn or(self, other: Lark) -> Self {
        Lark {
            rules: self.rules + &other.rules,
            body: format!("({} | {})", self.body, other.body),
            free: String::new(),
        }
    }

    /// Its text; `open` if the answer begins within a thought.
    pub fn text(self, model: &Model, open: bool) -> Result<String, Error> {
        let Lark { rules, body, .. } = self;
        let start = match open {
            false => format!("start: {body}\n"),
            true => match Spelling::of(CLOSE, model)? {
                Spelling::Text => format!(
                    "start: thought \"\\n\\n\"? {body}\nthought[lazy]: /(.|\\n)*/ {}\n",
                    quoted(CLOSE)
                ),
                Spelling::Control(token) => {
                    format!("start: THOUGHT <[{token}]> \"\\n\\n\"? {body}\nTHOUGHT: /(.|\\n)*/\n")
                }
            },
        };
        Ok(rules + &start)
    }
}

fn several(one: &str, more: &str, parallel: bool) -> String {
    match parallel {
        true => format!("{one} ({more})*"),
        false => one.to_owned(),
    }
}

/// A tag as the model writes it.
fn tag(tag: &str, model: &Model) -> Result<String, Error> {
    Ok(match Spelling::of(tag, model)? {
        Spelling::Text => quoted(tag),
        Spelling::Control(token) => format!("<[{token}]>"),
    })
}

/// A text as Lark writes it, which is as JSON does.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn spaced(mut schema: Value) -> Value {
    if schema == Value::Bool(true) {
        schema = json!({});
    }
    if let Value::Object(members) = &mut schema {
        members.insert(
            "x-guidance".to_owned(),
            json!({"whitespace_pattern": BETWEEN}),
        );
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::talk::tools::{Choice, Tool};
    use corral_sdk::testing::Script;

    fn tools(choice: Choice, parallel: bool) -> Tools {
        let tool = |name: &str| Tool {
            name: name.to_owned(),
            parameters: None,
            strict: true,
            shown: Value::Null,
        };
        Tools {
            list: vec![tool("f"), tool("g")],
            choice,
            parallel,
        }
    }

    fn written(family: Family, choice: Choice, parallel: bool, open: bool) -> String {
        let script = Script::new().control_token("[TOOL_CALLS]");
        script.run(async {
            let model = Model::first().await.unwrap();
            let lark = Lark::calls(&tools(choice, parallel), family, &model).unwrap();
            lark.text(&model, open).unwrap()
        })
    }

    const ANY: &str =
        r#"%json {"type":"object","x-guidance":{"whitespace_pattern":" |\\r?\\n[ \\t]{0,64}"}}"#;

    #[test]
    fn each_family_has_its_grammar() {
        let one = |index: u32, name: &str, arguments: &str| {
            format!(
                "call_{index}: \"{{\\\"name\\\": \\\"{name}\\\", \\\"{arguments}\\\": \" arguments_{index} \"}}\"\n\
                 arguments_{index}: {ANY}\n"
            )
        };
        assert_eq!(
            written(Family::Hermes, Choice::Named("g".to_owned()), false, false),
            one(0, "g", "arguments")
                + "call: call_0\ntagged: \"\\n\" call \"\\n\" \"</tool_call>\"\nstart: \"<tool_call>\" tagged\n"
        );
        let both = one(0, "f", "arguments") + &one(1, "g", "arguments") + "call: call_0 | call_1\n";
        assert_eq!(
            written(Family::Mistral, Choice::Required, true, false),
            both + "start: <[259]> \"[\" call (\", \" call)* \"]\"\n"
        );
        assert_eq!(
            written(Family::Llama, Choice::Named("f".to_owned()), true, true),
            one(0, "f", "parameters")
                + "call: call_0\nstart: thought \"\\n\\n\"? call\nthought[lazy]: /(.|\\n)*/ \"</think>\"\n"
        );
    }

    #[test]
    fn a_call_may_be_left_to_the_model() {
        for (family, expected) in [
            (
                Family::Hermes,
                "PLAIN: /(.|\\n)*/\nlead[lazy]: /(.|\\n)*/ \"<tool_call>\"\n\
                 start: (PLAIN | lead tagged (\"\\n\" \"<tool_call>\" tagged)*)\n",
            ),
            (
                Family::Mistral,
                "PLAIN: /(.|\\n)*/\nstart: PLAIN (<[259]> \"[\" call (\", \" call)* \"]\")?\n",
            ),
            (
                Family::Llama,
                "PLAIN: /([^{](.|\\n)*)?/\nstart: (PLAIN | call)\n",
            ),
        ] {
            let script = Script::new().control_token("[TOOL_CALLS]");
            let text = script.run(async {
                let model = Model::first().await.unwrap();
                let calls = Lark::calls(&tools(Choice::Auto, true), family, &model).unwrap();
                let free = calls.if_any(family, &model).unwrap();
                free.text(&model, false).unwrap()
            });
            assert!(text.ends_with(expected), "{text}");
        }
    }

    #[test]
    fn an_answer_may_be_one_or_the_other() {
        let text = Script::new().run(async {
            let model = Model::first().await.unwrap();
            let calls = Lark::calls(&tools(Choice::Auto, false), Family::Llama, &model).unwrap();
            Lark::value(&json!({"type": "object"}))
                .or(calls)
                .text(&model, false)
                .unwrap()
        });
        assert!(
            text.starts_with(&format!("value: {ANY}\ncall_0: ")),
            "{text}"
        );
        assert!(text.ends_with("\nstart: (value | call)\n"), "{text}");
    }
}
