//! A text that is gone on with: appended to, cut, forked, and kept under a name.
//!
//! A sequence is its tokens, and a claim on what the engine has computed of them. Nothing else is
//! tied to it: where that state is, in the cells, put aside, or nowhere any more, changes behind its
//! back and costs time at most, since what is missing is computed again. So there can be any number
//! of sequences, forking one copies its tokens and nothing more, and the fork finds what was computed
//! for both.

use crate::engine::Engine;
use crate::look::{Distribution, Look};
use crate::reply::{Reply, reply};
use crate::store::snapshot::{Contents, Origin};
use crate::worker::{Adoption, Command, SaveOrder, Saved, Submission, Wants};
use crate::{Caller, Error, Generation, Options, SnapshotError, Token};
use corral_llama::KvType;
use corral_scheduler::{AdapterId, Layout, PrefixScope, Retention};
use std::sync::mpsc::sync_channel;
use std::time::Instant;

/// What a state depends on beside the model file; to be changed with any of it.
const STATE_FORMAT: &[u8] = b"llama-cpp-sys-2 0.1.161, unified f16 cache, flash attention";

/// What a state depends on beside [`STATE_FORMAT`]: nothing more, where the cells are as they are by default.
fn stored_as(kv: KvType) -> &'static [u8] {
    match kv {
        KvType::F16 => b"",
        KvType::Q8_0 => b", but q8_0",
    }
}

/// A text and a claim on its state.
#[derive(Clone)]
pub struct Sequence {
    engine: Engine,
    caller: Caller,
    tokens: Vec<Token>,
    claim: Retention,
    /// With what its state was computed, if there is one.
    adapter: AdapterId,
}

impl Sequence {
    /// An empty one.
    pub fn new(engine: Engine, caller: Caller) -> Self {
        Self {
            engine,
            caller,
            tokens: Vec::new(),
            claim: Retention::default(),
            adapter: AdapterId::NONE,
        }
    }

    /// Its tokens.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Adds tokens to its end, generated ones too: they are not added by themselves.
    ///
    /// [`Error::Invalid`] for tokens outside of the vocabulary, [`Error::ContextFull`] if it would
    /// become longer than a sequence may be.
    pub fn append(&mut self, tokens: &[Token]) -> Result<(), Error> {
        self.engine.check_tokens(tokens)?;
        let needed = self.tokens.len().saturating_add(tokens.len());
        let limit = self.engine.info().context;
        if needed > limit as usize {
            return Err(Error::ContextFull {
                needed: u32::try_from(needed).unwrap_or(u32::MAX),
                limit,
            });
        }
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }

    /// Cuts it after `length` tokens; what is longer than it changes nothing.
    ///
    /// [`Error::Unsupported`] for a model whose memory has no past to go back to.
    pub fn truncate(&mut self, length: usize) -> Result<(), Error> {
        let info = self.engine.info();
        if length < self.tokens.len() && !info.can_truncate {
            return Err(Error::Unsupported(format!(
                "sequences of the model {} can't be truncated: its memory is recurrent or a sliding \
                 window, which can't go back; begin a new sequence",
                info.name
            )));
        }
        self.tokens.truncate(length);
        Ok(())
    }

    /// Another sequence with the same text. Copies no state: both go on from what was computed once.
    #[must_use]
    pub fn fork(&self) -> Self {
        self.clone()
    }

    /// Generates after its text; see [`Engine::generate`]. What was computed of the text before is
    /// not computed again, unless it was with another adapter.
    pub fn generate(&mut self, options: Options) -> Result<Generation, Error> {
        let claim = Retention::default();
        let adapter = self.engine.adapter(options.adapter.as_deref())?;
        let (tokens, caller) = (self.tokens.clone(), self.caller);
        // Passed on: however long it waits for its turn, what it goes on with is kept till then.
        let goes_on = Some(self.claim.clone());
        let generation =
            self.engine
                .generate_claimed(tokens, options, caller, claim.downgrade(), goes_on)?;
        (self.claim, self.adapter) = (claim, adapter);
        Ok(generation)
    }

    /// Computes what is not computed of its text, and tells what may come next: what is sampled of it is
    /// for the caller to [append](Sequence::append). Nothing is computed twice, so it takes one token's
    /// computation for each one that was appended; a second look at the same place computes the last
    /// token again, and with a memory that can't go back the whole text.
    ///
    /// [`Error::Invalid`] for an empty sequence and for a look that asks too much; else as
    /// [`Engine::generate`].
    pub fn next(&mut self, look: Look) -> Result<Reply<Distribution>, Error> {
        let (submission, reply) = self.look(look)?;
        self.engine.order(Command::Submit(Box::new(submission)))?;
        Ok(reply)
    }

