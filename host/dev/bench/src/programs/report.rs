//! The figures of the programs.

use super::ProgramsArgs;
use super::client::{Endpoint, Order};
use super::program::Program;
use corral_cli::bench::stats::{median, set_range};
use corral_cli::bench::table::{self, Column, Unit};
use serde_json::{Value, json};
use std::sync::Arc;

/// A form of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Plugin,
    /// The client with Corral's server.
    Client,
    /// The client with the peer.
    Peer,
}

/// Where and how a form of a program sends its requests.
#[derive(Clone)]
pub(super) struct Choice {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) order: Order,
}

/// A measurement of all runs at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) seconds: f64,
    /// Steps of the program: the same for all sides, unless they took different ways.
    pub(super) steps: u64,
    /// Steps that the server computed, if it says so.
    pub(super) engine_steps: Option<u64>,
    /// Tokens that the server computed.
    pub(super) computed: u64,
    /// Tokens to compute if none is computed twice, as a client counts them.
    pub(super) fewest: u64,
}

/// A program with a number of runs at once.
pub(super) struct ProgramRow {
    pub(super) program: Program,
    pub(super) at_once: u64,
    sides: [SideSamples; 3],
}

#[derive(Default)]
struct SideSamples {
    choice: Option<Choice>,
    samples: Vec<Sample>,
}

const COLUMNS: [Column; 17] = [
    ("program", "program", Unit::Plain),
    ("at once", "at_once", Unit::Plain),
    ("plugin ms", "plugin_s", Unit::Milliseconds),
    ("client ms", "client_s", Unit::Milliseconds),
    ("peer ms", "peer_s", Unit::Milliseconds),
    ("fewest tokens", "fewest_tokens", Unit::Whole),
    ("plugin", "plugin_tokens", Unit::Whole),
    ("client", "client_tokens", Unit::Whole),
    ("peer", "peer_tokens", Unit::Whole),
    ("plugin's steps", "plugin_engine_steps", Unit::Whole),
    ("client's", "client_engine_steps", Unit::Whole),
    ("peer's", "peer_engine_steps", Unit::Whole),
    ("peer's order", "peer_order", Unit::Plain),
    ("client / plugin", "client_ratio", Unit::Ratio),
    ("peer / plugin", "peer_ratio", Unit::Ratio),
    ("min", "peer_ratio_min", Unit::Ratio),
    ("max", "peer_ratio_max", Unit::Ratio),
];

impl ProgramRow {
    pub(super) fn new(program: Program, at_once: u64) -> Self {
        Self {
            program,
            at_once,
            sides: Default::default(),
        }
    }

    pub(super) fn choose(&mut self, side: Side, choice: Choice) {
        self.sides[side as usize].choice = Some(choice);
    }

    /// The fastest choice of round 0.
    pub(super) fn choice(&self, side: Side) -> Option<&Choice> {
        self.sides[side as usize].choice.as_ref()
    }

    pub(super) fn add(&mut self, side: Side, sample: Sample) {
        self.sides[side as usize].samples.push(sample);
    }

    fn samples(&self, side: Side) -> &[Sample] {
        &self.sides[side as usize].samples
    }

    /// The time of a client divided by that of the plugin, in each round.
    fn ratios(&self, side: Side) -> Vec<f64> {
        let pairs = self.samples(side).iter().zip(self.samples(Side::Plugin));
        let ratios = pairs.map(|(client, plugin)| client.seconds / plugin.seconds);
        ratios.collect()
    }

    #[allow(clippy::cast_precision_loss)]
    fn json(&self) -> Value {
        let of = |side, value: fn(&Sample) -> f64| {
            let samples = self.samples(side);
            (!samples.is_empty()).then(|| median(samples.iter().map(value)))
        };
        let mut row = json!({
            "program": self.program.name(),
            "at_once": self.at_once,
            "fewest_tokens": of(Side::Client, |sample| sample.fewest as f64),
        });
        for (side, name) in [
            (Side::Plugin, "plugin"),
            (Side::Client, "client"),
            (Side::Peer, "peer"),
        ] {
            row[format!("{name}_s")] = of(side, |sample| sample.seconds).into();
            row[format!("{name}_tokens")] = of(side, |sample| sample.computed as f64).into();
            row[format!("{name}_steps")] = of(side, |sample| sample.steps as f64).into();
            let samples = self.samples(side).iter();
            let steps: Option<Vec<_>> = samples.map(|sample| sample.engine_steps).collect();
            let steps = steps.filter(|steps| !steps.is_empty());
            let steps = steps.map(|steps| median(steps.into_iter().map(|steps| steps as f64)));
            row[format!("{name}_engine_steps")] = steps.into();
            let choice = self.choice(side).filter(|_| side != Side::Plugin);
            let order = choice.filter(|_| self.program.has_branches());
            let order = order.map(|choice| match choice.order {
                Order::AtOnce => "at once",
                Order::InTurn => "in turn",
            });
            row[format!("{name}_order")] = order.into();
            row[format!("{name}_url")] = choice.map(|choice| choice.endpoint.to_string()).into();
        }
        for (side, name) in [(Side::Client, "client_ratio"), (Side::Peer, "peer_ratio")] {
            set_range(&mut row, name, &self.ratios(side));
        }
        row
    }
}

