//! Generations: settings, choices, log probabilities and usage, shared by all APIs.

mod choices;
mod logit_bias;
mod logprobs;
pub mod settings;
mod usage;

pub use choices::{ChoiceDelta, Choices};
pub use logit_bias::LogitBias;
pub use logprobs::{LogprobEntry, TokenLogprob, characters};
pub use settings::{Settings, check_choice_count};
pub use usage::Usage;
