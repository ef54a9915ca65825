//! What is wrong, and what comes of it.

use std::fmt::Debug;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use crate::bindings::corral::inference::constraints::{Constraint, Grammar, Matcher};
use crate::bindings::corral::inference::inference::{
    Framing, Look, Options, Sequence, View, collect, frame, next_many,
};
use crate::bindings::corral::inference::models::Model;
use crate::bindings::corral::inference::types::Error;
use crate::loops::{Opened, look};
use wasip3::wit_stream;

/// Lines of what came of each call.
#[derive(Default)]
struct Lines(Vec<String>);

impl Lines {
    fn add<T: Debug>(&mut self, what: &str, result: Result<T, Error>) {
        let said = match result {
            Ok(value) => format!("ok {value:?}"),
            Err(error) => format!("{error:?}"),
        };
        self.0.push(format!("{what}: {said}"));
    }
}

async fn regex(opened: &Opened, text: &str) -> Result<Constraint, Error> {
    let grammar = Grammar::Regex(text.to_owned());
    Constraint::compile(&opened.model, grammar).await
}

pub async fn errors() -> Result<String, Error> {
    let opened = Opened::new().await?;
    let unknown = opened.info.vocabulary;
    let mut lines = Lines::default();

    let model = Model::open(Some("nobody".to_owned())).await;
    lines.add("an unknown model", model.map(|_| ()));

    let empty = Sequence::create(&opened.model)?;
    let next = empty.next(look(View::Top(1))).await;
    lines.add("next of an empty sequence", next);
    lines.add("an unknown token", empty.append(&[unknown]));
    let too_long = vec![0; opened.info.context as usize + 1];
    lines.add("more than the context", empty.append(&too_long));
    lines.add("an unknown adapter", empty.adapt(Some("none")));
    let kept = empty.snapshot("nowhere".to_owned()).await;
    lines.add("a snapshot", kept);
    let restored = Sequence::restore(&opened.model, "nowhere".to_owned()).await;
    lines.add("a restored one", restored.map(|_| ()));

    let sequence = opened.sequence("1+1=")?;
    let too_many = sequence.next(look(View::Top(4097))).await;
    lines.add("too many candidates", too_many);
    let too_many = sequence.next(look(View::Only(vec![0; 4097]))).await;
    lines.add("too many named", too_many);
    let other = sequence.next(look(View::Only(vec![unknown]))).await;
    lines.add("an unknown one named", other);
    let constraint = regex(&opened, "[0-9]+").await?;
    let matcher = Matcher::start(&constraint)?;
    let rows = Look {
        matcher: Some(&matcher),
        ..look(View::Logits)
    };
    lines.add("a matcher and a row", sequence.next(rows).await);
    let letter = opened.model.tokenize("x", false)?[0];
    lines.add("what does not match", matcher.accept(letter));
    lines.add("truncated beyond the end", sequence.truncate(1000));

    {
        let (_chunks, _) = sequence.generate(&Options::new(100))?;
        lines.add("append while it generates", sequence.append(&[1]));
        lines.add("truncate while it generates", sequence.truncate(1));
        lines.add("fork while it generates", sequence.fork().map(|_| ()));
        let next = sequence.next(look(View::Top(1))).await;
        lines.add("next while it generates", next);
        let again = sequence.generate(&Options::new(1));
        lines.add("generate while it generates", again.map(|_| ()));
    }
    let chunks = collect(crate::handed::own()).await;
    lines.add("a stream of its own, collected", chunks.map(|_| ()));
    let nothing = Framing {
        first: Vec::new(),
        before: Vec::new(),
        after: Vec::new(),
        json: false,
    };
    let bytes = frame(crate::handed::own(), &nothing, wit_stream::new().1);
    lines.add("a stream of its own, framed", bytes.map(|_| ()));
    let long = Framing {
        before: vec![b'x'; 64 << 10],
        after: vec![b'y'],
        ..nothing
    };
    let sequence = opened.sequence("1+1=")?;
    let (chunks, _) = sequence.generate(&Options::new(4))?;
    let bytes = frame(chunks, &long, wit_stream::new().1);
    lines.add("a long framing", bytes.map(|_| ()));

    let sequence = opened.sequence("1+1=")?;
    let asks = [
        (&sequence, look(View::Top(0))),
        (&sequence, look(View::Top(0))),
    ];
    let mut told = next_many(asks.into()).await.into_iter();
    let place = |told: Option<Result<_, Error>>| match told {
        Some(told) => told,
        None => Err(Error::Failed("no answer".to_owned())),
    };
    let position =
        |told: crate::bindings::corral::inference::inference::Distribution| told.position;
    lines.add("one of two", place(told.next()).map(position));
    lines.add("the same again", place(told.next()).map(position));
    let asks = (0..257).map(|_| (&empty, look(View::Top(1)))).collect();
    let told = next_many(asks).await;
    let refused = told.iter().filter(|told| told.is_err()).count();
    lines.add("of 257 at once", Ok(refused));
    let first = told.into_iter().next();
    lines.add("the first of 257", place(first).map(position));
    lines.add("nothing at once", Ok(next_many(Vec::new()).await.len()));
    Ok(lines.0.join("\n"))
}

