//! Token usage of a response.

use corral_sdk::Outcome;
use serde_json::{Value, json};

/// Tokens of a request. A prompt counts once, however many choices it has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt: u32,
    /// Prompt tokens that the host served from its cache.
    pub cached: u32,
    pub generated: u32,
    /// Generated tokens that are reasoning.
    pub reasoning: u32,
}

impl Usage {
    /// Sums the outcomes of choices, given as `(prompt, outcome)`. The cached tokens of a prompt
    /// are those of its first choice; the others reuse what that one computed.
    pub fn sum(outcomes: impl Iterator<Item = (usize, Outcome)>) -> Self {
        let mut usage = Usage::default();
        let mut prompts: Vec<Option<(u32, u32)>> = Vec::new();
        for (prompt, outcome) in outcomes {
            usage.generated += outcome.generated_tokens;
            prompts.resize(prompts.len().max(prompt + 1), None);
            let (tokens, cached) = prompts[prompt].unwrap_or((outcome.prompt_tokens, u32::MAX));
            prompts[prompt] = Some((tokens, cached.min(outcome.cached_tokens)));
        }
        for (tokens, cached) in prompts.into_iter().flatten() {
            usage.prompt += tokens;
            usage.cached += cached;
        }
        usage
    }

    /// In the format of chat completions and completions.
    pub fn to_json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt + self.generated,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::Finish;

    #[test]
    fn prompt_counts_once() {
        let outcome = |prompt, cached, generated| Outcome {
            finish: Finish::End,
            prompt_tokens: prompt,
            cached_tokens: cached,
            generated_tokens: generated,
            queue_time: 0,
            prefill_time: 0,
            decode_time: 0,
        };
        let all = [
            (0, outcome(10, 9, 1)),
            (1, outcome(5, 0, 2)),
            (0, outcome(10, 3, 4)),
        ];
        let usage = Usage::sum(all.into_iter());
        assert_eq!(
            usage,
            Usage {
                prompt: 15,
                cached: 3,
                generated: 7,
                reasoning: 0
            }
        );
        assert_eq!(usage.to_json()["total_tokens"], 22);
    }
}
