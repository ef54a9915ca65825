//! A sequence of tokens that a guest extends, truncates, forks and saves.
//!
//! A sequence is its tokens and a retention of the state that the engine computed for them. The state itself may be in
//! the cells, swapped out, or gone. The engine recomputes missing state, so where the state is affects only the time.
//! So the number of sequences is unlimited, and a fork copies tokens and no state: both sequences continue from the
//! same prefix.

use crate::engine::{Engine, thread_ended};
use crate::media::{Image, ImageKey, SavedImages, save_images};
use crate::reply::{Reply, reply};
use crate::snapshot::{Origin, SnapshotContent};
use crate::state_format::format_hash;
use crate::worker::{
    Command, ExportState, ExportedState, ImportState, NewRequest, Prompt, RequestWork,
};
use crate::{
    Caller, Distribution, Error, GenerateOptions, Generation, NextTokenRequest, SnapshotError,
    Token,
};
use corral_llama::{IMAGE_TOKENS, ImagePart};
use corral_scheduler::{AdapterId, PositionOrder, PrefixScope, Retention};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Instant;

/// Tokens and a retention of their state.
#[derive(Clone)]
pub struct Sequence {
    engine: Engine,
    caller: Caller,
    tokens: Vec<Token>,
    /// The images, each with the position of its first token.
    images: Vec<(usize, Arc<Image>)>,
    retention: Retention,
    /// The adapter that computed the state.
    adapter: AdapterId,
}

impl Sequence {
    /// An empty sequence.
    pub fn new(engine: Engine, caller: Caller) -> Self {
        Self {
            engine,
            caller,
            tokens: Vec::new(),
            images: Vec::new(),
            retention: Retention::default(),
            adapter: AdapterId::NONE,
        }
    }

    /// The tokens. Those of images are outside of the vocabulary.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Appends tokens. Generated tokens are not appended automatically.
    ///
    /// [`Error::Invalid`] for tokens outside of the vocabulary, [`Error::ContextFull`] if the sequence would exceed
    /// the context length.
    pub fn append(&mut self, tokens: &[Token]) -> Result<(), Error> {
        self.engine.check_tokens(tokens)?;
        self.extend(tokens)
    }

    /// Appends an image that the sequence's engine encoded. Returns the number of its positions. Append a token before
    /// generating.
    ///
    /// [`Error::ContextFull`] if the sequence would exceed the context length.
    pub fn append_image(&mut self, image: Arc<Image>) -> Result<usize, Error> {
        let start = self.tokens.len();
        let tokens = image.tokens();
        self.extend(&tokens)?;
        self.images.push((start, image));
        Ok(tokens.len())
    }