/// Makes as many as it can. Says how many, and what then came.
fn as_many<T>(make: impl Fn() -> Result<T, Error>) -> (Vec<T>, String) {
    let mut made = Vec::new();
    loop {
        match make() {
            Ok(one) if made.len() < 100_000 => made.push(one),
            Ok(_) => return (made, "no end".to_owned()),
            Err(error) => {
                let said = format!("{} {error:?}", made.len());
                return (made, said);
            }
        }
    }
}

pub async fn bomb() -> Result<String, Error> {
    let opened = Opened::new().await?;
    let (held, sequences) = as_many(|| Sequence::create(&opened.model));
    drop(held);
    let first = opened.sequence("1+1=")?;
    let (held, forks) = as_many(|| first.fork());
    drop(held);
    let constraint = regex(&opened, "[0-9]+").await?;
    let (held, matchers) = as_many(|| Matcher::start(&constraint));
    let fork = held[0].fork().map(|_| ());
    drop(held);
    Ok(format!("{sequences}\n{forks}\n{matchers}\n{fork:?}"))
}

pub async fn rows() -> Result<String, Error> {
    let opened = Opened::new().await?;
    let sequences = (0..20).map(|_| opened.sequence("1+1="));
    let sequences = sequences.collect::<Result<Vec<_>, _>>()?;
    let waits = |sequence| Box::pin(Sequence::next(sequence, look(View::Logits)));
    let mut waiting: Vec<Pin<Box<_>>> = sequences.iter().map(waits).collect();
    let mut told: Vec<_> = waiting.iter().map(|_| None).collect();
    // Answers that were there as soon as they were asked for: nobody waited for these.
    let (mut asked, mut at_once) = (false, 0);
    poll_fn(|context| {
        let mut open = false;
        for (wait, told) in waiting.iter_mut().zip(&mut told) {
            if told.is_none() {
                match wait.as_mut().poll(context) {
                    Poll::Ready(answer) => {
                        at_once += usize::from(!asked && answer.is_ok());
                        *told = Some(answer.map(|told| told.logits.len()));
                    }
                    Poll::Pending => open = true,
                }
            }
        }
        asked = true;
        if open { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    let rows = told
        .iter()
        .filter(|told| matches!(told, Some(Ok(_))))
        .count();
    let refused = told.iter().flatten().find_map(|told| told.as_ref().err());
    Ok(format!("{} {at_once} {refused:?}", rows - at_once))
}

pub async fn giant() -> Result<String, Error> {
    let opened = Opened::new().await?;
    let sequence = Sequence::create(&opened.model)?;
    let appended = sequence.append(&vec![0; 10_000_000]);
    Ok(format!("{appended:?}"))
}

#[allow(unsafe_code)]
pub async fn forged() -> Result<String, Error> {
    // SAFETY: it is not, and the host has to see that.
    let sequence = unsafe { Sequence::from_handle(12_345) };
    Ok(format!("{}", sequence.length()))
}

#[allow(unsafe_code)]
pub async fn closed() -> Result<String, Error> {
    let opened = Opened::new().await?;
    let sequence = opened.sequence("1+1=")?;
    // SAFETY: it is not: both would be dropped, and the host has to see that.
    let other = unsafe { Sequence::from_handle(sequence.handle()) };
    drop(sequence);
    Ok(format!("{}", other.length()))
}
