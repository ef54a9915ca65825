//! The tokens of a long text, which is tokenized in pieces, are those of one call of llama.cpp.

use corral_llama::gguf::{Value, Writer, metadata};
use corral_llama::{DevicePlacement, LoadProgress, Model, Token};
use corral_random_model::{Architecture, Qwen3, write_model};
use llama_cpp_sys_2 as sys;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::path::{Path, PathBuf};

/// Types of tokens in llama.cpp.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

/// Special tokens that contain and overlap one another and themselves, some with white space. llama.cpp strips white space
/// before `<mask>` with the pre-tokenizer of mmBERT.
const SPECIAL: [(&str, i32); 16] = [
    ("<mask>", CONTROL),
    ("<|x|>", CONTROL),
    ("|>", CONTROL),
    ("|><|", CONTROL),
    ("<a>", USER_DEFINED),
    ("a><", USER_DEFINED),
    ("<b>", USER_DEFINED),
    ("<a><b>", CONTROL),
    ("bb", USER_DEFINED),
    ("\n\n", USER_DEFINED),
    ("\n\n\n", USER_DEFINED),
    (" <c> ", USER_DEFINED),
    ("<c>", USER_DEFINED),
    ("[d]", CONTROL),
    ("[e]", USER_DEFINED),
    ("\u{2713}", USER_DEFINED),
];
/// Tokens that llama.cpp looks up in models whose name is that of a Phi-3.
const OF_PHI: [&str; 3] = ["<unk>", "<s>", "</s>"];
/// What texts consist of beside special tokens.
const PARTS: [&str; 14] = [
    "a",
    "b",
    "x",
    " ",
    "  ",
    "\n",
    "<",
    ">",
    "|",
    "[",
    "the",
    "\u{20ac}",
    "\u{1f989}",
    "12",
];

/// The name of models with random weights.
const NAME: &str = "Random weights";

fn demo_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/tiny.gguf")
}

fn load(path: &Path) -> Model {
    Model::load(path, DevicePlacement::default(), &LoadProgress::default()).expect("it loads")
}

/// A model with this vocabulary, and a name as long as [`NAME`].
fn model(name: &str, vocabulary: &[(&str, Value)]) -> Model {
    let dir = tempfile::tempdir().expect("a directory");
    let [source, path] = ["vocabulary.gguf", "model.gguf"].map(|file| dir.path().join(file));
    let mut writer = Writer::new().expect("a writer");
    for (key, value) in vocabulary {
        writer.set(key, value.clone()).expect("a key");
    }
    writer.write(&source, |_, _, _| ()).expect("it is written");
    let architecture = Architecture::Qwen3(Qwen3::tiny());
    write_model(&architecture, &source, &path, 1).expect("it is written");
    let mut file = std::fs::read(&path).expect("the model");
    let found = file
        .windows(NAME.len())
        .position(|bytes| bytes == NAME.as_bytes());
    let found = found.expect("it has a name");
    file[found..found + NAME.len()].copy_from_slice(name.as_bytes());
    std::fs::write(&path, file).expect("it is written");
    load(&path)
}

/// The demo model's vocabulary with [`SPECIAL`], [`OF_PHI`] and another pre-tokenizer, in a model of this name.
fn byte_level_model(pre_tokenizer: &str, name: &str) -> Model {
    let mut vocabulary = metadata(&demo_model(), "tokenizer.").expect("the demo model");
    for (key, value) in &mut vocabulary {
        match (key.as_str(), value) {
            ("tokenizer.ggml.tokens", Value::Texts(tokens)) => {
                tokens.extend(SPECIAL.iter().map(|(text, _)| (*text).to_owned()));
                tokens.extend(OF_PHI.map(str::to_owned));
            }
            ("tokenizer.ggml.token_type", Value::I32s(types)) => {
                types.extend(SPECIAL.iter().map(|(_, kind)| kind));
                types.extend(OF_PHI.map(|_| CONTROL));
            }
            ("tokenizer.ggml.pre", value) => *value = pre_tokenizer.into(),
            _ => {}
        }
    }
    let vocabulary: Vec<_> = vocabulary
        .iter()
        .map(|(key, value)| (key.as_str(), value.clone()))
        .collect();
    model(name, &vocabulary)
}

