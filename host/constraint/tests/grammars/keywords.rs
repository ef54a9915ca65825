//! Keywords that llguidance lacks: which are enforced exactly, and which are named as ignored.

use super::*;
use corral_constraint::limits;
use serde_json::{Value, json};

/// Asserts that a schema is enforced whole, and that its grammar and the validator judge values alike.
fn check(schema: &Value, right: &[Value], wrong: &[Value]) {
    let constraint = compile(&Grammar::JsonSchema(schema.to_string()));
    assert!(constraint.ignored().is_empty(), "{schema}");
    for value in right {
        assert_eq!(validator::validate(schema, value), Ok(()), "{schema}");
        let text = value.to_string();
        assert!(accepts(&constraint, &text), "{schema} must accept {text}");
    }
    for value in wrong {
        assert!(
            validator::validate(schema, value).is_err(),
            "{schema} {value}"
        );
        let text = value.to_string();
        assert!(
            !accepts(&constraint, &text),
            "{schema} must not accept {text}"
        );
    }
}

#[test]
fn negations_are_exact() {
    for (schema, right, wrong) in [
        (
            json!({"not": {"type": ["string", "object"]}}),
            vec![json!(1), json!(null), json!([]), json!(true)],
            vec![json!("a"), json!({})],
        ),
        (
            json!({"type": "string", "not": {"enum": ["no", "none", "", "é-]", 3]}}),
            vec![
                json!("n"),
                json!("nono"),
                json!("é-"),
                json!("non"),
                json!("\n"),
            ],
            vec![
                json!("no"),
                json!("none"),
                json!(""),
                json!("é-]"),
                json!(3),
            ],
        ),
        (
            json!({"enum": ["a", "b", 1, null], "not": {"enum": ["b", 1.0]}}),
            vec![json!("a"), json!(null)],
            vec![json!("b"), json!(1)],
        ),
        (
            json!({"type": "integer", "not": {"enum": [5, 6, -1]}}),
            vec![json!(4), json!(7), json!(0), json!(-2), json!(55)],
            vec![json!(5), json!(6), json!(-1)],
        ),
        (
            json!({"type": ["number", "boolean"], "not": {"enum": [0, true]}}),
            vec![json!(0.5), json!(-3), json!(false)],
            vec![json!(0), json!(0.0), json!(true)],
        ),
        (
            json!({"type": "number", "not": {"minimum": 2, "maximum": 3}}),
            vec![json!(1.5), json!(3.25)],
            vec![json!(2), json!(2.5), json!(3)],
        ),
        (
            json!({"type": "string", "not": {"anyOf": [{"minLength": 3}, {"maxLength": 1}]}}),
            vec![json!("ab")],
            vec![json!("a"), json!("abc")],
        ),
        (
            json!({"type": "object", "not": {"required": ["a", "b"]}}),
            vec![json!({}), json!({"a": 1}), json!({"b": 1, "c": 2})],
            vec![json!({"a": 1, "b": 1}), json!({"a": 1, "c": 2, "b": 1})],
        ),
        (
            json!({"type": "array", "not": {"contains": {"type": "null"}}}),
            vec![json!([]), json!([1, "a"])],
            vec![json!([null]), json!([1, null])],
        ),
        (
            json!({"not": {"not": {"type": "string", "pattern": "^a.*b"}}}),
            vec![json!("ab")],
            vec![json!("a"), json!("b"), json!(1)],
        ),
        (
            json!({"$defs": {"kind": {"enum": ["x", "y", "z"]}}, "type": "object",
                "properties": {"kind": {"$ref": "#/$defs/kind"}}, "required": ["kind"],
                "not": {"properties": {"kind": {"const": "y"}}}}),
            vec![json!({"kind": "x"}), json!({"kind": "z", "a": 1})],
            vec![json!({"kind": "y"}), json!({}), json!({"kind": "w"})],
        ),
    ] {
        check(&schema, &right, &wrong);
    }
}

