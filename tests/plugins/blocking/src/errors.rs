//! Invalid calls and their results.

use std::fmt::Debug;

use crate::bindings::corral::inference::constraints::Grammar;
use crate::bindings::corral::inference::inference::{Options, Sequence};
use crate::bindings::corral::inference::inference_sync;
use crate::bindings::corral::inference::types::Error;
use crate::operations::{OpenModel, request};

#[derive(Default)]
struct Lines(Vec<String>);

impl Lines {
    fn add<T>(&mut self, what: &str, result: Result<T, Error>)
    where
        T: Debug,
    {
        let line = match result {
            Ok(value) => format!("ok {value:?}"),
            Err(error) => format!("{error:?}"),
        };
        self.0.push(format!("{what}: {line}"));
    }
}

pub fn errors() -> Result<String, Error> {
    let model = OpenModel::new()?;
    let mut lines = Lines::default();
    let unknown = inference_sync::open_model(Some("nobody"));
    lines.add("an unknown model", unknown.map(|_| ()));
    let empty = Sequence::create(&model.handle)?;
    let position =
        inference_sync::next(&empty, &request()).map(|distribution| distribution.position);
    lines.add("next of an empty sequence", position);
    let options = Options::new(1000);
    options.ignore_eos();
    let started = inference_sync::generate(&empty, &options);
    lines.add("an empty generation", started.map(|_| ()));
    let sampler = inference_sync::sample_with(&options, "nobody", "");
    lines.add("an unknown sampler", sampler);
    let grammar = Grammar::Regex("(".to_owned());
    let compiled = inference_sync::compile_constraint(&model.handle, &grammar);
    lines.add("a wrong expression", compiled.map(|_| ()));
    let embedded = inference_sync::embed(&model.handle, &[Vec::new()], None, None);
    lines.add("an empty input", embedded.map(|vectors| vectors.len()));
    let sequence = model.sequence("1+1=")?;
    let requests = [(&sequence, request()), (&sequence, request())];
    for result in inference_sync::next_many(&requests) {
        lines.add(
            "of twice the same",
            result.map(|distribution| distribution.position),
        );
    }
    let running = inference_sync::generate(&sequence, &options)?;
    let again = inference_sync::generate(&sequence, &options);
    lines.add("generate while it generates", again.map(|_| ()));
    let saved = inference_sync::save_snapshot(&sequence, "fox");
    lines.add("snapshot while it generates", saved);
    drop(running);
    let restored = inference_sync::restore_snapshot(&model.handle, "../fox");
    lines.add("no name", restored.map(|_| ()));
    let forgotten = inference_sync::delete_snapshot(&model.handle, "owl");
    lines.add("a name that is not there", forgotten);
    Ok(lines.0.join("\n"))
}
