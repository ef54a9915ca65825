//! Prints what the latency policies and llama.cpp's policy do to simulated traces:
//! `cargo run --release -p corral-simulator --example latency`.

use corral_scheduler::Latency;
use corral_simulator::latency::{config, measure, peer};
use corral_simulator::{Machine, traces};

fn main() {
    let machine = Machine {
        noise: 0.15,
        ..Machine::default()
    };
    println!(
        "| trace | policy | first token p50 s | p99 s | gap p50 steps | p99 steps | tokens/s |"
    );
    println!("|---|---|---|---|---|---|---|");
    for trace in traces::all() {
        let policies = [
            Latency::STREAM,
            "2,3,2000".parse().unwrap(),
            "3,4,2000".parse().unwrap(),
            "2,6,2000".parse().unwrap(),
            "4,4,2000".parse().unwrap(),
            Latency::BALANCED,
            Latency::THROUGHPUT,
        ];
        let own = policies.map(|latency| {
            let figures = measure(config(), machine, &trace.clone().with_latency(latency));
            (latency.to_string(), figures)
        });
        let peer = ("peer".to_owned(), measure(peer(), machine, &trace));
        for (policy, figures) in own.into_iter().chain([peer]) {
            let [first, first_p99] = figures.first_token;
            let [gap, gap_p99] = figures.gap;
            println!(
                "| {} | {policy} | {first:.1} | {first_p99:.1} | {gap:.2} | {gap_p99:.2} | {:.1} |",
                trace.name, figures.tokens_per_second
            );
        }
    }
}
