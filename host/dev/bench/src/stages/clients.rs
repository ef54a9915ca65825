//! Clients in a closed loop: each sends the next request after its response, until all requests were sent.

use super::arrivals::RequestSpan;
use corral_cli::Error;
use corral_engine::Generation;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tokio::task::JoinSet;

pub(super) trait Client: Send + 'static {
    /// Sends the request with this number and reads its response. Returns the number of generated tokens, which is the
    /// requested one.
    fn ask(&mut self, number: usize) -> impl Future<Output = Result<u64, Error>> + Send;
}

/// The results of a load.
#[derive(Debug, Default)]
pub(super) struct LoadResults {
    /// Tokens of all responses.
    pub(super) tokens: u64,
    /// The times of each request by number; empty if the load does not record them.
    pub(super) spans: Vec<RequestSpan>,
}

/// Runs the clients until `requests` requests have been answered.
pub(super) async fn run_clients<C: Client>(
    clients: Vec<C>,
    requests: usize,
) -> Result<LoadResults, Error> {
    let next = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for mut client in clients {
        let next = next.clone();
        tasks.spawn(async move {
            let (mut tokens, mut spans) = (0, Vec::new());
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= requests {
                    return Ok::<_, Error>((tokens, spans));
                }
                let sent = start.elapsed();
                tokens += client.ask(number).await?;
                let answered = start.elapsed();
                spans.push((number, RequestSpan { sent, answered }));
            }
        });
    }
    let (mut tokens, mut spans) = (0, Vec::new());
    while let Some(finished) = tasks.join_next().await {
        let (client_tokens, client_spans) =
            finished.map_err(Error::context("a client crashed"))??;
        tokens += client_tokens;
        spans.extend(client_spans);
    }
    spans.sort_by_key(|(number, _)| *number);
    let spans = spans.into_iter().map(|(_, span)| span).collect();
    Ok(LoadResults { tokens, spans })
}

/// Reads generations in parallel, each of `expected` tokens.
pub(super) async fn read_all(generations: Vec<Generation>, expected: u64) -> Result<u64, Error> {
    let mut tasks = JoinSet::new();
    for generation in generations {
        tasks.spawn(read(generation, expected));
    }
    let mut tokens = 0;
    while let Some(finished) = tasks.join_next().await {
        tokens += finished.map_err(Error::context("a client crashed"))??;
    }
    Ok(tokens)
}

/// Reads a generation of `expected` tokens to its end.
pub(super) async fn read(mut generation: Generation, expected: u64) -> Result<u64, Error> {
    let mut tokens = 0;
    while let Some(chunk) = generation.next().await {
        tokens += chunk.tokens.len() as u64;
    }
    if let Some(Err(error)) = generation.outcome() {
        return Err(error.into());
    }
    check_length(expected, tokens)
}

/// Refuses a response of another length than requested, which would distort the figures.
pub(super) fn check_length(expected: u64, tokens: u64) -> Result<u64, Error> {
    if tokens == expected {
        return Ok(tokens);
    }
    Err(Error::failed(format!(
        "a response has {tokens} tokens, and {expected} were requested"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    struct TestClient(Arc<Mutex<Vec<usize>>>);

    impl Client for TestClient {
        async fn ask(&mut self, number: usize) -> Result<u64, Error> {
            self.0.lock().expect("not poisoned").push(number);
            tokio::task::yield_now().await;
            check_length(5, if number == 99 { 4 } else { 5 })
        }
    }

    #[tokio::test]
    async fn each_request_is_sent_once() {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let clients = (0..3).map(|_| TestClient(sent.clone())).collect::<Vec<_>>();
        let results = run_clients(clients, 7).await.expect("all answered");
        assert_eq!((results.tokens, results.spans.len()), (35, 7));
        // A client sends its next request after its response, so the first three were sent first.
        let (first, later) = results.spans.split_at(3);
        let first_answered = first.iter().map(|span| span.answered).min();
        assert!(later.iter().all(|span| Some(span.sent) >= first_answered));
        assert!(results.spans.iter().all(|span| span.sent <= span.answered));
        let mut numbers = std::mem::take(&mut *sent.lock().expect("not poisoned"));
        numbers.sort_unstable();
        assert_eq!(numbers, (0..7).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn short_response_is_an_error() {
        let clients = vec![TestClient(Arc::default())];
        let error = run_clients(clients, 100)
            .await
            .expect_err("the last is short");
        let message = error.message(false);
        assert!(message.contains("4 tokens, and 5"), "{message}");
    }
}
