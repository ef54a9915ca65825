//! Sends the requests of a round: in a closed loop, or at random times.

use super::arrivals::arrivals;
use super::endpoint::{Endpoint, RequestResult};
use crate::Error;
use crate::bench::connection::{Connection, closed_loop};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

#[derive(Clone, Copy, Debug)]
pub(super) enum LoadMode {
    /// Each client sends its next request after its response.
    Closed { clients: u64 },
    /// Requests arrive at random, `rate` a second; one that finds `max_in_flight` others is not sent.
    Open { rate: f64, max_in_flight: usize },
}

#[derive(Default)]
pub(super) struct RoundResults {
    pub(super) results: Vec<RequestResult>,
    /// Requests that were not sent.
    pub(super) not_sent: u64,
    /// From the start to the end of the last response.
    pub(super) seconds: f64,
    /// The largest delay of a request by the client itself, in seconds.
    pub(super) max_delay: f64,
}

/// Sends the requests of these `numbers`. Arrival times of the open loop follow from `seed`.
pub(super) async fn run_round(
    endpoint: &Arc<Endpoint>,
    mode: LoadMode,
    numbers: Range<u64>,
    seed: u64,
) -> Result<RoundResults, Error> {
    match mode {
        LoadMode::Closed { clients } => {
            let start = Instant::now();
            let shared = Arc::clone(endpoint);
            let ask = move |mut connection: Connection, number: u64| {
                let endpoint = Arc::clone(&shared);
                async move {
                    let result = endpoint.ask(&mut connection, number, None).await;
                    Ok::<_, Error>((connection, result))
                }
            };
            let clients = (0..clients).map(|_| Connection::new(&endpoint.url));
            let results = closed_loop(clients, numbers, ask).await?;
            Ok(RoundResults {
                results,
                seconds: start.elapsed().as_secs_f64(),
                ..RoundResults::default()
            })
        }
        LoadMode::Open {
            rate,
            max_in_flight,
        } => {
            let count = numbers.end.saturating_sub(numbers.start);
            let arrivals = numbers.zip(arrivals(rate, count, seed));
            open_loop(endpoint, max_in_flight, arrivals).await
        }
    }
}

/// Sends each request at its time after the start, unless `max_in_flight` others are in flight.
pub(super) async fn open_loop(
    endpoint: &Arc<Endpoint>,
    max_in_flight: usize,
    arrivals: impl Iterator<Item = (u64, Duration)>,
) -> Result<RoundResults, Error> {
    let start = Instant::now();
    let (mut in_flight, mut idle) = (JoinSet::new(), Vec::new());
    let mut round = RoundResults::default();
    for (number, at) in arrivals {
        let intended = start + at;
        sleep_until(intended).await;
        while let Some(finished) = in_flight.try_join_next() {
            idle.push(round.finish(finished)?);
        }
        if in_flight.len() >= max_in_flight {
            round.not_sent += 1;
            continue;
        }
        let delay = Instant::now().saturating_duration_since(intended);
        round.max_delay = round.max_delay.max(delay.as_secs_f64());
        let reused = idle.pop();
        let mut connection = reused.unwrap_or_else(|| Connection::new(&endpoint.url));
        let endpoint = Arc::clone(endpoint);
        in_flight.spawn(async move {
            let intended = intended.into_std();
            let result = endpoint.ask(&mut connection, number, Some(intended)).await;
            (connection, result)
        });
    }
    while let Some(finished) = in_flight.join_next().await {
        round.finish(finished)?;
    }
    round.seconds = start.elapsed().as_secs_f64();
    Ok(round)
}

impl RoundResults {
    /// Records a finished request; returns its connection.
    fn finish(
        &mut self,
        finished: Result<(Connection, RequestResult), JoinError>,
    ) -> Result<Connection, Error> {
        let (connection, result) = finished.map_err(Error::context("a client crashed"))?;
        self.results.push(result);
        Ok(connection)
    }
}
