//! Lines as they are on the wire, and random changes of them.

use std::fmt::Debug;

use rand::seq::IndexedRandom;
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    Command, Distribution, Floats, Hello, ModelInfo, NextResult, Outcome, Reply, RequestCounts,
    Words,
};

/// Every command, with every setting, grammar and part. A change of one of these lines breaks clients.
const COMMANDS: &str = r#"
{"id":1,"call":"available"}
{"id":2,"call":"open-model","model":1,"name":null}
{"id":18446744073709551615,"call":"open-model","model":4294967295,"name":"tiny"}
{"id":2,"call":"request-counts","model":1}
{"id":3,"call":"tokenize","model":1,"text":"a\"\u0000é😀","special":true}
{"id":4,"call":"detokenize","model":1,"tokens":[0,4294967295],"special":false}
{"id":5,"call":"embed","model":1,"inputs":[[1,2],[]],"pooling":"mean","normalize":true}
{"id":5,"call":"embed","model":1,"inputs":[],"pooling":null,"normalize":null}
{"id":6,"call":"compile-constraint","constraint":1,"model":1,"grammar":{"json-schema":"{}"}}
{"id":6,"call":"compile-constraint","constraint":1,"model":1,"grammar":{"lenient-json-schema":"{}"}}
{"id":6,"call":"compile-constraint","constraint":1,"model":1,"grammar":"json-object"}
{"id":6,"call":"compile-constraint","constraint":1,"model":1,"grammar":{"regex":"[0-9]"}}
{"id":6,"call":"compile-constraint","constraint":1,"model":1,"grammar":{"lark":"start: /a/"}}
{"id":6,"call":"compile-constraint","constraint":1,"model":1,"grammar":{"gbnf":"root ::= \"a\""}}
{"id":7,"call":"start-matcher","matcher":1,"constraint":1}
{"id":8,"call":"fork-matcher","matcher":2,"from":1}
{"id":9,"call":"mask","matcher":1}
{"id":10,"call":"allowed","matcher":1,"max_tokens":9}
{"id":11,"call":"allows","matcher":1,"token":7}
{"id":12,"call":"accept","matcher":1,"token":7}
{"id":13,"call":"forced","matcher":1,"max_tokens":9}
{"id":14,"call":"is-complete","matcher":1}
{"id":15,"call":"remaining"}
{"id":16,"call":"create-options","options":1,"max_tokens":64}
{"id":17,"call":"set","options":1,"setting":{"seed":18446744073709551615}}
{"id":17,"call":"set","options":1,"setting":{"stop":"\n"}}
{"id":17,"call":"set","options":1,"setting":"ignore-eos"}
{"id":17,"call":"set","options":1,"setting":{"temperature":0.1}}
{"id":17,"call":"set","options":1,"setting":{"top-k":40}}
{"id":17,"call":"set","options":1,"setting":{"top-p":0.95}}
{"id":17,"call":"set","options":1,"setting":{"min-p":0.05}}
{"id":17,"call":"set","options":1,"setting":{"dynamic-temperature":[1.0,0.5,1.0]}}
{"id":17,"call":"set","options":1,"setting":{"typical-p":0.9}}
{"id":17,"call":"set","options":1,"setting":{"top-n-sigma":1.5}}
{"id":17,"call":"set","options":1,"setting":{"xtc":[0.5,0.1]}}
{"id":17,"call":"set","options":1,"setting":{"dry":{"multiplier":0.8,"base":1.75,"allowed_length":2,"last_n":64,"breakers":["\n"]}}}
{"id":17,"call":"set","options":1,"setting":{"penalties":{"last_n":64,"repeat":1.1,"frequency":0.0,"presence":-0.5}}}
{"id":17,"call":"set","options":1,"setting":{"output-penalties":{"last_n":64,"repeat":1.0,"frequency":0.2,"presence":0.0}}}
{"id":17,"call":"set","options":1,"setting":{"logit-bias":[[7,null],[8,-1.5]]}}
{"id":17,"call":"set","options":1,"setting":{"mirostat":[5.0,0.1]}}
{"id":17,"call":"set","options":1,"setting":{"logprobs":20}}
{"id":17,"call":"set","options":1,"setting":{"speculate":16}}
{"id":17,"call":"set","options":1,"setting":{"adapter":"plus-one"}}
{"id":18,"call":"constrain","options":1,"constraint":1}
{"id":19,"call":"sample-with","options":1,"name":"min-p","settings":"{}"}
{"id":20,"call":"create-sequence","sequence":1,"model":1}
{"id":21,"call":"append","sequence":1,"tokens":[49,50]}
{"id":22,"call":"truncate","sequence":1,"length":1}
{"id":23,"call":"fork-sequence","sequence":2,"from":1}
{"id":24,"call":"set-adapter","sequence":1,"adapter":null}
{"id":25,"call":"generate","generation":1,"sequence":1,"options":1}
{"id":26,"call":"cancel","generation":1,"sequence":1,"start":2}
{"id":27,"call":"next","sequence":1,"request":{"part":{"top":2}}}
{"id":27,"call":"next","sequence":1,"request":{"part":"logits","statistics":true}}
{"id":28,"call":"next-many","requests":[[1,{"part":{"only":[7]},"matcher":1}],[2,{"part":{"top":1}}]]}
{"id":29,"call":"append-image","sequence":1,"file":"aGk="}
{"id":30,"call":"save-snapshot","sequence":1,"name":"a"}
{"id":31,"call":"restore-snapshot","sequence":1,"model":1,"name":"a"}
{"id":32,"call":"delete-snapshot","model":1,"name":"a"}
{"id":33,"call":"drop","kind":"model","handle":1}
{"id":33,"call":"drop","kind":"constraint","handle":1}
{"id":33,"call":"drop","kind":"matcher","handle":1}
{"id":33,"call":"drop","kind":"options","handle":1}
{"id":33,"call":"drop","kind":"sequence","handle":1}
"#;

