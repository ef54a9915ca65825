//! Grammars with vocabularies without a model: allowed and forced tokens, errors and their positions,
//! and that every complete text matches.

#[path = "../support/schemas.rs"]
mod schemas;
#[path = "../support/validator.rs"]
mod validator;
#[path = "../support/vocabulary.rs"]
mod vocabulary;

mod keywords;
mod limits;

use corral_constraint::{Constraint, Error, Grammar, GrammarCompiler, Matcher, Token, Vocabulary};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::{Arc, OnceLock};
use vocabulary::{TestVocabulary, TokenizerStyle};

fn vocabulary() -> &'static Arc<TestVocabulary> {
    static VOCABULARY: OnceLock<Arc<TestVocabulary>> = OnceLock::new();
    VOCABULARY.get_or_init(|| Arc::new(TestVocabulary::small(TokenizerStyle::Exact)))
}

fn compiler_for(vocabulary: &Arc<TestVocabulary>) -> GrammarCompiler {
    GrammarCompiler::new(Arc::clone(vocabulary) as Arc<dyn Vocabulary>)
}

/// The compiler that tests share.
fn shared() -> &'static GrammarCompiler {
    static SHARED: OnceLock<GrammarCompiler> = OnceLock::new();
    SHARED.get_or_init(|| compiler_for(vocabulary()))
}

fn compile(grammar: &Grammar) -> Constraint {
    shared()
        .compile(0, grammar)
        .unwrap_or_else(|error| panic!("{grammar:?}: {error}"))
}

fn refused(grammar: &Grammar) -> String {
    match shared().compile(0, grammar) {
        Err(Error::Invalid(what)) => what,
        other => panic!("{grammar:?}: {other:?}"),
    }
}

fn schema(text: &str) -> Grammar {
    Grammar::JsonSchema(text.into())
}

fn regex(text: &str) -> Grammar {
    Grammar::Regex(text.into())
}

fn lark(text: &str) -> Grammar {
    Grammar::Lark(text.into())
}

fn gbnf(text: &str) -> Grammar {
    Grammar::Gbnf(text.into())
}

/// The tokens that a mask allows.
fn allowed(mask: &[u32]) -> Vec<Token> {
    (0..Token::try_from(mask.len() * 32).unwrap())
        .filter(|&token| mask[token as usize / 32] >> (token % 32) & 1 == 1)
        .collect()
}

/// Whether a grammar accepts a whole text, byte by byte where it leaves a choice.
fn accepts(constraint: &Constraint, text: &str) -> bool {
    // A call is canceled if the machine stalls its thread.
    let mut results = (0..20).map(|_| try_accept(constraint, text));
    let found = results.find_map(Result::ok);
    found.unwrap_or_else(|| panic!("no call ends in time for {text}"))
}

/// The same; an error if a call ends without a result.
fn try_accept(constraint: &Constraint, text: &str) -> Result<bool, Error> {
    let mut matcher = constraint.start(0);
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let forced = matcher.forced(usize::MAX)?;
        let bytes = vocabulary().bytes(&forced);
        let Some(left) = rest.strip_prefix(&bytes[..]) else {
            return Ok(false);
        };
        rest = left;
        let Some(&byte) = rest.first() else { break };
        if !matcher.allows(Token::from(byte))? {
            return Ok(false);
        }
        matcher.advance(Token::from(byte))?;
        rest = &rest[1..];
    }
    matcher.may_end()
}

