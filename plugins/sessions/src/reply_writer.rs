//! The response's body: one line for each reply.

use std::rc::Rc;

use corral_sdk::bindings::wasip3::wit_bindgen::StreamWriter;
use futures_util::lock::Mutex;
use serde::Serialize;
use session_protocol::{Chunk, Content, Error, Reply};

/// Writes lines, one at a time. A client that does not read delays them: the host then merges the chunks of a
/// generation.
#[derive(Clone)]
pub(crate) struct ReplyWriter(Rc<Mutex<StreamWriter<u8>>>);

/// The client is gone.
pub(crate) struct Closed;

impl ReplyWriter {
    pub(crate) fn new(writer: StreamWriter<u8>) -> Self {
        ReplyWriter(Rc::new(Mutex::new(writer)))
    }

    /// Writes a value as a line.
    pub(crate) async fn write(&self, value: &impl Serialize) -> Result<(), Closed> {
        // Only maps with keys other than strings have no JSON form; the protocol has none.
        let mut line = serde_json::to_vec(value).unwrap_or_default();
        line.push(b'\n');
        match self.0.lock().await.write_all(line).await.is_empty() {
            true => Ok(()),
            false => Err(Closed),
        }
    }

    /// Writes the last reply to a command.
    pub(crate) async fn reply(
        &self,
        id: u64,
        result: Result<impl Serialize, Error>,
    ) -> Result<(), Closed> {
        match result {
            Ok(value) => {
                let content = Content::Ok(value);
                self.write(&Reply { id, content }).await
            }
            Err(error) => {
                let content = Content::<()>::Error(error);
                self.write(&Reply { id, content }).await
            }
        }
    }

    /// Writes a part of a generation.
    pub(crate) async fn chunk(&self, id: u64, chunk: Chunk) -> Result<(), Closed> {
        let content = Content::<()>::Chunk(chunk);
        self.write(&Reply { id, content }).await
    }
}
