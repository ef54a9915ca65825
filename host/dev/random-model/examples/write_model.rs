//! `write_model bert|bert-ranker VOCABULARY.gguf OUT.gguf SEED`: the models of the embedding fixtures, for
//! `models/tiny/reference_embeddings.py`.

use corral_random_model::{Architecture, write_model};
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [name, vocabulary, out, seed] = arguments.as_slice() else {
        return Err("write bert or bert-ranker, a GGUF file with the vocabulary, the output file and a seed".into());
    };
    let ranks = match name.as_str() {
        "bert" => false,
        "bert-ranker" => true,
        other => return Err(format!("{other} is neither bert nor bert-ranker").into()),
    };
    let architecture = Architecture::Bert { ranks };
    write_model(
        &architecture,
        Path::new(vocabulary),
        Path::new(out),
        seed.parse()?,
    )?;
    Ok(())
}
