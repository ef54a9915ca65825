//! The scripted host follows the rules of the WIT that plugins rely on.

use super::{HostCall, Script};
use crate::constraint::{Constraint, Matcher};
use crate::{Error, Finish, GenerateOptions, Model, NextTokenRequest, Sequence};

async fn sequence(text: &str) -> Result<Sequence, Error> {
    let sequence = Model::open_default().await?.sequence()?;
    sequence.append(text)?;
    Ok(sequence)
}

#[test]
fn generation_ends_as_the_wit_specifies() {
    let script = Script::new().answers("a", "é, and on.");
    for (options, text, finish, tokens) in [
        (
            GenerateOptions::new as fn(u32) -> GenerateOptions,
            "é, and on.",
            Finish::End,
            12,
        ),
        (|_| GenerateOptions::new(3), "é,", Finish::Length, 3),
        (|_| GenerateOptions::new(1), "\u{fffd}", Finish::Length, 1),
        (
            |most| GenerateOptions::new(most).stop(" on"),
            "é, and",
            Finish::Stop,
            10,
        ),
        (
            |most| GenerateOptions::new(most).stop("dd").stop("n."),
            "é, and o",
            Finish::Stop,
            11,
        ),
    ] {
        let (generated, outcome) = script
            .run(async {
                let sequence = sequence("a").await?;
                sequence.generate(&options(50))?.text_and_outcome().await
            })
            .unwrap();
        assert_eq!((generated.as_str(), outcome.finish), (text, finish));
        assert_eq!(outcome.generated_tokens, tokens, "{text}");
    }
}

#[test]
fn chunks_withhold_a_stop_string_prefix() {
    let script = Script::new().answers("a", "x--y");
    let chunks = script.run(async {
        let sequence = sequence("a").await.unwrap();
        let generation = sequence.generate(&GenerateOptions::new(9).stop("--z"));
        let mut generation = generation.unwrap();
        let mut chunks = Vec::new();
        while let Some(chunk) = generation.next().await {
            chunks.push(chunk.text);
        }
        chunks
    });
    assert_eq!(chunks, ["x", "", "", "--y", ""]);
}

#[test]
fn running_generation_locks_the_sequence() {
    let script = Script::new().answers("a", "b");
    script.run(async {
        let sequence = sequence("a").await.unwrap();
        let mut generation = sequence.generate(&GenerateOptions::new(9)).unwrap();
        assert_eq!(sequence.append("x").unwrap_err().code(), "invalid");
        generation.next().await;
        assert_eq!(sequence.len(), 2);
        drop(generation);
        assert!(sequence.append("x").is_ok());
        assert_eq!(sequence.text(0).unwrap(), "abx");
    });
    assert_eq!(script.calls().last(), Some(&HostCall::Cancelled));
}

#[test]
fn sequences_fork_truncate_and_snapshot() {
    let script = Script::new().answers("12=", "3").context(4);
    script.run(async {
        let one = sequence("12").await.unwrap();
        let other = one.fork().unwrap();
        other.append("=").unwrap();
        other.snapshot("saved").await.unwrap();
        other.truncate(1).unwrap();
        assert_eq!((one.text(0).unwrap().as_str(), other.len()), ("12", 1));
        let restored = one.model().restore("saved").await.unwrap();
        assert_eq!(restored.text(0).unwrap(), "12=");
        assert_eq!(
            restored.append("xy"),
            Err(Error::ContextFull {
                needed: 5,
                limit: 4
            })
        );
        let next = restored.next(NextTokenRequest::top(2).with_statistics());
        let next = next.await.unwrap();
        assert_eq!((next.most_likely(), next.position), (Some(51), 3));
        assert!(next.statistics.unwrap().log_normalizer > 9.9);
        one.model().delete_snapshot("saved").await.unwrap();
        let none = one.model().restore("saved").await.err().unwrap();
        assert_eq!(none.status(), 404);
    });
}

#[test]
fn grammar_applies_to_next_and_generate() {
    let script = Script::new()
        .grammar("yes|no", &["yes", "no", "now"])
        .next("?", &[("y", 2.0), ("n", 1.0)])
        .next("n", &[("x", 2.0)])
        .next("o", &[("<|im_end|>", 2.0), ("w", 1.0)])
        .answers("!", "sure");
    script.run(async {
        let sequence = sequence("?").await.unwrap();
        let constraint = Constraint::regex(sequence.model(), "yes|no").await.unwrap();
        let matcher = Matcher::start(&constraint).unwrap();
        let next = sequence.next(NextTokenRequest::top(5).allowed_by(&matcher));
        let next = next.await.unwrap();
        let tokens: Vec<_> = next.candidates.iter().map(|one| one.token).collect();
        assert_eq!(tokens, [b'y', b'n'].map(u32::from));
        assert_eq!(matcher.allowed(1).unwrap(), None);
        assert_eq!(matcher.accept(b'x'.into()).unwrap_err().code(), "invalid");
        matcher.accept(b'y'.into()).unwrap();
        assert_eq!(matcher.forced(9).unwrap(), [b'e', b's'].map(u32::from));
        assert!(matcher.is_complete());

        sequence.append("n").unwrap();
        sequence.truncate(1).unwrap();
        // The most likely allowed token: y. The script has no answer after it.
        let options = GenerateOptions::new(9).constrain(&constraint);
        let error = sequence.generate(&options).unwrap().text();
        let error = error.await.unwrap_err();
        assert!(error.to_string().contains("\"?y\""), "{error}");
        let unknown = Constraint::regex(sequence.model(), "a").await.err();
        let unknown = unknown.unwrap();
        assert_eq!(unknown.code(), "invalid");
    });
}

#[test]
fn unscripted_input_is_an_error() {
    let script = Script::new().embedding("a", &[1.0]);
    script.run(async {
        let sequence = sequence("a").await.unwrap();
        let error = sequence.next(NextTokenRequest::top(1)).await.unwrap_err();
        assert_eq!(error.status(), 500);
        assert!(error.to_string().contains("\"a\""));
        assert_eq!(Model::open("other").await.unwrap_err().status(), 404);
        assert_eq!(sequence.model().embed(&["a"]).await, Ok(vec![vec![1.0]]));
        assert!(sequence.model().embed(&["b"]).await.is_err());
    });
}

#[test]
#[should_panic(expected = "no host: run this")]
fn host_call_without_script_panics() {
    Model::available();
}
