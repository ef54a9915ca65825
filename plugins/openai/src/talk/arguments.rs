//! What a request tells the model's template beside the chat.

use corral_sdk::fields::Fields;
use corral_sdk::{Error, Model};
use serde_json::{Map, Value};

use crate::error::unsupported;

/// What templates get from the chat and from the model itself.
const RESERVED: [&str; 5] = [
    "messages",
    "tools",
    "add_generation_prompt",
    "bos_token",
    "eos_token",
];

/// A variable of the template.
#[derive(Debug, Clone, PartialEq)]
pub struct Argument {
    pub name: String,
    pub value: Value,
    /// Which member of the request asks for it.
    pub member: String,
}

/// Variables of the template.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Arguments(pub Vec<Argument>);

impl Arguments {
    /// Those of `chat_template_kwargs`, and how much to think, which the API says in `member`.
    pub fn read(fields: &mut Fields, effort: Option<&str>, member: &str) -> Result<Self, Error> {
        let mut arguments = Arguments::default();
        if let Some(others) = fields.object("chat_template_kwargs")?
            && let Value::Object(others) = others.into_value()
        {
            for (name, value) in others {
                let member = format!("chat_template_kwargs.{name}");
                if RESERVED.contains(&name.as_str()) {
                    let why = "it is made of the chat and the model";
                    return Err(unsupported(&member, why));
                }
                arguments.0.push(Argument {
                    name,
                    value,
                    member,
                });
            }
        }
        if let Some(effort) = effort {
            let name = "reasoning_effort";
            if let Some(other) = arguments.0.iter().find(|one| one.name == name) {
                let why = format!("`{member}`, which is given too, says the same");
                return Err(unsupported(&other.member, &why));
            }
            arguments.0.push(Argument {
                name: name.to_owned(),
                value: effort.into(),
                member: member.to_owned(),
            });
        }
        Ok(arguments)
    }

    /// As a template takes them; an error, where the model's knows nothing of one.
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
                    "the chat template of the model {} does not know `{}`",
                    model.name(),
                    one.name
                );
                Err(unsupported(&one.member, &why))
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
        let mut fields = Fields::of(String::new(), json!({"chat_template_kwargs": kwargs}))?;
        let arguments = Arguments::read(&mut fields, effort, "reasoning.effort")?;
        let script = Script::new().chat_template(TEMPLATE);
        let told = script.run(async { arguments.for_template(&Model::first().await?) });
        told.map(Value::from)
    }

    #[test]
    fn a_template_is_told_what_it_knows() {
        assert_eq!(
            read(json!({"enable_thinking": false, "mood": null}), Some("low")),
            Ok(json!({"enable_thinking": false, "mood": null, "reasoning_effort": "low"}))
        );
        assert_eq!(read(Value::Null, None), Ok(json!({})));
    }

    #[test]
    fn what_a_template_does_not_know_is_named() {
        for (kwargs, effort, member) in [
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
                (error.status(), error.member()),
                (400, Some(member)),
                "{kwargs}"
            );
        }
        for name in RESERVED {
            let error = read(json!({name: "x"}), None).unwrap_err();
            assert_eq!(
                error.member(),
                Some(&*format!("chat_template_kwargs.{name}"))
            );
        }
    }
}