    /// [`Sequence::next`] of several, in their order. Those of one model are looked at together, so where
    /// there is room one step computes them all.
    pub fn next_many<'a>(
        asks: impl IntoIterator<Item = (&'a mut Self, Look)>,
    ) -> Vec<Result<Reply<Distribution>, Error>> {
        let mut together: Vec<(Engine, Vec<Submission>)> = Vec::new();
        let asked = asks.into_iter().map(|(sequence, look)| {
            let (submission, reply) = sequence.look(look)?;
            let same = |(engine, _): &&mut (Engine, _)| engine.is(&sequence.engine);
            match together.iter_mut().find(same) {
                Some((_, all)) => all.push(submission),
                None => together.push((sequence.engine.clone(), vec![submission])),
            }
            Ok(reply)
        });
        let replies = asked.collect();
        for (engine, all) in together {
            // If it fails the replies say so: who was to answer is dropped with the command.
            let _ = engine.order(Command::SubmitAll(all));
        }
        replies
    }

    fn look(&mut self, look: Look) -> Result<(Submission, Reply<Distribution>), Error> {
        self.engine.check_generates()?;
        look.check(self.engine.info().vocabulary)?;
        if self.tokens.is_empty() {
            let empty = "the sequence is empty; append at least one token before what comes next";
            return Err(Error::Invalid(empty.into()));
        }
        let adapter = self.engine.adapter(look.adapter.as_deref())?;
        let place = self.engine.place(self.caller.tenant)?;
        let (sender, reply) = reply();
        let goes_on = std::mem::take(&mut self.claim);
        self.adapter = adapter;
        let submission = Submission {
            prompt: self.tokens.clone(),
            caller: self.caller,
            adapter,
            claim: self.claim.downgrade(),
            goes_on: Some(goes_on),
            submitted: Instant::now(),
            place,
            wants: Wants::Distribution {
                look,
                reply: sender,
            },
        };
        Ok((submission, reply))
    }

    /// Writes its text and, as far as it is in the cells, its state under a name of `owner`'s; it
    /// survives the process. Blocks: not for an async task.
    ///
    /// [`Error::Invalid`] for a name that is not allowed, [`Error::SnapshotsFull`] if it is too large, or
    /// `owner` has as much as it may.
    pub fn snapshot(&self, owner: &str, name: &str) -> Result<(), Error> {
        let snapshots = self.engine.snapshots().ok_or_else(nowhere)?;
        let most = usize::try_from(snapshots.largest()).unwrap_or(usize::MAX);
        let saved = self.saved(most)?;
        let adapter = self.engine.adapter_digest(self.adapter)?;
        let contents = Contents {
            origin: self.origin()?,
            tokens: self.tokens.clone(),
            state: saved.map(|saved| frame(saved, adapter)).unwrap_or_default(),
        };
        snapshots.write(owner, name, &contents).map_err(refused)
    }

    /// The sequence that was written under a name of `owner`'s. Blocks: not for an async task.
    ///
    /// [`Error::NotFound`] if there is none, [`Error::Snapshot`] if it is of no use here.
    pub fn restore(engine: Engine, caller: Caller, owner: &str, name: &str) -> Result<Self, Error> {
        let mut sequence = Self::new(engine, caller);
        let snapshots = sequence.engine.snapshots().ok_or_else(nowhere)?.clone();
        let contents = snapshots
            .read(owner, name, &sequence.origin()?)
            .map_err(refused)?;
        sequence.append(&contents.tokens)?;
        // A state that makes no sense is computed again, or one of an adapter that is not here.
        let framed = unframe(contents.state, contents.tokens.len());
        if let Some((saved, digest)) = framed
            && let Some(adapter) = sequence.adapter_of(digest)?
        {
            sequence.adapter = adapter;
            let order = Command::Adopt(Box::new(Adoption {
                scope: sequence.scope(),
                tokens: contents.tokens[..saved.length as usize].to_vec(),
                layout: saved.layout,
                state: saved.state,
                claim: sequence.claim.downgrade(),
            }));
            sequence.engine.order(order)?;
        }
        Ok(sequence)
    }

    /// Removes what was written under a name of `owner`'s. Blocks: not for an async task.
    pub fn forget(engine: &Engine, owner: &str, name: &str) -> Result<(), Error> {
        let snapshots = engine.snapshots().ok_or_else(nowhere)?;
        snapshots.remove(owner, name).map_err(refused)
    }

    /// Its state of at most so many bytes, as far as there is one.
    fn saved(&self, most: usize) -> Result<Option<Saved>, Error> {
        let (reply, answer) = sync_channel(1);
        self.engine.order(Command::Save(Box::new(SaveOrder {
            scope: self.scope(),
            tokens: self.tokens.clone(),
            most,
            reply: Box::new(move |saved| {
                // Whoever asked may have gone.
                let _ = reply.send(saved);
            }),
        })))?;
        answer
            .recv()
            .map_err(|_| Error::Failed("the engine thread has ended".into()))
    }

    fn scope(&self) -> PrefixScope {
        self.caller.scope().with(self.adapter)
    }

