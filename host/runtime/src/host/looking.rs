//! `next` and `next-many`: the guest runs the loop.
//!
//! What is asked at once is given to the engine at once, so that one step computes it. A guest that goes
//! away drops the replies, and the engine drops what they were for.

use super::bindings::corral::inference::inference as guest;
use super::generation::lock;
use super::reach::Reach;
use super::sequence::{Sequence, Shared};
use super::{Answer, framing, wit};
use crate::quota::Reservation;
use crate::state::State;
use crate::tally::Tally;
use corral_engine::{Distribution, Error, Look, Reply, Show};
use std::sync::Arc;
use wasmtime::component::{Access, Accessor, HasSelf, Resource, StreamReader};

/// Sequences that are looked at in one call.
const ASKS: usize = 256;
/// Rows of logits that an instance may wait for: each takes four bytes for each token of the vocabulary.
const ROWS: usize = 16;

type Ask = (Resource<Sequence>, guest::Look);
type Told = Result<guest::Distribution, wit::Error>;

/// An ask that was found right.
struct Asked {
    text: Shared,
    look: Look,
    /// Positions that its sequence may have in this model.
    context: u32,
    reservation: Option<Reservation>,
    held: Held,
}

/// What an ask holds until it is answered.
struct Held {
    /// The sequence's call.
    _call: Arc<()>,
    /// One of the rows that the instance waits for.
    _row: Option<Arc<()>>,
}

/// An ask that the engine has.
struct Waits {
    reply: Reply<Distribution>,
    tally: Arc<Tally>,
    _held: Held,
}

/// Looks at all of them together; answers in their order.
pub(super) async fn next_many(mut on: impl Reach, asks: Vec<Ask>) -> wasmtime::Result<Vec<Told>> {
    let waiting = on.with(|state| state.look(asks))?;
    let mut told = Vec::with_capacity(waiting.len());
    for waits in waiting {
        told.push(match waits {
            Ok(waits) => {
                let told = waits.tally.ended(waits.reply.await);
                told.map(Into::into).map_err(Into::into)
            }
            Err(error) => Err(error),
        });
    }
    Ok(told)
}

/// Looks at one.
pub(super) async fn next(
    on: impl Reach,
    sequence: Resource<Sequence>,
    look: guest::Look,
) -> wasmtime::Result<Told> {
    let mut answers = next_many(on, vec![(sequence, look)]).await?;
    Ok(answers.pop().unwrap_or_else(|| {
        let lost = Error::Failed("the engine gave no answer".into());
        Err(lost.into())
    }))
}

impl guest::HostWithStore<State> for HasSelf<State> {
    async fn next_many(
        store: &Accessor<State, Self>,
        asks: Vec<Ask>,
    ) -> wasmtime::Result<Vec<Told>> {
        next_many(store, asks).await
    }

    async fn collect(
        store: &Accessor<State, Self>,
        chunks: StreamReader<guest::Chunk>,
    ) -> Answer<guest::Chunk> {
        framing::collect(store, chunks).await
    }

    fn frame(
        store: Access<'_, State, Self>,
        chunks: StreamReader<guest::Chunk>,
        framing: guest::Framing,
        rest: StreamReader<u8>,
    ) -> Answer<StreamReader<u8>> {
        framing::frame(store, chunks, framing, rest)
    }
}

impl State {
    /// Gives all asks that are right to the engine.
    fn look(&mut self, asks: Vec<Ask>) -> wasmtime::Result<Vec<Result<Waits, wit::Error>>> {
        if asks.len() > ASKS {
            let many = format!(
                "{} sequences are asked for at once; ask for {ASKS} at most",
                asks.len()
            );
            let refused = || Err(wit::Error::Invalid(many.clone()));
            return Ok(asks.iter().map(|_| refused()).collect());
        }
        let mut right = Vec::with_capacity(asks.len());
        let mut answers = Vec::with_capacity(asks.len());
        for (sequence, look) in asks {
            match self.ask(&sequence, look)? {
                Ok(asked) => {
                    right.push(asked);
                    answers.push(None);
                }
                Err(error) => answers.push(Some(Err(error))),
            }
        }
        let mut sent = send(right, &self.tally).into_iter();
        let answers = answers.into_iter();
        Ok(answers
            .filter_map(|answer| answer.or_else(|| sent.next()))
            .collect())
    }

