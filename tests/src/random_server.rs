//! Servers whose model has random weights and the demo model's tokens.

use crate::{Corral, artifacts, scratch_dir};
use corral_random_model::{Architecture, Qwen3, write_model};

/// A model that computes long prompts in seconds: its one layer has one head.
pub fn long_context(tokens: u32) -> Architecture {
    Architecture::Qwen3(Qwen3 {
        layers: 1,
        heads: 1,
        kv_heads: 1,
        context: tokens,
        ..Qwen3::tiny()
    })
}

impl Corral {
    /// Starts a server with one model of random weights, and with the plugin `openai` at `route`.
    pub fn start_random(
        name: &str,
        architecture: &Architecture,
        route: &str,
        more: &[&str],
    ) -> Self {
        let file = scratch_dir().join("random.gguf");
        write_model(architecture, &artifacts::model(), &file, 1).expect("written");
        let model = format!("{name}={}", file.display());
        let plugin = format!("{route}={}", artifacts::plugin("openai").display());
        let cache = artifacts::scratch().join("compiled");
        let arguments = [
            "--model",
            &model,
            "--plugin",
            &plugin,
            "--cache-dir",
            cache.to_str().expect("UTF-8"),
            "--listen=127.0.0.1:0",
            "--admin=127.0.0.1:0",
        ];
        Self::start_exactly(&[&arguments[..], more].concat())
    }
}