#[test]
fn conditions_are_exact() {
    let payment = json!({
        "type": "object",
        "properties": {
            "kind": {"enum": ["card", "cash", "note"]},
            "number": {"type": "integer"},
            "change": {"type": "integer"},
        },
        "required": ["kind"],
        "additionalProperties": false,
        "allOf": [
            {"if": {"properties": {"kind": {"const": "card"}}}, "then": {"required": ["number"]},
             "else": {"properties": {"number": false}}},
            {"if": {"properties": {"kind": {"const": "cash"}}, "required": ["kind"]},
             "then": {"required": ["change"]}},
        ],
    });
    check(
        &payment,
        &[
            json!({"kind": "card", "number": 1}),
            json!({"kind": "card", "number": 1, "change": 2}),
            json!({"kind": "cash", "change": 2}),
            json!({"kind": "note"}),
        ],
        &[
            json!({"kind": "card"}),
            json!({"kind": "cash", "number": 1, "change": 2}),
            json!({"kind": "cash"}),
            json!({"kind": "note", "number": 1}),
            json!({}),
        ],
    );
    // Without types around it, the condition holds for values of other types.
    check(
        &json!({"if": {"required": ["a"]}, "then": {"type": "object", "required": ["b"]}}),
        &[json!({"b": 1}), json!({"a": 1, "b": 2})],
        &[json!(1), json!({"a": 1})],
    );
    check(
        &json!({"if": {"type": "string", "pattern": "^a"}, "else": {"type": "null"}}),
        &[json!("ab"), json!(null)],
        &[json!("b"), json!(1)],
    );
    let dependent = json!({
        "type": "object",
        "properties": {"a": {}, "b": {}, "c": {"type": "integer"}},
        "additionalProperties": false,
        "dependentRequired": {"a": ["b"]},
        "dependentSchemas": {"b": {"properties": {"c": {"minimum": 5}}}},
    });
    check(
        &dependent,
        &[
            json!({}),
            json!({"c": 1}),
            json!({"a": 1, "b": 1}),
            json!({"b": 1, "c": 5}),
        ],
        &[
            json!({"a": 1}),
            json!({"a": 1, "c": 9}),
            json!({"b": 1, "c": 1}),
        ],
    );
}

#[test]
fn bounded_arrays_are_exact() {
    check(
        &json!({"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": true}),
        &[
            json!([]),
            json!(["c"]),
            json!(["b", "a"]),
            json!(["c", "a", "b"]),
        ],
        &[
            json!(["a", "a"]),
            json!(["a", "b", "a"]),
            json!(["a", "b", "c", "a"]),
            json!(["d"]),
        ],
    );
    check(
        &json!({"items": {"type": ["boolean", "null"]}, "maxItems": 2, "minItems": 1, "uniqueItems": true}),
        &[json!([true]), json!([null, false]), json!("other")],
        &[json!([]), json!([true, true]), json!([null, true, false])],
    );
    check(
        &json!({"type": "array", "maxItems": 1, "uniqueItems": true}),
        &[json!([]), json!([{"a": 1}])],
        &[json!([1, 2])],
    );
    check(
        &json!({"type": "array", "items": {"type": "integer"}, "maxItems": 3, "contains": {"minimum": 5}}),
        &[json!([5]), json!([1, 7]), json!([1, 2, 9]), json!([6, 6])],
        &[json!([]), json!([4]), json!([1, 2, 3]), json!([1, 2, 3, 9])],
    );
}

