//! Models: metadata, tokenization and embeddings.

use crate::error::Error;
use crate::grammar::Constraint;
use crate::handle::OwnedHandle;
use crate::sequence::Sequence;
use crate::session::Shared;
use session_protocol::{
    Bytes, Call, Error as CallError, Floats, Grammar, Kind, ModelInfo, Pooling, RequestCounts,
    Token,
};
use std::sync::Arc;

/// An opened model. Clones are the same.
#[derive(Clone)]
pub struct Model(pub(crate) Arc<Opened>);

pub(crate) struct Opened {
    pub(crate) handle: OwnedHandle,
    pub(crate) info: ModelInfo,
}

impl Model {
    pub(crate) async fn open(session: &Arc<Shared>, name: Option<&str>) -> Result<Self, Error> {
        let handle = OwnedHandle::new(session, Kind::Model);
        let info = session.call(Call::OpenModel {
            model: handle.number,
            name: name.map(str::to_owned),
        });
        let info = info.await?;
        Ok(Model(Arc::new(Opened { handle, info })))
    }

    /// The model's metadata.
    pub fn info(&self) -> &ModelInfo {
        &self.0.info
    }

    /// How many requests of the model run and wait on the host, those of all deployments, and how many may run at a time.
    pub async fn request_counts(&self) -> Result<RequestCounts, Error> {
        let model = self.0.handle.number;
        let call = Call::RequestCounts { model };
        self.0.handle.session.call(call).await
    }

    /// Converts text to tokens. Control tokens in it are plain characters.
    pub async fn tokenize(&self, text: &str) -> Result<Vec<Token>, Error> {
        self.tokens(text, false).await
    }

    /// Converts text of the program to tokens. Control tokens in it, such as `<|im_start|>`, are read as such.
    pub async fn tokenize_trusted(&self, text: &str) -> Result<Vec<Token>, Error> {
        self.tokens(text, true).await
    }

    async fn tokens(&self, text: &str, special: bool) -> Result<Vec<Token>, Error> {
        let call = Call::Tokenize {
            model: self.0.handle.number,
            text: text.to_owned(),
            special,
        };
        self.0.handle.session.call(call).await
    }

    /// Converts tokens to text, without control tokens. Incomplete characters become U+FFFD.
    pub async fn detokenize(&self, tokens: &[Token]) -> Result<String, Error> {
        let call = Call::Detokenize {
            model: self.0.handle.number,
            tokens: tokens.to_vec(),
            special: false,
        };
        let Bytes(bytes) = self.0.handle.session.call(call).await?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Creates a sequence of a prompt, which begins with the token that the model expects there.
    pub async fn sequence(&self, prompt: &str) -> Result<Sequence, Error> {
        let mut tokens: Vec<Token> = self.info().bos.into_iter().collect();
        tokens.extend(self.tokenize(prompt).await?);
        let sequence = self.empty_sequence().await?;
        sequence.append_tokens(&tokens).await?;
        Ok(sequence)
    }

    /// Creates a sequence without tokens.
    pub async fn empty_sequence(&self) -> Result<Sequence, Error> {
        Sequence::create(self).await
    }

    /// Loads the sequence that [`Sequence::save`] saved under this name.
    pub async fn restore(&self, name: &str) -> Result<Sequence, Error> {
        Sequence::restore(self, name).await
    }

    /// Deletes a snapshot.
    pub async fn delete_snapshot(&self, name: &str) -> Result<(), Error> {
        let call = Call::DeleteSnapshot {
            model: self.0.handle.number,
            name: name.to_owned(),
        };
        self.0.handle.session.call(call).await
    }

    /// Computes one vector of length 1 for each text.
    pub async fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, Error> {
        let mut inputs = Vec::new();
        for text in texts {
            let mut tokens: Vec<Token> = self.info().bos.into_iter().collect();
            tokens.extend(self.tokenize(text).await?);
            inputs.push(tokens);
        }
        self.embed_tokens(inputs, None, None).await
    }

    /// Computes one vector for each list of tokens.
    pub async fn embed_tokens(
        &self,
        inputs: Vec<Vec<Token>>,
        pooling: Option<Pooling>,
        normalize: Option<bool>,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let call = Call::Embed {
            model: self.0.handle.number,
            inputs,
            pooling,
            normalize,
        };
        let vectors: Vec<Floats> = self.0.handle.session.call(call).await?;
        Ok(vectors.into_iter().map(|Floats(vector)| vector).collect())
    }

    /// Compiles a grammar.
    pub async fn compile(&self, grammar: Grammar) -> Result<Constraint, Error> {
        Constraint::compile(self, grammar).await
    }

    pub(crate) fn check_tokens(&self, held: usize, tokens: &[Token]) -> Result<(), Error> {
        let ModelInfo {
            vocabulary,
            context,
            ..
        } = self.0.info;
        if let Some(token) = tokens.iter().find(|&&token| token >= vocabulary) {
            return Err(Error::invalid(format!(
                "token {token} is not in the vocabulary, which has {vocabulary} tokens"
            )));
        }
        let needed = held + tokens.len();
        if needed > context as usize {
            return Err(Error::Call(CallError::ContextFull {
                needed: u32::try_from(needed).unwrap_or(u32::MAX),
                limit: context,
            }));
        }
        Ok(())
    }

    pub(crate) fn check_can_fork(&self) -> Result<(), Error> {
        match self.0.info.can_fork {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "the state of the model {} can be neither forked nor truncated; compute the tokens again in a new sequence",
                self.0.info.name
            ))),
        }
    }
}
