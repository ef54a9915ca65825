//! Arguments for events of the prefix caches.

use crate::Error;
use clap::Args;
use corral_server::{KvEvents, ZmqAddress};
use std::sync::Arc;

#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Network")]
pub struct KvEventArgs {
    /// Publish which prefixes are cached: tcp://HOST:PORT; its readers see the tokens of all prompts and answers
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) kv_events: Option<ZmqAddress>,
    /// Repeat such events to those that missed them, at another tcp://HOST:PORT
    #[arg(long, value_name = "ADDRESS", requires = "kv_events")]
    pub(crate) kv_events_replay: Option<ZmqAddress>,
}

impl KvEventArgs {
    /// The addresses, with their options' names.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (&'static str, &ZmqAddress)> {
        let events = self.kv_events.iter().map(|it| ("kv-events", it));
        let replay = self.kv_events_replay.iter();
        events.chain(replay.map(|it| ("kv-events-replay", it)))
    }

    /// Binds the sockets, if there are to be events. Reports warnings to `warn`.
    pub(crate) async fn bind(&self, warn: impl Fn(String)) -> Result<Option<Arc<KvEvents>>, Error> {
        let Some(address) = &self.kv_events else {
            return Ok(None);
        };
        let events = KvEvents::bind(address, self.kv_events_replay.as_ref()).await?;
        for ((option, _), address) in self.addresses().zip(events.addresses()) {
            if !address.ip().is_loopback() {
                warn(format!(
                    "--{option} shows the tokens of all prompts and answers to whoever reaches tcp://{address}; let only routers reach it"
                ));
            }
        }
        Ok(Some(Arc::new(events)))
    }
}