/// Replies of every kind.
const REPLIES: &str = r#"
{"id":1,"ok":null}
{"id":1,"ok":["tiny"]}
{"id":7,"chunk":{"tokens":[],"text":""}}
{"id":7,"chunk":{"tokens":[49],"text":"1","logprobs":[{"logprob":-0.1,"top":[[49,-0.1],[50,null]]}]}}
{"id":7,"error":{"code":"invalid","detail":"why"}}
{"id":7,"error":{"code":"not-found","detail":"why"}}
{"id":7,"error":{"code":"not-granted","detail":"why"}}
{"id":7,"error":{"code":"context-full","needed":9000,"limit":4096}}
{"id":7,"error":{"code":"refused","detail":"why","retry_after_ms":500}}
{"id":7,"error":{"code":"deadline"}}
{"id":7,"error":{"code":"cancelled"}}
{"id":7,"error":{"code":"failed","detail":"why"}}
"#;

const DISTRIBUTIONS: &str = r#"
{"candidates":[[49,17.2],[50,null]],"position":5}
{"logits":"AACAPwAAgP8=","statistics":{"log_normalizer":2.5,"entropy":1.0},"position":0}
"#;

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.is_empty())
}

/// Whether a line is a value. Written and read again, it is the same one.
fn is_read<T: Serialize + DeserializeOwned + PartialEq + Debug>(line: &[u8]) -> bool {
    let Ok(value) = serde_json::from_slice::<T>(line) else {
        return false;
    };
    let written = serde_json::to_vec(&value).expect("every value has a line");
    assert!(!written.contains(&b'\n'), "{value:?}");
    let again: T = serde_json::from_slice(&written).expect("a written line is read");
    assert_eq!(again, value, "{}", String::from_utf8_lossy(&written));
    true
}

/// Checks that lines are read, and written with the same members.
fn check_lines<T: Serialize + DeserializeOwned + PartialEq + Debug>(text: &str) {
    for line in lines(text) {
        assert!(is_read::<T>(line.as_bytes()), "{line}");
        let value: T = serde_json::from_str(line).expect("read above");
        let written = serde_json::to_string(&value).expect("every value has a line");
        assert_eq!(written, line);
    }
}

