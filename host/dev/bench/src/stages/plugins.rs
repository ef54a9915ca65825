//! Stages 4 to 6: calls of the plugin `measure` in this process.

use super::clients::Client;
use super::prompts::Prompt;
use crate::plugin_overhead;
use corral_cli::Error;
use corral_engine::Engine;
use corral_runtime::Plugin;
use std::sync::Arc;
use tokio::runtime::Handle;

/// A caller of the plugin, which runs on the worker threads.
#[derive(Clone)]
pub(super) struct PluginClient {
    pub(super) engine: Engine,
    pub(super) plugin: Plugin,
    pub(super) workers: Handle,
    /// The plugin's name of the loop.
    pub(super) operation: &'static str,
    pub(super) prompts: Arc<[Prompt]>,
    pub(super) tokens: u64,
}

impl Client for PluginClient {
    async fn ask(&mut self, number: usize) -> Result<u64, Error> {
        let prompt = self.prompts.get(number).map(|prompt| prompt.text.clone());
        let prompt = prompt.unwrap_or_default();
        let (plugin, operation, tokens) = (self.plugin.clone(), self.operation, self.tokens);
        let call = self
            .workers
            .spawn(async move { plugin_overhead::call(&plugin, operation, tokens, prompt).await });
        call.await.map_err(Error::context("a request crashed"))??;
        self.engine.clear_prefix_cache()?;
        Ok(tokens)
    }
}
