//! Limits on grammars and matchers, and the cache of compiled grammars.

use super::*;
use corral_constraint::limits;

fn nested(open: &str, inner: &str, close: &str, times: usize) -> String {
    open.repeat(times) + inner + &close.repeat(times)
}

/// A chain of rules.
fn chain(length: usize, rule: impl Fn(usize) -> String) -> String {
    (0..length).map(rule).collect()
}

/// The members of an object, joined by commas.
fn members(count: usize, member: impl Fn(usize) -> String) -> String {
    (0..count).map(member).collect::<Vec<_>>().join(",")
}

fn properties(count: usize) -> String {
    members(count, |n| format!(r#""a{n}":{{}}"#))
}

/// A schema whose patterns are disjoint, which only comparing all pairs shows.
fn pattern_properties(count: usize) -> String {
    let pattern = |n: usize| format!(r#""^a{n}.*x{n}$":{{"type":"string"}}"#);
    format!(r#"{{"patternProperties":{{{}}}}}"#, members(count, pattern))
}

/// A Lark terminal whose intersection has a symbolic derivative of 2^200 parts.
fn intersection() -> String {
    let conjuncts: Vec<String> = (0..200).map(|n| format!("/.*a.{{{n}}}/")).collect();
    conjuncts.join(" & ")
}

#[test]
fn too_large_grammars_are_refused() {
    let values: Vec<String> = (0..40_000).map(|n| format!("\"{n}\"")).collect();
    let values = values.join(",");
    for (grammar, words) in [
        (
            schema(&nested(r#"{"items":"#, "{}", "}", 200)),
            "recursion limit",
        ),
        (
            schema(&format!(r#"{{"enum": [{values}]}}"#)),
            "at most 262144",
        ),
        (
            schema(r#"{"type": "string", "maxLength": 100001}"#),
            "at /maxLength",
        ),
        (
            schema(r#"{"maxItems": 1000, "items": {"maxItems": 1000}}"#),
            "it is 1000000",
        ),
        (schema(r#"{"pattern": "(a{1000}){1000}"}"#), "1000000 times"),
        (regex(&nested("(", "a", ")", 300)), "line 1, column 101"),
        (regex("a{1,1000000}"), "1000000 times"),
        (regex("((a{100}){100}){100}"), "times"),
        (
            regex(&"a".repeat(limits::MAX_REGEX_BYTES + 1)),
            "16385 bytes",
        ),
        (
            lark(&format!("start: {}", nested("(", "\"a\"", ")", 5_000))),
            "deeply nested",
        ),
        (
            gbnf(&format!("root ::= {}", nested("(", "\"a\"", ")", 10_000))),
            "deeper than 100",
        ),
        (gbnf("root ::= \"a\"{1,100001}"), "column 13"),
        (
            schema(&pattern_properties(4_000)),
            "at /patternProperties: it has 4000",
        ),
        (
            schema(&format!(r#"{{"properties": {{{}}}}}"#, properties(5_001))),
            "at /properties: it has 5001",
        ),
        (
            schema(&format!(
                r#"{{"minProperties": 1, "properties": {{{}}}}}"#,
                properties(101)
            )),
            "101 optional properties",
        ),
        (schema(r#"{"multipleOf": 999999937}"#), "at /multipleOf"),
        (schema(r#"{"multipleOf": 0.000000001}"#), "at /multipleOf"),
        (
            schema(r#"{"allOf": [{"multipleOf": 99991}, {"multipleOf": 99989}]}"#),
            "overflow",
        ),
    ] {
        let what = refused(&grammar);
        assert!(what.contains(words), "{what}");
    }
}

/// None of these may end the process or block for long.
#[test]
fn longest_chains_of_rules_are_harmless() {
    let reference = |n: usize| format!(r##""{n}":{{"$ref":"#/$defs/{}"}},"##, n + 1);
    let (schemas, rules) = (8_000, 1_600);
    let grammars = [
        schema(&format!(
            r##"{{"$ref":"#/$defs/0","$defs":{{{}"{schemas}":{{"type":"null"}}}}}}"##,
            chain(schemas, reference)
        )),
        lark(&format!(
            "start: a0\n{}a{rules}: \"x\" a0\n",
            chain(rules, |n| format!("a{n}: a{}|\"y\"\n", n + 1))
        )),
        lark(&format!(
            "start: A0\n{}A{rules}: \"x\"\n",
            chain(rules, |n| format!("A{n}: A{}\n", n + 1))
        )),
        lark(&format!(
            "start: A0\n{}A{rules}: \"x\"\n",
            chain(rules, |n| format!("A{n}: \"a\" A{}|\"b\"\n", n + 1))
        )),
        gbnf(&format!(
            "root ::= a0\n{}a{rules} ::= \"x\"\n",
            chain(rules, |n| format!("a{n} ::= a{}|\"y\"\n", n + 1))
        )),
        gbnf(&format!(
            "root ::= a0\n{}a{rules} ::= \"x\" root\n",
            chain(rules, |n| format!("a{n} ::= a{}\n", n + 1))
        )),
        // As deep as possible within each rule.
        schema(&format!(
            r##"{{"$ref":"#/$defs/0","$defs":{{{}"250":{{"type":"null"}}}}}}"##,
            chain(250, |n| {
                let link = format!(r##"{{"$ref":"#/$defs/{}"}}"##, n + 1);
                format!("\"{n}\":{},", nested(r#"{"items":"#, &link, "}", 100))
            })
        )),
        lark(&format!(
            "start: a0\n{}a480: \"x\" a0\n",
            chain(480, |n| {
                let link = format!("a{}", n + 1);
                format!("a{n}: {}\n", nested("(", &link, ")", 25))
            })
        )),
        lark(&format!(
            "start: A0\n{}A480: \"x\"\n",
            chain(480, |n| {
                let link = format!("A{}", n + 1);
                format!("A{n}: {}\n", nested("(", &link, ")", 25))
            })
        )),
        gbnf(&format!(
            "root ::= a0\n{}a65 ::= \"x\" root\n",
            chain(65, |n| {
                let link = format!("a{}", n + 1);
                format!("a{n} ::= {}\n", nested("(\"a\"", &link, ")", 90))
            })
        )),
        lark("start: (\"a\" | \"b\" x){1,2000000000}\nx: \"c\"{1000000}"),
        gbnf(&format!("root ::= {}\"a\"", "\"a\"? ".repeat(6_000))),
        regex(&"a?".repeat(8_000)),
        regex(&"a|".repeat(8_000)),
        regex(&"ab".repeat(8_000)),
        regex("a{100000}"),
    ];
    let compiler = compiler_for(vocabulary());
    for grammar in grammars {
        match compiler.compile(0, &grammar) {
            Ok(constraint) => {
                let mut matcher = constraint.start(0);
                let forced = matcher.forced(100).map(|forced| forced.len());
                assert!(
                    !matches!(forced, Ok(101..) | Err(Error::Failed(_))),
                    "{forced:?}"
                );
                assert!(!matches!(matcher.mask(), Err(Error::Failed(_))));
            }
            Err(Error::Invalid(what)) => {
                assert!(
                    !what.contains("bytes; it may have"),
                    "the text is too long: {what}"
                );
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!(compiler.compile(0, &regex("fine")).is_ok());
}

#[test]
fn compilations_of_exponential_work_end() {
    let compiler = compiler_for(vocabulary());
    let patterns = pattern_properties(50);
    let reference = |_| r##"{"$ref":"#/$defs/a"}"##.to_string();
    let references = members(1_000, reference);
    let of_string = |n: usize| format!(r#"{{"pattern":"a{n}"}}"#);
    let compared = format!(r#"{{"$defs":{{"a":{patterns}}},"allOf":[{references}]}}"#);
    let grammars = [
        schema(&compared),
        schema(&format!(
            r#"{{"type":"string","allOf":[{}]}}"#,
            members(200, of_string)
        )),
        lark(&format!("start: A\nA: {}\n", intersection())),
        lark(&format!("start: %json {compared}\n")),
    ];
    for (number, grammar) in grammars.iter().enumerate() {
        match compiler.compile(0, grammar) {
            Err(Error::Invalid(what)) => assert!(what.contains("too much work"), "{what}"),
            other => panic!("{other:?}"),
        }
        // If the caller stopped waiting first, the compilation ends at once too.
        while compiler.counters().failed <= number as u64 {
            std::thread::yield_now();
        }
    }
    assert!(compiler.compile(0, &regex("fine")).is_ok());
}

#[test]
fn step_of_exponential_work_ends() {
    // The compiler only proves that the terminal matches something, which "y" does.
    let text = format!("start: A\nA: \"y\" (\"x\" B)?\nB: {}\n", intersection());
    let compiler = compiler_for(vocabulary());
    let constraint = compiler.compile(0, &lark(&text)).unwrap();
    let compiled = compiler.counters().held_bytes;
    let mut matcher = constraint.start(0);
    matcher.advance(u32::from(b'y')).unwrap();
    assert!(compiler.counters().held_bytes > compiled);
    let failed = matcher.mask().map(<[u32]>::len).unwrap_err();
    assert!(failed.to_string().contains("too much work"), "{failed}");
    // The matcher that failed holds no memory.
    assert_eq!(compiler.counters().held_bytes, compiled);
    assert_eq!(matcher.advance(u32::from(b'x')), Err(failed.clone()));
    assert_eq!(matcher.fork().err(), Some(failed));
}

#[test]
fn large_ordinary_schemas_compile() {
    let required = members(1_500, |n| format!(r#""a{n}""#));
    for text in [
        pattern_properties(50),
        format!(r#"{{"properties":{{{}}}}}"#, properties(1_500)),
        format!(
            r#"{{"properties":{{{}}},"required":[{required}],"additionalProperties":false}}"#,
            properties(1_500)
        ),
        format!(
            r#"{{"properties":{{{}}},"patternProperties":{{"^x-[a-z]+$":{{}},"^[0-9]{{1,4}}$":{{}}}}}}"#,
            properties(500)
        ),
    ] {
        compile(&schema(&text));
    }
}

/// Rules `t0`, `t1`, … of a Lark grammar, one for each of these schemas.
fn tools(schemas: &[String]) -> String {
    let names: Vec<_> = (0..schemas.len()).map(|n| format!("t{n}")).collect();
    let rule = |(name, schema): (&String, &String)| format!("\n{name}: %json {schema}");
    let rules: String = names.iter().zip(schemas).map(rule).collect();
    format!("start: {}{rules}", names.join(" | "))
}

#[test]
fn schemas_in_lark_have_the_limit_of_schemas() {
    let large = format!(
        r#"{{"type":"object","properties":{{{}}}}}"#,
        properties(120)
    );
    let large = tools(&vec![large; 100]);
    assert!(large.len() > 3 * limits::MAX_GRAMMAR_BYTES);
    compile(&lark(&large));
    let rules = chain(2_000, |n| format!("a{n}: \"some text\"\n"));
    let what = refused(&lark(&format!("start: %json {{}}\n{rules}")));
    assert!(what.contains("bytes without its JSON schemas"), "{what}");
    let what = refused(&lark(&tools(&vec!["{}".to_owned(); 513])));
    assert!(what.contains("has 513 JSON schemas"), "{what}");
}

/// The time per token is quadratic in the text here.
#[test]
fn ambiguous_grammar_is_canceled() {
    let constraint = compile(&lark("start: a\na: a a | a a a | a a a a | /[a-z]/\n"));
    let mut matcher = constraint.start(0);
    let word = vocabulary().encode(b"count")[0];
    let failed = (0..100_000).find_map(|_| matcher.advance(word).err());
    assert!(matches!(failed, Some(Error::Invalid(_))), "{failed:?}");
    assert_eq!(constraint.start(0).allows(97), Ok(true));
}

#[test]
fn grammar_without_matches_reports_dead_end() {
    let mut matcher = compile(&lark("start: X\nX: /a+/ & /b+/\n")).start(0);
    let failed = matcher.mask().map(<[u32]>::len).unwrap_err();
    assert!(failed.to_string().contains("dead end"), "{failed}");
}

#[test]
fn costly_step_fails_only_its_matcher() {
    // The lexer must remember which of the last 25 characters were an `a`.
    let constraint = compile(&regex("[ab]*a[ab]{25}c"));
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let (mut one, mut other) = (constraint.start(0), constraint.start(0));
    let failed = (0..200_000).find_map(|_| {
        let token = if rng.random::<bool>() { 97 } else { 98 };
        one.mask()
            .map(|_| ())
            .and_then(|()| one.advance(token))
            .err()
    });
    let failed = failed.expect("it has too many states");
    assert!(matches!(failed, Error::Invalid(_)), "{failed:?}");
    assert_eq!(
        one.mask().map(<[u32]>::len),
        Err(failed.clone()),
        "later calls fail too"
    );
    assert_eq!(one.allows(97), Err(failed));
    assert_eq!(other.allows(97), Ok(true));
    other.advance(97).unwrap();
    assert_eq!(constraint.start(0).allows(98), Ok(true));
}

#[test]
fn memory_of_grammars_and_matchers_is_counted() {
    let compiler = compiler_for(vocabulary());
    let held = || compiler.counters().held_bytes;
    assert_eq!(held(), 0);
    let constraint = compiler.compile(0, &regex("[ab]*a[ab]{12}c")).unwrap();
    let compiled = held();
    assert!(compiled > 0);
    let mut matcher = constraint.start(0);
    let started = held();
    assert!(started > compiled);
    // Each new state of the lexer takes memory.
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    for _ in 0..500 {
        matcher.mask().unwrap();
        matcher
            .advance(97 + u32::from(rng.random::<bool>()))
            .unwrap();
    }
    let grown = held();
    assert!(grown > started, "{started} and {grown} bytes");
    let fork = matcher.fork().unwrap();
    assert!(held() > grown);
    drop((matcher, fork));
    assert_eq!(held(), compiled);
}

#[test]
fn compiled_grammars_are_cached_and_counted() {
    let compiler = compiler_for(vocabulary());
    assert!(compiler.cached(&regex("a")).is_none());
    compiler.compile(0, &regex("a")).unwrap();
    compiler.compile(0, &lark("start: \"a\"")).unwrap();
    compiler.compile(0, &regex("a")).unwrap();
    assert!(compiler.cached(&regex("a")).is_some());
    compiler.compile(0, &regex("(")).unwrap_err();
    let counts = compiler.counters();
    assert_eq!(
        (counts.hits, counts.compiled, counts.failed, counts.cached),
        (2, 2, 1, 2)
    );
    assert!(counts.cached_bytes > 0);

    for n in 0..limits::MAX_CACHED + 20 {
        compiler.compile(0, &regex(&format!("n{n}"))).unwrap();
    }
    let counts = compiler.counters();
    assert_eq!(counts.cached, limits::MAX_CACHED as u64);
    assert!(counts.cached_bytes <= limits::MAX_CACHED_BYTES as u64);
    assert!(
        compiler.cached(&regex("a")).is_none(),
        "the oldest was evicted"
    );
}

#[test]
fn concurrent_compilations_are_shared() {
    let compiler = compiler_for(vocabulary());
    let grammar = Grammar::JsonSchema(schemas::schema(3).to_string());
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let constraint = compiler.compile(0, &grammar).unwrap();
                walk(&constraint, &mut ChaCha8Rng::seed_from_u64(9))
            });
        }
    });
    let counts = compiler.counters();
    assert_eq!((counts.compiled, counts.cached), (1, 1));
}

#[test]
fn vocabulary_without_end_token_is_refused() {
    struct NoEndToken;
    impl Vocabulary for NoEndToken {
        fn size(&self) -> usize {
            1
        }
        fn piece(&self, _: Token) -> &[u8] {
            b"a"
        }
        fn control_name(&self, _: Token) -> &[u8] {
            b""
        }
        fn end_tokens(&self) -> Vec<Token> {
            Vec::new()
        }
        fn tokenize(&self, text: &str) -> Vec<Token> {
            vec![0; text.len()]
        }
    }
    let compiler = GrammarCompiler::new(Arc::new(NoEndToken));
    assert!(matches!(compiler.prepare(), Err(Error::Unsupported(_))));
    assert!(matches!(
        compiler.compile(0, &regex("a")),
        Err(Error::Unsupported(_))
    ));
}

#[test]
fn matchers_are_send() {
    fn check<T: Send + 'static>() {}
    fn check_shared<T: Send + Sync + 'static>() {}
    check::<Matcher>();
    check_shared::<Constraint>();
    check_shared::<GrammarCompiler>();
}
