//! A model's vocabulary as grammars see it.

use super::Model;
use crate::{Dictionary, Token};

impl Dictionary for Model {
    fn size(&self) -> usize {
        self.vocabulary_size()
    }

    fn piece(&self, token: Token) -> &[u8] {
        Self::piece(self, token, false)
    }

    fn control(&self, token: Token) -> &[u8] {
        match Self::piece(self, token, false) {
            [] => Self::piece(self, token, true),
            _ => &[],
        }
    }

    fn end_of_generation(&self) -> Vec<Token> {
        Self::end_of_generation(self)
    }

    fn tokenize(&self, text: &str) -> Vec<Token> {
        // Nothing that a grammar forces is longer than a grammar, so never 2 GiB.
        Self::tokenize(self, text, false).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Constraints, Grammar};
    use std::path::PathBuf;
    use std::sync::Arc;

    #[test]
    fn the_demo_model_follows_a_schema_in_its_own_tokens() {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/tiny.gguf");
        let model = Arc::new(Model::load(&path, &crate::progress::Progress::default()).unwrap());
        let dictionary: Arc<dyn Dictionary> = Arc::clone(&model) as _;
        let constraints = Constraints::new(dictionary);
        let grammar = Grammar::Regex("The sum is [0-9]{1,3}[.]".into());
        let mut matcher = constraints.compile(&grammar).unwrap().start();
        let mut tokens = matcher.forced(usize::MAX).unwrap();
        let spell = |tokens: &[Token]| -> Vec<u8> {
            let pieces = tokens.iter().flat_map(|&token| model.piece(token, false));
            pieces.copied().collect()
        };
        let begun = spell(&tokens);
        assert!(
            !begun.is_empty() && b"The sum is ".starts_with(&begun),
            "{begun:?}"
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
        for token in model.end_of_generation() {
            assert_eq!(matcher.allows(token), Ok(true));
        }
    }
}
