//! How many tokens requests generate on average: the room that a new request is admitted with.

/// The least room, and the mean before any request finished.
const MIN_TOKENS: u32 = 32;
const INITIAL_TOKENS: f64 = 128.0;
/// Weight of the newest request in the mean.
const NEWEST: f64 = 0.05;

/// The mean.
#[derive(Clone, Debug)]
pub(crate) struct OutputLength(f64);

impl Default for OutputLength {
    fn default() -> Self {
        Self(INITIAL_TOKENS)
    }
}

impl OutputLength {
    /// Records a finished request.
    pub fn observe(&mut self, generated: u32) {
        self.0 += NEWEST * (f64::from(generated) - self.0);
    }

    /// Tokens to expect of a request.
    pub fn expected(&self) -> u32 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let mean = self.0.ceil() as u32;
        mean.max(MIN_TOKENS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expectation_follows_finished_requests() {
        let mut length = OutputLength::default();
        assert_eq!(length.expected(), 128);
        (0..200).for_each(|_| length.observe(1));
        assert_eq!(length.expected(), MIN_TOKENS);
        (0..200).for_each(|_| length.observe(500));
        assert_eq!(length.expected(), 500);
    }
}
