//! The script keeps the rules of the WIT that plugins rest on.

use super::{Call, Script};
use crate::constraint::{Constraint, Matcher};
use crate::{Error, Finish, Generate, Look, Model, Sequence};

async fn sequence(text: &str) -> Result<Sequence, Error> {
    let sequence = Model::first().await?.sequence()?;
    sequence.append(text)?;
    Ok(sequence)
}

#[test]
fn a_generation_ends_as_the_wit_says() {
    let script = Script::new().answers("a", "é, and on.");
    for (how, text, finish, tokens) in [
        (
            Generate::new as fn(u32) -> Generate,
            "é, and on.",
            Finish::End,
            12,
        ),
        (|_| Generate::new(3), "é,", Finish::Length, 3),
        (|_| Generate::new(1), "\u{fffd}", Finish::Length, 1),
        (
            |most| Generate::new(most).stop(" on"),
            "é, and",
            Finish::Stop,
            10,
        ),
        (
            |most| Generate::new(most).stop("dd").stop("n."),
            "é, and o",
            Finish::Stop,
            11,
        ),
    ] {
        let (said, outcome) = script
            .run(async {
                let sequence = sequence("a").await?;
                sequence.generate(&how(50))?.whole().await
            })
            .unwrap();
        assert_eq!((said.as_str(), outcome.finish), (text, finish));
        assert_eq!(outcome.generated_tokens, tokens, "{text}");
    }
}

#[test]
fn chunks_hold_back_what_may_begin_a_stop_string() {
    let script = Script::new().answers("a", "x--y");
    let chunks = script.run(async {
        let sequence = sequence("a").await.unwrap();
        let mut generation = sequence.generate(&Generate::new(9).stop("--z")).unwrap();
        let mut chunks = Vec::new();
        while let Some(chunk) = generation.next().await {
            chunks.push(chunk.text);
        }
        chunks
    });
    assert_eq!(chunks, ["x", "", "", "--y", ""]);
}

#[test]
fn one_thing_at_a_time() {
    let script = Script::new().answers("a", "b");
    script.run(async {
        let sequence = sequence("a").await.unwrap();
        let mut generation = sequence.generate(&Generate::new(9)).unwrap();
        assert_eq!(sequence.append("x").unwrap_err().code(), "invalid");
        generation.next().await;
        assert_eq!(sequence.len(), 2);
        drop(generation);
        assert!(sequence.append("x").is_ok());
        assert_eq!(sequence.text(0).unwrap(), "abx");
    });
    assert_eq!(script.calls().last(), Some(&Call::Cancelled));
}

#[test]
fn sequences_are_forked_cut_kept_and_forgotten() {
    let script = Script::new().answers("12=", "3").context(4);
    script.run(async {
        let one = sequence("12").await.unwrap();
        let other = one.fork().unwrap();
        other.append("=").unwrap();
        other.snapshot("kept").await.unwrap();
        other.truncate(1).unwrap();
        assert_eq!((one.text(0).unwrap().as_str(), other.len()), ("12", 1));
        let kept = one.model().restore("kept").await.unwrap();
        assert_eq!(kept.text(0).unwrap(), "12=");
        assert_eq!(
            kept.append("xy"),
            Err(Error::ContextFull {
                needed: 5,
                limit: 4
            })
        );
        let told = kept.next(Look::top(2).with_statistics()).await.unwrap();
        assert_eq!((told.likeliest(), told.position), (Some(51), 3));
        assert!(told.statistics.unwrap().log_normalizer > 9.9);
        one.model().forget("kept").await.unwrap();
        let none = one.model().restore("kept").await.err().unwrap();
        assert_eq!(none.status(), 404);
    });
}

#[test]
fn a_grammar_holds_for_loops_and_for_generations() {
    let script = Script::new()
        .language("yes|no", &["yes", "no", "now"])
        .next("?", &[("y", 2.0), ("n", 1.0)])
        .next("n", &[("x", 2.0)])
        .next("o", &[("<|im_end|>", 2.0), ("w", 1.0)])
        .answers("!", "sure");
    script.run(async {
        let sequence = sequence("?").await.unwrap();
        let constraint = Constraint::regex(sequence.model(), "yes|no").await.unwrap();
        let matcher = Matcher::start(&constraint).unwrap();
        let told = sequence
            .next(Look::top(5).allowed_by(&matcher))
            .await
            .unwrap();
        let tokens: Vec<_> = told.candidates.iter().map(|one| one.token).collect();
        assert_eq!(tokens, [b'y', b'n'].map(u32::from));
        assert_eq!(matcher.allowed(1).unwrap(), None);
        assert_eq!(matcher.accept(b'x'.into()).unwrap_err().code(), "invalid");
        matcher.accept(b'y'.into()).unwrap();
        assert_eq!(matcher.forced(9).unwrap(), [b'e', b's'].map(u32::from));
        assert!(matcher.is_complete());

        sequence.append("n").unwrap();
        sequence.truncate(1).unwrap();
        // The likeliest that is allowed: y, and after that there is no choice.
        let how = Generate::new(9).constrain(&constraint);
        let error = sequence.generate(&how).unwrap().text().await.unwrap_err();
        assert!(error.to_string().contains("\"?y\""), "{error}");
        let unknown = Constraint::regex(sequence.model(), "a")
            .await
            .err()
            .unwrap();
        assert_eq!(unknown.code(), "invalid");
    });
}

#[test]
fn what_the_script_does_not_say_is_an_error() {
    let script = Script::new().embedding("a", &[1.0]);
    script.run(async {
        let sequence = sequence("a").await.unwrap();
        let error = sequence.next(Look::top(1)).await.unwrap_err();
        assert_eq!(
            (error.status(), error.to_string().contains("\"a\"")),
            (500, true)
        );
        assert_eq!(Model::open("other").await.unwrap_err().status(), 404);
        assert_eq!(sequence.model().embed(&["a"]).await, Ok(vec![vec![1.0]]));
        assert!(sequence.model().embed(&["b"]).await.is_err());
    });
}

#[test]
#[should_panic(expected = "there is no host here")]
fn without_a_script_there_is_no_host() {
    Model::available();
}
