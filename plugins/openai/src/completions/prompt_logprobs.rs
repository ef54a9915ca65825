//! Log probabilities of prompts. The plugin runs its own loop, since `generate` returns log
//! probabilities of generated tokens only.
//!
//! A token's log probability is its logit minus the normalizer of the distribution before it. So a
//! prompt takes one step for each token but the first; prompts that are scored side by side share
//! steps.

use corral_sdk::{Distribution, Error, Model, NextTokenRequest, Sequence, Token, next_many};

use conversation::generation::{LogprobEntry, TokenLogprob, characters};

/// Prompts that are scored side by side: part of the host's sequence ids, to leave some to other
/// requests. Together they have at most as many tokens as the context, so that they don't evict
/// each other.
const CONCURRENT_PROMPTS: usize = 16;
/// Number of most likely tokens to request, if any are wanted. A token outside of them takes a
/// second request, which recomputes the token before it; so this is more than wanted.
const TOP_COUNT: u32 = 128;
/// The same for a model that can't fork, which recomputes all tokens: the host's limit.
const TOP_COUNT_WITHOUT_FORK: u32 = 4096;
/// Most entries of a response, including those of `top_logprobs`: all of them stay in memory until
/// the response is written.
const ENTRY_LIMIT: usize = 600_000;

/// An echoed prompt.
pub struct Echo {
    pub text: String,
    /// Number of characters of the text.
    pub characters: usize,
    /// The entries of its tokens, if the request has `logprobs`.
    pub logprobs: Vec<LogprobEntry>,
}

impl Echo {
    pub fn new(text: String) -> Self {
        Echo {
            characters: text.chars().count(),
            text,
            logprobs: Vec::new(),
        }
    }

    /// Sets the entries. The tokens may have characters at the start that the text does not: of the
    /// beginning-of-sequence token, or of a space that the model puts before a text.
    pub fn set_logprobs(&mut self, mut logprobs: Vec<LogprobEntry>) {
        let end = logprobs
            .last()
            .map_or(0, |last| last.offset + characters(&last.token.bytes));
        let extra = end.saturating_sub(self.characters);
        for entry in &mut logprobs {
            entry.offset = entry.offset.saturating_sub(extra);
        }
        self.logprobs = logprobs;
    }
}

/// A scored prompt.
pub struct ScoredPrompt {
    index: usize,
    pub logprobs: Vec<LogprobEntry>,
    /// The sequence, if it is to be continued.
    pub sequence: Option<Sequence>,
}

/// Checks that the response fits into memory, with `top` most likely tokens per position.
pub fn check(prompts: &[Vec<Token>], top: u8) -> Result<(), Error> {
    let tokens: usize = prompts.iter().map(Vec::len).sum();
    let max_tokens = ENTRY_LIMIT / (usize::from(top) + 1);
    if tokens <= max_tokens {
        return Ok(());
    }
    let text = format!(
        "the prompts have {tokens} tokens; expected at most {max_tokens} together with `echo` and \
         `logprobs` {top}; send fewer prompts per request"
    );
    Err(Error::bad_request("out-of-range", text))
}

/// Scores non-empty prompts: the log probability of each token and the `top` most likely tokens at
/// its position. The first token has none. Sequences are dropped as soon as possible unless `keep`
/// is set, since each occupies cells.
pub async fn score(
    model: &Model,
    prompts: &[Vec<Token>],
    top: u8,
    keep: bool,
) -> Result<Vec<ScoredPrompt>, Error> {
    let context = model.info().context as usize;
    let mut waiting = prompts.iter().enumerate().peekable();
    let (mut active, mut scored) = (Vec::<Scorer>::new(), Vec::new());
    loop {
        let (complete, rest): (Vec<_>, Vec<_>) = active.into_iter().partition(Scorer::is_complete);
        scored.extend(complete.into_iter().map(|one| ScoredPrompt {
            index: one.index,
            logprobs: one.logprobs,
            sequence: keep.then_some(one.sequence),
        }));
        active = rest;
        let mut tokens: usize = active.iter().map(|one| one.prompt.len()).sum();
        while active.len() < CONCURRENT_PROMPTS
            && let Some((index, prompt)) =
                waiting.next_if(|(_, prompt)| active.is_empty() || tokens + prompt.len() <= context)
        {
            tokens += prompt.len();
            active.push(Scorer::start(model, index, prompt)?);
        }
        if active.is_empty() {
            break;
        }
        // A prompt of a single token is complete at the start.
        let requests = active.iter().filter(|one| !one.is_complete());
        let requests = requests.map(|one| (&one.sequence, one.request(top)));
        let distributions = next_many(requests).await;
        let pending = active.iter_mut().filter(|one| !one.is_complete());
        for (one, distribution) in pending.zip(distributions) {
            one.record(&distribution?, top)?;
        }
    }
    scored.sort_by_key(|prompt| prompt.index);
    Ok(scored)
}

