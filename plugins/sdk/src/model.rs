//! Models: metadata, tokenization and embeddings.

use std::fmt;
use std::rc::Rc;

use crate::backend;
use crate::bindings::models;
use crate::{Error, Token};

pub use models::ModelInfo as Info;
pub use models::Pooling;
pub use models::RequestCounts;

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
        Self::open_host(Some(name)).await
    }

    /// Opens the deployment's default model.
    pub async fn open_default() -> Result<Self, Error> {
        Self::open_host(None).await
    }

    /// Opens the model that a request's field `model` names, or the default one. An unknown name is
    /// a 404 with the code `unknown-model` that lists the models.
    pub async fn open_requested(name: Option<&str>) -> Result<Self, Error> {
        name.map_or(Ok(()), Self::check_available)?;
        Self::open_host(name).await
    }

    /// Returns the 404 of [`open_requested`](Model::open_requested) unless the deployment may open
    /// the model.
    pub fn check_available(name: &str) -> Result<(), Error> {
        let names = Self::available();
        if names.iter().any(|known| known == name) {
            return Ok(());
        }
        let detail = format!("there is no model {name:?}; expected one of {names:?}");
        Err(Error::new(404, "unknown-model", detail).with_field("model"))
    }

    async fn open_host(name: Option<&str>) -> Result<Self, Error> {
        let host = backend::open_model(name.map(str::to_owned)).await?;
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

    /// Whether sequences of the model may hold images.
    pub fn accepts_images(&self) -> bool {
        self.0.host.accepts_images()
    }

    /// Whether sequences of the model may hold audio.
    pub fn accepts_audio(&self) -> bool {
        self.0.host.accepts_audio()
    }

    /// The template in the file of a reranking model, in which `{query}` and `{document}` stand for the two texts.
    pub fn rerank_template(&self) -> Option<String> {
        self.0.host.rerank_template()
    }

    /// How many requests of the model run and wait on the host, those of all deployments, and how many may run at a time.
    pub fn request_counts(&self) -> Result<RequestCounts, Error> {
        Ok(self.0.host.request_counts()?)
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

    /// Inserts the beginning-of-sequence token if the model expects one and the tokens do not begin
    /// with it.
    pub fn add_begin_token(&self, tokens: &mut Vec<Token>) {
        if let Some(begin) = self.info().bos
            && tokens.first() != Some(&begin)
        {
            tokens.insert(0, begin);
        }
    }

    /// Checks that a prompt has at least one token and leaves `room` tokens in the context. The
    /// errors are 400 with the codes `empty-prompt` and `prompt-too-long`.
    pub fn check_prompt(&self, prompt: &[Token], room: u32) -> Result<(), Error> {
        let context = self.info().context;
        let most = context.saturating_sub(room);
        let why = match room {
            0 => "",
            _ => " to leave room for an answer",
        };
        match prompt.len() {
            0 => Err(Error::bad_request(
                "empty-prompt",
                "the prompt has no tokens",
            )),
            length if length > most as usize => Err(Error::bad_request(
                "prompt-too-long",
                format!(
                    "the prompt has {length} tokens; the model {} has a context of {context} tokens; \
                     expected at most {most}{why}",
                    self.name(),
                ),
            )),
            _ => Ok(()),
        }
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

    /// Computes an embedding for each token list. For `pooling` and `normalize` see `embed` in
    /// the WIT.
    pub async fn embed_tokens(
        &self,
        inputs: Vec<Vec<Token>>,
        pooling: Option<Pooling>,
        normalize: Option<bool>,
    ) -> Result<Vec<Vec<f32>>, Error> {
        Ok(backend::embed(&self.0.host, inputs, pooling, normalize).await?)
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
