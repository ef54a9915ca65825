//! Plugins that call the functions of `corral:inference` in any order, with any arguments. Each call of a function
//! succeeds or is an error, and neighbors notice nothing.

use corral_tests::{Corral, concurrently, seed, words};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Requests of one run, and bytes of one request.
const REQUESTS: u64 = 1_000;
const BYTES: usize = 800;

#[test]
fn random_calls_only_return_errors() {
    let seed = seed();
    let arguments = words("--context 512 --kv-cells 1024 --max-running 8");
    let routes = [("/random-calls", "random-calls")];
    let corral = Corral::start_with_routes(&routes, &arguments);
    let seeds = Vec::from_iter((0..REQUESTS).map(|number| seed.wrapping_add(number)));
    let asked = corral.with_neighbors(|| {
        concurrently(8, &seeds, |&seed| {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            let mut bytes = vec![0; random.random_range(1..BYTES)];
            random.fill_bytes(&mut bytes);
            let answer = corral.post("/random-calls", bytes);
            assert_eq!(answer.status, 200, "CORRAL_SEED={seed}: {answer:?}");
        });
    });
    assert!(asked >= 2, "1+1 was answered {asked} times meanwhile");
    corral.wait_until_idle();
}
