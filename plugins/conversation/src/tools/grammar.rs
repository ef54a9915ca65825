//! Lark grammars for answers that must be tool calls or satisfy a schema.

use corral_sdk::fields::ignored;
use corral_sdk::{Error, Model};
use serde_json::{Value, json};

use super::{CallFormat, Tools};
use crate::control_tags::TagSpelling;
use crate::reasoning_parser::CLOSING_TAG;

/// White space within JSON, as the host allows it for a schema alone.
const JSON_WHITESPACE: &str = r" |\r?\n[ \t]{0,64}";

/// The rule for a tool's arguments, before its number.
const ARGUMENTS: &str = "arguments_";

/// A grammar under construction.
pub struct LarkGrammar {
    /// Rules that `body` refers to.
    rules: String,
    /// The rule for the answer.
    body: String,
    /// The part of the rule after the opening tag.
    after_tag: String,
}

impl LarkGrammar {
    /// An answer that is one call, or several if the tools allow it.
    pub fn calls(tools: &Tools, format: CallFormat, model: &Model) -> Result<Self, Error> {
        let mut rules = String::new();
        let mut names = Vec::new();
        for (index, tool) in tools.callable() {
            let head = format!(
                "{{\"name\": {}, \"{}\": ",
                Value::from(tool.name.as_str()),
                format.arguments_field()
            );
            let (schema, strict) = match &tool.parameters {
                Some(schema) => (schema.clone(), tool.strict || ignored::is_strict()),
                None => (json!({"type": "object"}), true),
            };
            rules += &format!(
                "call_{index}: {} {ARGUMENTS}{index} \"}}\"\n",
                quoted(&head)
            );
            let schema = with_options(schema, strict);
            rules += &format!("{ARGUMENTS}{index}: %json {schema}\n");
            names.push(format!("call_{index}"));
        }
        rules += &format!("call: {}\n", names.join(" | "));
        let opening = tag(format.opening(), model)?;
        let (body, after_tag) = match format {
            CallFormat::Hermes => {
                let closing = tag(format.closing().unwrap_or_default(), model)?;
                rules += &format!("tagged: \"\\n\" call \"\\n\" {closing}\n");
                let more = format!("\"\\n\" {opening} tagged");
                let tagged = repeat("tagged", &more, tools.parallel);
                (format!("{opening} {tagged}"), tagged)
            }
            CallFormat::Mistral => {
                let list = repeat("call", "\", \" call", tools.parallel);
                let list = format!("\"[\" {list} \"]\"");
                (format!("{opening} {list}"), list)
            }
            // Llama's templates show one call per answer.
            CallFormat::Llama => ("call".to_owned(), String::new()),
        };
        Ok(LarkGrammar {
            rules,
            body,
            after_tag,
        })
    }

    /// An answer with or without calls, as the model decides; calls must be valid.
    pub fn optional(self, format: CallFormat, model: &Model) -> Result<Self, Error> {
        let LarkGrammar {
            mut rules,
            after_tag,
            ..
        } = self;
        let body = match (format, TagSpelling::detect(format.opening(), model)?) {
            (CallFormat::Llama, _) => {
                rules += "PLAIN: /([^{](.|\\n)*)?/\n";
                "(PLAIN | call)".to_owned()
            }
            (_, TagSpelling::Control(token)) => {
                rules += "PLAIN: /(.|\\n)*/\n";
                format!("PLAIN (<[{token}]> {after_tag})?")
            }
            (_, TagSpelling::Text) => {
                let opening = quoted(format.opening());
                rules += "PLAIN: /(.|\\n)*/\n";
                rules += &format!("lead[lazy]: /(.|\\n)*/ {opening}\n");
                format!("(PLAIN | lead {after_tag})")
            }
        };
        Ok(LarkGrammar {
            rules,
            body,
            after_tag: String::new(),
        })
    }

    /// An answer that satisfies a schema; if not `strict`, except for keywords that cannot be enforced.
    pub fn value(schema: &Value, strict: bool) -> Self {
        let schema = with_options(schema.clone(), strict);
        LarkGrammar {
            rules: format!("value: %json {schema}\n"),
            body: "value".to_owned(),
            after_tag: String::new(),
        }
    }

    /// Splits the host's error about a schema of a grammar into the rule and the error that it gives
    /// for a schema alone.
    pub fn schema_error(text: &str) -> (Option<&str>, String) {
        const START: &str = "the JSON schema";
        let rest = text
            .strip_prefix(START)
            .and_then(|rest| rest.strip_prefix(" of the rule "));
        match rest.and_then(|rest| rest.split_once(' ')) {
            Some((rule, what)) => (Some(rule), format!("{START} {what}")),
            None => (None, text.to_owned()),
        }
    }