#[test]
fn lines_keep_their_form() {
    check_lines::<Hello>(r#"{"session":1}"#);
    check_lines::<Command>(COMMANDS);
    check_lines::<Reply<Value>>(REPLIES);
    check_lines::<Distribution>(DISTRIBUTIONS);
    let next: Vec<_> = lines(DISTRIBUTIONS)
        .map(|line| format!("{{\"ok\":{line}}}"))
        .collect();
    check_lines::<NextResult>(&next.join("\n"));
    check_lines::<NextResult>(r#"{"error":{"code":"deadline"}}"#);
    check_lines::<Outcome>(
        r#"{"finish":"stop","prompt_tokens":5,"cached_tokens":1,"generated_tokens":3,"queue_time":1,"prefill_time":2,"decode_time":3}"#,
    );
    check_lines::<RequestCounts>(r#"{"running":2,"waiting":1,"max_running":64}"#);
    let info = r#"{"name":"tiny","vocabulary":264,"context":4096,"embedding_length":128,"bos":null,"eos":256,"end_of_generation":[256],"chat_template":null,"can_fork":true,"adapters":["plus-one"]"#;
    check_lines::<ModelInfo>(&format!(
        "{info},\"accepts_images\":true,\"accepts_audio\":false,\"rerank_template\":null}}"
    ));
    // Of an older host, and of a newer one.
    for end in ["}", ",\"later\":[{}]}"] {
        assert!(is_read::<ModelInfo>(format!("{info}{end}").as_bytes()));
    }
}

/// The names that an error about an unknown one lists.
fn known_names(line: &str) -> Vec<String> {
    let error = serde_json::from_str::<Command>(line).unwrap_err();
    let error = error.to_string();
    let names = error.split("expected one of ").nth(1).expect(&error);
    names
        .split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

#[test]
fn lines_cover_all_commands_and_settings() {
    let calls = known_names(r#"{"id":1,"call":"x"}"#);
    let settings = known_names(r#"{"id":1,"call":"set","options":1,"setting":"x"}"#);
    assert!(calls.len() > 30 && settings.len() > 15);
    for call in calls {
        assert!(COMMANDS.contains(&format!("\"call\":\"{call}\"")), "{call}");
    }
    for name in settings {
        let forms = [
            format!("\"setting\":\"{name}\""),
            format!("\"setting\":{{\"{name}\":"),
        ];
        assert!(forms.iter().any(|form| COMMANDS.contains(form)), "{name}");
    }
}

/// Values that take the place of others.
const VALUES: [&str; 16] = [
    "null",
    "0",
    "7",
    "-1",
    "0.5",
    "1e999",
    "256",
    "4294967296",
    "18446744073709551616",
    "\"\"",
    "\"\\u0000é\"",
    "\"\\ud800\"",
    "[]",
    "[[1,2]]",
    "{}",
    "{\"top\":1}",
];

/// A line with a few changes: other values, pieces of other lines, and random bytes.
fn changed(line: &str, others: &[&str], random: &mut impl Rng) -> Vec<u8> {
    let mut line = line.as_bytes().to_vec();
    for _ in 0..random.random_range(1..=3) {
        let start = random.random_range(0..=line.len());
        let find = |from: usize, ends: &[u8]| {
            let found = line[from..].iter().position(|byte| ends.contains(byte));
            found.map_or(line.len(), |length| from + length)
        };
        let (range, with) = match random.random_range(0..4) {
            0 => {
                let other = others.choose(random).expect("lines").as_bytes();
                let from = random.random_range(0..other.len());
                let piece = &other[from..random.random_range(from..=other.len())];
                let end = line.len().min(start + random.random_range(0..4));
                (start..end, piece.to_vec())
            }
            1 => (start..line.len().min(start + 1), vec![random.random()]),
            _ => {
                let start = line.len().min(find(start, b":[") + 1);
                let value = VALUES.choose(random).expect("values");
                (start..find(start, b",]}"), value.as_bytes().to_vec())
            }
        };
        line.splice(range, with);
    }
    line
}

#[test]
fn changed_lines_are_read_or_refused() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
    let examples: Vec<_> = [COMMANDS, REPLIES, DISTRIBUTIONS]
        .into_iter()
        .flat_map(lines)
        .collect();
    let (mut read, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let line = changed(
            examples.choose(&mut random).expect("lines"),
            &examples,
            &mut random,
        );
        let is_any = is_read::<Command>(&line)
            | is_read::<Reply<Value>>(&line)
            | is_read::<Reply<Outcome>>(&line)
            | is_read::<Distribution>(&line);
        match is_any {
            true => read += 1,
            false => refused += 1,
        }
    }
    // The changes are neither too few nor too many.
    assert!(read > 200 && refused > 2000, "{read} read, {refused} not");
}

#[test]
fn random_bytes_are_refused() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(8);
    for _ in 0..2000 {
        let mut line = vec![0; random.random_range(0..200)];
        random.fill_bytes(&mut line);
        assert!(!is_read::<Command>(&line) && !is_read::<Reply<Value>>(&line));
    }
    // Deep nesting does not exhaust the stack.
    let deep = format!(
        "{{\"id\":1,\"call\":\"available\",\"x\":{}",
        "[".repeat(1 << 20)
    );
    assert!(!is_read::<Command>(deep.as_bytes()));
}

#[test]
fn numbers_are_exact() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(9);
    for _ in 0..2000 {
        // Packed ones with all bits, also of infinities and of what is no number.
        let bits: Vec<u32> = (0..5).map(|_| random.random()).collect();
        let floats = Floats(bits.iter().copied().map(f32::from_bits).collect());
        let line = serde_json::to_string(&floats).unwrap();
        let Floats(again) = serde_json::from_str(&line).unwrap();
        assert!(again.iter().map(|float| float.to_bits()).eq(bits.clone()));
        assert!(is_read::<Words>(
            serde_json::to_string(&Words(bits.clone()))
                .unwrap()
                .as_bytes()
        ));
        // Others in decimal digits.
        for number in bits.into_iter().map(f32::from_bits) {
            let line = format!(
                r#"{{"id":1,"call":"set","options":1,"setting":{{"temperature":{number:?}}}}}"#
            );
            assert_eq!(is_read::<Command>(line.as_bytes()), number.is_finite());
        }
    }
    for wrong in ["\"AAAA\"", "\"AAAAAA=\"", "\"?\"", "[1]", "null"] {
        assert!(!is_read::<Words>(wrong.as_bytes()), "{wrong}");
    }
}
