//! The seed of a random test.

/// `CORRAL_SEED`, or a seed drawn at random, so that each run differs. Prints it.
pub fn seed() -> u64 {
    let seed = match std::env::var("CORRAL_SEED") {
        Ok(seed) => seed.parse().expect("CORRAL_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("to repeat this run: CORRAL_SEED={seed}");
    seed
}