    fn extend(&mut self, tokens: &[Token]) -> Result<(), Error> {
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

    /// Keeps the first `length` tokens; no effect on a shorter sequence.
    ///
    /// [`Error::Unsupported`] for a model with recurrent or sliding-window memory.
    pub fn truncate(&mut self, length: usize) -> Result<(), Error> {
        let info = self.engine.info();
        if length < self.tokens.len() && !info.can_truncate {
            return Err(Error::Unsupported(format!(
                "sequences of the model {} cannot be truncated, because its memory is recurrent or a \
                 sliding window; start a new sequence",
                info.name
            )));
        }
        self.tokens.truncate(length);
        self.images.retain(|(start, _)| *start < length);
        Ok(())
    }

    /// The number of its images.
    pub fn image_count(&self) -> usize {
        self.images.len()
    }

    /// A second sequence with the same tokens. Copies no state; both continue from it.
    #[must_use]
    pub fn fork(&self) -> Self {
        self.clone()
    }

    /// Generates after the tokens; see [`Engine::generate`]. Reuses the state unless another adapter computed it.
    pub fn generate(&mut self, options: GenerateOptions) -> Result<Generation, Error> {
        let retention = Retention::default();
        let adapter = self.engine.find_adapter(options.adapter.as_deref())?;
        // The request holds the previous retention, so that the state survives the queue.
        let generation = self.engine.generate_retained(
            self.prompt(),
            options,
            self.caller,
            retention.downgrade(),
            Some(self.retention.clone()),
        )?;
        (self.retention, self.adapter) = (retention, adapter);
        Ok(generation)
    }

    /// Returns the distribution of the next token. The caller samples a token and [appends](Sequence::append) it. Each
    /// appended token is computed once. A second request at the same length recomputes the last token, or the whole
    /// sequence on a model with recurrent or sliding-window memory.
    ///
    /// [`Error::Invalid`] for an empty sequence and for a request that asks for too much; otherwise as
    /// [`Engine::generate`].
    pub fn next(&mut self, request: NextTokenRequest) -> Result<Reply<Distribution>, Error> {
        let (request, reply) = self.next_token_request(request)?;
        self.engine.send(Command::Add(Box::new(request)))?;
        Ok(reply)
    }

    /// [`Sequence::next`] for several sequences, in order. Requests to one model share a step where they fit.
    pub fn next_many<'a>(
        requests: impl IntoIterator<Item = (&'a mut Self, NextTokenRequest)>,
    ) -> Vec<Result<Reply<Distribution>, Error>> {
        let mut batches: Vec<(Engine, Vec<NewRequest>)> = Vec::new();
        let replies = requests.into_iter().map(|(sequence, request)| {
            let (request, reply) = sequence.next_token_request(request)?;
            let same = |(engine, _): &&mut (Engine, _)| engine.is_same_engine(&sequence.engine);
            match batches.iter_mut().find(same) {
                Some((_, batch)) => batch.push(request),
                None => batches.push((sequence.engine.clone(), vec![request])),
            }
            Ok(reply)
        });
        let replies = replies.collect();
        for (engine, batch) in batches {
            // A failure drops the senders, and the replies report it.
            let _ = engine.send(Command::AddAll(batch));
        }
        replies
    }

    fn next_token_request(
        &mut self,
        request: NextTokenRequest,
    ) -> Result<(NewRequest, Reply<Distribution>), Error> {
        self.engine.check_generates()?;
        request.check(self.engine.info().vocabulary)?;
        let prompt = self.prompt();
        prompt.check()?;
        let adapter = self.engine.find_adapter(request.adapter.as_deref())?;
        let permit = self.engine.permit(self.caller.tenant)?;
        let (sender, reply) = reply();
        let continued = std::mem::take(&mut self.retention);
        self.adapter = adapter;
        let request = NewRequest {
            prompt,
            caller: self.caller,
            adapter,
            retention: self.retention.downgrade(),
            continued: Some(continued),
            arrived: Instant::now(),
            permit,
            work: RequestWork::NextToken { request, sender },
        };
        Ok((request, reply))
    }

    fn prompt(&self) -> Prompt {
        let images = self.images.iter();
        Prompt {
            tokens: self.tokens.clone(),
            images: images.map(|(_, image)| Arc::clone(image)).collect(),
        }
    }

    /// Writes the tokens, and the state as far as it exists, to a named snapshot of `owner` that survives the process.
    /// Blocks; do not call it in an async task.
    ///
    /// [`Error::Invalid`] for a name that is not allowed, [`Error::SnapshotsFull`] if the snapshot is too large or
    /// `owner` has reached its limit.
    pub fn snapshot(&self, owner: &str, name: &str) -> Result<(), Error> {
        let snapshots = self.engine.snapshots().ok_or_else(no_snapshots)?;
        let limit = usize::try_from(snapshots.max_snapshot_bytes()).unwrap_or(usize::MAX);
        let state = self.export_state(limit)?;
        let adapter = self.engine.adapter_digest(self.adapter)?;
        let mut bytes = Vec::new();
        if !self.images.is_empty()
            && let Some(projector) = self.engine.projector_digest()?
        {
            bytes = save_images(&self.images, projector);
        }
        if let Some(state) = state {
            bytes.extend(encode_state(state, adapter));
        }
        let contents = SnapshotContent {
            origin: self.origin()?,
            tokens: self.tokens.clone(),
            state: bytes,
        };
        snapshots
            .write(owner, name, &contents)
            .map_err(snapshot_error)
    }

    /// Reads a named snapshot of `owner`. Blocks; do not call it in an async task.
    ///
    /// [`Error::NotFound`] if there is none, [`Error::Snapshot`] if it does not fit the model, [`Error::Invalid`] if it has
    /// more than `max_images` images.
    pub fn restore(
        engine: Engine,
        caller: Caller,
        owner: &str,
        name: &str,
        max_images: usize,
    ) -> Result<Self, Error> {
        let mut sequence = Self::new(engine, caller);
        let snapshots = sequence
            .engine
            .snapshots()
            .ok_or_else(no_snapshots)?
            .clone();
        let contents = snapshots
            .read(owner, name, &sequence.origin()?)
            .map_err(snapshot_error)?;
        let state = sequence.append_saved(&contents.tokens, contents.state, max_images)?;
        // Without a valid state, or without its adapter, the state is recomputed.
        let decoded = decode_state(state, sequence.tokens.len());
        if let Some((state, digest)) = decoded
            && let Some(adapter) = sequence.adapter_of(digest)?
        {
            sequence.adapter = adapter;
            let import = Command::ImportState(Box::new(ImportState {
                scope: sequence.scope(),
                tokens: sequence.tokens[..state.length as usize].to_vec(),
                order: state.order,
                state: state.bytes,
                retention: sequence.retention.downgrade(),
            }));
            sequence.engine.send(import)?;
        }
        Ok(sequence)
    }

    /// Appends the tokens of a snapshot. Takes their images, if there are any, from the start of `bytes`, and returns the
    /// rest: the state.
    fn append_saved(
        &mut self,
        tokens: &[Token],
        mut bytes: Vec<u8>,
        max_images: usize,
    ) -> Result<Vec<u8>, Error> {
        let mut end = 0;
        if tokens.iter().any(|token| IMAGE_TOKENS.contains(token)) {
            let mut rest = bytes.as_slice();
            let saved = SavedImages::decode(&mut rest);
            let used = bytes.len() - rest.len();
            bytes.drain(..used);
            let damaged = || Error::Snapshot("the images of the snapshot are damaged".into());
            let saved = saved.ok_or_else(damaged)?;
            let count = saved.images.len();
            if count > max_images {
                return Err(Error::Invalid(format!(
                    "the snapshot has {count} images, and the request may append {max_images} more; restore fewer"
                )));
            }
            if self.engine.projector_digest()? != Some(saved.projector) {
                let other = "it holds images of another projector; load the model with that one, or make the snapshot anew";
                return Err(Error::Snapshot(other.into()));
            }
            let mut images = saved.images.into_iter().peekable();
            while let Some(image) = images.next() {
                let before = tokens.get(end..image.start).ok_or_else(damaged)?;
                let next = images.peek().map_or(tokens.len(), |next| next.start);
                let after = tokens.get(image.start..next).ok_or_else(damaged)?;
                self.append(before)?;
                for part in &image.parts {
                    if let ImagePart::Tokens(marks) = part {
                        self.engine.check_tokens(marks)?;
                    }
                }
                let key = ImageKey {
                    scope: self.caller.scope(),
                    digest: image.digest,
                };
                let added = self
                    .engine
                    .add_image(key, self.caller.tenant, image.parts)?;
                // The image may have been cut, and other tokens appended.
                let positions = added.tokens();
                let is_same = |&(new, saved): &(&Token, &Token)| {
                    new == saved || (IMAGE_TOKENS.contains(new) && IMAGE_TOKENS.contains(saved))
                };
                let kept = positions.iter().zip(after).take_while(is_same).count();
                self.append_image(added)?;
                end = image.start + kept;
                self.tokens.truncate(end);
            }
        }
        self.append(tokens.get(end..).unwrap_or_default())?;
        Ok(bytes)
    }

    /// Removes a named snapshot of `owner`. Blocks; do not call it in an async task.
    pub fn delete_snapshot(engine: &Engine, owner: &str, name: &str) -> Result<(), Error> {
        let snapshots = engine.snapshots().ok_or_else(no_snapshots)?;
        snapshots.remove(owner, name).map_err(snapshot_error)
    }

    /// A copy of the state of at most `limit` bytes, as far as it exists.
    fn export_state(&self, limit: usize) -> Result<Option<ExportedState>, Error> {
        let (reply, state) = sync_channel(1);
        self.engine
            .send(Command::ExportState(Box::new(ExportState {
                scope: self.scope(),
                tokens: self.tokens.clone(),
                limit,
                reply: Box::new(move |state| {
                    // Fails only if this function has returned.
                    let _ = reply.send(state);
                }),
            })))?;
        state.recv().map_err(|_| thread_ended())
    }

    fn scope(&self) -> PrefixScope {
        self.caller.scope().with(self.adapter)
    }

    /// The adapter with this digest; the base model for `None`.
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
            layout: format_hash(self.engine.kv()),
        })
    }
}