/// Repeats what ends with a canceled call: the machine stalled its thread.
fn uncanceled<T>(mut run: impl FnMut() -> Result<T, Error>) -> T {
    for _ in 0..20 {
        match run() {
            Ok(value) => return value,
            Err(Error::Invalid(what)) if what.contains("too much work") => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("no call ends in time");
}

/// Draws allowed tokens until an end token is drawn.
fn walk(constraint: &Constraint, rng: &mut ChaCha8Rng) -> Vec<Token> {
    uncanceled(|| try_walk(constraint, rng))
}

/// The same; an error if a call ends without a result.
fn try_walk(constraint: &Constraint, rng: &mut ChaCha8Rng) -> Result<Vec<Token>, Error> {
    let mut matcher = constraint.start(0);
    let mut tokens = Vec::new();
    for _ in 0..20_000 {
        let choices = allowed(matcher.mask()?);
        let token = choices[rng.random_range(0..choices.len())];
        matcher.advance(token)?;
        if vocabulary().end_tokens().contains(&token) {
            return Ok(tokens);
        }
        tokens.push(token);
        tokens.extend(matcher.forced(usize::MAX)?);
    }
    panic!("no end: {}", vocabulary().decode(&tokens));
}

fn examples() -> Vec<(Grammar, &'static [&'static str], &'static [&'static str])> {
    vec![
        (
            schema(
                r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 5},
                "count": {"type": "integer", "minimum": 1, "maximum": 120}}, "required": ["name"],
                "additionalProperties": false}"#,
            ),
            &[
                r#"{"name":"ab"}"#,
                r#"{"name": "é\n日", "count": 120}"#,
                "{\n  \"name\":\"\"\n}",
            ],
            &[
                r#"{"count":1}"#,
                r#"{"name":"abcdef"}"#,
                r#"{"name":"a","count":121}"#,
                r#"{"name":"a"} x"#,
                r#"{"name":"a""#,
                "{  \"name\":\"a\"}",
            ],
        ),
        (
            schema("true"),
            &["1", "[1, {\"a\": null}]", "\"x\"", "-0.5e3"],
            &["", "01", "[1,]", "nul"],
        ),
        (
            Grammar::JsonObject,
            &["{}", r#"{"a": [1, 2.5, {"b": "c"}], "d": true}"#],
            &["[]", "1", "{\"a\"}", ""],
        ),
        (
            regex(r"(ab|c)*d{2,3}|é+"),
            &["dd", "abcabddd", "é", "éé"],
            &["", "d", "abc", "ddddd", "ed"],
        ),
        (
            lark("start: \"x\" items \"y\"\nitems: NUMBER (\",\" NUMBER)*\nNUMBER: /[0-9]+/\n"),
            &["x1y", "x10,2,333y"],
            &["xy", "x1,y", "1", "x1"],
        ),
        (
            gbnf("root ::= \"a\" (\"b\" | [0-9])+ end?\nend ::= \"!\" # done"),
            &["ab", "a1b2!"],
            &["a", "a!", "ab!!", "b"],
        ),
        (
            gbnf("root ::= sum\nsum ::= term (\" + \" term)*\nterm ::= [0-9]+ | \"(\" sum \")\""),
            &["1", "1 + (23 + 4)", "((5))"],
            &["1 +", "(1", "1+2", ""],
        ),
    ]
}

#[test]
fn each_kind_of_grammar_accepts_matching_texts() {
    for (grammar, right, wrong) in examples() {
        let constraint = compile(&grammar);
        for text in right {
            assert!(
                accepts(&constraint, text),
                "{grammar:?} must accept {text:?}"
            );
        }
        for text in wrong {
            assert!(
                !accepts(&constraint, text),
                "{grammar:?} must not accept {text:?}"
            );
        }
    }
}

/// Checks every token at every step of random walks.
#[test]
fn allows_mask_and_advance_agree() {
    let end = vocabulary().end_tokens();
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let size = Token::try_from(vocabulary().size()).unwrap();
    for (grammar, ..) in examples() {
        for _ in 0..3 {
            let mut matcher = compile(&grammar).start(0);
            for _ in 0..25 {
                let mask = matcher.mask().unwrap().to_vec();
                assert_eq!(mask.len(), vocabulary().size().div_ceil(32));
                let choices = allowed(&mask);
                assert!(
                    choices.iter().all(|&token| token < size),
                    "a token outside the vocabulary"
                );
                for token in 0..size + 3 {
                    let wanted = choices.contains(&token);
                    let piece = (token < size).then(|| vocabulary().piece(token));
                    assert_eq!(
                        matcher.allows(token),
                        Ok(wanted),
                        "{token} {piece:?} {grammar:?}"
                    );
                    if !wanted {
                        assert!(matches!(matcher.advance(token), Err(Error::Invalid(_))));
                    }
                }
                assert_eq!(matcher.mask().unwrap(), mask, "`allows` changed the mask");
                let may_end = matcher.may_end().unwrap();
                assert!(end.iter().all(|token| choices.contains(token) == may_end));
                let only_ends = choices.iter().all(|token| end.contains(token));
                assert_eq!(matcher.must_end(), only_ends, "{grammar:?}");
                let token = choices[rng.random_range(0..choices.len())];
                matcher.advance(token).unwrap();
                if end.contains(&token) {
                    break;
                }
            }
        }
    }
}

