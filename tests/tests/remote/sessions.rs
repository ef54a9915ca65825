//! The session protocol, as a client without a component speaks it.

use corral_tests::{
    BodySender, Connection, Corral, HttpVersion, PendingResponse, RELIABLE_SUMS, Sum, block_on,
};
use serde_json::{Value, json};

const SUM: Sum = RELIABLE_SUMS[0];
const VERSIONS: [HttpVersion; 2] = [HttpVersion::Http1, HttpVersion::Http2];

/// A session's lines.
struct Session {
    response: PendingResponse,
    body: BodySender,
    received: Vec<u8>,
    // Ends the connection when dropped.
    _connection: Connection,
}

impl Session {
    async fn open(corral: &Corral, version: HttpVersion) -> Self {
        let connection = Connection::connect(corral.public(), version, None).await;
        let connection = connection.expect("connects");
        let (response, body) = connection.begin("/sessions").await.expect("begins");
        assert_eq!(response.status(), 200);
        let mut session = Session {
            response,
            body,
            received: Vec::new(),
            _connection: connection,
        };
        assert_eq!(session.line().await, Some(json!({"session": 1})));
        session
    }

    fn send(&self, command: &Value) {
        self.body.send(&format!("{command}\n"));
    }

    /// The next line; `None` at the end.
    async fn line(&mut self) -> Option<Value> {
        loop {
            if let Some(length) = self.received.iter().position(|&byte| byte == b'\n') {
                let rest = self.received.split_off(length + 1);
                let line = std::mem::replace(&mut self.received, rest);
                return Some(serde_json::from_slice(&line).expect("a line of JSON"));
            }
            let chunk = self.response.chunk().await?;
            self.received.extend(chunk.ok()?);
        }
    }

    /// The value of the next line, which is the reply to this command.
    async fn value(&mut self, id: u64) -> Value {
        let line = self.line().await.expect("a reply");
        assert_eq!(line["id"], id, "{line}");
        line["ok"].clone()
    }

    /// The code and the detail of the next line, an error.
    async fn error(&mut self, id: u64) -> (String, String) {
        let line = self.line().await.expect("a reply");
        assert_eq!(line["id"], id, "{line}");
        let text = |name: &str| line["error"][name].as_str().unwrap_or_default().to_owned();
        (text("code"), text("detail"))
    }
}

fn start(arguments: &[&str]) -> Corral {
    Corral::start_with_routes(&[("/sessions", "sessions")], arguments)
}

/// Commands that make sequence 1 with a question.
fn question() -> [Value; 3] {
    let tokens = SUM.question().into_bytes();
    [
        json!({"id": 1, "call": "open-model", "model": 1, "name": null}),
        json!({"id": 2, "call": "create-sequence", "sequence": 1, "model": 1}),
        json!({"id": 3, "call": "append", "sequence": 1, "tokens": tokens}),
    ]
}

#[test]
fn commands_reply_without_being_waited_for() {
    let corral = start(&[]);
    for version in VERSIONS {
        block_on(async {
            let mut session = Session::open(&corral, version).await;
            // The model must be open before the others begin.
            let [open, create, append] = question();
            session.send(&open);
            assert_eq!(session.value(1).await["name"], "tiny");
            let more = [
                json!({"id": 4, "call": "fork-sequence", "sequence": 2, "from": 1}),
                json!({"id": 5, "call": "create-options", "options": 1, "max_tokens": 8}),
                json!({"id": 6, "call": "next", "sequence": 1, "request": {"part": {"top": 1}}}),
            ];
            for command in [create, append].iter().chain(&more) {
                session.send(command);
            }
            for id in 2..=5 {
                assert_eq!(session.value(id).await, Value::Null);
            }
            let next = session.value(6).await;
            let expected = json!(SUM.answer().as_bytes()[0]);
            assert_eq!(next["candidates"][0][0], expected, "{next}");
            assert_eq!(next["position"], SUM.question().len());

            let generate =
                json!({"id": 7, "call": "generate", "generation": 1, "sequence": 2, "options": 1});
            session.send(&generate);
            let started = session.line().await.expect("a chunk");
            let expected = json!({"id": 7, "chunk": {"tokens": [], "text": ""}});
            assert_eq!(started, expected);
            let mut text = String::new();
            let outcome = loop {
                let line = session.line().await.expect("a line");
                match line["chunk"]["text"].as_str() {
                    Some(more) => text += more,
                    None => break line,
                }
            };
            assert_eq!(text, SUM.answer());
            assert_eq!(outcome["ok"]["finish"], "end", "{outcome}");
        });
        corral.wait_until_idle();
    }
}

#[test]
fn mistakes_are_replies() {
    let corral = start(&[]);
    block_on(async {
        let mut session = Session::open(&corral, HttpVersion::Http1).await;
        session.body.send("\n  \nwhat\n");
        let (code, detail) = session.error(0).await;
        assert_eq!(code.as_str(), "invalid", "{detail}");
        assert!(detail.contains("is no command"), "{detail}");
        for (call, expected) in [
            (
                json!({"call": "append", "sequence": 7, "tokens": []}),
                "the session has no sequence 7",
            ),
            (
                json!({"call": "create-sequence", "sequence": 1, "model": 9}),
                "the session has no model 9",
            ),
            (
                json!({"call": "set", "options": 3, "setting": {"seed": 1}}),
                "the session has no options 3",
            ),
        ] {
            let mut command = call;
            command["id"] = json!(5);
            session.send(&command);
            let (code, detail) = session.error(5).await;
            assert_eq!((code.as_str(), detail.as_str()), ("invalid", expected));
        }
        session.send(&question()[0]);
        session.value(1).await;
        session.send(&question()[0]);
        let expected = "the session has a model 1; choose another number";
        assert_eq!(session.error(1).await.1, expected);
    });
    corral.get("/sessions").problem(405, "method-not-allowed");
    corral.check_alive();
    corral.wait_until_idle();
}