fn no_snapshots() -> Error {
    Error::Unsupported("this server keeps no snapshots; start it with --snapshot-dir DIR".into())
}

#[allow(clippy::needless_pass_by_value)]
fn snapshot_error(error: SnapshotError) -> Error {
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

/// Set in the number of runs if an adapter's digest follows them.
const HAS_ADAPTER: u32 = 1 << 31;

/// Prepends the order of positions to a state: the number of runs, then start and end of each, as little-endian u32;
/// then the digest of the adapter, if there is one.
fn encode_state(state: ExportedState, adapter: Option<[u8; 32]>) -> Vec<u8> {
    let runs = state.order.runs();
    let flag = adapter.map_or(0, |_| HAS_ADAPTER);
    let count = u32::try_from(runs.len()).unwrap_or(u32::MAX) | flag;
    let numbers = runs.iter().flat_map(|run| [run.start, run.end]);
    let mut encoded: Vec<u8> = [count]
        .into_iter()
        .chain(numbers)
        .flat_map(u32::to_le_bytes)
        .collect();
    encoded.extend(adapter.into_iter().flatten());
    encoded.extend(state.bytes);
    encoded
}

/// The inverse of [`encode_state`], for a sequence of `tokens` tokens.
fn decode_state(mut encoded: Vec<u8>, tokens: usize) -> Option<(ExportedState, Option<[u8; 32]>)> {
    let number = |at: usize| -> Option<u32> {
        let bytes = encoded.get(4 * at..4 * at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let first = number(0)?;
    let count = (first & !HAS_ADAPTER) as usize;
    if count > tokens {
        return None;
    }
    let runs = (0..count).map(|run| Some(number(1 + 2 * run)?..number(2 + 2 * run)?));
    let order = PositionOrder::new(runs.collect::<Option<_>>()?)?;
    let length = order.length();
    if length == 0 || length as usize > tokens {
        return None;
    }
    let head = 4 + 8 * count;
    let (head, adapter) = if first & HAS_ADAPTER == 0 {
        (head, None)
    } else {
        (head + 32, Some(*encoded.get(head..)?.first_chunk()?))
    };
    encoded.drain(..head);
    let state = ExportedState {
        length,
        order,
        bytes: encoded,
    };
    Some((state, adapter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_state_round_trips() {
        let order = PositionOrder::new(vec![3..5, 0..3]).unwrap();
        for (adapter, head) in [(None, 20), (Some([9; 32]), 52)] {
            let state = ExportedState {
                length: 5,
                order: order.clone(),
                bytes: vec![1, 2, 3],
            };
            let encoded = encode_state(state, adapter);
            let (state, digest) = decode_state(encoded.clone(), 9).unwrap();
            assert_eq!((state.length, &state.order, digest), (5, &order, adapter));
            assert_eq!(state.bytes, [1, 2, 3]);
            assert!(
                decode_state(encoded.clone(), 4).is_none(),
                "longer than the sequence"
            );
            for cut in 0..head {
                assert!(decode_state(encoded[..cut].to_vec(), 9).is_none());
            }
        }
    }

    #[test]
    fn overlapping_or_incomplete_layouts_are_rejected() {
        for wrong in [&[(0, 2), (1, 3)][..], &[(1, 2)], &[(2, 1)], &[]] {
            let runs = wrong.iter().map(|&(from, to)| from..to).collect();
            assert!(PositionOrder::new(runs).is_none_or(|order| order.length() == 0));
        }
    }
}