    /// The adapter with this digest, the model alone for none.
    fn adapter_of(&self, digest: Option<[u8; 32]>) -> Result<Option<AdapterId>, Error> {
        for adapter in std::iter::once(AdapterId::NONE).chain(self.engine.adapters()) {
            if self.engine.adapter_digest(adapter)? == digest {
                return Ok(Some(adapter));
            }
        }
        Ok(None)
    }

    fn origin(&self) -> Result<Origin, Error> {
        Ok(Origin {
            model: self.engine.digest()?,
            layout: layout(self.engine.kv()),
        })
    }
}

/// A fingerprint of what a state depends on beside the model file.
fn layout(kv: KvType) -> u64 {
    // FNV-1a: tells versions apart, no more.
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let format = STATE_FORMAT.iter().chain(stored_as(kv));
    format.fold(0xcbf2_9ce4_8422_2325, mix)
}

fn nowhere() -> Error {
    Error::Unsupported("snapshots are not kept here: no folder was given for them".into())
}

#[allow(clippy::needless_pass_by_value)]
fn refused(error: SnapshotError) -> Error {
    let text = error.to_string();
    match error {
        SnapshotError::Name { .. } => Error::Invalid(text),
        SnapshotError::Missing { .. } => Error::NotFound(text),
        SnapshotError::TooLarge { .. }
        | SnapshotError::OverBudget { .. }
        | SnapshotError::TooMany { .. } => Error::SnapshotsFull(text),
        _ => Error::Snapshot(text),
    }
}

/// Set in the number of runs if an adapter's digest stands behind them.
const ADAPTED: u32 = 1 << 31;

/// The layout before the state: the number of runs, then begin and end of each, as u32 in little
/// endian; and the digest of the adapter that the state was computed with, if there was one.
fn frame(saved: Saved, adapter: Option<[u8; 32]>) -> Vec<u8> {
    let runs = saved.layout.runs();
    let mark = adapter.map_or(0, |_| ADAPTED);
    let count = u32::try_from(runs.len()).unwrap_or(u32::MAX) | mark;
    let numbers = runs.iter().flat_map(|run| [run.start, run.end]);
    let mut framed: Vec<u8> = [count]
        .into_iter()
        .chain(numbers)
        .flat_map(u32::to_le_bytes)
        .collect();
    framed.extend(adapter.into_iter().flatten());
    framed.extend(saved.state);
    framed
}

/// The opposite of [`frame`], for a text of so many tokens.
fn unframe(mut framed: Vec<u8>, tokens: usize) -> Option<(Saved, Option<[u8; 32]>)> {
    let number = |at: usize| -> Option<u32> {
        let bytes = framed.get(4 * at..4 * at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let marked = number(0)?;
    let count = (marked & !ADAPTED) as usize;
    if count > tokens {
        return None;
    }
    let runs = (0..count).map(|run| Some(number(1 + 2 * run)?..number(2 + 2 * run)?));
    let layout = Layout::new(runs.collect::<Option<_>>()?)?;
    let length = layout.length();
    if length == 0 || length as usize > tokens {
        return None;
    }
    let head = 4 + 8 * count;
    let (head, adapter) = if marked & ADAPTED == 0 {
        (head, None)
    } else {
        (head + 32, Some(*framed.get(head..)?.first_chunk()?))
    };
    framed.drain(..head);
    let saved = Saved {
        length,
        layout,
        state: framed,
    };
    Some((saved, adapter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_names_the_version_that_is_pinned() {
        let manifest = include_str!("../../../Cargo.toml");
        let format = std::str::from_utf8(STATE_FORMAT).unwrap();
        let version = format.split([' ', ',']).nth(1).unwrap();
        let pinned = format!("llama-cpp-sys-2 = {{ version = \"={version}\"");
        assert!(manifest.contains(&pinned), "{pinned} is not in Cargo.toml");
    }

    #[test]
    fn a_state_is_of_no_use_to_cells_of_another_type() {
        assert_ne!(layout(KvType::F16), layout(KvType::Q8_0));
    }

    #[test]
    fn a_framed_state_comes_back_and_nonsense_does_not() {
        let layout = Layout::new(vec![3..5, 0..3]).unwrap();
        for (adapter, head) in [(None, 20), (Some([9; 32]), 52)] {
            let saved = Saved {
                length: 5,
                layout: layout.clone(),
                state: vec![1, 2, 3],
            };
            let framed = frame(saved, adapter);
            let (back, of) = unframe(framed.clone(), 9).unwrap();
            assert_eq!((back.length, &back.layout, of), (5, &layout, adapter));
            assert_eq!(back.state, [1, 2, 3]);
            assert!(unframe(framed.clone(), 4).is_none(), "longer than the text");
            for cut in 0..head {
                assert!(unframe(framed[..cut].to_vec(), 9).is_none());
            }
        }
        for wrong in [&[(0, 2), (1, 3)][..], &[(1, 2)], &[(2, 1)], &[]] {
            let runs = wrong.iter().map(|&(from, to)| from..to).collect();
            assert!(Layout::new(runs).is_none_or(|layout| layout.length() == 0));
        }
    }
}