/// Compares a walk with forced tokens with one that draws every token by the mask.
#[test]
fn forced_tokens_equal_masked_draws() {
    let mut forced_tokens = 0;
    for seed in 0..100 {
        let grammar = Grammar::JsonSchema(schemas::schema(seed).to_string());
        let constraint = compile(&grammar);
        forced_tokens += uncanceled(|| compare_walks(&grammar, &constraint, seed));
    }
    assert!(forced_tokens > 500, "only {forced_tokens} forced tokens");
}

/// Returns the number of forced tokens; an error if a call ends without a result.
fn compare_walks(grammar: &Grammar, constraint: &Constraint, seed: u64) -> Result<usize, Error> {
    let mut forced_tokens = 0;
    let (mut quick, mut slow) = (constraint.start(0), constraint.start(0));
    let mut one_by_one = constraint.start(0);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for _ in 0..200 {
        let forced = quick.forced(usize::MAX)?;
        forced_tokens += forced.len();
        for &token in &forced {
            assert_eq!(allowed(slow.mask()?), [token], "{grammar:?}");
            slow.advance(token)?;
            assert_eq!(one_by_one.forced(1)?, [token]);
        }
        assert!(one_by_one.forced(1)?.is_empty());
        assert!(
            quick.forced(usize::MAX)?.is_empty(),
            "forced tokens are consumed"
        );
        let choices = allowed(quick.mask()?);
        assert_eq!(allowed(slow.mask()?), choices);
        let token = choices[rng.random_range(0..choices.len())];
        if vocabulary().end_tokens().contains(&token) {
            break;
        }
        for matcher in [&mut quick, &mut slow, &mut one_by_one] {
            matcher.advance(token)?;
        }
    }
    Ok(forced_tokens)
}

#[test]
fn forced_tokens_follow_the_tokenizer() {
    let text = r#"{"name":"the end"}"#;
    let grammar = schema(
        r#"{"x": 1, "type": "object", "properties": {"name": {"const": "the end"}}, "required": ["name"],
        "additionalProperties": false}"#,
    );
    let expected = regex(r#"\{"name":"the end"\}"#);
    for style in [TokenizerStyle::Exact, TokenizerStyle::SpaceBefore] {
        let words = Arc::new(TestVocabulary::small(style));
        let constraints = compiler_for(&words);
        let mut matcher = constraints.compile(0, &expected).unwrap().start(0);
        assert_eq!(
            matcher.forced(usize::MAX).unwrap(),
            words.encode(text.as_bytes())
        );
        assert!(matcher.must_end());

        // Only the name is forced; elsewhere a blank or a longer token may come.
        let mut matcher = constraints.compile(0, &grammar).unwrap().start(0);
        assert!(matcher.forced(usize::MAX).unwrap().is_empty());
        matcher.advance(words.encode(b"{\"")[0]).unwrap();
        assert_eq!(matcher.forced(usize::MAX).unwrap(), words.encode(b"name"));
    }
}

#[test]
fn lossy_tokenizer_forces_nothing() {
    let words = Arc::new(TestVocabulary::small(TokenizerStyle::LowerCase));
    let mut matcher = compiler_for(&words)
        .compile(0, &regex("Zoo|Zip"))
        .unwrap()
        .start(0);
    assert!(matcher.forced(usize::MAX).unwrap().is_empty());
    for byte in *b"Zip" {
        assert_eq!(matcher.allows(Token::from(byte)), Ok(true));
        matcher.advance(Token::from(byte)).unwrap();
    }
    assert!(matcher.must_end());
}

