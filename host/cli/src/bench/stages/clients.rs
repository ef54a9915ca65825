//! Clients that ask again as soon as they were answered, until all requests were asked.

use crate::complaint::Complaint;
use corral_engine::Generation;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::task::JoinSet;

/// Who asks, one request after the other.
pub(super) trait Client: Send + 'static {
    /// Asks the request of this number and waits for all of its answer. Returns how many tokens were
    /// generated, which are exactly those that were asked for.
    fn ask(&mut self, number: usize) -> impl Future<Output = Result<u64, Complaint>> + Send;
}

/// Lets the clients ask so many requests, each of them the next one that nobody has. Returns the tokens of all.
pub(super) async fn ask_all<C: Client>(clients: Vec<C>, requests: usize) -> Result<u64, Complaint> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut all = JoinSet::new();
    for mut client in clients {
        let next = next.clone();
        all.spawn(async move {
            let mut tokens = 0;
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= requests {
                    return Ok::<_, Complaint>(tokens);
                }
                tokens += client.ask(number).await?;
            }
        });
    }
    sum(all).await
}

/// Reads generations side by side to their ends, each of `expected` tokens.
pub(super) async fn read_all(
    generations: Vec<Generation>,
    expected: u64,
) -> Result<u64, Complaint> {
    let mut all = JoinSet::new();
    for generation in generations {
        all.spawn(read(generation, expected));
    }
    sum(all).await
}

/// Reads a generation of `expected` tokens to its end.
pub(super) async fn read(mut generation: Generation, expected: u64) -> Result<u64, Complaint> {
    let mut tokens = 0;
    while let Some(chunk) = generation.next().await {
        tokens += chunk.tokens.len() as u64;
    }
    if let Some(Err(error)) = generation.outcome() {
        return Err(error.into());
    }
    exactly(expected, tokens)
}

/// Refuses an answer of another length than was asked for: something else would be measured.
pub(super) fn exactly(expected: u64, tokens: u64) -> Result<u64, Complaint> {
    if tokens == expected {
        return Ok(tokens);
    }
    let error = format!("an answer has {tokens} tokens where {expected} were asked for");
    Err(Complaint::Failed(error.into()))
}

async fn sum(mut all: JoinSet<Result<u64, Complaint>>) -> Result<u64, Complaint> {
    let mut tokens = 0;
    while let Some(answered) = all.join_next().await {
        tokens += answered.map_err(Complaint::telling("a client crashed"))??;
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    struct Asks(Arc<Mutex<Vec<usize>>>);

    impl Client for Asks {
        async fn ask(&mut self, number: usize) -> Result<u64, Complaint> {
            self.0.lock().expect("not poisoned").push(number);
            tokio::task::yield_now().await;
            exactly(5, if number == 99 { 4 } else { 5 })
        }
    }

    #[tokio::test]
    async fn every_request_is_asked_once_and_a_short_answer_is_an_error() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let clients = || (0..3).map(|_| Asks(asked.clone())).collect::<Vec<_>>();
        let tokens = ask_all(clients(), 7).await.expect("all answered");
        assert_eq!(tokens, 35);
        let mut numbers = std::mem::take(&mut *asked.lock().expect("not poisoned"));
        numbers.sort_unstable();
        assert_eq!(numbers, (0..7).collect::<Vec<_>>());
        let Err(Complaint::Failed(error)) = ask_all(clients(), 100).await else {
            panic!("the last one is short");
        };
        assert!(error.to_string().contains("4 tokens where 5"), "{error}");
    }
}
