//! Clients that ask again as soon as they were answered, until all requests were asked.

use super::visits::Visit;
use crate::complaint::Complaint;
use corral_engine::Generation;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tokio::task::JoinSet;

/// Who asks, one request after the other.
pub(super) trait Client: Send + 'static {
    /// Asks the request of this number and waits for all of its answer. Returns how many tokens were
    /// generated, which are exactly those that were asked for.
    fn ask(&mut self, number: usize) -> impl Future<Output = Result<u64, Complaint>> + Send;
}

/// What clients were answered.
#[derive(Debug, Default)]
pub(super) struct Answered {
    /// Tokens of all answers.
    pub(super) tokens: u64,
    /// Each request, in the order of their numbers; none where they are not taken note of.
    pub(super) visits: Vec<Visit>,
}

/// Lets the clients ask so many requests, each of them the next one that nobody has.
pub(super) async fn ask_all<C: Client>(
    clients: Vec<C>,
    requests: usize,
) -> Result<Answered, Complaint> {
    let next = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let mut all = JoinSet::new();
    for mut client in clients {
        let next = next.clone();
        all.spawn(async move {
            let (mut tokens, mut visits) = (0, Vec::new());
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= requests {
                    return Ok::<_, Complaint>((tokens, visits));
                }
                let asked = began.elapsed();
                tokens += client.ask(number).await?;
                let answered = began.elapsed();
                visits.push((number, Visit { asked, answered }));
            }
        });
    }
    let (mut tokens, mut visits) = (0, Vec::new());
    while let Some(answered) = all.join_next().await {
        let (more, some) = answered.map_err(Complaint::telling("a client crashed"))??;
        tokens += more;
        visits.extend(some);
    }
    visits.sort_by_key(|(number, _)| *number);
    let visits = visits.into_iter().map(|(_, visit)| visit).collect();
    Ok(Answered { tokens, visits })
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
    let mut tokens = 0;
    while let Some(read) = all.join_next().await {
        tokens += read.map_err(Complaint::telling("a client crashed"))??;
    }
    Ok(tokens)
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
        let answered = ask_all(clients(), 7).await.expect("all answered");
        assert_eq!((answered.tokens, answered.visits.len()), (35, 7));
        // A client's next request comes after its answer, so the first three came first.
        let (first, later) = answered.visits.split_at(3);
        let ended = first.iter().map(|visit| visit.answered).min();
        assert!(later.iter().all(|visit| Some(visit.asked) >= ended));
        assert!(answered.visits.iter().all(|v| v.asked <= v.answered));
        let mut numbers = std::mem::take(&mut *asked.lock().expect("not poisoned"));
        numbers.sort_unstable();
        assert_eq!(numbers, (0..7).collect::<Vec<_>>());
        let Err(Complaint::Failed(error)) = ask_all(clients(), 100).await else {
            panic!("the last one is short");
        };
        assert!(error.to_string().contains("4 tokens where 5"), "{error}");
    }
}
