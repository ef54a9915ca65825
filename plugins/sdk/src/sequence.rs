//! Sequences: lists of tokens with the model's state for them.

use crate::backend;
use crate::{Distribution, Error, GenerateOptions, Generation, Model, NextTokenRequest, Token};

/// A list of tokens with the model's state for them. The host computes tokens when a call needs
/// them, and each token once.
///
/// A sequence runs one operation at a time: while a generation, [`next`](Sequence::next) or
/// [`snapshot`](Sequence::snapshot) is in progress, every other call but reading its tokens is
/// [`Error::Invalid`].
pub struct Sequence {
    model: Model,
    host: backend::Sequence,
}

impl Model {
    /// Creates a sequence that holds only the model's beginning-of-sequence token, if it expects
    /// one.
    pub fn sequence(&self) -> Result<Sequence, Error> {
        let sequence = self.empty_sequence()?;
        sequence.append_tokens(self.info().bos.as_slice())?;
        Ok(sequence)
    }

    /// Creates a sequence without tokens.
    pub fn empty_sequence(&self) -> Result<Sequence, Error> {
        let host = backend::Sequence::create(self.host())?;
        Ok(Sequence::new(self, host))
    }

    /// Loads a snapshot ([`Sequence::snapshot`]); [`Error::NotFound`] if there is none of this name.
    pub async fn restore(&self, name: &str) -> Result<Sequence, Error> {
        let host = backend::restore_snapshot(self.host(), name.to_owned()).await?;
        Ok(Sequence::new(self, host))
    }

    /// Deletes a snapshot.
    pub async fn delete_snapshot(&self, name: &str) -> Result<(), Error> {
        Ok(backend::delete_snapshot(self.host(), name.to_owned()).await?)
    }
}

impl Sequence {
    fn new(model: &Model, host: backend::Sequence) -> Self {
        Sequence {
            model: model.clone(),
            host,
        }
    }

    /// The sequence's model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Appends untrusted text: control tokens in it are plain characters.
    pub fn append(&self, text: &str) -> Result<(), Error> {
        self.append_tokens(&self.model.tokenize(text)?)
    }

    /// Appends the plugin's own text: control tokens in it are read as such. See
    /// [`Model::tokenize_trusted`].
    pub fn append_trusted(&self, text: &str) -> Result<(), Error> {
        self.append_tokens(&self.model.tokenize_trusted(text)?)
    }

    /// Appends tokens.
    pub fn append_tokens(&self, tokens: &[Token]) -> Result<(), Error> {
        Ok(self.host.append(tokens)?)
    }

    /// Appends an image: the bytes of a PNG, JPEG, GIF (its first frame) or WebP file; or audio: those of a
    /// WAV file. Returns the number of positions that it takes. Append text before generating. [`Error::Invalid`] if the file is damaged
    /// or too large, or the model does not accept it ([`Model::accepts_images`], [`Model::accepts_audio`]).
    pub async fn append_image(&self, file: Vec<u8>) -> Result<u32, Error> {
        Ok(backend::append_image(&self.host, file).await?)
    }

    /// Shortens the sequence to `length` tokens. [`Error::Invalid`] if `info().can_fork` is false.
    pub fn truncate(&self, length: u32) -> Result<(), Error> {
        Ok(self.host.truncate(length)?)
    }

    /// Creates a sequence with the same tokens, without recomputing them. [`Error::Invalid`] if
    /// `info().can_fork` is false.
    pub fn fork(&self) -> Result<Self, Error> {
        Ok(Self::new(&self.model, self.host.fork()?))
    }

    /// Selects the LoRA adapter for later calls, one of `info().adapters`, or none.
    pub fn set_adapter(&self, adapter: Option<&str>) -> Result<(), Error> {
        Ok(self.host.set_adapter(adapter)?)
    }

    /// The number of tokens, including those generated so far.
    pub fn len(&self) -> u32 {
        self.host.length()
    }

    /// Whether the sequence has no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tokens from position `start` on.
    pub fn tokens(&self, start: u32) -> Vec<Token> {
        self.host.tokens(start)
    }

    /// The text from position `start` on, without control tokens.
    pub fn text(&self, start: u32) -> Result<String, Error> {
        self.model.detokenize(&self.tokens(start))
    }

    /// Computes the appended tokens and generates. The sequence must not be empty. It may be
    /// dropped while the generation continues.
    pub fn generate(&self, options: &GenerateOptions) -> Result<Generation, Error> {
        let (chunks, outcome) = backend::generate(&self.host, options.host()?)?;
        Ok(Generation::new(chunks, outcome))
    }

    /// Computes the appended tokens and returns the distribution of the next token, for plugins
    /// that run their own loop.
    ///
    /// ```
    /// use corral_sdk::{NextTokenRequest, Model, testing::Script};
    ///
    /// let script = Script::new().answers("1+1=", "2");
    /// let text = script.run(async {
    ///     let model = Model::open_default().await?;
    ///     let sequence = model.sequence()?;
    ///     sequence.append("1+1=")?;
    ///     let from = sequence.len();
    ///     loop {
    ///         let next = sequence.next(NextTokenRequest::top(1)).await?;
    ///         match next.most_likely() {
    ///             Some(token) if !model.is_end_of_generation(token) => sequence.append_tokens(&[token])?,
    ///             _ => break,
    ///         }
    ///     }
    ///     sequence.text(from)
    /// });
    /// assert_eq!(text.unwrap(), "2");
    /// ```
    pub async fn next(&self, request: NextTokenRequest<'_>) -> Result<Distribution, Error> {
        Ok(backend::next(&self.host, request.into_host()).await?)
    }

    /// Saves the sequence under a name of this deployment, for later requests, and replaces an
    /// earlier snapshot of that name. A name has 1 to 128 characters of A-Z, a-z, 0-9, `.`, `_` and
    /// `-`, and does not begin with `.`. [`Error::NotGranted`] if the operator grants no snapshots.
    pub async fn snapshot(&self, name: &str) -> Result<(), Error> {
        Ok(backend::save_snapshot(&self.host, name.to_owned()).await?)
    }
}

/// Calls [`Sequence::next`] for several sequences, at most 256, and returns the results in the same
/// order. One step computes all of them if the batch has room. One error does not affect the
/// others.
///
/// ```
/// use corral_sdk::{NextTokenRequest, Model, next_many, testing::Script};
///
/// let script = Script::new().answers("1+1=", "2").answers("2+2=", "4");
/// script.run(async {
///     let model = Model::open_default().await?;
///     let (one, two) = (model.sequence()?, model.sequence()?);
///     one.append("1+1=")?;
///     two.append("2+2=")?;
///     let next = next_many([(&one, NextTokenRequest::top(1)), (&two, NextTokenRequest::top(1))]).await;
///     let tokens = next.into_iter().map(|next| next.map(|next| next.most_likely().unwrap()));
///     let tokens = tokens.collect::<Result<Vec<_>, _>>()?;
///     assert_eq!(model.detokenize(&tokens)?, "24");
///     Ok::<_, corral_sdk::Error>(())
/// })
/// .unwrap();
/// ```
pub async fn next_many<'a>(
    requests: impl IntoIterator<Item = (&'a Sequence, NextTokenRequest<'a>)>,
) -> Vec<Result<Distribution, Error>> {
    let requests = requests.into_iter();
    let requests = requests.map(|(sequence, request)| (&sequence.host, request.into_host()));
    let results = backend::next_many(requests.collect()).await;
    results
        .into_iter()
        .map(|result| result.map_err(Error::from))
        .collect()
}
