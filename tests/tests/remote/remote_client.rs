//! Native programs over a session: the crate `corral-remote-client`.

use corral_remote_client::{
    CallError, ConnectOptions, Error, GenerateOptions, Grammar, Model, Part, Sequence, Session,
    Setting, next_many,
};
use corral_tests::pictures::{drawn_sum, projector};
use corral_tests::{
    Corral, Identity, RELIABLE_SUMS, Sum, block_on, key_file, limited_key_file, scratch_dir,
};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SUM: Sum = RELIABLE_SUMS[0];

fn start(arguments: &[&str]) -> Corral {
    Corral::start_with_routes(&[("/sessions", "sessions")], arguments)
}

async fn connect(corral: &Corral, options: &ConnectOptions) -> Result<Session, Error> {
    Session::connect(&format!("http://{}/sessions", corral.public()), options).await
}

async fn open(corral: &Corral) -> (Session, Model) {
    open_with(corral, &ConnectOptions::default()).await
}

async fn open_with(corral: &Corral, options: &ConnectOptions) -> (Session, Model) {
    let session = connect(corral, options).await.expect("a session");
    let model = session.open_model(None).await.expect("the model");
    (session, model)
}

fn with_key(key: &str) -> ConnectOptions {
    ConnectOptions {
        key: Some(key.to_owned()),
        ..ConnectOptions::default()
    }
}

/// Checks the answer of a sequence that asks [`SUM`].
async fn check_answer(sequence: &Sequence) {
    check_sum(sequence, SUM).await;
}

async fn check_sum(sequence: &Sequence, sum: Sum) {
    let answer = sequence.generate(&GenerateOptions::new(8)).await;
    let answer = answer.expect("it starts").text().await;
    assert_eq!(answer.expect("an answer"), sum.answer());
}

async fn vote(url: &str) -> Result<String, Error> {
    let session = Session::connect(url, &ConnectOptions::default()).await?;
    let model = session.open_model(None).await?;
    let prompt = model.sequence("12+7=").await?;
    // Forks share the prompt. All start before the first is read, so that they share steps.
    let mut generations = Vec::new();
    for seed in 0..5 {
        let options = GenerateOptions::new(8)
            .set(Setting::Temperature(0.7))
            .set(Setting::Seed(seed));
        generations.push(prompt.fork().await?.generate(&options).await?);
    }
    let mut votes = HashMap::new();
    for generation in generations {
        *votes.entry(generation.text().await?).or_insert(0) += 1;
    }
    let best = votes.into_iter().max_by_key(|(_, count)| *count);
    Ok(best.map(|(text, _)| text).unwrap_or_default())
}

#[test]
fn program_of_the_guide_works() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/remote.md");
    let guide = std::fs::read_to_string(guide).expect("readable");
    let shown = guide.split("```rust\n").nth(1).expect("a program");
    let shown = shown.split("```").next().expect("its end");
    let (_, function) = shown.split_once("\n\n").expect("a function");
    assert!(
        include_str!("remote_client.rs").contains(function),
        "{function}"
    );
    let corral = start(&[]);
    let url = format!("http://{}/sessions", corral.public());
    assert_eq!(block_on(vote(&url)).expect("a vote"), SUM.answer());
    corral.wait_until_idle();
}

#[test]
fn sums_are_right() {
    let corral = start(&[]);
    block_on(async {
        let (session, model) = open(&corral).await;
        assert_eq!(session.available_models().await.expect("names"), ["tiny"]);
        let options = GenerateOptions::new(8);
        let mut generations = Vec::new();
        for sum in RELIABLE_SUMS {
            let sequence = model.sequence(&sum.question()).await.expect("a sequence");
            generations.push(sequence.generate(&options).await.expect("it starts"));
        }
        for (sum, generation) in RELIABLE_SUMS.iter().zip(generations) {
            assert_eq!(generation.text().await.expect("an answer"), sum.answer());
        }
        // The program chooses tokens itself.
        let sequence = model.sequence(&SUM.question()).await.expect("a sequence");
        let mut chosen = Vec::new();
        loop {
            let next = sequence.next(Part::Top(1)).await.expect("a distribution");
            let token = next.candidates[0].0;
            if model.info().end_of_generation.contains(&token) {
                break;
            }
            sequence.append_tokens(&[token]).await.expect("appended");
            chosen.push(token);
        }
        let text = model.detokenize(&chosen).await.expect("text");
        assert_eq!(text, SUM.answer());
        session.close().await;
        let closed = model.tokenize("1").await;
        assert!(matches!(closed, Err(Error::Disconnected(_))), "{closed:?}");
    });
    corral.wait_until_idle();
}

