//! Template variables from the request.

use corral_sdk::fields::Fields;
use corral_sdk::{Error, Model};
use serde_json::{Map, Value};

use crate::{unsupported, without_effect};

/// Variables that the chat and the model define.
const RESERVED: [&str; 5] = [
    "messages",
    "tools",
    "add_generation_prompt",
    "bos_token",
    "eos_token",
];

/// A template variable.
#[derive(Debug, Clone, PartialEq)]
pub struct TemplateKwarg {
    pub name: String,
    pub value: Value,
    /// The request field that sets it.
    pub field: String,
}

/// Template variables.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TemplateKwargs(pub Vec<TemplateKwarg>);

impl TemplateKwargs {
    /// Reads `chat_template_kwargs`. `effort` is the reasoning effort, which the API has in
    /// `effort_field`.
    pub fn read(
        fields: &mut Fields,
        effort: Option<&str>,
        effort_field: &str,
    ) -> Result<Self, Error> {
        let mut kwargs = TemplateKwargs::default();
        if let Some(others) = fields.object("chat_template_kwargs")? {
            for (name, value) in others.into_map() {
                let field = format!("chat_template_kwargs.{name}");
                if RESERVED.contains(&name.as_str()) {
                    let why = "the chat and the model define it";
                    return Err(unsupported(&field, why));
                }
                kwargs.0.push(TemplateKwarg { name, value, field });
            }
        }
        if let Some(effort) = effort {
            let name = "reasoning_effort";
            kwargs.add(name, effort.into(), effort_field)?;
        }
        Ok(kwargs)
    }

    /// Adds the variable that a request field sets; an error if another field sets it differently.
    pub fn add(&mut self, name: &str, value: Value, field: &str) -> Result<(), Error> {
        match self.0.iter().find(|one| one.name == name) {
            Some(other) if other.value != value => {
                let why = format!("`{field}` is present as well and sets the same differently");
                return Err(unsupported(&other.field, &why));
            }
            Some(_) => {}
            None => self.0.push(TemplateKwarg {
                name: name.to_owned(),
                value,
                field: field.to_owned(),
            }),
        }
        Ok(())
    }

    /// Reads `thinking`, an object whose type enables or disables reasoning, or a boolean.
    pub fn read_thinking(&mut self, fields: &mut Fields) -> Result<(), Error> {
        let enabled = match fields.peek("thinking") {
            None => return Ok(()),
            Some(Value::Bool(enabled)) => {
                let enabled = *enabled;
                fields.take("thinking");
                enabled
            }
            Some(_) => {
                let mut thinking = fields.required_object("thinking")?;
                let kind = thinking.text("type")?;
                thinking.ignore_unknown(&[])?;
                kind.as_deref() != Some("disabled")
            }
        };
        self.add("enable_thinking", enabled.into(), &fields.path("thinking"))
    }

    /// Returns the variables that the model's template uses. The others have no effect.
    pub fn for_template(self, model: &Model) -> Result<Map<String, Value>, Error> {
        let template = model.info().chat_template.as_deref().unwrap_or_default();
        let known = |name: &str| {
            let mut words =
                template.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            words.any(|word| word == name)
        };
        let mut variables = Map::new();
        for one in self.0 {
            if known(&one.name) {
                variables.insert(one.name, one.value);
                continue;
            }
            let why = format!(
                "the chat template of the model {} does not use `{}`",
                model.name(),
                one.name
            );
            without_effect(&one.field, &why)?;
        }
        Ok(variables)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::fields::ignored;
    use corral_sdk::testing::Script;
    use serde_json::json;

    const TEMPLATE: &str = "{% if enable_thinking %}{{ mood }}{{ reasoning_effort }}{% endif %}";

    fn read(kwargs: Value, effort: Option<&str>) -> Result<Value, Error> {
        let mut fields = Fields::at(String::new(), json!({"chat_template_kwargs": kwargs}))?;
        let template_kwargs = TemplateKwargs::read(&mut fields, effort, "reasoning.effort")?;
        let script = Script::new().chat_template(TEMPLATE);
        let variables =
            script.run(async { template_kwargs.for_template(&Model::open_default().await?) });
        variables.map(Value::from)
    }

    #[test]
    fn known_variables_reach_the_template() {
        assert_eq!(
            read(json!({"enable_thinking": false, "mood": null}), Some("low")),
            Ok(json!({"enable_thinking": false, "mood": null, "reasoning_effort": "low"}))
        );
        assert_eq!(read(Value::Null, None), Ok(json!({})));
    }

    #[test]
    fn unused_variables_have_no_effect() {
        let kwargs = json!({"moo": 1, "mood": 2});
        ignored::begin(true);
        let error = read(kwargs.clone(), None).unwrap_err();
        assert_eq!(error.status(), 400);
        assert_eq!(error.field(), Some("chat_template_kwargs.moo"));
        ignored::begin(false);
        assert_eq!(read(kwargs, None), Ok(json!({"mood": 2})));
        let names = ignored::header_value();
        assert_eq!(names.as_deref(), Some("chat_template_kwargs.moo"));
    }

    #[test]
    fn thinking_sets_the_variable() {
        for (thinking, expected) in [
            (json!({"type": "disabled"}), Some(false)),
            (json!({"type": "enabled"}), Some(true)),
            (json!({"type": "adaptive", "budget_tokens": 9}), Some(true)),
            (json!(false), Some(false)),
            (json!(null), None),
        ] {
            ignored::begin(false);
            let mut kwargs = TemplateKwargs::default();
            let mut fields = Fields::at(String::new(), json!({"thinking": thinking})).unwrap();
            kwargs.read_thinking(&mut fields).unwrap();
            let value = kwargs.0.pop().map(|one| one.value);
            assert_eq!(value, expected.map(Value::from), "{thinking}");
            let names = ignored::header_value();
            let budget = thinking["budget_tokens"].is_number();
            assert_eq!(names.as_deref(), budget.then_some("thinking.budget_tokens"));
        }
    }

    #[test]
    fn conflicting_variables_are_rejected() {
        for (kwargs, effort, field) in [
            (json!(1), None, "chat_template_kwargs"),
            (
                json!({"reasoning_effort": "low"}),
                Some("high"),
                "chat_template_kwargs.reasoning_effort",
            ),
        ] {
            let error = read(kwargs.clone(), effort).unwrap_err();
            assert_eq!(error.status(), 400, "{kwargs}");
            assert_eq!(error.field(), Some(field), "{kwargs}");
        }
        for name in RESERVED {
            let error = read(json!({name: "x"}), None).unwrap_err();
            let expected = Some(&*format!("chat_template_kwargs.{name}"));
            assert_eq!(error.field(), expected);
        }
    }
}