/// A figure of the ratios of all programs.
type OfPrograms = fn(&[f64]) -> f64;

/// The median and the lowest of all programs with this many runs at once, in each round.
fn summaries(rows: &[ProgramRow], at_once: u64) -> [Value; 2] {
    let rows: Vec<_> = rows.iter().filter(|row| row.at_once == at_once).collect();
    let of_programs: [(&str, OfPrograms); 2] = [
        ("median", |ratios| median(ratios.iter().copied())),
        ("lowest", |ratios| {
            ratios.iter().copied().fold(f64::INFINITY, f64::min)
        }),
    ];
    of_programs.map(|(name, of_programs)| {
        let mut summary = json!({"program": name, "at_once": at_once});
        for (side, member) in [(Side::Client, "client_ratio"), (Side::Peer, "peer_ratio")] {
            let of_rows: Vec<Vec<f64>> = rows.iter().map(|row| row.ratios(side)).collect();
            let rounds = of_rows.iter().map(Vec::len).min().unwrap_or(0);
            let of_round = |round: usize| {
                let ratios: Vec<f64> = of_rows.iter().map(|ratios| ratios[round]).collect();
                of_programs(&ratios)
            };
            let of_rounds: Vec<f64> = (0..rounds).map(of_round).collect();
            set_range(&mut summary, member, &of_rounds);
            // The figure is that of the programs' medians: a single slow round of one program does not count.
            if rounds > 0 {
                let medians = of_rows.iter().map(|ratios| median(ratios.iter().copied()));
                summary[member] = of_programs(&medians.collect::<Vec<_>>()).into();
            }
        }
        summary
    })
}

/// Prints the figures, and warns of programs whose forms took different ways.
pub(super) fn print(args: &ProgramsArgs, rows: &[ProgramRow], rounds: u64) {
    let mut lines: Vec<_> = rows.iter().map(ProgramRow::json).collect();
    for line in &lines {
        let steps = ["plugin_steps", "client_steps", "peer_steps"].map(|member| &line[member]);
        let [plugin, client, peer] = steps;
        if plugin != client || (!peer.is_null() && plugin != peer) {
            eprintln!("the forms of a program did not take as many steps: {line}");
        }
    }
    for &at_once in &args.at_once {
        lines.extend(summaries(rows, at_once));
    }
    let setup = json!({
        "bench": "programs",
        "prompt_tokens": args.prompt_tokens,
        "output_tokens": args.output_tokens,
        "latency": args.latency.to_string(),
        "rounds": rounds,
        "peers": args.peer.iter().map(ToString::to_string).collect::<Vec<_>>(),
    });
    let title = format!(
        "programs as plugins, as clients of this server, and as clients of the peer; prompts of {} tokens, answers of {}; \
         medians of {rounds} rounds",
        args.prompt_tokens, args.output_tokens
    );
    table::print(args.engine.json, setup, &title, &COLUMNS, &lines);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(program: Program, seconds: [f64; 3]) -> ProgramRow {
        let mut row = ProgramRow::new(program, 1);
        for (side, seconds) in [Side::Plugin, Side::Client, Side::Peer]
            .into_iter()
            .zip(seconds)
        {
            let sample = Sample {
                seconds,
                steps: 2,
                engine_steps: (side != Side::Peer).then_some(4),
                computed: 10,
                fewest: 9,
            };
            row.add(side, sample);
        }
        row
    }

    #[test]
    fn median_and_lowest_are_those_of_programs() {
        let rows = [
            row(Program::BestOfN, [2.0, 2.0, 2.0]),
            row(Program::BeamSearch, [1.0, 2.0, 6.0]),
            row(Program::BatchMap, [1.0, 1.5, 4.0]),
        ];
        let [median, lowest] = summaries(&rows, 1);
        assert_eq!(median["peer_ratio"], 4.0);
        assert_eq!(lowest["peer_ratio"], 1.0);
        assert_eq!(median["client_ratio"], 1.5);
        assert_eq!(summaries(&rows, 8)[0].get("peer_ratio"), None);
    }

    #[test]
    fn side_without_samples_has_no_figures() {
        let mut row = row(Program::BatchMap, [1.0, 1.5, 4.0]);
        row.sides[Side::Peer as usize].samples.clear();
        let json = row.json();
        assert_eq!(json["peer_s"], Value::Null);
        assert_eq!(json["client_s"], 1.5);
        assert_eq!(json.get("peer_ratio"), None);
        assert_eq!(json["fewest_tokens"], 9.0);
        assert_eq!(json["plugin_engine_steps"], 4.0);
        assert_eq!(json["peer_engine_steps"], Value::Null);
    }
}
