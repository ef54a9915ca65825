//! Models: metadata, tokenization and embeddings.

use std::fmt;
use std::rc::Rc;

use crate::backend;
use crate::bindings::models;
use crate::{Error, Sequence, Token};

pub use models::ModelInfo as Info;
pub use models::Pooling;

/// An opened model. Clones share it.
///
/// ```
/// use corral_sdk::{Model, testing::Script};
///
/// let script = Script::new().answers("1+1=", "2");
/// script.run(async {
///     let model = Model::open_default().await?;
///     let sequence = model.sequence()?;
///     sequence.append("1+1=")?;
///     assert_eq!(sequence.generate(&corral_sdk::GenerateOptions::new(8))?.text().await?, "2");
///     Ok::<_, corral_sdk::Error>(())
/// })
/// .unwrap();
/// ```
#[derive(Clone)]
pub struct Model(Rc<Opened>);

struct Opened {
    host: backend::Model,
    info: Info,
}

impl Model {
    /// Names of the models that this deployment may open. The first is the default.
    pub fn available() -> Vec<String> {
        backend::available()
    }

    /// Opens a model by name. Waits until it is loaded, or until the request's deadline.
    pub async fn open(name: &str) -> Result<Self, Error> {
        Self::open_or_default(Some(name)).await
    }

    /// Opens the deployment's default model.
    pub async fn open_default() -> Result<Self, Error> {
        Self::open_or_default(None).await
    }

    /// Opens a model by name, or the default one without a name, as for a request's field `model`.
    pub async fn open_or_default(name: Option<&str>) -> Result<Self, Error> {
        let host = backend::Model::open(name.map(str::to_owned)).await?;
        let info = host.info();
        Ok(Model(Rc::new(Opened { host, info })))
    }

    /// The model's metadata.
    pub fn info(&self) -> &Info {
        &self.0.info
    }

    /// The name under which the operator serves the model.
    pub fn name(&self) -> &str {
        &self.0.info.name
    }

    /// Whether this token ends a generation.
    pub fn is_end_of_generation(&self, token: Token) -> bool {
        self.0.info.end_of_generation.contains(&token)
    }

    /// Converts untrusted text to tokens: control tokens in it, such as `<|im_start|>`, are plain
    /// characters.
    pub fn tokenize(&self, text: &str) -> Result<Vec<Token>, Error> {
        Ok(self.0.host.tokenize(text, false)?)
    }

    /// Converts the plugin's own text to tokens: control tokens in it are read as such. Never use
    /// it for text from others: they could end a turn and start another.
    pub fn tokenize_trusted(&self, text: &str) -> Result<Vec<Token>, Error> {
        Ok(self.0.host.tokenize(text, true)?)
    }

    /// Converts tokens to text, without control tokens. An incomplete character becomes U+FFFD.
    pub fn detokenize(&self, tokens: &[Token]) -> Result<String, Error> {
        Ok(lossy(self.0.host.detokenize(tokens, false)?))
    }

    /// Converts tokens to text, with control tokens written out.
    pub fn detokenize_with_control(&self, tokens: &[Token]) -> Result<String, Error> {
        Ok(lossy(self.0.host.detokenize(tokens, true)?))
    }

    /// Converts tokens to bytes, without control tokens. One token may hold part of a character.
    pub fn detokenize_bytes(&self, tokens: &[Token]) -> Result<Vec<u8>, Error> {
        Ok(self.0.host.detokenize(tokens, false)?)
    }

    /// Computes an embedding for each text, pooled as the model file says.
    pub async fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, Error> {
        let inputs = texts.iter().map(|text| self.tokenize(text));
        self.embed_tokens(inputs.collect::<Result<_, _>>()?, None, None)
            .await
    }

    /// Computes an embedding for each token list. For `pooling` and `normalize` see `model.embed`
    /// in the WIT.
    pub async fn embed_tokens(
        &self,
        inputs: Vec<Vec<Token>>,
        pooling: Option<Pooling>,
        normalize: Option<bool>,
    ) -> Result<Vec<Vec<f32>>, Error> {
        Ok(self.0.host.embed(inputs, pooling, normalize).await?)
    }

    /// Creates a sequence that holds only the model's beginning-of-sequence token, if it expects
    /// one.
    pub fn sequence(&self) -> Result<Sequence, Error> {
        let sequence = self.empty_sequence()?;
        sequence.append_tokens(self.0.info.begin.as_slice())?;
        Ok(sequence)
    }

    /// Creates a sequence without tokens.
    pub fn empty_sequence(&self) -> Result<Sequence, Error> {
        Sequence::empty(self)
    }

    /// Loads a snapshot; see [`Sequence::snapshot`].
    pub async fn restore(&self, name: &str) -> Result<Sequence, Error> {
        Sequence::restore(self, name).await
    }

    /// Deletes a snapshot.
    pub async fn forget(&self, name: &str) -> Result<(), Error> {
        Ok(backend::Sequence::forget(&self.0.host, name.to_owned()).await?)
    }

    pub(crate) fn host(&self) -> &backend::Model {
        &self.0.host
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Model").field(&self.name()).finish()
    }
}

fn lossy(bytes: Vec<u8>) -> String {
    match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    }
}
