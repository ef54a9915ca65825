//! A model: what it is, the way between text and tokens, embeddings.

use std::fmt;
use std::rc::Rc;

use crate::backend;
use crate::raw::models;
use crate::{Error, Sequence, Token};

pub use models::ModelInfo as Info;
pub use models::Pooling;

/// An opened model. A clone is the same one.
///
/// ```
/// use corral_sdk::{Model, testing::Script};
///
/// let script = Script::new().answers("1+1=", "2");
/// script.run(async {
///     let model = Model::first().await?;
///     let sequence = model.sequence()?;
///     sequence.append("1+1=")?;
///     assert_eq!(sequence.generate(&corral_sdk::Generate::new(8))?.text().await?, "2");
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

    /// Opens a model by name. Waits until it is loaded, at most until the request's deadline.
    pub async fn open(name: &str) -> Result<Self, Error> {
        Self::open_or_first(Some(name)).await
    }

    /// Opens the deployment's default model.
    pub async fn first() -> Result<Self, Error> {
        Self::open_or_first(None).await
    }

    /// Opens a model by name, if there is one, or else the default: what a request's field `model`
    /// asks for.
    pub async fn open_or_first(name: Option<&str>) -> Result<Self, Error> {
        let host = backend::Model::open(name.map(str::to_owned)).await?;
        let info = host.info();
        Ok(Model(Rc::new(Opened { host, info })))
    }

    /// What the model is.
    pub fn info(&self) -> &Info {
        &self.0.info
    }

    /// The name under which the operator serves it.
    pub fn name(&self) -> &str {
        &self.0.info.name
    }

    /// Whether this token ends a generation.
    pub fn ends(&self, token: Token) -> bool {
        self.0.info.end_of_generation.contains(&token)
    }

    /// Turns text from anybody into tokens: control tokens such as `<|im_start|>` that are written in it
    /// are plain characters.
    pub fn tokenize(&self, text: &str) -> Result<Vec<Token>, Error> {
        Ok(self.0.host.tokenize(text, false)?)
    }

    /// Turns text of the plugin's own into tokens: control tokens that are written in it are read as
    /// such. Never give it text from somebody else, who could end a turn and begin another by it.
    pub fn tokenize_trusted(&self, text: &str) -> Result<Vec<Token>, Error> {
        Ok(self.0.host.tokenize(text, true)?)
    }

    /// Turns tokens into text; control tokens give nothing. U+FFFD stands for what is only a part of a
    /// character.
    pub fn detokenize(&self, tokens: &[Token]) -> Result<String, Error> {
        Ok(lossy(self.0.host.detokenize(tokens, false)?))
    }

    /// The same with control tokens written out.
    pub fn detokenize_with_control(&self, tokens: &[Token]) -> Result<String, Error> {
        Ok(lossy(self.0.host.detokenize(tokens, true)?))
    }

    /// The bytes of tokens, of which one may hold a part of a character; control tokens give nothing.
    pub fn bytes(&self, tokens: &[Token]) -> Result<Vec<u8>, Error> {
        Ok(self.0.host.detokenize(tokens, false)?)
    }

    /// Computes an embedding for each text, pooled as the model's file says and of length 1.
    pub async fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, Error> {
        let inputs = texts.iter().map(|text| self.tokenize(text));
        self.embed_tokens(inputs.collect::<Result<_, _>>()?, None, None)
            .await
    }

    /// Computes an embedding for each list of tokens; the WIT's `model.embed` says what `pooling` and
    /// `normalize` are.
    pub async fn embed_tokens(
        &self,
        inputs: Vec<Vec<Token>>,
        pooling: Option<Pooling>,
        normalize: Option<bool>,
    ) -> Result<Vec<Vec<f32>>, Error> {
        Ok(self.0.host.embed(inputs, pooling, normalize).await?)
    }

    /// A sequence for a text: it has the token that begins one, where the model wants that, and nothing
    /// else.
    pub fn sequence(&self) -> Result<Sequence, Error> {
        let sequence = self.empty_sequence()?;
        sequence.append_tokens(self.0.info.begin.as_slice())?;
        Ok(sequence)
    }

    /// A sequence without any token.
    pub fn empty_sequence(&self) -> Result<Sequence, Error> {
        Sequence::empty(self)
    }

    /// The sequence that was kept under a name; see [`Sequence::snapshot`].
    pub async fn restore(&self, name: &str) -> Result<Sequence, Error> {
        Sequence::restore(self, name).await
    }

    /// Removes what was kept under a name.
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
