//! Whether what a sampler is shown from call to call is one text.

use crate::bindings::exports::corral::plugin::sampling::{Candidate, Distribution, Needs, Token};

/// What it was shown and chose so far.
pub struct Record {
    needs: Needs,
    vocabulary: u32,
    /// Whether tokens may follow that it did not choose.
    forced: bool,
    /// How often it was asked for its needs.
    needed: u32,
    /// The last position, and the token that was chosen there.
    last: Option<(u32, Token)>,
}

impl Record {
    pub fn new(needs: Needs, vocabulary: u32, forced: bool) -> Self {
        Self {
            needs,
            vocabulary,
            forced,
            needed: 0,
            last: None,
        }
    }

    pub fn needed(&mut self) {
        self.needed += 1;
    }

    /// The choice after the distribution that was checked last.
    pub fn chose(&mut self, token: Token) {
        if let Some((_, chosen)) = &mut self.last {
            *chosen = token;
        }
    }

    /// The error names what does not fit.
    pub fn check(&mut self, told: &Distribution) -> Result<(), String> {
        if self.needed != 1 {
            return Err(format!("it was asked {} times what it needs", self.needed));
        }
        self.check_text(told)?;
        self.check_candidates(&told.candidates)?;
        self.check_statistics(told)?;
        self.last = Some((told.position, 0));
        Ok(())
    }

    fn check_text(&self, told: &Distribution) -> Result<(), String> {
        let (since, position) = (&told.since, told.position);
        if let Some(unknown) = since.iter().find(|&&token| token >= self.vocabulary) {
            return Err(format!("the text has the token {unknown}"));
        }
        let Some((before, chosen)) = self.last else {
            let expected = position.min(self.needs.history) as usize;
            // Tokens without a choice may have come before the first one with a choice.
            let most = if self.forced {
                position as usize
            } else {
                expected
            };
            return match position > 0 && (expected..=most).contains(&since.len()) {
                true => Ok(()),
                false => Err(format!("{} tokens before {position}", since.len())),
            };
        };
        let added = position.wrapping_sub(before) as usize;
        if since.first() != Some(&chosen) {
            return Err(format!("{chosen} was chosen at {before}, then {since:?}"));
        }
        if since.len() != added || (added != 1 && !self.forced) {
            return Err(format!("{since:?} lead from {before} to {position}"));
        }
        Ok(())
    }

    fn check_candidates(&self, shown: &[Candidate]) -> Result<(), String> {
        let most = self.needs.candidates.min(self.vocabulary) as usize;
        // A constraint may allow fewer.
        let right = match self.forced {
            true => (1..=most).contains(&shown.len()),
            false => shown.len() == most,
        };
        if !right {
            return Err(format!("{} candidates, not {most}", shown.len()));
        }
        let good = |one: &&Candidate| one.logit.is_finite() && one.token < self.vocabulary;
        if let Some(bad) = shown.iter().find(|one| !good(one)) {
            return Err(format!("the candidate {bad:?}"));
        }
        let falls = |pair: &&[Candidate]| {
            let (one, next) = (pair[0], pair[1]);
            one.logit > next.logit || (one.logit == next.logit && one.token < next.token)
        };
        match shown.windows(2).find(|pair| !falls(pair)) {
            Some(pair) => Err(format!("{pair:?} do not fall")),
            None => Ok(()),
        }
    }

    fn check_statistics(&self, told: &Distribution) -> Result<(), String> {
        let Some(of) = told.statistics else {
            return match self.needs.statistics {
                true => Err("no statistics".to_owned()),
                false => Ok(()),
            };
        };
        // The sum of what is shown is a part of the whole.
        let likeliest = told.candidates.first().map_or(0.0, |one| one.logit);
        let parts = told
            .candidates
            .iter()
            .map(|one| (one.logit - likeliest).exp());
        let shown = likeliest + parts.sum::<f32>().ln();
        let most = (self.vocabulary as f32).ln();
        let right = self.needs.statistics
            && of.log_normalizer > shown - 1e-2
            && (-1e-2..most + 1e-2).contains(&of.entropy);
        match right {
            true => Ok(()),
            false => Err(format!("{of:?} beside {shown} that are shown")),
        }
    }
}
