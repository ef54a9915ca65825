//! The vocabulary, and llama.cpp's tokenizer with it.

use super::*;
use crate::{Quant, Qwen3, RandomModel};
use corral_llama::{DevicePlacement, LoadProgress, Model};
use std::collections::HashSet;

const GUIDE: &str = include_str!("../../../../../docs/serving.md");

#[test]
fn vocabulary_depends_on_size_and_seed() {
    let tokens = |size, seed| Vocabulary::new(size, seed).unwrap().tokens;
    for size in [512, 1000, 10_000] {
        assert_eq!(tokens(size, 1).len(), size as usize - CONTROL_TOKENS.len());
    }
    // The words take some 8,000 tokens.
    assert!(tokens(10_000, 1) == tokens(10_000, 1));
    assert!(tokens(10_000, 1) != tokens(10_000, 2));
    for size in [0, 511, 1_000_001] {
        let refused = Vocabulary::new(size, 1).err().unwrap().to_string();
        assert!(refused.contains("512 to 1000000"), "{refused}");
    }
}

#[test]
fn each_token_encodes_its_own_text() {
    let vocabulary = Vocabulary::new(20_000, 1).unwrap();
    for (id, text) in vocabulary.tokens.iter().enumerate() {
        let expected = [u32::try_from(id).unwrap()];
        assert_eq!(vocabulary.encode(text), expected, "{text:?}");
    }
    for word in WORDS.split_whitespace() {
        for piece in [word.to_owned(), format!(" {word}")] {
            assert_eq!(vocabulary.encode(piece.as_bytes()).len(), 1, "{piece:?}");
        }
    }
}

#[test]
fn merges_name_existing_tokens() {
    let metadata = Vocabulary::new(8000, 1).unwrap().metadata();
    let texts = |wanted: &str| {
        let found = metadata.iter().find(|(key, _)| key == wanted);
        match &found.unwrap().1 {
            Value::Texts(texts) => texts,
            other => panic!("{wanted} is {other:?}"),
        }
    };
    let tokens: HashSet<&str> = texts("tokenizer.ggml.tokens")
        .iter()
        .map(String::as_str)
        .collect();
    assert_eq!(tokens.len(), 8000, "tokens are unique");
    let merges = texts("tokenizer.ggml.merges");
    assert_eq!(merges.len(), 8000 - 256 - CONTROL_TOKENS.len());
    for merge in merges {
        let (left, right) = merge.split_once(' ').unwrap();
        assert!(tokens.contains(left) && tokens.contains(right), "{merge}");
        assert!(tokens.contains(&*format!("{left}{right}")), "{merge}");
    }
}

/// A small model with a vocabulary of this size.
fn model(tokens: u32) -> Model {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.gguf");
    let model = RandomModel {
        name: "test",
        sizes: Qwen3::tiny(),
        tokens,
        quant: Quant::F16,
        seed: 1,
    };
    model.write(&file).unwrap();
    Model::load(&file, DevicePlacement::default(), &LoadProgress::default()).unwrap()
}

#[test]
fn llama_cpp_round_trips_text() {
    let model = model(151_936);
    assert_eq!(model.vocabulary_size(), 151_936);
    for text in [GUIDE, "h\u{e9}llo \u{1f600}\r\n\t \u{7f}"] {
        let tokens = model.tokenize(text, false).unwrap();
        let bytes: Vec<u8> = tokens
            .iter()
            .flat_map(|&token| model.piece(token, false).to_vec())
            .collect();
        assert_eq!(String::from_utf8(bytes).unwrap(), text);
    }
    let tokens = model.tokenize(GUIDE, false).unwrap().len();
    let characters = GUIDE.chars().count();
    assert!(characters > 2 * tokens, "{characters} in {tokens} tokens");
    // Every 97th token, from words and from syllables.
    for id in (256..151_933).step_by(97) {
        if let Ok(text) = std::str::from_utf8(model.piece(id, false)) {
            assert_eq!(model.tokenize(text, false).unwrap(), [id], "{text:?}");
        }
    }
}

#[test]
fn control_tokens_are_special() {
    let model = model(1000);
    let turn = "<|im_start|>user\nhello<|im_end|>";
    let tokens = model.tokenize(turn, true).unwrap();
    assert_eq!((tokens[0], tokens.last()), (998, Some(&999)));
    assert_eq!((model.bos_token(), model.end_token()), (None, Some(999)));
    assert!(model.end_of_generation_tokens().contains(&997));
    assert!(model.chat_template(None).unwrap().contains("<|im_start|>"));
    let template = model.chat_template(Some(c"rerank")).unwrap();
    assert!(template.contains("{query}"), "{template}");
    assert_eq!(model.chat_template(Some(c"other")), None);
    // Without `special` they are plain text.
    assert!(!model.tokenize(turn, false).unwrap().contains(&998));
}
