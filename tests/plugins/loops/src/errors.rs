//! Invalid calls and their results.

use std::fmt::Debug;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use crate::bindings::corral::inference::constraints::{Constraint, Grammar, Matcher};
use crate::bindings::corral::inference::inference::{
    DistributionPart, NextTokenRequest, Options, Sequence,
};
use crate::bindings::corral::inference::inference_async::{
    Framing, collect, compile_constraint, frame, generate, next, next_many, open_model,
    restore_snapshot, save_snapshot,
};
use crate::bindings::corral::inference::types::Error;
use crate::loops::{OpenModel, request};
use wasip3::wit_stream;

/// One line per call.
#[derive(Default)]
struct Lines(Vec<String>);

impl Lines {
    fn add<T: Debug>(&mut self, what: &str, result: Result<T, Error>) {
        let line = match result {
            Ok(value) => format!("ok {value:?}"),
            Err(error) => format!("{error:?}"),
        };
        self.0.push(format!("{what}: {line}"));
    }
}

async fn regex(model: &OpenModel, text: &str) -> Result<Constraint, Error> {
    let grammar = Grammar::Regex(text.to_owned());
    compile_constraint(&model.handle, grammar).await
}

pub async fn errors() -> Result<String, Error> {
    let model = OpenModel::new().await?;
    let unknown = model.info.vocabulary;
    let mut lines = Lines::default();

    let unknown_model = open_model(Some("nobody".to_owned())).await;
    lines.add("an unknown model", unknown_model.map(|_| ()));

    let empty = Sequence::create(&model.handle)?;
    let distribution = next(&empty, request(DistributionPart::Top(1))).await;
    lines.add("next of an empty sequence", distribution);
    lines.add("an unknown token", empty.append(&[unknown]));
    let too_long = vec![0; model.info.context as usize + 1];
    lines.add("more than the context", empty.append(&too_long));
    lines.add("an unknown adapter", empty.set_adapter(Some("none")));
    let saved = save_snapshot(&empty, "nowhere".to_owned()).await;
    lines.add("a snapshot", saved);
    let restored = restore_snapshot(&model.handle, "nowhere".to_owned()).await;
    lines.add("a restored one", restored.map(|_| ()));

    let sequence = model.sequence("1+1=")?;
    let too_many = next(&sequence, request(DistributionPart::Top(4097))).await;
    lines.add("too many candidates", too_many);
    let too_many = next(&sequence, request(DistributionPart::Only(vec![0; 4097]))).await;
    lines.add("too many named", too_many);
    let other = next(&sequence, request(DistributionPart::Only(vec![unknown]))).await;
    lines.add("an unknown one named", other);
    let constraint = regex(&model, "[0-9]+").await?;
    let matcher = Matcher::start(&constraint)?;
    let rows = NextTokenRequest {
        matcher: Some(&matcher),
        ..request(DistributionPart::Logits)
    };
    lines.add("a matcher and a row", next(&sequence, rows).await);
    let letter = model.handle.tokenize("x", false)?[0];
    lines.add("what does not match", matcher.accept(letter));
    lines.add("truncated beyond the end", sequence.truncate(1000));

    {
        let (_chunks, _) = generate(&sequence, &Options::new(100))?;
        lines.add("append while it generates", sequence.append(&[1]));
        lines.add("truncate while it generates", sequence.truncate(1));
        lines.add("fork while it generates", sequence.fork().map(|_| ()));
        let distribution = next(&sequence, request(DistributionPart::Top(1))).await;
        lines.add("next while it generates", distribution);
        let again = generate(&sequence, &Options::new(1));
        lines.add("generate while it generates", again.map(|_| ()));
    }
    let chunks = collect(crate::streams::guest_stream()).await;
    lines.add("a stream of its own, collected", chunks.map(|_| ()));
    let nothing = Framing {
        first: Vec::new(),
        before: Vec::new(),
        after: Vec::new(),
        json: false,
    };
    let bytes = frame(
        crate::streams::guest_stream(),
        &nothing,
        wit_stream::new().1,
    );
    lines.add("a stream of its own, framed", bytes.map(|_| ()));
    let long = Framing {
        before: vec![b'x'; 64 << 10],
        after: vec![b'y'],
        ..nothing
    };
    let sequence = model.sequence("1+1=")?;
    let (chunks, _) = generate(&sequence, &Options::new(4))?;
    let bytes = frame(chunks, &long, wit_stream::new().1);
    lines.add("a long framing", bytes.map(|_| ()));

    let sequence = model.sequence("1+1=")?;
    let requests = [
        (&sequence, request(DistributionPart::Top(0))),
        (&sequence, request(DistributionPart::Top(0))),
    ];
    let mut results = next_many(requests.into()).await.into_iter();
    let unwrap_result = |result: Option<Result<_, Error>>| match result {
        Some(result) => result,
        None => Err(Error::Failed("no result".to_owned())),
    };
    let position = |distribution: crate::bindings::corral::inference::inference::Distribution| {
        distribution.position
    };
    lines.add("one of two", unwrap_result(results.next()).map(position));
    lines.add(
        "the same again",
        unwrap_result(results.next()).map(position),
    );
    let requests = (0..257).map(|_| (&empty, request(DistributionPart::Top(1))));
    let requests = requests.collect();
    let results = next_many(requests).await;
    let refused = results.iter().filter(|result| result.is_err()).count();
    lines.add("of 257 at once", Ok(refused));
    let first = results.into_iter().next();
    lines.add("the first of 257", unwrap_result(first).map(position));
    lines.add("nothing at once", Ok(next_many(Vec::new()).await.len()));
    Ok(lines.0.join("\n"))
}

