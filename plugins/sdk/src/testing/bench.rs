//! A sampling plugin by itself.

use crate::role::{Beginning, Needs, Sampler, Told};
use crate::sampling::Candidates;
use crate::testing::engine::statistics;
use crate::{Candidate, Token};

/// A sampler as the host would run it for one text: it is shown what it asked for, and what it chose has
/// to be one of that.
///
/// See [`Sampler`] for an example.
pub struct Bench<S> {
    sampler: S,
    needs: Needs,
    since: Vec<Token>,
    position: u32,
}

impl<S: Sampler> Bench<S> {
    /// At the beginning of a text, for a vocabulary of 100,000 tokens.
    pub fn start(settings: &str, seed: u64) -> Result<Self, String> {
        let sampler = S::start(Beginning {
            settings: settings.to_owned(),
            seed,
            vocabulary: 100_000,
        })?;
        Ok(Bench {
            needs: sampler.needs(),
            sampler,
            since: Vec::new(),
            position: 1,
        })
    }

    /// What it asked for.
    pub fn needs(&self) -> Needs {
        self.needs
    }

    /// Tokens stand there that it has not chosen, as at the beginning of a text.
    pub fn goes_on_with(&mut self, tokens: &[Token]) {
        self.position += tokens.len() as u32;
        self.since.extend(tokens);
    }

    /// Has it choose among these, in any order, which are all that there is. The error is the sampler's,
    /// or says that the host would not take the token.
    pub fn sample(&mut self, tokens: &[(Token, f32)]) -> Result<Token, String> {
        let candidates = tokens.iter();
        let candidates = candidates.map(|&(token, logit)| Candidate { token, logit });
        let candidates = Candidates::from(candidates.collect::<Vec<_>>());
        let row = candidates.list().iter().map(|one| one.logit);
        let statistics = self
            .needs
            .statistics
            .then(|| statistics(&row.collect::<Vec<_>>()));
        let candidates = candidates
            .top_k(self.needs.candidates as usize)
            .list()
            .to_vec();
        let shown: Vec<_> = candidates.iter().map(|one| one.token).collect();
        let token = self.sampler.sample(Told {
            candidates,
            statistics,
            since: std::mem::take(&mut self.since),
            position: self.position,
        })?;
        if !shown.contains(&token) {
            return Err(format!("token {token} is none of the candidates {shown:?}"));
        }
        self.since.push(token);
        self.position += 1;
        Ok(token)
    }
}