#[test]
fn names_and_texts_are_exact() {
    for (names, right, wrong) in [
        (
            json!({"pattern": "^x"}),
            json!({"x": 1, "xy": 2}),
            json!({"y": 1}),
        ),
        (
            json!({"enum": ["p", "é"]}),
            json!({"é": 1}),
            json!({"e": 1}),
        ),
        (
            json!({"maxLength": 2, "type": "string"}),
            json!({"ab": 1}),
            json!({"abc": 1}),
        ),
        (json!(false), json!({}), json!({"a": 1})),
    ] {
        let schema = json!({"type": "object", "propertyNames": names,
            "additionalProperties": {"type": "integer"}});
        check(
            &schema,
            &[right, json!({})],
            &[wrong, json!({"x": "p", "p": "x"})],
        );
    }
    let composed = json!({
        "$defs": {"base": {"type": "object", "properties": {"id": {"type": "integer"}}}},
        "allOf": [{"$ref": "#/$defs/base"}],
        "properties": {"name": {"type": "string"}},
        "unevaluatedProperties": false,
    });
    // The validator does not know the keyword.
    let constraint = compile(&Grammar::JsonSchema(composed.to_string()));
    assert!(accepts(&constraint, r#"{"name":"a"}"#) && accepts(&constraint, r#"{"id":1}"#));
    assert!(!accepts(&constraint, r#"{"other":1}"#) && !accepts(&constraint, r#"{"id":"a"}"#));

    let password = r"^(?=.*[0-9])(?=.*[a-z])(?!(?:admin1|root1)$)[a-z0-9]{4,8}$";
    let right = ["abc1", "1234567z", "admin12"].map(Value::from);
    // The validator does not know look-ahead either.
    let constraint = compile(&schema(
        &json!({"type": "string", "pattern": password}).to_string(),
    ));
    for (text, fits) in right.iter().map(|text| (text.to_string(), true)).chain(
        ["\"abcd\"", "\"1234\"", "\"admin1\"", "\"root1\"", "\"ab1\""]
            .map(|text| (text.to_owned(), false)),
    ) {
        assert_eq!(accepts(&constraint, &text), fits, "{text}");
    }
    check(
        &json!({"type": "string", "format": "json-pointer"}),
        &[json!(""), json!("/a/~0b/"), json!("//")],
        &[json!("a"), json!("/~2"), json!("/a~")],
    );
}

/// The schema of a seed: two keywords of this module around members that they are about.
fn composed(seed: u64) -> Value {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut pick = |list: &[Value]| list[rng.random_range(0..list.len())].clone();
    let member = [
        json!({"enum": ["a", "b", 1, null]}),
        json!({"type": "integer", "minimum": 0, "maximum": 20}),
        json!({"type": "string", "maxLength": 3}),
        json!({"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": true}),
        json!({"type": ["boolean", "null"]}),
    ];
    let mut condition = || {
        let name = ["a", "b", "c"][rng_index(&mut pick)];
        match rng_index(&mut pick) {
            0 => json!({"required": [name]}),
            1 => json!({"properties": {name: pick(&[
                json!({"const": "a"}), json!({"minimum": 7}), json!({"minLength": 2}),
                json!({"type": "null"}), json!({"maxItems": 1}), json!({"enum": [1, true, "b"]}),
            ])}}),
            _ => {
                json!({"properties": {name: {"not": {"enum": ["", "a", 5, false]}}}, "required": [name]})
            }
        }
    };
    let (first, second, third) = (condition(), condition(), condition());
    let mut schema = json!({
        "type": "object",
        "properties": {"a": pick(&member), "b": pick(&member), "c": pick(&member)},
        "additionalProperties": false,
    });
    let keywords = pick(&[
        json!({"not": {"allOf": [first, second]}}),
        json!({"if": first, "then": second, "else": third}),
        json!({"anyOf": [{"not": first}, {"not": second}]}),
        json!({"dependentSchemas": {"a": first, "b": {"not": second}}}),
        json!({"allOf": [{"if": first, "then": second}, {"if": second, "then": third}]}),
    ]);
    let members = schema.as_object_mut().unwrap();
    members.extend(keywords.as_object().unwrap().clone());
    schema
}

fn rng_index(pick: &mut impl FnMut(&[Value]) -> Value) -> usize {
    pick(&[json!(0), json!(1), json!(2)]).as_u64().unwrap() as usize
}

#[test]
fn composed_keywords_accept_exactly_the_schema() {
    let members = |name: &str| -> Vec<Value> {
        let values = json!([
            "a",
            "b",
            "",
            "xyz",
            1,
            5,
            7,
            20,
            21,
            null,
            true,
            false,
            [],
            [1],
            [3, 1],
            [2, 2]
        ]);
        let values = values.as_array().unwrap().iter();
        let with = values.map(|value| json!({ name: value }));
        with.chain([json!({})]).collect()
    };
    let (a, b, c) = (members("a"), members("b"), members("c"));
    let (mut accepted, mut judged, mut impossible) = (0, 0, 0);
    for seed in 0..60 {
        let schema = composed(seed);
        let constraint = match shared().compile(0, &Grammar::JsonSchema(schema.to_string())) {
            Ok(constraint) => constraint,
            Err(Error::Invalid(what)) if what.contains("no value matches") => {
                impossible += 1;
                continue;
            }
            Err(error) => panic!("{schema}: {error}"),
        };
        // Mostly members that fit by themselves.
        let lists = [("a", &a), ("b", &b), ("c", &c)].map(|(name, list)| {
            let alone = json!({"properties": {name: schema["properties"][name]}});
            let fit = list
                .iter()
                .filter(|member| validator::validate(&alone, member).is_ok());
            (fit.collect::<Vec<_>>(), list.iter().collect::<Vec<_>>())
        });
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        for _ in 0..30 {
            let mut value = serde_json::Map::new();
            for (fit, all) in &lists {
                let list = if rng.random_bool(0.9) { fit } else { all };
                let member = list[rng.random_range(0..list.len())].as_object().unwrap();
                value.extend(member.clone());
            }
            let value = Value::Object(value);
            let fits = validator::validate(&schema, &value);
            assert_eq!(
                accepts(&constraint, &value.to_string()),
                fits.is_ok(),
                "{schema} {value} {fits:?}"
            );
            accepted += usize::from(fits.is_ok());
            judged += 1;
        }
        let tokens = walk(&constraint, &mut rng);
        let value = serde_json::from_str(&vocabulary().decode(&tokens)).unwrap();
        assert_eq!(validator::validate(&schema, &value), Ok(()), "{schema}");
    }
    assert!(
        accepted > 300 && judged > 1_500,
        "{accepted} of {judged}, {impossible} without values"
    );
}

#[test]
fn unenforceable_keywords_are_named_or_refused() {
    for (text, path, words) in [
        (
            r#"{"items": {"not": {"pattern": "a"}}}"#,
            "/items/not",
            "the keyword not is not supported here",
        ),
        (
            r#"{"properties": {"a/b": {"uniqueItems": true}}}"#,
            "/properties/a~1b/uniqueItems",
            "a few constants",
        ),
        (
            r#"{"if": {"format": "date"}, "then": {"type": "string"}}"#,
            "/if",
            "with this condition",
        ),
        (
            r#"{"contains": {"type": "null"}}"#,
            "/contains",
            "a small maxItems",
        ),
        (
            r#"{"maxItems": 4, "contains": {}, "maxContains": 2}"#,
            "/maxContains",
            "not supported",
        ),
        (
            r#"{"propertyNames": {"format": "date"}}"#,
            "/propertyNames",
            "only with one of",
        ),
        (
            r#"{"format": "postcode"}"#,
            "/format",
            "known formats are date-time",
        ),
        (
            r#"{"pattern": "a(?!b)"}"#,
            "/pattern",
            "line 1, column 2: look-around",
        ),
        (r#"{"pattern": "\\bx"}"#, "/pattern", "word boundaries"),
        (r#"{"pattern": "(a)\\1"}"#, "/pattern", "backreferences"),
        (
            r#"{"patternProperties": {"x(?=y)": {}}}"#,
            "/patternProperties/x(?=y)",
            "look-around",
        ),
        (
            r#"{"anyOf": [{"type": "object"}], "unevaluatedProperties": false}"#,
            "/unevaluatedProperties",
            "conditionally",
        ),
        (
            r##"{"$dynamicRef": "#a"}"##,
            "/$dynamicRef",
            "not supported",
        ),
        (
            r#"{"oneOf": [{"type": "string"}, {"minLength": 3}]}"#,
            "/oneOf",
            "oneOf is supported only",
        ),
        (
            r#"{"allOf": [{"oneOf": [{"type": "string"}, {"minLength": 3}]}]}"#,
            "/allOf/0/oneOf",
            "oneOf is supported only",
        ),
        (
            r#"{"patternProperties": {"a": {"type": "null"}, "b": {}}, "additionalProperties": false}"#,
            "/patternProperties",
            "not disjoint",
        ),
        (
            r#"{"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 1}"#,
            "/minProperties",
            "min/maxProperties",
        ),
    ] {
        let strict = refused(&schema(text));
        // llguidance's own refusals are about the schema around the keyword.
        let place = match path {
            "/oneOf" | "/patternProperties" | "/minProperties" => "/",
            "/allOf/0/oneOf" => "/allOf/0",
            path => path,
        };
        assert!(
            strict.starts_with(&format!("the JSON schema is invalid: at {place}: ")),
            "{strict}"
        );
        assert!(strict.contains(words), "{strict}");
        let lenient = compile(&Grammar::LenientJsonSchema(text.into()));
        assert_eq!(lenient.ignored(), [path], "{text}");

        // A schema in a Lark grammar has the same errors and the same names.
        let strict_in_lark = refused(&lark(&format!("start: %json {text}\n")));
        assert_eq!(
            strict_in_lark.replace(" of the rule start", ""),
            strict,
            "{text}"
        );
        let options = r#"{"x-guidance": {"lenient": true}, "#;
        let lenient = compile(&lark(&format!(
            "start: %json {}\n",
            text.replacen('{', options, 1)
        )));
        assert_eq!(lenient.ignored(), [format!("start{path}")], "{text}");
    }
}

#[test]
fn each_schema_of_a_grammar_ignores_its_own() {
    let options = r#""x-guidance": {"lenient": true}"#;
    let refused = |n: usize| {
        format!(
            r#"r{n}: %json {{{options}, "type": "object", "properties": {{"a": {{}}, "b": {{}}}}, "minProperties": 1}}"#
        )
    };
    let rules: Vec<_> = (0..5).map(refused).collect();
    let fine = format!("fine: %json {{{options}, \"type\": \"null\"}}");
    let text = format!("start: r0 r1 r2 r3 r4 fine\n{}\n{fine}\n", rules.join("\n"));
    let constraint = compile(&lark(&text));
    let names: Vec<_> = (0..5).map(|n| format!("r{n}/minProperties")).collect();
    assert_eq!(constraint.ignored(), names);
}

#[test]
fn ignoring_a_keyword_leaves_the_others() {
    let text = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": "a(?!b)", "maxLength": 3},
            "list": {"type": "array", "items": {"type": "integer"}, "uniqueItems": true, "maxItems": 2},
        },
        "required": ["name"],
        "patternProperties": {"\\by": {"type": "null"}, "^x": {"type": "null"}},
        "additionalProperties": false,
    });
    let constraint = compile(&Grammar::LenientJsonSchema(text.to_string()));
    let ignored = [
        "/properties/name/pattern",
        "/properties/list/uniqueItems",
        "/patternProperties/\\by",
        "/additionalProperties",
    ];
    for name in ignored {
        assert!(
            constraint.ignored().contains(&name.to_owned()),
            "{:?}",
            constraint.ignored()
        );
    }
    assert_eq!(constraint.ignored().len(), ignored.len());
    assert!(accepts(&constraint, r#"{"name":"ab","list":[1,1]}"#));
    assert!(accepts(&constraint, r#"{"name":"","z":{"y":1},"x":null}"#));
    for wrong in [
        r#"{"list":[]}"#,
        r#"{"name":"abcd"}"#,
        r#"{"name":"","list":[1,1,1]}"#,
        r#"{"name":"","x":1}"#,
    ] {
        assert!(!accepts(&constraint, wrong), "{wrong}");
    }
    // Also the forms that a recursive reference does not allow.
    let recursive = r##"{"$defs": {"a": {"type": "object", "properties": {"next": {"$ref": "#/$defs/a",
        "not": {"required": ["x"]}}}, "additionalProperties": false}}, "$ref": "#/$defs/a"}"##;
    let constraint = compile(&Grammar::LenientJsonSchema(recursive.into()));
    assert_eq!(constraint.ignored(), ["/$defs/a/properties/next/not"]);
    assert!(
        accepts(&constraint, r#"{"next":{"next":{}}}"#) && !accepts(&constraint, r#"{"next":1}"#)
    );
}

#[test]
fn errors_and_limits_hold_in_lenient_schemas() {
    for (text, words) in [
        (
            r#"{"not": {"type": "strin"}}"#,
            "at /not/type: \"strin\" is not a type",
        ),
        (
            r#"{"if": {"properties": []}}"#,
            "at /if/properties: it is an array",
        ),
        (r#"{"uniqueItems": 1}"#, "at /uniqueItems: it is a number"),
        (
            r#"{"dependentRequired": {"a": [1]}}"#,
            "at /dependentRequired/a: it must be an array of names",
        ),
        (
            r#"{"pattern": "a(b"}"#,
            "at /pattern: in the pattern, line 1, column 2: unclosed group",
        ),
        (r#"{"type": "string", "not": {}}"#, "no value matches"),
        (r#"{"not": {"maxLength": 100001}}"#, "at /not/maxLength"),
    ] {
        match shared().compile(0, &Grammar::LenientJsonSchema(text.into())) {
            Err(Error::Invalid(what)) => assert!(what.contains(words), "{what}"),
            other => panic!("{text}: {other:?}"),
        }
    }
    // What takes the place of keywords is bounded: above, they are ignored.
    let conditions = |count: usize| -> Value {
        let one = |n: usize| json!({"if": {"properties": {format!("a{n}"): {"const": 1}}}, "then": {"required": ["b"]}});
        json!({"type": "object", "allOf": (0..count).map(one).collect::<Value>()})
    };
    let values: Vec<usize> = (0..9).collect();
    let words: Vec<String> = (0..300).map(|n| format!("{n}{n}-{n}")).collect();
    let numbers: Vec<usize> = (0..3_000).collect();
    let wide = |join: fn(&Value) -> Value| -> Value {
        let one = |n: usize| json!({"$ref": format!("#/$defs/d{n}")});
        let joined = (0..7).map(|n| (format!("d{n}"), join(&one(n + 1))));
        let last = ("d7".to_owned(), json!({"type": "object"}));
        Value::Object(joined.chain([last]).collect())
    };
    let doubled = (0..40).fold(
        json!({"type": "null"}),
        |inner, _| json!({"maxItems": 8, "contains": inner}),
    );
    for schema in [
        conditions(200),
        json!({"items": {"enum": values}, "uniqueItems": true}),
        json!({"type": "string", "not": {"enum": words}}),
        doubled,
        // References that multiply, compared lists, and one costly schema negated often.
        json!({"$defs": wide(|n| json!({"anyOf": [n, n, n, n, n, n]})), "not": {"$ref": "#/$defs/d0"}}),
        json!({
            "$defs": wide(|n| json!({"allOf": [n, n, n, n, n, n]})),
            "allOf": [{"$ref": "#/$defs/d5"}],
            "items": {"$ref": "#/$defs/d0", "unevaluatedProperties": false},
        }),
        json!({"enum": numbers, "not": {"enum": numbers}}),
        json!({
            "$defs": {"x": {"enum": numbers, "properties": {"a": {"pattern": "x"}}}},
            "prefixItems": vec![json!({"not": {"$ref": "#/$defs/x"}}); 2_000],
        }),
    ] {
        let constraint = compile(&Grammar::LenientJsonSchema(schema.to_string()));
        let ignored = constraint.ignored();
        assert!(
            !ignored.is_empty() && ignored.len() <= limits::MAX_IGNORED + 1,
            "{ignored:?}"
        );
        assert!(
            ignored
                .iter()
                .all(|name| name.len() <= limits::MAX_IGNORED_BYTES + 3)
        );
    }
    let last = compile(&Grammar::LenientJsonSchema(conditions(200).to_string()));
    assert!(
        last.ignored()[limits::MAX_IGNORED].ends_with(" more"),
        "{:?}",
        last.ignored()
    );
}