/// Creates as many as possible. Returns them, and their number with the final error.
fn create_until_error<T>(make: impl Fn() -> Result<T, Error>) -> (Vec<T>, String) {
    let mut made = Vec::new();
    loop {
        match make() {
            Ok(one) if made.len() < 100_000 => made.push(one),
            Ok(_) => return (made, "no end".to_owned()),
            Err(error) => {
                let result = format!("{} {error:?}", made.len());
                return (made, result);
            }
        }
    }
}

pub async fn bomb() -> Result<String, Error> {
    let model = OpenModel::new().await?;
    let (held, sequences) = create_until_error(|| Sequence::create(&model.handle));
    drop(held);
    let first = model.sequence("1+1=")?;
    let (held, forks) = create_until_error(|| first.fork());
    drop(held);
    let constraint = regex(&model, "[0-9]+").await?;
    let (held, matchers) = create_until_error(|| Matcher::start(&constraint));
    let fork = held[0].fork().map(|_| ());
    drop(held);
    Ok(format!("{sequences}\n{forks}\n{matchers}\n{fork:?}"))
}

pub async fn rows() -> Result<String, Error> {
    let model = OpenModel::new().await?;
    let sequences = (0..20).map(|_| model.sequence("1+1="));
    let sequences = sequences.collect::<Result<Vec<_>, _>>()?;
    let start = |sequence| Box::pin(next(sequence, request(DistributionPart::Logits)));
    let mut requests: Vec<Pin<Box<_>>> = sequences.iter().map(start).collect();
    let mut results: Vec<_> = requests.iter().map(|_| None).collect();
    // Results that were ready at the first poll.
    let (mut polled, mut ready_at_once) = (false, 0);
    poll_fn(|context| {
        let mut open = false;
        for (request, result) in requests.iter_mut().zip(&mut results) {
            if result.is_none() {
                match request.as_mut().poll(context) {
                    Poll::Ready(answer) => {
                        ready_at_once += usize::from(!polled && answer.is_ok());
                        *result = Some(answer.map(|distribution| distribution.logits.len()));
                    }
                    Poll::Pending => open = true,
                }
            }
        }
        polled = true;
        if open { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    let rows = results
        .iter()
        .filter(|result| matches!(result, Some(Ok(_))))
        .count();
    let refused = results
        .iter()
        .flatten()
        .find_map(|result| result.as_ref().err());
    Ok(format!(
        "{} {ready_at_once} {refused:?}",
        rows - ready_at_once
    ))
}

pub async fn giant() -> Result<String, Error> {
    let model = OpenModel::new().await?;
    let sequence = Sequence::create(&model.handle)?;
    let appended = sequence.append(&vec![0; 10_000_000]);
    Ok(format!("{appended:?}"))
}

#[allow(unsafe_code)]
pub async fn forged() -> Result<String, Error> {
    // SAFETY: unsound on purpose. The host must detect it.
    let sequence = unsafe { Sequence::from_handle(12_345) };
    Ok(format!("{}", sequence.length()))
}

#[allow(unsafe_code)]
pub async fn closed() -> Result<String, Error> {
    let model = OpenModel::new().await?;
    let sequence = model.sequence("1+1=")?;
    // SAFETY: unsound on purpose: both are dropped. The host must detect it.
    let other = unsafe { Sequence::from_handle(sequence.handle()) };
    drop(sequence);
    Ok(format!("{}", other.length()))
}
