//! A sampling plugin that is right or wrong in every way: the first word of its settings says which.
//!
//! | word | what it does |
//! |---|---|
//! | `greedy` | chooses the likeliest |
//! | `second` | chooses the second likeliest, or the only one |
//! | `seeded` | chooses evenly, by the seed |
//! | `record` | chooses the likeliest, and checks that all that it is shown fits together |
//! | `tell` | answers the first question with an error that says what it was shown before it |
//! | `environment` | the same with its environment variables and arguments |
//! | `slow:MS` | computes for so many milliseconds, then chooses the likeliest |
//! | `log` | writes a line to the standard output, then as `greedy` |
//! | `error:TEXT` | answers with an error |
//! | `outside` | chooses a token that it was not shown |
//! | `beyond` | chooses one that the vocabulary does not have |
//! | `trap:N` | traps when it is asked for the Nth time |
//! | `spin:N` | never answers when it is asked for the Nth time |
//! | `hog:N` | takes memory without end when it is asked for the Nth time |
//! | `refuse:TEXT` | does not start |
//! | `trap-start`, `spin-start`, `hog-start` | the same at the start |
//! | `trap-seed:N`, `spin-seed:N`, `refuse-seed:N` | the same if the seed is N: when a text begins |
//! | `trap-needs`, `spin-needs` | the same when it is asked what it needs |
//! | `fickle` | needs something else each time |
//!
//! Further words say what it needs: `candidates=N` (64 without), `history=N` (none without) and
//! `statistics`. With `forced` it expects that tokens may follow that it did not choose.
// Not forbid: the bindings are generated, with unsafe code.
#![deny(unsafe_code)]

mod record;

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use bindings::exports::corral::plugin::sampling::{
    Beginning, Distribution, Guest, GuestSampler, Needs, Sampler, Token,
};
use record::Record;

#[allow(unsafe_code)]
mod bindings {
    use super::Samplers;
    wit_bindgen::generate!({ world: "corral:plugin/sampling-plugin", path: "../../../wit" });
    export!(Samplers);
}

struct Samplers;

impl Guest for Samplers {
    type Sampler = One;
}

/// A sampler of one text.
struct One {
    deed: String,
    /// What stands behind the deed's colon.
    argument: String,
    needs: Needs,
    vocabulary: u32,
    state: RefCell<State>,
}

struct State {
    asked: u64,
    random: u64,
    record: Record,
}

impl GuestSampler for One {
    fn start(beginning: Beginning) -> Result<Sampler, String> {
        let mut words = beginning.settings.split_whitespace();
        let first = words.next().unwrap_or_default();
        let (deed, argument) = first.split_once(':').unwrap_or((first, ""));
        let mut needs = Needs {
            candidates: 64,
            statistics: false,
            history: 0,
        };
        let mut forced = false;
        for word in words {
            let (name, value) = word.split_once('=').unwrap_or((word, "0"));
            let number = value.parse().map_err(|_| format!("{word} is no number"))?;
            match name {
                "candidates" => needs.candidates = number,
                "history" => needs.history = number,
                "statistics" => needs.statistics = true,
                "forced" => forced = true,
                _ => return Err(format!("'{word}' says nothing to this sampler")),
            }
        }
        let seeded = argument.parse() == Ok(beginning.seed);
        match deed {
            "trap-seed" if seeded => trap(),
            "spin-seed" if seeded => spin(),
            "refuse-seed" if seeded => return Err(format!("no text of the seed {argument}")),
            "refuse" => return Err(argument.to_owned()),
            "trap-start" => trap(),
            "spin-start" => spin(),
            "hog-start" => hog(),
            "log" => println!("a line of a sampler"),
            "fickle" => {
                needs.candidates = by_chance() % 4096 + 1;
                needs.history = by_chance() % 65_536;
            }
            _ => {}
        }
        Ok(Sampler::new(One {
            deed: deed.to_owned(),
            argument: argument.to_owned(),
            needs,
            vocabulary: beginning.vocabulary,
            state: RefCell::new(State {
                asked: 0,
                random: beginning.seed,
                record: Record::new(needs, beginning.vocabulary, forced),
            }),
        }))
    }

    fn needs(&self) -> Needs {
        match self.deed.as_str() {
            "trap-needs" => trap(),
            "spin-needs" => spin(),
            _ => {}
        }
        self.state.borrow_mut().record.needed();
        self.needs
    }

    fn sample(&self, told: Distribution) -> Result<Token, String> {
        let mut state = self.state.borrow_mut();
        state.asked += 1;
        let its_turn = self
            .argument
            .parse()
            .is_ok_and(|turn: u64| turn == state.asked);
        let likeliest = told.candidates.first().map(|candidate| candidate.token);
        let likeliest = likeliest.ok_or("it was shown no candidates")?;
        match self.deed.as_str() {
            "greedy" | "log" => Ok(likeliest),
            "second" => Ok(told.candidates.get(1).map_or(likeliest, |next| next.token)),
            "seeded" => {
                state.random = next(state.random);
                let place = (state.random >> 33) as usize % told.candidates.len();
                Ok(told.candidates[place].token)
            }
            "record" => {
                state.record.check(&told)?;
                state.record.chose(likeliest);
                Ok(likeliest)
            }
            "tell" => Err(format!("{:?} before {}", told.since, told.position)),
            "environment" => Err(environment()),
            "slow" => {
                let time = self.argument.parse().map_err(|_| "slow:MS")?;
                compute(Duration::from_millis(time));
                Ok(likeliest)
            }
            "error" => Err(self.argument.clone()),
            "outside" => {
                let shown = |token| told.candidates.iter().any(|other| other.token == token);
                let other = (0..self.vocabulary).find(|&token| !shown(token));
                other.ok_or_else(|| "it was shown all tokens; write candidates=1".to_owned())
            }
            "beyond" => Ok(self.vocabulary),
            "trap" if its_turn => trap(),
            "spin" if its_turn => spin(),
            "hog" if its_turn => hog(),
            "trap" | "spin" | "hog" => Ok(likeliest),
            other => Err(format!("there is no sampler '{other}'")),
        }
    }
}

/// The next of SplitMix64's states, mixed.
fn next(state: u64) -> u64 {
    let mut mixed = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn by_chance() -> u32 {
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

/// `unreachable` without a message.
fn trap() -> ! {
    std::process::abort()
}

fn spin() -> ! {
    loop {
        std::hint::spin_loop();
    }
}

/// Takes memory in pieces that are written to, so that it is really taken.
fn hog() -> ! {
    let mut pieces = Vec::new();
    loop {
        pieces.push(vec![1_u8; 1024 * 1024]);
        std::hint::black_box(&pieces);
    }
}
