//! Sequences: lists of tokens, and the model's memory of them.

use std::rc::Rc;

use crate::backend;
use crate::{Distribution, Error, Generate, Generation, Look, Model, Token};

/// A list of tokens and the model's memory of them. Nothing is computed until it is needed, and each
/// token is computed once.
///
/// One thing at a time: while a generation runs on a sequence, or a [`next`](Sequence::next) or
/// [`snapshot`](Sequence::snapshot) has not returned, all but reading its tokens is [`Error::Invalid`].
pub struct Sequence {
    model: Model,
    /// Shared with what generates for it, which lives on when the sequence is dropped.
    host: Rc<backend::Sequence>,
}

impl Sequence {
    pub(crate) fn empty(model: &Model) -> Result<Self, Error> {
        let host = backend::Sequence::create(model.host())?;
        Ok(Self::of(model, host))
    }

    fn of(model: &Model, host: backend::Sequence) -> Self {
        Sequence {
            model: model.clone(),
            host: Rc::new(host),
        }
    }

    /// The model that it is of.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Adds text from anybody: control tokens that are written in it are plain characters.
    pub fn append(&self, text: &str) -> Result<(), Error> {
        self.append_tokens(&self.model.tokenize(text)?)
    }

    /// Adds text of the plugin's own, in which control tokens are read as such: see
    /// [`Model::tokenize_trusted`].
    pub fn append_trusted(&self, text: &str) -> Result<(), Error> {
        self.append_tokens(&self.model.tokenize_trusted(text)?)
    }

    /// Adds tokens.
    pub fn append_tokens(&self, tokens: &[Token]) -> Result<(), Error> {
        Ok(self.host.append(tokens)?)
    }

    /// Forgets everything from position `length` on. [`Error::Invalid`] if the model can't
    /// (`info().can_fork`).
    pub fn truncate(&self, length: u32) -> Result<(), Error> {
        Ok(self.host.truncate(length)?)
    }

    /// Another sequence with the same tokens, of which nothing is computed again. [`Error::Invalid`] if
    /// the model can't (`info().can_fork`).
    pub fn fork(&self) -> Result<Self, Error> {
        Ok(Self::of(&self.model, self.host.fork()?))
    }

    /// Computes with this adapter from now on, one of `info().adapters`, or with the model alone.
    pub fn adapt(&self, adapter: Option<&str>) -> Result<(), Error> {
        Ok(self.host.adapt(adapter)?)
    }

    /// Number of tokens, those generated so far included.
    pub fn len(&self) -> u32 {
        self.host.length()
    }

    /// Whether it has no token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tokens from a position on.
    pub fn tokens(&self, start: u32) -> Vec<Token> {
        self.host.tokens(start)
    }

    /// Their text, without control tokens.
    pub fn text(&self, start: u32) -> Result<String, Error> {
        self.model.detokenize(&self.tokens(start))
    }

    /// The host computes what was appended and generates, token by token. The sequence must not be
    /// empty; it may be dropped, and the generation goes on.
    pub fn generate(&self, how: &Generate) -> Result<Generation, Error> {
        let (chunks, ending) = self.host.generate(how.host()?)?;
        Ok(Generation::new(chunks, ending, Rc::clone(&self.host)))
    }

    /// Computes what was appended, and tells what may come next: for a plugin that runs the loop itself.
    ///
    /// ```
    /// use corral_sdk::{Look, Model, testing::Script};
    ///
    /// let script = Script::new().answers("1+1=", "2");
    /// let text = script.run(async {
    ///     let model = Model::first().await?;
    ///     let sequence = model.sequence()?;
    ///     sequence.append("1+1=")?;
    ///     let from = sequence.len();
    ///     loop {
    ///         let told = sequence.next(Look::top(1)).await?;
    ///         match told.likeliest() {
    ///             Some(token) if !model.ends(token) => sequence.append_tokens(&[token])?,
    ///             _ => break,
    ///         }
    ///     }
    ///     sequence.text(from)
    /// });
    /// assert_eq!(text.unwrap(), "2");
    /// ```
    pub async fn next(&self, look: Look<'_>) -> Result<Distribution, Error> {
        Ok(self.host.next(look.into_host()).await?)
    }

    /// Keeps the sequence under a name of this deployment's, in place of what had the name before, for
    /// later requests. The name has 1 to 128 of A-Z, a-z, 0-9, `.`, `_` and `-`, and does not begin with
    /// `.`. [`Error::NotGranted`] where the operator keeps no snapshots.
    pub async fn snapshot(&self, name: &str) -> Result<(), Error> {
        Ok(self.host.snapshot(name.to_owned()).await?)
    }

    /// The sequence that was kept under a name; [`Error::NotFound`] if there is none.
    pub async fn restore(model: &Model, name: &str) -> Result<Self, Error> {
        let host = backend::Sequence::restore(model.host(), name.to_owned()).await?;
        Ok(Self::of(model, host))
    }
}

/// [`Sequence::next`] of several sequences, at most 256, answered in their order: one step computes all
/// of them where there is room. What is wrong with one does not hinder the others.
///
/// ```
/// use corral_sdk::{Look, Model, next_many, testing::Script};
///
/// let script = Script::new().answers("1+1=", "2").answers("2+2=", "4");
/// script.run(async {
///     let model = Model::first().await?;
///     let (one, two) = (model.sequence()?, model.sequence()?);
///     one.append("1+1=")?;
///     two.append("2+2=")?;
///     let told = next_many([(&one, Look::top(1)), (&two, Look::top(1))]).await;
///     let told = told.into_iter().map(|told| told.map(|told| told.likeliest().unwrap()));
///     let tokens = told.collect::<Result<Vec<_>, _>>()?;
///     assert_eq!(model.detokenize(&tokens)?, "24");
///     Ok::<_, corral_sdk::Error>(())
/// })
/// .unwrap();
/// ```
pub async fn next_many<'a>(
    asks: impl IntoIterator<Item = (&'a Sequence, Look<'a>)>,
) -> Vec<Result<Distribution, Error>> {
    let asks = asks.into_iter();
    let asks = asks.map(|(sequence, look)| (&*sequence.host, look.into_host()));
    let told = backend::next_many(asks.collect()).await;
    told.into_iter()
        .map(|told| told.map_err(Error::from))
        .collect()
}
