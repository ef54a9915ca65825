//! A sampling plugin by itself.

use crate::role::{Beginning, Needs, Sampler, Told};
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
        let mut candidates: Vec<_> = candidates
            .map(|&(token, logit)| Candidate { token, logit })
            .collect();
        candidates.sort_by(|one, other| {
            let falling = other.logit.total_cmp(&one.logit);
            falling.then(one.token.cmp(&other.token))
        });
        let row: Vec<_> = candidates.iter().map(|candidate| candidate.logit).collect();
        candidates.truncate(self.needs.candidates as usize);
        let shown: Vec<_> = candidates.iter().map(|candidate| candidate.token).collect();
        let token = self.sampler.sample(Told {
            candidates,
            statistics: self.needs.statistics.then(|| statistics(&row)),
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
