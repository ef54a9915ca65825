//! What an answer took.

use corral_sdk::Outcome;
use serde_json::{Value, json};

/// Tokens of a request. A prompt counts once, however many texts go on from it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt: u32,
    /// Those of the prompts that did not need to be computed for this request.
    pub cached: u32,
    pub generated: u32,
    /// Those of the generated ones that were thoughts.
    pub reasoning: u32,
}

impl Usage {
    /// Of the texts of several prompts, as `(prompt, outcome)`. What was cached of a prompt is what the
    /// first of its texts found; the others found what that one computed.
    pub fn of(outcomes: impl Iterator<Item = (usize, Outcome)>) -> Self {
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

    /// As the oldest APIs write it.
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
    fn a_prompt_counts_once() {
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
        let usage = Usage::of(all.into_iter());
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
