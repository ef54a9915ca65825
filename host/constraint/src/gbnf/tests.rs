use super::to_lark;

fn lark(text: &str) -> String {
    to_lark(text, &|name| (name == "<|tool|>").then_some(7)).unwrap_or_else(|(at, what)| {
        panic!("{text:?} at {at}: {what}");
    })
}

#[test]
fn grammar_without_recursion_is_one_terminal() {
    let text = "# a comment\nroot ::= \"a\\\"\\x41\" [b-d\\]é^-]{2,3} | digit+ # more\n\ndigit ::=\n  [^0-9\\n] .?\n";
    let expected = [
        "start: T0",
        "T0: \"a\\\"A\" /[\\x{62}-\\x{64}\\x{5D}\\x{E9}\\x{5E}\\x{2D}]/{2,3} | T1+",
        "T1: /[^\\x{30}-\\x{39}\\x{A}]/ /(?s:.)/?",
        "",
    ];
    assert_eq!(lark(text), expected.join("\n"));
}

#[test]
fn adjacent_regular_parts_become_one_terminal() {
    let text = "root ::= \"(\" ws root ws \")\" | [a-z] ws\nws ::= \" \"*";
    let written = lark(text);
    assert!(written.contains("start: r0\n"), "{written}");
    assert!(written.contains("r0: PART"), "{written}");
    assert!(written.contains("PART1: \"(\" T1\n"), "{written}");
    assert!(written.contains(" r0 PART2 | PART3\n"), "{written}");
}

#[test]
fn tokens_are_written_by_number() {
    let written = lark("root ::= <|tool|> \"x\" !<[3]> <[12]>");
    assert!(
        written.contains("r0: <[7]> \"x\" <[^3]> <[12]>\n"),
        "{written}"
    );
}

#[test]
fn groups_span_lines_and_nest() {
    let text = "root ::= (\n  \"a\" | # one\n  (\"b\"\n \"c\")? )+ |\n \"d\"\n";
    assert!(
        lark(text).contains("T0: PART1+ | \"d\"\n"),
        "{}",
        lark(text)
    );
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(100), ")".repeat(100));
    lark(&deep);
}

#[test]
fn errors_have_their_position() {
    for (text, at, words) in [
        ("", 0, "no rule \"root\""),
        ("rot ::= \"a\"", 11, "no rule \"root\""),
        ("root ::= \"a\" other", 13, "no rule \"other\""),
        ("root = \"a\"", 5, "::= is expected, not '='"),
        ("root ::= \"abc", 9, "not closed"),
        ("root ::= [a", 9, "not closed"),
        ("root ::= [a-", 12, "a character is expected, not the end"),
        ("root ::= [z-a]", 10, "reversed"),
        ("root ::= []", 9, "empty"),
        ("root ::= \"\\q\"", 10, "unknown escape"),
        ("root ::= \"\\u12\"", 10, "4 hexadecimal digits"),
        ("root ::= \"\\uD800\"", 10, "not a character"),
        ("root ::= * \"a\"", 9, "nothing precedes it"),
        ("root ::= \"a\"{x}", 13, "a count is expected, not 'x'"),
        ("root ::= \"a\"{2", 14, "} is expected, not the end"),
        ("root ::= \"a\"{3,2}", 12, "less than the minimum"),
        ("root ::= \"a\"{1,1000000}", 12, "1000000 times"),
        ("root ::= (\"a\"{1000}){1000}", 20, "1000000 times"),
        ("root ::= (\"a\"", 13, ") is expected"),
        ("root ::= \"a\" )", 13, "the end of the line is expected"),
        ("root ::= \"a\" ; x", 13, "is expected, not ';'"),
        ("root ::= <|no|>", 9, "no token \"<|no|>\""),
        ("root ::= <[99999999999]>", 9, "no token 99999999999"),
        ("root ::= <abc", 9, "not closed"),
        ("root ::= é", 9, "is expected, not 'é'"),
    ] {
        let (found, what) = to_lark(text, &|_| None).expect_err(text);
        assert_eq!(found, at, "{text:?}: {what}");
        assert!(what.contains(words), "{text:?}: {what}");
    }
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(101), ")".repeat(101));
    assert!(to_lark(&deep, &|_| None).is_err());
}
