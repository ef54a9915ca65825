//! Stages 4 to 6: the plugin `measure`, called in this process.

use super::super::boundary;
use super::clients::Client;
use super::prompts::Prompt;
use crate::complaint::Complaint;
use corral_engine::Engine;
use corral_runtime::Plugin;
use std::sync::Arc;
use tokio::runtime::Handle;

/// A caller of the plugin. What it waits for runs on the threads that run plugins.
#[derive(Clone)]
pub(super) struct Calls {
    pub(super) engine: Engine,
    pub(super) plugin: Plugin,
    pub(super) workers: Handle,
    /// As the plugin knows its ways.
    pub(super) way: &'static str,
    pub(super) prompts: Arc<[Prompt]>,
    pub(super) tokens: u64,
}

impl Client for Calls {
    async fn ask(&mut self, number: usize) -> Result<u64, Complaint> {
        let prompt = self.prompts.get(number).map(|prompt| prompt.text.clone());
        let (plugin, way, tokens) = (self.plugin.clone(), self.way, self.tokens);
        let asked = self.workers.spawn(async move {
            // The plugin says how many tokens it got, and `ask` compares.
            boundary::ask(&plugin, way, tokens, prompt.unwrap_or_default()).await
        });
        asked
            .await
            .map_err(Complaint::telling("a request crashed"))??;
        self.engine.clear_cache()?;
        Ok(tokens)
    }
}