/// A vocabulary of SentencePiece, whose tokenizer adds a space behind special tokens.
fn sentence_piece_model() -> Model {
    let mut tokens: Vec<(String, i32)> = vec![
        ("<unk>".into(), UNKNOWN),
        ("<s>".into(), CONTROL),
        ("</s>".into(), CONTROL),
    ];
    tokens.extend((0..=u8::MAX).map(|byte| (format!("<0x{byte:02X}>"), BYTE)));
    let normal = [
        "\u{2581}",
        "\u{2581}\u{2581}",
        "a",
        "b",
        "x",
        "\u{2581}a",
        "\u{2581}x",
        "ab",
    ];
    tokens.extend(normal.map(|text| (text.to_owned(), NORMAL)));
    tokens.extend(SPECIAL.map(|(text, kind)| (text.to_owned(), kind)));
    let scores: Vec<f32> = (0..tokens.len()).map(|index| -(index as f32)).collect();
    let (texts, types): (Vec<_>, Vec<_>) = tokens.into_iter().unzip();
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let vocabulary = [
        (key("model"), Value::from("llama")),
        (key("tokens"), Value::Texts(texts)),
        (key("scores"), Value::F32s(scores)),
        (key("token_type"), Value::I32s(types)),
        (key("unknown_token_id"), Value::U32(0)),
        (key("bos_token_id"), Value::U32(1)),
        (key("eos_token_id"), Value::U32(2)),
    ];
    let vocabulary: Vec<_> = vocabulary
        .iter()
        .map(|(key, value)| (key.as_str(), value.clone()))
        .collect();
    model(NAME, &vocabulary)
}

/// The tokens of one call of llama.cpp.
fn reference(model: &Model, text: &str, special: bool) -> Vec<Token> {
    let mut tokens = vec![0_i32; 2 * text.len() + 2];
    let size = |length: usize| i32::try_from(length).expect("a short text");
    // SAFETY: the model is alive; text and buffer are valid for the lengths that are passed with them.
    let count = unsafe {
        sys::llama_tokenize(
            sys::llama_model_get_vocab(model.as_ptr()),
            text.as_ptr().cast(),
            size(text.len()),
            tokens.as_mut_ptr(),
            size(tokens.len()),
            false,
            special,
        )
    };
    tokens.truncate(usize::try_from(count).expect("there is room"));
    tokens.into_iter().map(i32::cast_unsigned).collect()
}

/// Compares tokens of random texts of several pieces, with few and with many special tokens.
fn check(model: &Model, special: &[&str]) {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for round in 0..15 {
        let ratio = [0.02, 0.2, 0.6][round % 3];
        let mut text = String::new();
        while text.len() < 30_000 {
            let parts = if rng.random_bool(ratio) {
                special
            } else {
                &PARTS
            };
            text += parts.choose(&mut rng).expect("there are some");
        }
        for special in [true, false] {
            let tokens = model.tokenize(&text, special).expect("a short text");
            assert!(
                tokens == reference(model, &text, special),
                "round {round}, special: {special}"
            );
        }
    }
}

#[test]
fn pieces_have_the_tokens_of_the_text() {
    let control = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>"];
    check(&load(&demo_model()), &control);
    let special = SPECIAL.map(|(text, _)| text);
    check(&byte_level_model("qwen2", NAME), &special);
    check(&byte_level_model("mmbert", NAME), &special);
    // In models with such a name, most special tokens strip the white space behind them.
    check(&byte_level_model("qwen2", "phi-3, or so.."), &special);
    check(&sentence_piece_model(), &special);
}
