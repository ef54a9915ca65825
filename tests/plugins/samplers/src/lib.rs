//! A sampling plugin with correct and faulty behavior. The first word of the settings selects it.
//!
//! | word | behavior |
//! |---|---|
//! | `greedy` | chooses the most likely token |
//! | `second` | chooses the second most likely token, or the only one |
//! | `seeded` | chooses uniformly at random from the seed |
//! | `record` | chooses the most likely token and checks that its inputs are consistent |
//! | `tell` | fails at the first call with the tokens before it |
//! | `environment` | fails with its environment variables and arguments |
//! | `slow:MS` | computes for this many milliseconds, then chooses the most likely token |
//! | `log` | writes a line to standard output, then as `greedy` |
//! | `error:TEXT` | fails |
//! | `outside` | chooses a token that is not a candidate |
//! | `beyond` | chooses a token outside the vocabulary |
//! | `trap:N` | traps at the Nth call |
//! | `spin:N` | loops forever at the Nth call |
//! | `hog:N` | allocates memory without end at the Nth call |
//! | `refuse:TEXT` | fails to start |
//! | `trap-start`, `spin-start`, `hog-start` | the same at the start |
//! | `trap-seed:N`, `spin-seed:N`, `refuse-seed:N` | the same if the seed is N, that is when a generation starts |
//! | `trap-needs`, `spin-needs` | the same in `needs` |
//! | `fickle` | has different needs each time |
//!
//! Further words set the needs: `candidates=N` (default 64), `history=N` (default 0) and
//! `statistics`. With `forced` it expects tokens that it did not choose.
// Not `forbid`: the generated bindings contain unsafe code.
#![deny(unsafe_code)]

#[path = "../../misbehave/src/faults.rs"]
mod faults;
mod record;

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use bindings::exports::corral::plugin::sampling::{
    Distribution, Guest, GuestSampler, Needs, Sampler, SamplerContext, Token,
};
use faults::{hog, spin, trap};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;
use record::Record;

#[allow(unsafe_code)]
mod bindings {
    use super::Samplers;
    wit_bindgen::generate!({ world: "corral:inference/sampling", path: "../../../wit" });
    export!(Samplers);
}

struct Samplers;

impl Guest for Samplers {
    type Sampler = TextSampler;
}

/// The sampler of one generation.
struct TextSampler {
    behavior: String,
    /// The text after the colon.
    argument: String,
    needs: Needs,
    vocabulary: u32,
    state: RefCell<SamplerState>,
}

struct SamplerState {
    calls: u64,
    rng: SplitMix64,
    record: Record,
}

impl GuestSampler for TextSampler {
    fn start(context: SamplerContext) -> Result<Sampler, String> {
        let mut words = context.settings.split_whitespace();
        let first = words.next().unwrap_or_default();
        let (behavior, argument) = first.split_once(':').unwrap_or((first, ""));
        let mut needs = Needs {
            candidates: 64,
            statistics: false,
            history: 0,
        };
        let mut forced = false;
        for word in words {
            let (name, value) = word.split_once('=').unwrap_or((word, "0"));
            let number = value
                .parse()
                .map_err(|_| format!("{word} is not a number"))?;
            match name {
                "candidates" => needs.candidates = number,
                "history" => needs.history = number,
                "statistics" => needs.statistics = true,
                "forced" => forced = true,
                _ => return Err(format!("'{word}' is not a setting of this sampler")),
            }
        }
        let seeded = argument.parse() == Ok(context.seed);
        match behavior {
            "trap-seed" if seeded => trap(),
            "spin-seed" if seeded => spin(),
            "refuse-seed" if seeded => return Err(format!("refused the seed {argument}")),
            "refuse" => return Err(argument.to_owned()),
            "trap-start" => trap(),
            "spin-start" => spin(),
            "hog-start" => hog(),
            "log" => println!("a line of a sampler"),
            "fickle" => {
                needs.candidates = random_number() % 4096 + 1;
                needs.history = random_number() % 65_536;
            }
            _ => {}
        }
        Ok(Sampler::new(TextSampler {
            behavior: behavior.to_owned(),
            argument: argument.to_owned(),
            needs,
            vocabulary: context.vocabulary,
            state: RefCell::new(SamplerState {
                calls: 0,
                rng: SplitMix64::seed_from_u64(context.seed),
                record: Record::new(needs, context.vocabulary, forced),
            }),
        }))
    }

    fn needs(&self) -> Needs {
        match self.behavior.as_str() {
            "trap-needs" => trap(),
            "spin-needs" => spin(),
            _ => {}
        }
        self.state.borrow_mut().record.count_needs();
        self.needs
    }

    fn sample(&self, input: Distribution) -> Result<Token, String> {
        let mut state = self.state.borrow_mut();
        state.calls += 1;
        let is_call_n = self.argument.parse().is_ok_and(|n: u64| n == state.calls);
        let most_likely = input.candidates.first().map(|candidate| candidate.token);
        let most_likely = most_likely.ok_or("there are no candidates")?;
        match self.behavior.as_str() {
            "greedy" | "log" => Ok(most_likely),
            "second" => Ok(input
                .candidates
                .get(1)
                .map_or(most_likely, |next| next.token)),
            "seeded" => {
                let index = state.rng.random_range(0..input.candidates.len());
                Ok(input.candidates[index].token)
            }
            "record" => {
                state.record.check(&input)?;
                state.record.record_choice(most_likely);
                Ok(most_likely)
            }
            "tell" => Err(format!("{:?} before {}", input.new_tokens, input.position)),
            "environment" => Err(environment()),
            "slow" => {
                let time = self.argument.parse().map_err(|_| "slow:MS")?;
                compute(Duration::from_millis(time));
                Ok(most_likely)
            }
            "error" => Err(self.argument.clone()),
            "outside" => {
                let is_candidate =
                    |token| input.candidates.iter().any(|other| other.token == token);
                let other = (0..self.vocabulary).find(|&token| !is_candidate(token));
                other.ok_or_else(|| "all tokens are candidates; set candidates=1".to_owned())
            }
            "beyond" => Ok(self.vocabulary),
            "trap" if is_call_n => trap(),
            "spin" if is_call_n => spin(),
            "hog" if is_call_n => hog(),
            "trap" | "spin" | "hog" => Ok(most_likely),
            other => Err(format!("there is no behavior '{other}'")),
        }
    }
}

fn random_number() -> u32 {
    RandomState::new().hash_one(0) as u32
}

fn environment() -> String {
    let variables: Vec<_> = std::env::vars().collect();
    let arguments: Vec<_> = std::env::args().collect();
    format!("variables {variables:?}, arguments {arguments:?}")
}

fn compute(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
}