#[test]
fn forks_compute_the_prompt_once() {
    const PROMPT: usize = 400;
    const ANSWERS: usize = 8;
    let corral = start(&[]);
    let before = corral.wait_until_idle();
    block_on(async {
        let (_session, model) = open(&corral).await;
        let prompt = model.sequence(&SUM.question_in(PROMPT)).await;
        let prompt = prompt.expect("a sequence");
        let mut generations = Vec::new();
        for seed in 0..ANSWERS as u64 {
            let options = GenerateOptions::new(8)
                .set(Setting::Temperature(0.5))
                .set(Setting::Seed(seed));
            let fork = prompt.fork().await.expect("a fork");
            // The generation outlives its sequence.
            generations.push(fork.generate(&options).await.expect("it starts"));
        }
        for generation in generations {
            assert_eq!(generation.text().await.expect("an answer"), SUM.answer());
        }
    });
    let after = corral.wait_until_idle();
    after.check_prompt_was_shared(PROMPT, ANSWERS, &before);
}

#[test]
fn constraints_and_embeddings_work() {
    let corral = start(&[]);
    block_on(async {
        let (session, model) = open(&corral).await;
        let grammar = Grammar::Regex("[0-9]{3}".into());
        let three = model.compile(grammar).await.expect("compiled");
        let sequence = model.sequence(&SUM.question()).await.expect("a sequence");
        let options = GenerateOptions::new(8).constrain(&three);
        let generation = sequence.generate(&options).await.expect("it starts");
        assert_eq!(generation.text().await.expect("an answer").len(), 3);
        let matcher = three.matcher().await.expect("a matcher");
        for token in *b"12" {
            assert!(matcher.allows(u32::from(token)).await.expect("a digit"));
            matcher.accept(u32::from(token)).await.expect("allowed");
        }
        assert!(!matcher.allows(u32::from(b'x')).await.expect("no digit"));
        let prompt = model.sequence(&SUM.question()).await.expect("a sequence");
        let next = prompt.next_with(Part::Top(9), true, Some(&matcher)).await;
        let next = next.expect("a distribution");
        assert!(next.statistics.is_some());
        let is_digit = |token: u32| (u32::from(b'0')..=u32::from(b'9')).contains(&token);
        assert!(next.candidates.iter().all(|(token, _)| is_digit(*token)));
        let fork = prompt.fork().await.expect("a fork");
        let both = next_many(&[&prompt, &fork], &Part::Logits).await;
        for next in both.expect("results") {
            let logits = next.expect("a distribution").logits.expect("all logits");
            assert_eq!(logits.0.len(), 264);
        }
        let vectors = model.embed(&["a", "a", "b"]).await.expect("vectors");
        assert_eq!((&vectors[0], vectors[0].len()), (&vectors[1], 128));
        assert_ne!(vectors[0], vectors[2]);
        assert_eq!(
            session.remaining_budget().await.expect("a budget").tokens,
            None
        );
        let counts = model.request_counts().await.expect("counts");
        assert_eq!((counts.waiting, counts.max_running), (0, 64));
    });
    corral.wait_until_idle();
}

#[test]
fn pictures_are_part_of_sequences() {
    let corral = start(&["--mmproj", projector()]);
    block_on(async {
        let (_session, model) = open(&corral).await;
        assert!(model.info().accepts_images);
        for sum in RELIABLE_SUMS {
            let sequence = model.empty_sequence().await.expect("a sequence");
            let positions = sequence.append_image(drawn_sum(sum)).await;
            assert_eq!(positions.expect("a picture"), sequence.len());
            sequence.append("=").await.expect("appended");
            check_sum(&sequence.fork().await.expect("a fork"), sum).await;
            let broken = sequence.append_image(b"hello".to_vec()).await;
            let Err(Error::Call(CallError::Invalid { .. })) = broken else {
                panic!("{broken:?}");
            };
            check_sum(&sequence, sum).await;
        }
    });
    corral.wait_until_idle();
    block_on(async {
        let corral = start(&[]);
        let (_session, model) = open(&corral).await;
        assert!(!model.info().accepts_images);
        let sequence = model.empty_sequence().await.expect("a sequence");
        let refused = sequence.append_image(drawn_sum(SUM)).await;
        let Err(Error::Call(CallError::Invalid { detail })) = refused else {
            panic!("{refused:?}");
        };
        assert!(detail.contains("--mmproj"), "{detail}");
    });
}

