//! Clients in a closed loop: each sends the next request after its response, until all requests were sent.

use crate::workload::finish;
use corral_cli::Error;
use corral_cli::bench::connection::closed_loop;
use corral_engine::Generation;
use tokio::task::JoinSet;

pub(super) trait Client: Send + 'static {
    /// Sends the request with this number and reads its response. Returns the number of generated tokens, which is the
    /// requested one.
    fn ask(&mut self, number: usize) -> impl Future<Output = Result<u64, Error>> + Send;
}

/// Runs the clients until `requests` requests have been answered. Returns the number of generated tokens.
pub(super) async fn run_clients<C: Client>(clients: Vec<C>, requests: usize) -> Result<u64, Error> {
    let ask = |mut client: C, number: u64| async move {
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        let tokens = client.ask(number).await?;
        Ok::<_, Error>((client, tokens))
    };
    let tokens = closed_loop(clients, 0..requests as u64, ask).await?;
    Ok(tokens.iter().sum())
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
pub(super) async fn read(generation: Generation, expected: u64) -> Result<u64, Error> {
    let (times, _) = finish(generation).await?;
    check_length(expected, times.len() as u64)
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
    use std::sync::{Arc, Mutex};

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
        assert_eq!(run_clients(clients, 7).await.expect("all answered"), 35);
        let mut numbers = std::mem::take(&mut *sent.lock().expect("not poisoned"));
        numbers.sort_unstable();
        assert_eq!(numbers, (0..7).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn short_response_is_an_error() {
        let clients = vec![TestClient(Arc::default())];
        let error = run_clients(clients, 100).await;
        let error = error.expect_err("the last is short");
        let message = error.message(false);
        assert!(message.contains("4 tokens, and 5"), "{message}");
    }
}
