//! The time of grammars, with a vocabulary of 152,000 tokens. `floor` copies a mask, the lower bound of
//! `mask`.

#[path = "../tests/support/vocabulary.rs"]
mod vocabulary;

use corral_constraint::{Constraint, Grammar, GrammarCompiler, Matcher, Vocabulary};
use divan::{Bencher, black_box};
use std::sync::{Arc, OnceLock};
use vocabulary::TestVocabulary;

fn main() {
    divan::main();
}

const PERSON: &str = r#"{"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 40}, "age": {"type": "integer", "minimum": 0, "maximum": 130},
    "email": {"type": "string", "format": "email"}, "role": {"enum": ["admin", "editor", "reader"]},
    "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
    "address": {"type": "object", "properties": {"street": {"type": "string"}, "zip": {"type": "string",
    "pattern": "^[0-9]{5}$"}}, "required": ["street", "zip"], "additionalProperties": false}},
    "required": ["name", "age", "role", "address"], "additionalProperties": false}"#;

/// The texts before the measured token.
const STATES: [(&str, &str); 7] = [
    ("start", ""),
    ("key", "{\""),
    ("short string", "{\"name\":\"Jo"),
    ("number", "{\"name\":\"Jo\",\"age\":4"),
    ("after a value", "{\"name\":\"Jo\",\"age\":44"),
    ("enum", "{\"name\":\"Jo\",\"age\":44,\"role\":\""),
    (
        "any string",
        "{\"name\":\"Jo\",\"age\":44,\"role\":\"admin\",\"tags\":[\"be",
    ),
];

fn vocabulary() -> &'static Arc<TestVocabulary> {
    static VOCABULARY: OnceLock<Arc<TestVocabulary>> = OnceLock::new();
    VOCABULARY.get_or_init(|| Arc::new(TestVocabulary::large()))
}

fn compiler() -> &'static GrammarCompiler {
    static COMPILER: OnceLock<GrammarCompiler> = OnceLock::new();
    COMPILER.get_or_init(|| {
        let vocabulary: Arc<dyn Vocabulary> = Arc::clone(vocabulary()) as _;
        GrammarCompiler::new(vocabulary)
    })
}

fn person() -> Constraint {
    let grammar = Grammar::JsonSchema(PERSON.into());
    compiler().compile(0, &grammar).expect("a valid grammar")
}

/// A matcher after a text.
fn after(constraint: &Constraint, text: &str) -> Matcher {
    let mut matcher = constraint.start(0);
    let mut done = 0;
    while done < text.len() {
        let token = u32::from(text.as_bytes()[done]);
        if matcher.advance(token).is_ok() {
            done += 1;
        } else {
            let forced = matcher.forced(1).expect("it fits");
            done += vocabulary().bytes(&forced).len();
            assert!(!forced.is_empty(), "{text} fits");
        }
    }
    matcher
}

#[divan::bench(sample_count = 3, sample_size = 1)]
fn trie(bencher: Bencher) {
    vocabulary();
    bencher.bench(|| {
        let vocabulary: Arc<dyn Vocabulary> = Arc::clone(vocabulary()) as _;
        GrammarCompiler::new(vocabulary).prepare()
    });
}

#[divan::bench(sample_count = 20, sample_size = 1)]
fn compile(bencher: Bencher) {
    compiler().prepare().expect("it can be used");
    let mut number = 0;
    bencher
        .with_inputs(|| {
            // A different schema each time, since the cache has the last one.
            number += 1;
            Grammar::JsonSchema(PERSON.replace("reader", &format!("reader{number}")))
        })
        .bench_local_values(|grammar| compiler().compile(0, &grammar));
}

#[divan::bench]
fn start(bencher: Bencher) {
    let constraint = person();
    bencher.bench_local(|| constraint.start(0));
}

#[divan::bench(args = STATES.map(|(name, _)| name), sample_count = 50, sample_size = 1)]
fn mask(bencher: Bencher, state: &str) {
    let constraint = person();
    bencher
        .with_inputs(|| after(&constraint, text_of(state)))
        .bench_local_refs(|matcher| matcher.mask().map(<[u32]>::len));
}

#[divan::bench(args = STATES.map(|(name, _)| name), sample_count = 50, sample_size = 1)]
fn allows(bencher: Bencher, state: &str) {
    let constraint = person();
    bencher
        .with_inputs(|| after(&constraint, text_of(state)))
        .bench_local_refs(|matcher| matcher.allows(black_box(u32::from(b'"'))));
}

#[divan::bench(sample_count = 50, sample_size = 1)]
fn advance_and_forced(bencher: Bencher) {
    let constraint = person();
    bencher
        .with_inputs(|| after(&constraint, "{"))
        .bench_local_refs(|matcher| {
            matcher
                .advance(u32::from(b'"'))
                .and_then(|()| matcher.forced(64))
        });
}

#[divan::bench]
fn floor(bencher: Bencher) {
    let mask = person().start(0).mask().expect("it fits").to_vec();
    bencher.bench_local(|| black_box(&mask).clone());
}

fn text_of(state: &str) -> &'static str {
    let found = STATES.iter().find(|(name, _)| *name == state);
    found.expect("it is one of them").1
}
