//! Fill in the middle: text between a prompt and a suffix, for models trained for it.

use corral_sdk::{Error, Model, Token};

use crate::unsupported;

/// The control tokens of known model families: before the prompt, before the suffix, before the
/// middle.
const FAMILIES: [[&str; 3]; 3] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
];

/// Builds the tokens of a fill-in-the-middle prompt; an error if the model does not support it.
pub fn tokens(prompt: &str, suffix: &str, model: &Model) -> Result<Vec<Token>, Error> {
    for family in FAMILIES {
        let mut controls = Vec::new();
        for name in family {
            match model.tokenize_trusted(name)?[..] {
                [token] => controls.push(token),
                _ => break,
            }
        }
        if let [prefix_token, suffix_token, middle_token] = controls[..] {
            let (prompt, suffix) = (model.tokenize(prompt)?, model.tokenize(suffix)?);
            return Ok([
                &[prefix_token],
                &prompt[..],
                &[suffix_token],
                &suffix,
                &[middle_token],
            ]
            .concat());
        }
    }
    let why = format!(
        "the model {} has no fill-in-the-middle tokens",
        model.name()
    );
    Err(unsupported("suffix", &why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;

    #[test]
    fn suffix_requires_control_tokens() {
        let ask = |script: Script| {
            script.run(async { tokens("a", "b<|fim_middle|>", &Model::open_default().await?) })
        };
        assert_eq!(ask(Script::new()).unwrap_err().field(), Some("suffix"));
        let mut script = Script::new();
        for name in FAMILIES[0] {
            script = script.control_token(name);
        }
        let tokens = ask(script).unwrap();
        // Control tokens in the client's text are plain characters.
        assert_eq!(tokens[..4], [259, 97, 260, 98][..]);
        assert_eq!(tokens.len(), 5 + "<|fim_middle|>".len());
        assert_eq!(tokens.last(), Some(&261));
    }
}