    fn ask(
        &mut self,
        sequence: &Resource<Sequence>,
        look: guest::Look,
    ) -> wasmtime::Result<Result<Asked, wit::Error>> {
        let among = match &look.matcher {
            None => None,
            Some(matcher) => {
                if !matches!(look.view, guest::View::Top(_)) {
                    return Ok(Err(wit::Error::Invalid(
                        "a matcher goes with the view top alone; ask it for its mask".to_owned(),
                    )));
                }
                let engine = self.table.get(sequence)?.engine().clone();
                match self.table.get_mut(matcher)?.mask_for(&engine) {
                    Ok(mask) => Some(mask),
                    Err(error) => return Ok(Err(error.into())),
                }
            }
        };
        let sequence = self.table.get(sequence)?;
        let look = Look {
            show: match look.view {
                guest::View::Top(count) => Show::Top(count),
                guest::View::Only(tokens) => Show::Only(tokens),
                guest::View::Logits => Show::Logits,
            },
            statistics: look.statistics,
            among,
            adapter: sequence.adapter().map(str::to_owned),
        };
        let context = sequence.engine().info().context;
        let asked = sequence.begin().and_then(|(text, call)| {
            let row = match look.show {
                Show::Logits => Some(self.handles.row()?),
                Show::Top(_) | Show::Only(_) => None,
            };
            // What is asked for twice is computed twice.
            let tokens = lock(&text).uncounted().max(1);
            let reserved = self.visit.as_ref().map(|visit| visit.reserve(tokens));
            Ok(Asked {
                reservation: reserved.transpose()?,
                text,
                look,
                context,
                held: Held {
                    _call: call,
                    _row: row,
                },
            })
        });
        Ok(asked)
    }
}

/// Gives them to the engine, and counts the tokens of those that it takes.
fn send(right: Vec<Asked>, tally: &Arc<Tally>) -> Vec<Result<Waits, wit::Error>> {
    let texts: Vec<_> = right.iter().map(|asked| Arc::clone(&asked.text)).collect();
    // Each sequence is there once, since its call is held.
    let mut texts: Vec<_> = texts.iter().map(|text| lock(text)).collect();
    let (looks, rest): (Vec<_>, Vec<_>) = right
        .into_iter()
        .map(|asked| (asked.look, (asked.context, asked.reservation, asked.held)))
        .unzip();
    let sequences = texts.iter_mut().map(|text| &mut text.sequence);
    let replies = corral_engine::Sequence::next_many(sequences.zip(looks));
    let answers = replies.into_iter().zip(rest).zip(&mut texts);
    answers
        .map(|((reply, (context, mut reservation, held)), text)| {
            let reply = tally.begun(reply, context)?;
            if let Some(reservation) = &mut reservation {
                reservation.used(text.uncounted().max(1));
            }
            text.count();
            Ok(Waits {
                reply,
                tally: Arc::clone(tally),
                _held: held,
            })
        })
        .collect()
}

impl super::Handles {
    /// One more row of logits, if there may be one.
    fn row(&self) -> Result<Arc<()>, wit::Error> {
        if Arc::strong_count(&self.rows) > ROWS {
            return Err(wit::Error::Invalid(format!(
                "the plugin waits for {ROWS} rows of logits, the most it may; await some first"
            )));
        }
        Ok(Arc::clone(&self.rows))
    }
}

impl From<Distribution> for guest::Distribution {
    fn from(told: Distribution) -> Self {
        let candidates = told.candidates.into_iter();
        Self {
            candidates: candidates
                .map(|(token, logit)| guest::Candidate { token, logit })
                .collect(),
            logits: told.logits,
            statistics: told.statistics.map(|statistics| guest::Statistics {
                log_normalizer: statistics.log_normalizer,
                entropy: statistics.entropy,
            }),
            position: told.position,
        }
    }
}
