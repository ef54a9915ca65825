//! Template variables from the request.

use corral_sdk::fields::Fields;
use corral_sdk::{Error, Model};
use serde_json::{Map, Value};

use crate::unsupported;

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
            if let Some(other) = kwargs.0.iter().find(|one| one.name == name) {
                let why = format!("`{effort_field}` is present as well and means the same");
                return Err(unsupported(&other.field, &why));
            }
            kwargs.0.push(TemplateKwarg {
                name: name.to_owned(),
                value: effort.into(),
                field: effort_field.to_owned(),
            });
        }
        Ok(kwargs)
    }

    /// Returns the variables; an error if the model's template does not use one of them.
    pub fn for_template(self, model: &Model) -> Result<Map<String, Value>, Error> {
        let template = model.info().chat_template.as_deref().unwrap_or_default();
        let known = |name: &str| {
            let mut words =
                template.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            words.any(|word| word == name)
        };
        match self.0.iter().find(|one| !known(&one.name)) {
            Some(one) => {
                let why = format!(
                    "the chat template of the model {} does not use `{}`",
                    model.name(),
                    one.name
                );
                Err(unsupported(&one.field, &why))
            }
            None => Ok(self
                .0
                .into_iter()
                .map(|one| (one.name, one.value))
                .collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn unknown_variables_are_rejected() {
        for (kwargs, effort, field) in [
            (json!(1), None, "chat_template_kwargs"),
            (json!({"moo": 1}), None, "chat_template_kwargs.moo"),
            (
                json!({"thinking": true}),
                None,
                "chat_template_kwargs.thinking",
            ),
            (
                json!({"reasoning_effort": "low"}),
                Some("high"),
                "chat_template_kwargs.reasoning_effort",
            ),
        ] {
            let error = read(kwargs.clone(), effort).unwrap_err();
            assert_eq!(
                (error.status(), error.field()),
                (400, Some(field)),
                "{kwargs}"
            );
        }
        for name in RESERVED {
            let error = read(json!({name: "x"}), None).unwrap_err();
            assert_eq!(
                error.field(),
                Some(&*format!("chat_template_kwargs.{name}"))
            );
        }
    }
}
