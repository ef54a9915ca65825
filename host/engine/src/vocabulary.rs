//! A model's vocabulary, for the grammar compiler.

use crate::Token;
use corral_constraint::Vocabulary;
use corral_llama::Model;
use std::sync::Arc;

/// Implements [`Vocabulary`] for a model.
pub struct ModelVocabulary(pub Arc<Model>);

impl Vocabulary for ModelVocabulary {
    fn size(&self) -> usize {
        self.0.vocabulary_size()
    }

    fn piece(&self, token: Token) -> &[u8] {
        self.0.piece(token, false)
    }

    fn control_name(&self, token: Token) -> &[u8] {
        match self.piece(token) {
            [] => self.0.piece(token, true),
            _ => &[],
        }
    }

    fn end_tokens(&self) -> Vec<Token> {
        self.0.end_of_generation_tokens()
    }

    fn tokenize(&self, text: &str) -> Vec<Token> {
        // Fails for texts of 2 GiB, which no grammar forces.
        self.0.tokenize(text, false).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_constraint::{Grammar, GrammarCompiler};
    use corral_llama::{DevicePlacement, LoadProgress};
    use std::path::PathBuf;

    #[test]
    fn grammar_is_followed_in_the_models_tokens() {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/tiny.gguf");
        let progress = LoadProgress::default();
        let model = Model::load(&path, DevicePlacement::default(), &progress).unwrap();
        let model = Arc::new(model);
        let compiler = GrammarCompiler::new(Arc::new(ModelVocabulary(model.clone())));
        let grammar = Grammar::Regex("The sum is [0-9]{1,3}[.]".into());
        let mut matcher = compiler.compile(0, &grammar).unwrap().start(0);
        let mut tokens = matcher.forced(usize::MAX).unwrap();
        let spell = |tokens: &[Token]| -> Vec<u8> {
            let pieces = tokens.iter().flat_map(|&token| model.piece(token, false));
            pieces.copied().collect()
        };
        let start = spell(&tokens);
        assert!(
            !start.is_empty() && b"The sum is ".starts_with(&start),
            "{start:?}"
        );
        while !matcher.must_end() {
            let mask = matcher.mask().unwrap();
            let first = mask.iter().position(|&word| word != 0).unwrap();
            let token = Token::try_from(first).unwrap() * 32 + mask[first].trailing_zeros();
            assert!(matcher.allows(token).unwrap());
            matcher.advance(token).unwrap();
            tokens.push(token);
            tokens.extend(matcher.forced(usize::MAX).unwrap());
        }
        let text = String::from_utf8(spell(&tokens)).unwrap();
        let number = text
            .strip_prefix("The sum is ")
            .and_then(|text| text.strip_suffix('.'));
        assert!(
            number.is_some_and(|number| number.parse::<u32>().is_ok()),
            "{text}"
        );
        for token in model.end_of_generation_tokens() {
            assert_eq!(matcher.allows(token), Ok(true));
        }
    }
}