#[test]
fn snapshots_outlive_their_session() {
    let dir = scratch_dir();
    let arguments = ["--snapshot-dir", dir.to_str().expect("UTF-8")];
    let corral = start(&[&arguments[..], &["--mmproj", projector()]].concat());
    block_on(async {
        let (session, model) = open(&corral).await;
        let sequence = model.sequence(&SUM.question()).await.expect("a sequence");
        sequence.save("text").await.expect("saved");
        let seen = model.empty_sequence().await.expect("a sequence");
        seen.append_image(drawn_sum(SUM)).await.expect("a picture");
        seen.append("=").await.expect("appended");
        seen.save("picture").await.expect("saved");
        session.close().await;

        let (_session, model) = open(&corral).await;
        for (name, length) in [("text", sequence.len()), ("picture", seen.len())] {
            let restored = model.restore(name).await.expect("restored");
            assert_eq!(restored.len(), length, "{name}");
            check_answer(&restored).await;
            model.delete_snapshot(name).await.expect("deleted");
            let gone = model.restore(name).await.err();
            assert!(
                matches!(gone, Some(Error::Call(CallError::NotFound { .. }))),
                "{gone:?}"
            );
        }
    });
    corral.wait_until_idle();
}

#[test]
fn https_needs_a_trusted_certificate() {
    let [other, _] = Identity::new().write(&scratch_dir());
    for identity in [Identity::new(), Identity::authority()] {
        let files = identity.write(&scratch_dir());
        let [certificate, key] = files.each_ref().map(|file| file.to_str().expect("UTF-8"));
        let corral = start(&["--tls-cert", certificate, "--tls-key", key]);
        let (_, port) = corral.public().rsplit_once(':').expect("an address");
        let connect = async |host: &str, ca_file: Option<&PathBuf>| {
            let options = ConnectOptions {
                ca_file: ca_file.cloned(),
                ..ConnectOptions::default()
            };
            Session::connect(&format!("https://{host}:{port}/sessions"), &options).await
        };
        block_on(async {
            let session = connect("localhost", Some(&files[0])).await;
            let model = session.expect("a session").open_model(None).await;
            let model = model.expect("the model");
            check_answer(&model.sequence(&SUM.question()).await.expect("a sequence")).await;
            // The certificate is for a name.
            for (host, ca_file) in [
                ("localhost", None),
                ("localhost", Some(&other)),
                ("127.0.0.1", Some(&files[0])),
            ] {
                let refused = connect(host, ca_file).await.err();
                let Some(Error::Disconnected(detail)) = refused else {
                    panic!("{refused:?}");
                };
                assert!(
                    detail.contains("cannot reach the host at https://"),
                    "{detail}"
                );
                assert!(detail.contains("ConnectOptions::ca_file"), "{detail}");
            }
        });
        corral.wait_until_idle();
    }
}

#[test]
fn dropped_generation_is_canceled() {
    let corral = start(&[]);
    block_on(async {
        let (_session, model) = open(&corral).await;
        let sequence = model.sequence(&SUM.question()).await.expect("a sequence");
        let options = GenerateOptions::new(16_000).set(Setting::IgnoreEos);
        let mut endless = sequence.generate(&options).await.expect("it starts");
        let first = endless.next().await.expect("it runs").expect("a chunk");
        let busy = sequence.append("1").await;
        assert!(
            matches!(busy, Err(Error::Call(CallError::Invalid { .. }))),
            "{busy:?}"
        );
        drop(endless);
        // The sequence has what the program has read.
        let length = SUM.question().len();
        sequence
            .truncate(length + first.tokens.len())
            .await
            .expect("idle");
        assert_eq!(sequence.len(), length + first.tokens.len());
        sequence.truncate(length).await.expect("idle");
        let again = sequence
            .generate(&GenerateOptions::new(8))
            .await
            .expect("it starts");
        assert_eq!(again.text().await.expect("an answer"), SUM.answer());
    });
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get("corral_engine_requests_canceled_total"), 1.0);
}

#[test]
fn mistakes_leave_the_session_open() {
    let corral = start(&[]);
    block_on(async {
        let (session, model) = open(&corral).await;
        let sequence = model.sequence(&SUM.question()).await.expect("a sequence");
        let outside = sequence.append_tokens(&[99_999]).await;
        assert!(
            matches!(outside, Err(Error::Call(CallError::Invalid { .. }))),
            "{outside:?}"
        );
        let full = sequence.append_tokens(&vec![1; 99_999]).await;
        assert!(
            matches!(full, Err(Error::Call(CallError::ContextFull { .. }))),
            "{full:?}"
        );
        let Err(Error::Call(CallError::NotFound { .. })) = session.open_model(Some("none")).await
        else {
            panic!("there is no such model");
        };
        // The host's error of a setting comes with the generation.
        let cold = GenerateOptions::new(8).set(Setting::Temperature(-1.0));
        let fork = sequence.fork().await.expect("a fork");
        let refused = fork.generate(&cold).await.expect("sent").text().await;
        assert!(
            matches!(refused, Err(Error::Call(CallError::Invalid { .. }))),
            "{refused:?}"
        );
        check_answer(&sequence).await;
    });
    corral.wait_until_idle();
}

