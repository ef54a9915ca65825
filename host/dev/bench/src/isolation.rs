//! `corral-bench isolation`: what limits add to the compilation of untrusted input.
//!
//! A new component is compiled in this process and in a child, each with a cache of its own. A new grammar is compiled by
//! llguidance alone, on the thread that asks, and by the model's compiler, which also rewrites the schema, counts the work
//! and starts a thread with a deep stack. Both ways take turns, and are compared within a round.

use crate::args::EngineArgs;
use crate::deploy::unique_component;
use crate::workload::config;
use clap::Args;
use corral_cli::bench::rounds::{RoundArgs, Rounds};
use corral_cli::bench::stats::{float, median, set_range};
use corral_cli::bench::table::{self, Column, Unit};
use corral_cli::{Error, isolated_job};
use corral_engine::{Engine, Grammar, ModelPool, Tenant};
use corral_runtime::{Limits, Runtime, RuntimeConfig};
use llguidance::ParserFactory;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

#[derive(Args, Debug)]
pub(crate) struct IsolationArgs {
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    rounds: RoundArgs,
    /// Component to compile
    #[arg(long, value_name = "FILE")]
    plugin: PathBuf,
}

/// Grammars that are compiled each way in a round.
const GRAMMARS: u64 = 20;

/// The grammars, but for one of their words.
const SCHEMA: &str = r#"{"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 40}, "age": {"type": "integer", "minimum": 0, "maximum": 130},
    "role": {"enum": ["admin", "editor", "NUMBER"]},
    "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
    "address": {"type": "object", "properties": {"street": {"type": "string"}, "zip": {"type": "string",
    "pattern": "^[0-9]{5}$"}}, "required": ["street", "zip"], "additionalProperties": false}},
    "required": ["name", "age", "role", "address"], "additionalProperties": false}"#;

const COLUMNS: [Column; 7] = [
    ("input", "input", Unit::Plain),
    ("without limits", "unlimited_s", Unit::Milliseconds),
    ("with limits", "limited_s", Unit::Milliseconds),
    ("added", "added_s", Unit::Milliseconds),
    ("min", "added_s_min", Unit::Milliseconds),
    ("max", "added_s_max", Unit::Milliseconds),
    ("ratio", "ratio", Unit::Ratio),
];

/// Seconds without limits and with them.
type Times = [f64; 2];

/// Measures and prints the figures.
pub(crate) async fn measure(args: &IsolationArgs) -> Result<(), Error> {
    let component = std::fs::read(&args.plugin).map_err(Error::context(format!(
        "cannot read the component {}; name a plugin",
        args.plugin.display()
    )))?;
    let failed = "cannot create a directory for the caches; name another one with TMPDIR";
    let dir = tempfile::tempdir().map_err(Error::context(failed))?;
    let runtime = |cache: &str, children| {
        let config = RuntimeConfig {
            instances: 1,
            cache: Some(dir.path().join(cache)),
            children,
            ..RuntimeConfig::default()
        };
        Runtime::new(config, ModelPool::loaded(Vec::new()))
    };
    let in_process = runtime("process", None)?;
    let in_child = runtime("child", Some(isolated_job::children()?))?;
    let engine = Engine::load(config(&args.engine, 0)?)?;
    let llguidance = parser_factory(&engine)?;
    let (mut components, mut grammars) = (Vec::new(), Vec::new());
    let mut rounds = Rounds::with_warmup(args.rounds);
    for round in rounds.by_ref() {
        let unique = unique_component(&component, round);
        let times = [
            compile_component(&in_process, unique.clone()).await?,
            compile_component(&in_child, unique).await?,
        ];
        let grammar_times = compile_grammars(&engine, &llguidance, round)?;
        if round > 0 {
            components.push(times);
            grammars.push(grammar_times);
        }
    }
    engine.shutdown();
    let rows = [
        report("component", &components),
        report("grammar", &grammars),
    ];
    let (bytes, rounds) = (component.len(), rounds.measured());
    let setup = json!({"bench": "isolation", "component_bytes": bytes, "rounds": rounds});
    let title = format!(
        "compilation of a new component of {bytes} bytes, and of a new grammar, ms; medians of {rounds} rounds, \
         and of the differences and ratios within them"
    );
    table::print(args.engine.json, setup, &title, &COLUMNS, &rows);
    Ok(())
}

fn report(input: &str, rounds: &[Times]) -> Value {
    let mut row = json!({
        "input": input,
        "unlimited_s": median(rounds.iter().map(|[unlimited, _]| *unlimited)),
        "limited_s": median(rounds.iter().map(|[_, limited]| *limited)),
        "ratio": median(rounds.iter().map(|[unlimited, limited]| limited / unlimited)),
    });
    let added = rounds
        .iter()
        .map(|[unlimited, limited]| limited - unlimited);
    set_range(&mut row, "added_s", &Vec::from_iter(added));
    row
}

/// Compiles a component that the cache does not have, and loads its code; returns the seconds.
async fn compile_component(runtime: &Runtime, component: Vec<u8>) -> Result<f64, Error> {
    let start = Instant::now();
    let _plugin = runtime
        .load_plugin("bench", component, Limits::default())
        .await?;
    Ok(start.elapsed().as_secs_f64())
}

/// llguidance with the model's vocabulary.
fn parser_factory(engine: &Engine) -> Result<ParserFactory, Error> {
    let info = engine.info();
    let words = (0..info.vocabulary).map(|token| engine.detokenize(&[token], false));
    let words = words.collect::<Result<Vec<_>, _>>()?;
    let tokens = TokRxInfo::new(info.vocabulary, info.end.unwrap_or_default());
    let tokenizer: TokEnv = Arc::new(ApproximateTokEnv::new(TokTrie::from(&tokens, &words)));
    let mut factory = ParserFactory::new_simple(&tokenizer)
        .map_err(|error| Error::failed(format!("llguidance cannot use the vocabulary: {error}")))?;
    factory.quiet();
    Ok(factory)
}

/// Compiles [`GRAMMARS`] that no cache has; returns the mean times.
fn compile_grammars(
    engine: &Engine,
    llguidance: &ParserFactory,
    round: u64,
) -> Result<Times, Error> {
    let mut seconds = Times::default();
    for number in 0..GRAMMARS {
        let schema = SCHEMA.replace("NUMBER", &(round * GRAMMARS + number).to_string());
        let start = Instant::now();
        let grammar = TopLevelGrammar::from_json_schema(serde_json::from_str(&schema)?);
        let mut parser = llguidance.create_parser(grammar).map_err(|error| {
            Error::failed(format!("llguidance cannot compile the schema: {error}"))
        })?;
        parser.start_without_prompt();
        seconds[0] += start.elapsed().as_secs_f64();
        let start = Instant::now();
        engine.compile(Tenant(0), &Grammar::JsonSchema(schema))?;
        seconds[1] += start.elapsed().as_secs_f64();
    }
    Ok(seconds.map(|seconds| seconds / float(GRAMMARS)))
}