    /// The tool whose arguments a rule is for.
    pub fn tool_of_rule(rule: &str) -> Option<usize> {
        rule.strip_prefix(ARGUMENTS)?.parse().ok()
    }

    /// An answer that matches a regular expression.
    pub fn regex(expression: &str) -> Self {
        LarkGrammar {
            rules: format!("MATCH: /{}/\n", without_bare_slashes(expression)),
            body: "MATCH".to_owned(),
            after_tag: String::new(),
        }
    }

    /// An answer that matches either grammar.
    pub fn or(self, other: LarkGrammar) -> Self {
        LarkGrammar {
            rules: self.rules + &other.rules,
            body: format!("({} | {})", self.body, other.body),
            after_tag: String::new(),
        }
    }

    /// Writes the grammar. `open`: the answer starts inside reasoning.
    pub fn text(self, model: &Model, open: bool) -> Result<String, Error> {
        let LarkGrammar { rules, body, .. } = self;
        let start = match open {
            false => format!("start: {body}\n"),
            true => match TagSpelling::detect(CLOSING_TAG, model)? {
                TagSpelling::Text => format!(
                    "start: thought \"\\n\\n\"? {body}\nthought[lazy]: /(.|\\n)*/ {}\n",
                    quoted(CLOSING_TAG)
                ),
                TagSpelling::Control(token) => {
                    format!("start: THOUGHT <[{token}]> \"\\n\\n\"? {body}\nTHOUGHT: /(.|\\n)*/\n")
                }
            },
        };
        Ok(rules + &start)
    }
}

fn repeat(one: &str, more: &str, parallel: bool) -> String {
    match parallel {
        true => format!("{one} ({more})*"),
        false => one.to_owned(),
    }
}

/// Escapes the slashes of a regular expression, which would end it in a grammar, unless they are escaped.
fn without_bare_slashes(expression: &str) -> String {
    let mut text = String::new();
    let mut escaped = false;
    for letter in expression.chars() {
        if letter == '/' && !escaped {
            text.push('\\');
        }
        escaped = letter == '\\' && !escaped;
        text.push(letter);
    }
    text
}

/// A tag as the model writes it.
fn tag(tag: &str, model: &Model) -> Result<String, Error> {
    Ok(match TagSpelling::detect(tag, model)? {
        TagSpelling::Text => quoted(tag),
        TagSpelling::Control(token) => format!("<[{token}]>"),
    })
}

