//! A plugin with a table that is costly to compute: all prime numbers below a million. It computes it in its initialization, or
//! in each instance that needs it. The request's body is a number N. The response is the Nth prime number, how often this
//! request computed the table, and how many requests the instance has had.

use corral_sdk::{Error, Request, Response};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

corral_sdk::initialize!(initialize);
corral_sdk::handler!(handle);

/// Prime numbers lie below.
const END: usize = 1_000_000;

static COMPUTED: AtomicU32 = AtomicU32::new(0);
static REQUESTS: AtomicU32 = AtomicU32::new(0);
static PRIMES: LazyLock<Vec<u32>> = LazyLock::new(|| {
    COMPUTED.fetch_add(1, Ordering::Relaxed);
    primes()
});

fn initialize() -> Result<(), String> {
    match PRIMES.len() {
        0 => Err("there are no prime numbers".to_owned()),
        _ => Ok(()),
    }
}

async fn handle(mut request: Request) -> Result<Response, Error> {
    let body = request.text().await?;
    let computed = COMPUTED.load(Ordering::Relaxed);
    let prime = body.parse().ok().and_then(|n: usize| PRIMES.get(n));
    let prime =
        prime.ok_or_else(|| Error::Invalid("the body is no number below 78498".to_owned()))?;
    let computed = COMPUTED.load(Ordering::Relaxed) - computed;
    let requests = REQUESTS.fetch_add(1, Ordering::Relaxed) + 1;
    Ok(Response::text(format!("{prime} {computed} {requests}")))
}

fn primes() -> Vec<u32> {
    let mut composite = vec![false; END];
    let mut primes = Vec::new();
    for number in 2..END {
        if composite.get(number) == Some(&true) {
            continue;
        }
        primes.push(number as u32);
        for multiple in (number.saturating_mul(number)..END).step_by(number) {
            composite[multiple] = true;
        }
    }
    primes
}
