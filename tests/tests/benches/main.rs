//! `corral-bench` and `corral bench`: what they measure, count and refuse.

mod bench_servers;
mod benches;
