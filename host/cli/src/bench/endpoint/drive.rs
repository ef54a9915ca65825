//! Who asks when: clients that wait for their answers, or requests that come by themselves.

use super::arrivals::arrivals;
use super::target::{Outcome, Target};
use crate::bench::connection::{Connection, closed};
use crate::complaint::Complaint;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

/// How requests come.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pace {
    /// Closed loop: each of so many clients sends its next request when it has its answer.
    Closed { clients: u64 },
    /// Open loop: they come at random, `rate` a second on average, whether the server keeps up or not; but
    /// with `most` under way, those that come are not sent.
    Open { rate: f64, most: usize },
}

/// What became of a round's requests.
#[derive(Default)]
pub(super) struct Round {
    pub(super) outcomes: Vec<Outcome>,
    /// Requests that were not sent.
    pub(super) refused: u64,
    /// From the beginning to the end of the last answer.
    pub(super) seconds: f64,
    /// The most seconds that a request was sent later than intended, for which the client is to blame.
    pub(super) late: f64,
}

/// Sends the requests of these `numbers`. When they come in the open loop follows from `seed`.
pub(super) async fn round(
    target: &Arc<Target>,
    pace: Pace,
    numbers: Range<u64>,
    seed: u64,
) -> Result<Round, Complaint> {
    match pace {
        Pace::Closed { clients } => {
            let began = Instant::now();
            let own = Arc::clone(target);
            let ask = move |mut connection: Connection, number: u64| {
                let target = Arc::clone(&own);
                async move {
                    let outcome = target.ask(&mut connection, number, None).await;
                    (connection, outcome)
                }
            };
            let outcomes = closed(&target.url, clients, numbers, ask).await?;
            Ok(Round {
                outcomes,
                seconds: began.elapsed().as_secs_f64(),
                ..Round::default()
            })
        }
        Pace::Open { rate, most } => {
            let count = numbers.end.saturating_sub(numbers.start);
            let arrivals = numbers.zip(arrivals(rate, count, seed));
            open(target, most, arrivals).await
        }
    }
}

/// Sends each request at its time after the beginning, unless `most` are under way.
pub(super) async fn open(
    target: &Arc<Target>,
    most: usize,
    arrivals: impl Iterator<Item = (u64, Duration)>,
) -> Result<Round, Complaint> {
    let began = Instant::now();
    let (mut under_way, mut idle) = (JoinSet::new(), Vec::new());
    let mut round = Round::default();
    for (number, at) in arrivals {
        let intended = began + at;
        sleep_until(intended).await;
        while let Some(ended) = under_way.try_join_next() {
            idle.push(round.end(ended)?);
        }
        if under_way.len() >= most {
            round.refused += 1;
            continue;
        }
        let late = Instant::now().saturating_duration_since(intended);
        round.late = round.late.max(late.as_secs_f64());
        let kept = idle.pop();
        let mut connection = kept.unwrap_or_else(|| Connection::new(&target.url));
        let target = Arc::clone(target);
        under_way.spawn(async move {
            let intended = intended.into_std();
            let outcome = target.ask(&mut connection, number, Some(intended)).await;
            (connection, outcome)
        });
    }
    while let Some(ended) = under_way.join_next().await {
        round.end(ended)?;
    }
    round.seconds = began.elapsed().as_secs_f64();
    Ok(round)
}

impl Round {
    /// Takes note of a request that ended; returns its connection.
    fn end(
        &mut self,
        ended: Result<(Connection, Outcome), JoinError>,
    ) -> Result<Connection, Complaint> {
        let (connection, outcome) = ended.map_err(Complaint::telling("a client crashed"))?;
        self.outcomes.push(outcome);
        Ok(connection)
    }
}