#[test]
fn complete_text_stays_ended() {
    let end = vocabulary().end_tokens();
    let mut matcher = compile(&regex("ab")).start(0);
    assert_eq!((matcher.may_end(), matcher.must_end()), (Ok(false), false));
    assert_eq!(
        matcher.forced(usize::MAX).unwrap(),
        vocabulary().encode(b"ab")
    );
    assert_eq!((matcher.may_end(), matcher.must_end()), (Ok(true), true));
    assert_eq!(allowed(matcher.mask().unwrap()), end);
    assert!(matcher.forced(usize::MAX).unwrap().is_empty());
    matcher.advance(end[1]).unwrap();
    assert!(matches!(matcher.advance(end[1]), Err(Error::Invalid(_))));
    assert!(matches!(matcher.advance(97), Err(Error::Invalid(_))));

    let mut empty = compile(&regex("")).start(0);
    assert!(empty.must_end(), "only the empty text matches");
    assert_eq!(allowed(empty.mask().unwrap()), end);
}

#[test]
fn control_tokens_need_to_be_named() {
    let tool = (0..)
        .find(|&token| vocabulary().control_name(token) == b"<|tool|>")
        .unwrap();
    let mut anything = compile(&regex("(?s:.)*")).start(0);
    assert_eq!(anything.allows(tool), Ok(false));
    let text = "start: \"a\" <|tool|> \"b\"";
    for grammar in [lark(text), gbnf("root ::= \"a\" <|tool|> \"b\"")] {
        let mut matcher = compile(&grammar).start(0);
        let mut tokens = matcher.forced(usize::MAX).unwrap();
        while !matcher.must_end() {
            let choices = allowed(matcher.mask().unwrap());
            assert_eq!(choices.len(), 1, "{choices:?}");
            matcher.advance(choices[0]).unwrap();
            tokens.push(choices[0]);
        }
        assert_eq!(tokens, [97, tool, 98], "{grammar:?}");
    }
}