#[test]
fn lease_without_renewal_ends() {
    let corral = start(&["--io-timeout", "2"]);
    block_on(async {
        let options = ConnectOptions {
            renew_every: Duration::from_secs(3600),
            ..ConnectOptions::default()
        };
        let (_session, model) = open_with(&corral, &options).await;
        let sequence = model.sequence(&SUM.question()).await.expect("a sequence");
        sequence.next(Part::Top(1)).await.expect("a distribution");
        // The program holds them all the while.
        corral.wait_until_idle();
        let lost = sequence.next(Part::Top(1)).await;
        assert!(matches!(lost, Err(Error::Disconnected(_))), "{lost:?}");
    });
}

#[test]
fn renewed_lease_lasts() {
    let corral = start(&["--io-timeout", "3"]);
    block_on(async {
        let options = ConnectOptions {
            renew_every: Duration::from_millis(100),
            ..ConnectOptions::default()
        };
        let (_session, model) = open_with(&corral, &options).await;
        let sequence = model.sequence(&SUM.question()).await.expect("a sequence");
        // Longer than the lease.
        tokio::time::sleep(Duration::from_secs(5)).await;
        check_answer(&sequence).await;
    });
    corral.wait_until_idle();
}

#[test]
fn bad_key_is_named() {
    let (file, key) = key_file();
    let corral = start(&["--keys", &file]);
    block_on(async {
        for wrong in ["", "ck_wrong"] {
            let refused = connect(&corral, &with_key(wrong)).await.err();
            let Some(Error::Refused {
                status: 401, code, ..
            }) = refused
            else {
                panic!("{refused:?}");
            };
            assert!(!code.is_empty());
        }
        let lines = connect(&corral, &with_key("two\nlines")).await.err();
        assert!(
            matches!(lines, Some(Error::Call(CallError::Invalid { .. }))),
            "{lines:?}"
        );
        let session = connect(&corral, &with_key(&key)).await.expect("a session");
        session.open_model(None).await.expect("the model");
    });
    corral.wait_until_idle();
}

#[test]
fn session_over_its_quota_is_refused() {
    let limits = "[tenant.alice]\nconcurrent-requests = 1\ntokens-per-request = 100\n";
    let (file, key) = limited_key_file(limits);
    let corral = start(&["--keys", &file]);
    block_on(async {
        let session = connect(&corral, &with_key(&key)).await.expect("a session");
        let second = connect(&corral, &with_key(&key)).await.err();
        let Some(Error::Refused {
            status: 429,
            code,
            retry_after,
            ..
        }) = second
        else {
            panic!("{second:?}");
        };
        assert_eq!(code, "concurrency-exceeded");
        assert!(retry_after.is_some());
        let model = session.open_model(None).await.expect("the model");
        let sequence = model.sequence(&SUM.question()).await.expect("a sequence");
        check_answer(&sequence).await;
        let many = sequence.generate(&GenerateOptions::new(1000)).await;
        let refused = many.expect("sent").text().await;
        let Err(Error::Call(CallError::NotGranted { detail })) = refused else {
            panic!("{refused:?}");
        };
        assert!(detail.contains("tokens-per-request"), "{detail}");
        // A prompt of five tokens, two digits and the end.
        let budget = session.remaining_budget().await.expect("a budget");
        assert_eq!(budget.tokens, Some(92));
    });
    corral.wait_until_idle();
}

#[test]
fn unreachable_host_is_named() {
    let corral = start(&[]);
    block_on(async {
        let options = ConnectOptions::default();
        for (url, part) in [
            (
                "http://127.0.0.1:1/sessions",
                "cannot reach the host at http://127.0.0.1:1/",
            ),
            (
                "127.0.0.1/sessions",
                "the host's URL is \"127.0.0.1/sessions\"",
            ),
            ("https://127.0.0.1:1/sessions", "cannot reach the host"),
            (
                &format!("http://{}/nowhere", corral.public()),
                "answers 404: ",
            ),
        ] {
            let error = Session::connect(url, &options)
                .await
                .err()
                .expect("no session");
            assert!(error.to_string().contains(part), "{error}");
        }
    });
}