/// A prompt that is being scored.
struct Scorer<'a> {
    index: usize,
    prompt: &'a [Token],
    /// The scored part of the prompt.
    sequence: Sequence,
    /// One entry for each token of the sequence.
    logprobs: Vec<LogprobEntry>,
    /// Characters of the sequence.
    characters: usize,
    /// The most likely tokens at the next position, if the next token is not among them.
    top: Option<Vec<TokenLogprob>>,
}

impl<'a> Scorer<'a> {
    fn start(model: &Model, index: usize, prompt: &'a [Token]) -> Result<Self, Error> {
        let mut scorer = Scorer {
            index,
            prompt,
            sequence: model.empty_sequence()?,
            logprobs: Vec::with_capacity(prompt.len()),
            characters: 0,
            top: None,
        };
        if let Some(&first) = prompt.first() {
            scorer.append(first, None, Vec::new())?;
        }
        Ok(scorer)
    }

    fn is_complete(&self) -> bool {
        self.logprobs.len() == self.prompt.len()
    }

    /// The next token of the prompt.
    fn next(&self) -> Option<Token> {
        self.prompt.get(self.logprobs.len()).copied()
    }

    /// The next request for this prompt.
    fn request(&self, top: u8) -> NextTokenRequest<'static> {
        let request = match (top, &self.top) {
            (1.., None) if self.sequence.model().info().can_fork => {
                NextTokenRequest::top(TOP_COUNT)
            }
            (1.., None) => NextTokenRequest::top(TOP_COUNT_WITHOUT_FORK),
            _ => NextTokenRequest::only(Vec::from_iter(self.next())),
        };
        request.with_statistics()
    }

    fn record(&mut self, distribution: &Distribution, top: u8) -> Result<(), Error> {
        let Some(next) = self.next() else {
            return Ok(());
        };
        let statistics = distribution.statistics.as_ref();
        let normalizer = statistics.map_or(0.0, |statistics| statistics.log_normalizer);
        // Rounding can raise an almost certain token above 0.
        let logprob = |logit: f32| Some((logit - normalizer).min(0.0));
        let mut candidates = distribution.candidates.iter();
        let own = candidates.find(|candidate| candidate.token == next);
        let requested_alone = self.top.is_some() || top == 0;
        let top_tokens = match self.top.take() {
            Some(top_tokens) => top_tokens,
            None => {
                let top_tokens = distribution.candidates.iter().take(top.into());
                let model = self.sequence.model();
                top_tokens
                    .map(|one| TokenLogprob::new(model, one.token, logprob(one.logit)))
                    .collect::<Result<_, _>>()?
            }
        };
        match own {
            Some(own) => self.append(next, logprob(own.logit), top_tokens),
            None if requested_alone => self.append(next, Some(f32::NEG_INFINITY), top_tokens),
            None => {
                self.top = Some(top_tokens);
                Ok(())
            }
        }
    }

    /// Appends a token and its entry.
    fn append(
        &mut self,
        token: Token,
        logprob: Option<f32>,
        top: Vec<TokenLogprob>,
    ) -> Result<(), Error> {
        self.sequence.append_tokens(&[token])?;
        let token = TokenLogprob::new(self.sequence.model(), token, logprob)?;
        let offset = self.characters;
        self.characters += characters(&token.bytes);
        self.logprobs.push(LogprobEntry { token, top, offset });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_ignore_tokens_before_the_text() {
        for (text, tokens, expected) in [
            ("ab c", &["ab", " c"][..], &[0, 2][..]),
            // As SentencePiece tokenizes it: a beginning-of-sequence token, and a space before the
            // text.
            ("ab c", &["<s>", " ab", " c"], &[0, 0, 2]),
            ("\u{e9}b", &[" \u{e9}", "b"], &[0, 1]),
            ("", &["<s>"], &[0]),
            ("", &[], &[]),
        ] {
            let mut offset = 0;
            let entries = tokens.iter().map(|token| {
                let bytes = token.as_bytes().to_vec();
                let before = offset;
                offset += characters(&bytes);
                let (logprob, top) = (None, Vec::new());
                LogprobEntry {
                    token: TokenLogprob {
                        id: 0,
                        bytes,
                        logprob,
                    },
                    top,
                    offset: before,
                }
            });
            let entries = entries.collect();
            let mut echo = Echo::new(text.to_owned());
            echo.set_logprobs(entries);
            let offsets: Vec<_> = echo.logprobs.iter().map(|one| one.offset).collect();
            assert_eq!(offsets, expected, "{text:?} as {tokens:?}");
        }
    }

    #[test]
    fn prompts_beyond_memory_are_rejected() {
        for (top, max_tokens) in [(0, 600_000), (1, 300_000), (20, 28_571)] {
            let mut prompts = [vec![0; max_tokens - 1], vec![0]];
            assert_eq!(check(&prompts, top), Ok(()));
            prompts[1].push(0);
            let error = check(&prompts, top).unwrap_err();
            assert_eq!((error.status(), error.code()), (400, "out-of-range"));
            let expected = format!("at most {max_tokens} together");
            assert!(error.to_string().contains(&expected), "{error}");
        }
    }
}
