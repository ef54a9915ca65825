//! Text between a prompt and a suffix, by models that were trained for it.

use corral_sdk::{Error, Model, Token};

use crate::error::unsupported;

/// The control tokens of the families that can: before the prompt, before the suffix, and where the text
/// between them is to come.
const FAMILIES: [[&str; 3]; 3] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
];

/// The tokens of a prompt that asks for what stands between; an error for a model that can't.
pub fn tokens(prompt: &str, suffix: &str, model: &Model) -> Result<Vec<Token>, Error> {
    for family in FAMILIES {
        let mut marks = Vec::new();
        for name in family {
            match model.tokenize_trusted(name)?[..] {
                [token] => marks.push(token),
                _ => break,
            }
        }
        if let [before, after, between] = marks[..] {
            let (prompt, suffix) = (model.tokenize(prompt)?, model.tokenize(suffix)?);
            return Ok([&[before], &prompt[..], &[after], &suffix, &[between]].concat());
        }
    }
    let why = format!(
        "the model {} has no tokens for a text between two others",
        model.name()
    );
    Err(unsupported("suffix", &why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;

    #[test]
    fn a_model_can_or_refuses() {
        let ask = |script: Script| {
            script.run(async { tokens("a", "b<|fim_middle|>", &Model::first().await?) })
        };
        assert_eq!(ask(Script::new()).unwrap_err().member(), Some("suffix"));
        let mut script = Script::new();
        for name in FAMILIES[0] {
            script = script.control_token(name);
        }
        let tokens = ask(script).unwrap();
        // The client's text has no control tokens.
        assert_eq!(
            (&tokens[..4], tokens.len()),
            (&[259, 97, 260, 98][..], 5 + "<|fim_middle|>".len())
        );
        assert_eq!(tokens.last(), Some(&261));
    }
}
