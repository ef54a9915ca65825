//! What is wrong, and what comes of it.

use std::fmt::Debug;

use crate::bindings::corral::inference::blocking::{self, Generation};
use crate::bindings::corral::inference::constraints::Grammar;
use crate::bindings::corral::inference::inference::{Options, Sequence};
use crate::bindings::corral::inference::types::Error;
use crate::ways::{Opened, look};

#[derive(Default)]
struct Lines(Vec<String>);

impl Lines {
    fn add<T>(&mut self, what: &str, result: Result<T, Error>)
    where
        T: Debug,
    {
        let said = match result {
            Ok(value) => format!("ok {value:?}"),
            Err(error) => format!("{error:?}"),
        };
        self.0.push(format!("{what}: {said}"));
    }
}

pub fn errors() -> Result<String, Error> {
    let opened = Opened::new()?;
    let mut lines = Lines::default();
    let unknown = blocking::open(Some("nobody"));
    lines.add("an unknown model", unknown.map(|_| ()));
    let empty = Sequence::create(&opened.model)?;
    let position = blocking::next(&empty, &look()).map(|told| told.position);
    lines.add("next of an empty sequence", position);
    let options = Options::new(1000);
    options.ignore_end();
    let started = Generation::start(&empty, &options);
    lines.add("an empty generation", started.map(|_| ()));
    let sampler = blocking::sample_with(&options, "nobody", "");
    lines.add("an unknown sampler", sampler);
    let grammar = Grammar::Regex("(".to_owned());
    let compiled = blocking::compile(&opened.model, &grammar);
    lines.add("a wrong expression", compiled.map(|_| ()));
    let embedded = blocking::embed(&opened.model, &[Vec::new()], None, None);
    lines.add("an empty input", embedded.map(|vectors| vectors.len()));
    let sequence = opened.sequence("1+1=")?;
    let asks = [(&sequence, look()), (&sequence, look())];
    for told in blocking::next_many(&asks) {
        lines.add("of twice the same", told.map(|told| told.position));
    }
    let running = Generation::start(&sequence, &options)?;
    let again = Generation::start(&sequence, &options);
    lines.add("generate while it generates", again.map(|_| ()));
    let kept = blocking::snapshot(&sequence, "fox");
    lines.add("snapshot while it generates", kept);
    drop(running);
    let restored = blocking::restore(&opened.model, "../fox");
    lines.add("no name", restored.map(|_| ()));
    let forgotten = blocking::forget(&opened.model, "owl");
    lines.add("a name that is not there", forgotten);
    Ok(lines.0.join("\n"))
}