/// A Lark string, which has the syntax of a JSON string.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn with_options(mut schema: Value, strict: bool) -> Value {
    if schema == Value::Bool(true) {
        schema = json!({});
    }
    if let Value::Object(members) = &mut schema {
        let mut options = json!({"whitespace_pattern": JSON_WHITESPACE});
        if !strict {
            options["lenient"] = true.into();
        }
        members.insert("x-guidance".to_owned(), options);
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::{Tool, ToolChoice};
    use corral_sdk::testing::Script;

    #[test]
    fn slashes_do_not_end_an_expression() {
        for (expression, rule) in [
            ("a/b", r"MATCH: /a\/b/"),
            (r"a\/b", r"MATCH: /a\/b/"),
            (r"a\\/b", r"MATCH: /a\\\/b/"),
        ] {
            let grammar = LarkGrammar::regex(expression);
            assert_eq!(grammar.rules, format!("{rule}\n"), "{expression}");
        }
    }

    fn tools(choice: ToolChoice, parallel: bool) -> Tools {
        let tool = |name: &str| Tool {
            name: name.to_owned(),
            parameters: None,
            strict: true,
            definition: Value::Null,
            deferred: false,
        };
        Tools {
            list: vec![tool("f"), tool("g")],
            choice,
            parallel,
        }
    }

    fn grammar(format: CallFormat, choice: ToolChoice, parallel: bool, open: bool) -> String {
        let script = Script::new().control_token("[TOOL_CALLS]");
        script.run(async {
            let model = Model::open_default().await.unwrap();
            let lark = LarkGrammar::calls(&tools(choice, parallel), format, &model).unwrap();
            lark.text(&model, open).unwrap()
        })
    }

    const ANY: &str =
        r#"%json {"type":"object","x-guidance":{"whitespace_pattern":" |\\r?\\n[ \\t]{0,64}"}}"#;

    #[test]
    fn each_format_has_its_grammar() {
        let one = |index: u32, name: &str, arguments: &str| {
            format!(
                "call_{index}: \"{{\\\"name\\\": \\\"{name}\\\", \\\"{arguments}\\\": \" arguments_{index} \"}}\"\n\
                 arguments_{index}: {ANY}\n"
            )
        };
        let named = |name: &str| ToolChoice::Named(name.to_owned());
        assert_eq!(
            grammar(CallFormat::Hermes, named("g"), false, false),
            one(1, "g", "arguments")
                + "call: call_1\ntagged: \"\\n\" call \"\\n\" \"</tool_call>\"\nstart: \"<tool_call>\" tagged\n"
        );
        let both = one(0, "f", "arguments") + &one(1, "g", "arguments") + "call: call_0 | call_1\n";
        assert_eq!(
            grammar(CallFormat::Mistral, ToolChoice::Required, true, false),
            both + "start: <[259]> \"[\" call (\", \" call)* \"]\"\n"
        );
        assert_eq!(
            grammar(CallFormat::Llama, named("f"), true, true),
            one(0, "f", "parameters")
                + "call: call_0\nstart: thought \"\\n\\n\"? call\nthought[lazy]: /(.|\\n)*/ \"</think>\"\n"
        );
    }

    #[test]
    fn calls_can_be_optional() {
        for (format, expected) in [
            (
                CallFormat::Hermes,
                "PLAIN: /(.|\\n)*/\nlead[lazy]: /(.|\\n)*/ \"<tool_call>\"\n\
                 start: (PLAIN | lead tagged (\"\\n\" \"<tool_call>\" tagged)*)\n",
            ),
            (
                CallFormat::Mistral,
                "PLAIN: /(.|\\n)*/\nstart: PLAIN (<[259]> \"[\" call (\", \" call)* \"]\")?\n",
            ),
            (
                CallFormat::Llama,
                "PLAIN: /([^{](.|\\n)*)?/\nstart: (PLAIN | call)\n",
            ),
        ] {
            let script = Script::new().control_token("[TOOL_CALLS]");
            let text = script.run(async {
                let model = Model::open_default().await.unwrap();
                let calls =
                    LarkGrammar::calls(&tools(ToolChoice::Auto, true), format, &model).unwrap();
                let optional = calls.optional(format, &model).unwrap();
                optional.text(&model, false).unwrap()
            });
            assert!(text.ends_with(expected), "{text}");
        }
    }

    #[test]
    fn answer_matches_either_grammar() {
        let text = Script::new().run(async {
            let model = Model::open_default().await.unwrap();
            let calls =
                LarkGrammar::calls(&tools(ToolChoice::Auto, false), CallFormat::Llama, &model)
                    .unwrap();
            LarkGrammar::value(&json!({"type": "object"}), true)
                .or(calls)
                .text(&model, false)
                .unwrap()
        });
        let expected = format!("value: {ANY}\ncall_0: ");
        assert!(text.starts_with(&expected), "{text}");
        assert!(text.ends_with("\nstart: (value | call)\n"), "{text}");
    }

    #[test]
    fn errors_about_schemas_name_their_tool() {
        let (rule, text) = LarkGrammar::schema_error(
            "the JSON schema of the rule arguments_12 is invalid: at /type: no",
        );
        assert_eq!(rule.and_then(LarkGrammar::tool_of_rule), Some(12));
        assert_eq!(text, "the JSON schema is invalid: at /type: no");
        let (rule, text) = LarkGrammar::schema_error("the JSON schema is invalid: at /: no");
        assert_eq!(rule, None);
        assert_eq!(text.as_str(), "the JSON schema is invalid: at /: no");
        assert_eq!(LarkGrammar::tool_of_rule("value"), None);
    }

    #[test]
    fn only_strict_schemas_refuse_keywords() {
        let mut tools = tools(ToolChoice::Required, false);
        for (tool, strict) in tools.list.iter_mut().zip([true, false]) {
            tool.parameters = Some(json!({"title": "x"}));
            tool.strict = strict;
        }
        let text = Script::new().run(async {
            let model = Model::open_default().await.unwrap();
            let calls = LarkGrammar::calls(&tools, CallFormat::Llama, &model).unwrap();
            calls.text(&model, false).unwrap()
        });
        let lenient = text.lines().filter(|line| line.contains("lenient"));
        let lenient: Vec<_> = lenient.collect();
        assert!(
            matches!(lenient[..], [line] if line.starts_with("arguments_1: ")),
            "{text}"
        );
        assert!(lenient[0].ends_with("\"lenient\":true}}"), "{text}");
    }
}