#[test]
fn errors_name_their_position() {
    for (grammar, position, words) in [
        (
            schema("{\"type\": \"object\",\n \"properties\" {}}"),
            "line 2, column 15",
            "expected `:`",
        ),
        (schema(""), "line 1, column 0", "EOF"),
        (schema("[1]"), "at /:", "a schema is an object"),
        (schema("false"), "at /:", "no value"),
        (
            schema(r#"{"properties": {"a/b": {"not": {"pattern": "x"}}}}"#),
            "at /properties/a~1b/not",
            "not supported",
        ),
        (
            schema(r#"{"items": {"type": "strin"}}"#),
            "at /items/type",
            "\"strin\" is not a type",
        ),
        (
            schema(r#"{"anyOf": [{}, {"properties": []}]}"#),
            "at /anyOf/1/properties",
            "must be an object",
        ),
        (schema(r#"{"enum": []}"#), "at /enum", "empty"),
        (
            schema(r##"{"$defs": {"a": {"$ref": "#/$defs/b"}}, "$ref": "#/$defs/a"}"##),
            "at /$defs/a/$ref",
            "nothing at",
        ),
        (
            schema(r#"{"$ref": "https://example.com/x"}"#),
            "at /$ref",
            "outside",
        ),
        (
            schema(r#"{"maxLength": -1}"#),
            "at /maxLength",
            "not a count",
        ),
        (
            schema(r#"{"pattern": "a(b"}"#),
            "at /pattern",
            "line 1, column 2: unclosed group",
        ),
        (
            schema(r#"{"patternProperties": {"\\bx": {}}}"#),
            "at /patternProperties/\\bx",
            "word boundaries",
        ),
        (
            schema(r#"{"format": "postcode"}"#),
            "at /format",
            "known formats are date-time",
        ),
        (schema(r#"{"minimum": "1"}"#), "at /minimum", "a string"),
        (schema(r#"{"required": "a"}"#), "at /required", "names"),
        (schema(r#"{"x-guidance": {}}"#), "at /x-guidance", "options"),
        (
            schema(
                r#"{"type": "object", "properties": {"a": {"type": "object", "properties": {
                "b": {"type": "integer", "minimum": 5, "maximum": 3}}, "required": ["b"]}}, "required": ["a"]}"#,
            ),
            "at /properties/a/properties/b:",
            "no value matches",
        ),
        (
            schema(
                r##"{"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"items":
                {"oneOf": [{"type": "string"}, {"minLength": 3}]}}}}"##,
            ),
            "at /$defs/x/items:",
            "oneOf is supported only",
        ),
        (regex("ab(c"), "line 1, column 3", "unclosed group"),
        (
            regex("a\n[z-b]"),
            "line 2, column 2",
            "invalid character class range",
        ),
        (regex("^a"), "line 1, column 1", "anchors"),
        (regex(r"(?=a)b"), "line 1, column 1", "look-around"),
        (
            lark("start: \"a\"\n  | thing\n"),
            "line 1, column 8",
            "unknown name: \"thing\"",
        ),
        (lark("start: \"a\" )\n"), "line 1, column 12", "')'"),
        (
            lark("start: \"a\"\nother ! \"b\"\n"),
            "line 2, column",
            "lexer error",
        ),
        (lark("begin: \"a\"\n"), "the Lark grammar", "start"),
        (lark(""), "the Lark grammar", "start"),
        (
            gbnf("root ::= \"a\"\nx ::= [b"),
            "line 2, column 7",
            "not closed",
        ),
        (
            gbnf("root ::= a"),
            "line 1, column 10",
            "there is no rule \"a\"",
        ),
    ] {
        let what = refused(&grammar);
        assert!(what.contains(position), "{grammar:?}: {what}");
        assert!(what.contains(words), "{grammar:?}: {what}");
        assert!(what.len() < 500 && !what.contains('\n'), "{what}");
    }
}

/// JSON as a usual GBNF grammar.
const JSON_GBNF: &str = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( member ("," ws member)* )? "}" ws
member ::= string ":" ws value
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}) ){0,6} "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]{1,9})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"#;

#[test]
fn recursive_grammar_yields_parsable_json() {
    let constraint = compile(&gbnf(JSON_GBNF));
    for text in [r#"{"a": [1, -2.5, {"b\u00e9": null}], "c" : ""}"#, "{}"] {
        assert!(
            accepts(&constraint, text) || text.contains("\" :"),
            "{text}"
        );
    }
    assert!(accepts(
        &constraint,
        r#"{"a": [1, -2.5, {"b\u00e9": null}], "c": ""}"#
    ));
    for seed in 0..40 {
        let tokens = walk(&constraint, &mut ChaCha8Rng::seed_from_u64(seed));
        let text = vocabulary().decode(&tokens);
        // The grammar accepts lone surrogates; serde_json does not.
        if !text.contains("\\u") {
            let parsed: Result<serde_json::Value, _> = serde_json::from_str(&text);
            assert!(parsed.is_ok_and(|value| value.is_object()), "{text}");
        }
    }
}

#[test]
fn random_walks_match_their_schemas() {
    let mut longest = 0;
    for seed in 0..500 {
        let schema = schemas::schema(seed);
        let constraint = compile(&Grammar::JsonSchema(schema.to_string()));
        for round in 0..2 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed * 2 + round);
            let tokens = walk(&constraint, &mut rng);
            let text = vocabulary().decode(&tokens);
            let value = serde_json::from_str(&text)
                .unwrap_or_else(|error| panic!("seed {seed}: {error}: {text}"));
            validator::validate(&schema, &value)
                .unwrap_or_else(|error| panic!("seed {seed}: {error}\n{schema}\n{text}"));
            longest = longest.max(text.len());
        }
    }
    assert!(longest > 200, "the longest text has {longest} bytes");
}
