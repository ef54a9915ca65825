//! Checks that a sampler's inputs are consistent from call to call.

use crate::bindings::exports::corral::plugin::sampling::{Candidate, Distribution, Needs, Token};

/// The inputs and choices so far.
pub struct Record {
    needs: Needs,
    vocabulary: u32,
    /// Whether tokens may occur that the sampler did not choose.
    forced: bool,
    /// Number of calls of `needs`.
    needs_calls: u32,
    /// The last position and the token chosen there.
    last: Option<(u32, Token)>,
}

impl Record {
    pub fn new(needs: Needs, vocabulary: u32, forced: bool) -> Self {
        Self {
            needs,
            vocabulary,
            forced,
            needs_calls: 0,
            last: None,
        }
    }

    pub fn count_needs(&mut self) {
        self.needs_calls += 1;
    }

    /// Records the choice after the last checked distribution.
    pub fn record_choice(&mut self, token: Token) {
        if let Some((_, chosen)) = &mut self.last {
            *chosen = token;
        }
    }

    /// Checks an input. The error names the inconsistency.
    pub fn check(&mut self, input: &Distribution) -> Result<(), String> {
        if self.needs_calls != 1 {
            return Err(format!("`needs` was called {} times", self.needs_calls));
        }
        self.check_position(input)?;
        self.check_candidates(&input.candidates)?;
        self.check_statistics(input)?;
        self.last = Some((input.position, 0));
        Ok(())
    }

    fn check_position(&self, input: &Distribution) -> Result<(), String> {
        let (new_tokens, position) = (&input.new_tokens, input.position);
        if let Some(unknown) = new_tokens.iter().find(|&&token| token >= self.vocabulary) {
            return Err(format!("the text has the token {unknown}"));
        }
        let Some((before, chosen)) = self.last else {
            let expected = position.min(self.needs.history) as usize;
            // Forced tokens may precede the first call.
            let most = if self.forced {
                position as usize
            } else {
                expected
            };
            return match position > 0 && (expected..=most).contains(&new_tokens.len()) {
                true => Ok(()),
                false => Err(format!("{} tokens before {position}", new_tokens.len())),
            };
        };
        let added = position.wrapping_sub(before) as usize;
        if new_tokens.first() != Some(&chosen) {
            return Err(format!(
                "{chosen} was chosen at {before}, then {new_tokens:?}"
            ));
        }
        if new_tokens.len() != added || (added != 1 && !self.forced) {
            return Err(format!("{new_tokens:?} lead from {before} to {position}"));
        }
        Ok(())
    }

    fn check_candidates(&self, candidates: &[Candidate]) -> Result<(), String> {
        let most = self.needs.candidates.min(self.vocabulary) as usize;
        // A constraint may allow fewer candidates.
        let valid = match self.forced {
            true => (1..=most).contains(&candidates.len()),
            false => candidates.len() == most,
        };
        if !valid {
            return Err(format!("{} candidates, not {most}", candidates.len()));
        }
        let good = |one: &&Candidate| one.logit.is_finite() && one.token < self.vocabulary;
        if let Some(bad) = candidates.iter().find(|one| !good(one)) {
            return Err(format!("the candidate {bad:?}"));
        }
        let is_descending = |pair: &&[Candidate]| {
            let (one, next) = (pair[0], pair[1]);
            one.logit > next.logit || (one.logit == next.logit && one.token < next.token)
        };
        match candidates.windows(2).find(|pair| !is_descending(pair)) {
            Some(pair) => Err(format!("{pair:?} are not in descending order")),
            None => Ok(()),
        }
    }

    fn check_statistics(&self, input: &Distribution) -> Result<(), String> {
        let Some(statistics) = input.statistics else {
            return match self.needs.statistics {
                true => Err("no statistics".to_owned()),
                false => Ok(()),
            };
        };
        // The sum over the candidates is at most the whole.
        let highest = input.candidates.first().map_or(0.0, |one| one.logit);
        let parts = input
            .candidates
            .iter()
            .map(|one| (one.logit - highest).exp());
        let candidate_sum = highest + parts.sum::<f32>().ln();
        let max_entropy = (self.vocabulary as f32).ln();
        let valid = self.needs.statistics
            && statistics.log_normalizer > candidate_sum - 1e-2
            && (-1e-2..max_entropy + 1e-2).contains(&statistics.entropy);
        match valid {
            true => Ok(()),
            false => Err(format!(
                "{statistics:?} beside the candidates' {candidate_sum}"
            )),
        }
    }
}
