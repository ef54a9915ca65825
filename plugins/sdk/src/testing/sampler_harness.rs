//! Runs a sampling plugin alone.

use crate::linked::{Sampler, SamplerContext, SamplerInput, SamplerNeeds};
use crate::sampling::Candidates;
use crate::testing::script_state::ScriptState;
use crate::{Candidate, Token};

/// Runs a sampler as the host does for one generation: passes the input that it needs and checks
/// the token that it chooses.
///
/// See [`Sampler`] for an example.
pub struct SamplerHarness<S> {
    sampler: S,
    needs: SamplerNeeds,
    new_tokens: Vec<Token>,
    position: u32,
}

impl<S: Sampler> SamplerHarness<S> {
    /// Starts a generation with a vocabulary of 100,000 tokens.
    pub fn start(settings: &str, seed: u64) -> Result<Self, String> {
        let sampler = S::start(SamplerContext {
            settings: settings.to_owned(),
            seed,
            vocabulary: 100_000,
        })?;
        Ok(SamplerHarness {
            needs: sampler.needs(),
            sampler,
            new_tokens: Vec::new(),
            position: 1,
        })
    }

    /// The input that the sampler needs.
    pub fn needs(&self) -> SamplerNeeds {
        self.needs
    }

    /// Appends tokens that the sampler did not choose, such as the prompt.
    pub fn append(&mut self, tokens: &[Token]) {
        self.position += tokens.len() as u32;
        self.new_tokens.extend(tokens);
    }

    /// Samples from these tokens, in any order, as the whole distribution. The error is the
    /// sampler's, or says that the host would reject the token.
    pub fn sample(&mut self, tokens: &[(Token, f32)]) -> Result<Token, String> {
        let candidates = tokens.iter();
        let candidates = candidates.map(|&(token, logit)| Candidate { token, logit });
        let candidates = Candidates::from(candidates.collect::<Vec<_>>());
        let row = candidates.as_slice().iter().map(|one| one.logit);
        let statistics = self
            .needs
            .statistics
            .then(|| ScriptState::statistics(&row.collect::<Vec<_>>()));
        let candidates = candidates
            .top_k(self.needs.candidates as usize)
            .as_slice()
            .to_vec();
        let shown: Vec<_> = candidates.iter().map(|one| one.token).collect();
        let token = self.sampler.sample(SamplerInput {
            candidates,
            statistics,
            new_tokens: std::mem::take(&mut self.new_tokens),
            position: self.position,
        })?;
        if !shown.contains(&token) {
            return Err(format!("token {token} is none of the candidates {shown:?}"));
        }
        self.new_tokens.push(token);
        self.position += 1;
        Ok(token)
    }
}
