//! `sequence` of `inference`.

use corral_sdk::testing::host;

use crate::bindings::exports::corral::inference::inference::{self, GuestSequence, Sequence};
use crate::bindings::exports::corral::inference::models::ModelBorrow;
use crate::bindings::exports::corral::inference::types::{Error, Token};
use crate::models::MockModel;
use crate::options::MockOptions;
use crate::{Mock, OriginGuard, convert};

pub(crate) struct MockSequence(pub(crate) host::Sequence, OriginGuard);

impl MockSequence {
    pub(crate) fn new(sequence: host::Sequence) -> Self {
        MockSequence(sequence, OriginGuard::new())
    }
}

impl inference::Guest for Mock {
    type Options = MockOptions;
    type Sequence = MockSequence;
}

impl GuestSequence for MockSequence {
    fn create(model: ModelBorrow<'_>) -> Result<Sequence, Error> {
        let created = host::Sequence::create(&model.get::<MockModel>().0);
        let sequence = created.map_err(convert::error)?;
        Ok(Sequence::new(MockSequence::new(sequence)))
    }

    fn append(&self, tokens: Vec<Token>) -> Result<(), Error> {
        self.0.append(&tokens).map_err(convert::error)
    }

    fn truncate(&self, length: u32) -> Result<(), Error> {
        self.0.truncate(length).map_err(convert::error)
    }

    fn fork(&self) -> Result<Sequence, Error> {
        let fork = self.0.fork().map_err(convert::error)?;
        Ok(Sequence::new(MockSequence::new(fork)))
    }

    fn set_adapter(&self, adapter: Option<String>) -> Result<(), Error> {
        let adapter = adapter.as_deref();
        self.0.set_adapter(adapter).map_err(convert::error)
    }

    fn length(&self) -> u32 {
        self.0.length()
    }

    fn tokens(&self, start: u32) -> Vec<Token> {
        self.0.tokens(start)
    }
}