#[test]
fn cancel_returns_what_was_generated() {
    let corral = start(&[]);
    block_on(async {
        let mut session = Session::open(&corral, HttpVersion::Http1).await;
        for (id, command) in (1..).zip(question()) {
            session.send(&command);
            session.value(id).await;
        }
        let length = SUM.question().len();
        for command in [
            json!({"id": 4, "call": "create-options", "options": 1, "max_tokens": 16000}),
            json!({"id": 5, "call": "set", "options": 1, "setting": "ignore-eos"}),
            json!({"id": 6, "call": "generate", "generation": 1, "sequence": 1, "options": 1}),
            json!({"id": 7, "call": "cancel", "generation": 1, "sequence": 1, "start": length}),
        ] {
            session.send(&command);
        }
        let mut read = 0;
        let tokens = loop {
            let line = session.line().await.expect("a line");
            read += line["chunk"]["tokens"].as_array().map_or(0, Vec::len);
            if line["id"] == 6 && line["chunk"].is_null() {
                assert_eq!(line["error"]["code"], "cancelled", "{line}");
            }
            if line["id"] == 7 {
                break line["ok"].as_array().expect("tokens").len();
            }
        };
        assert!(tokens >= read, "{tokens} tokens, {read} of them sent");
        // The sequence goes on.
        session.send(&json!({"id": 8, "call": "truncate", "sequence": 1, "length": length}));
        assert_eq!(session.value(8).await, Value::Null);
    });
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get("corral_engine_requests_canceled_total"), 1.0);
}

#[test]
fn number_of_running_generation_is_taken() {
    let corral = start(&[]);
    block_on(async {
        let mut session = Session::open(&corral, HttpVersion::Http1).await;
        for (id, command) in (1..).zip(question()) {
            session.send(&command);
            session.value(id).await;
        }
        let generate = |id: u64, sequence: u32| json!({"id": id, "call": "generate", "generation": 1, "sequence": sequence, "options": 1});
        for command in [
            json!({"id": 4, "call": "fork-sequence", "sequence": 2, "from": 1}),
            json!({"id": 5, "call": "create-options", "options": 1, "max_tokens": 16000}),
            json!({"id": 6, "call": "set", "options": 1, "setting": "ignore-eos"}),
            generate(7, 1),
            generate(8, 2),
            json!({"id": 9, "call": "cancel", "generation": 1, "sequence": 1, "start": 0}),
            generate(10, 2),
            json!({"id": 11, "call": "cancel", "generation": 1, "sequence": 2, "start": 0}),
        ] {
            session.send(&command);
        }
        let mut ended = Vec::new();
        while ended.len() < 8 {
            let line = session.line().await.expect("a line");
            if line["chunk"].is_null() {
                let detail = line["error"]["detail"].as_str().unwrap_or_default();
                ended.push((line["id"].as_u64().expect("an id"), detail.to_owned()));
            }
        }
        ended.sort();
        let (ids, details): (Vec<_>, Vec<_>) = ended.into_iter().unzip();
        assert_eq!(ids, [4, 5, 6, 7, 8, 9, 10, 11]);
        let expected = "the session has a generation 1; choose another number";
        assert_eq!(details[4], expected);
    });
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get("corral_engine_requests_canceled_total"), 2.0);
}

#[test]
fn session_beyond_its_request_limit_ends() {
    let corral = Corral::start_with_store(&[]);
    let limits = json!({"limits": {"request-kib": 64}});
    corral_tests::deployments::deploy_plugin(&corral, "sessions", "sessions", limits);
    for version in VERSIONS {
        block_on(async {
            let mut session = Session::open(&corral, version).await;
            session.send(&question()[0]);
            session.value(1).await;
            // The client waits for this reply, and does not end its body.
            let text = "x".repeat(80 << 10);
            session.send(
                &json!({"id": 2, "call": "tokenize", "model": 1, "text": text, "special": false}),
            );
            let (code, detail) = session.error(0).await;
            assert_eq!(code, "failed");
            assert!(detail.contains("`request-kib`"), "{detail}");
            assert_eq!(session.line().await, None);
        });
        corral.wait_until_idle();
    }
}

#[test]
fn silent_session_loses_its_lease() {
    let corral = start(&["--io-timeout", "2"]);
    block_on(async {
        let mut session = Session::open(&corral, HttpVersion::Http1).await;
        for command in question() {
            session.send(&command);
        }
        let mut replies = 0;
        // Nothing renews it. The client never says goodbye.
        while let Some(line) = session.line().await {
            replies += usize::from(line["error"].is_null());
        }
        assert_eq!(replies, 3);
        let metrics = corral.wait_until_idle();
        assert_eq!(metrics.get("corral_plugin_instances"), 0.0);
    });
}

#[test]
fn last_commands_finish_after_the_body() {
    let corral = start(&[]);
    let [open, ..] = question();
    // The last line may lack its end.
    let answer = corral.post("/sessions", open.to_string());
    let lines: Vec<Value> = answer
        .body
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines.len(), 2, "{answer:?}");
    assert_eq!(lines[1]["ok"]["name"], "tiny");
}
