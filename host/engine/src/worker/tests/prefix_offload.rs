//! Prefixes that are offloaded and swapped in.

use super::support::*;
use crate::Token;
use crate::machine_memory::MemoryPressure;
use crate::metrics::get;
use crate::worker::Command;

#[test]
fn offloaded_prefixes_have_their_own_memory() {
    let engine = TestEngine::start();
    let generate = |from: Token, to: Token| {
        read_tokens(
            engine.generate((from..to).collect(), limit(2)),
            [to, to + 1],
        );
    };
    let offload = || engine.send(Command::OffloadPrefixes);
    generate(0, 60);
    offload();
    // Extends the first prefix, which is swapped in.
    generate(0, 70);
    offload();
    // The memory holds one of the two prefixes.
    generate(300, 400);
    offload();
    generate(0, 70);
    // This prefix exceeds the memory.
    generate(700, 880);
    offload();
    // Lost entries are known after one more request.
    generate(900, 904);
    let metrics = engine.end();
    assert_eq!(get(&metrics.prefix_offloads), 5);
    assert_eq!(get(&metrics.swap_ins), 1);
    assert_eq!(get(&metrics.cached_tokens), 61);
    // The second prefix for the third, the third for the repeated second, and the last.
    assert_eq!(get(&metrics.entries_dropped), 3);
    assert_eq!(get(&metrics.swap_outs), 0);
    assert_eq!(get(&metrics.swapped_states_lost), 0);
    assert_eq!(get(&metrics.swap_ram_bytes), 0);
    assert_eq!(get(&metrics.prefix_offload_bytes), 4 * 71 + 8);
}

#[test]
fn memory_pressure_drops_offloaded_prefixes_only() {
    let engine = TestEngine::start();
    let generate = |from: Token, to: Token| {
        read_tokens(
            engine.generate((from..to).collect(), limit(2)),
            [to, to + 1],
        );
    };
    let bytes = |engine: &TestEngine| get(&engine.metrics.prefix_offload_bytes);
    generate(0, 60);
    engine.send(Command::OffloadPrefixes);
    generate(300, 360);
    wait_until(|| bytes(&engine) > 0);
    engine.send(Command::SetMemoryPressure(MemoryPressure::None));
    // The second prefix is still in the cells.
    generate(300, 361);
    assert!(bytes(&engine) > 0, "enough is free");
    engine.send(Command::SetMemoryPressure(MemoryPressure::DropPrefixes));
    generate(300, 362);
    assert_eq!(bytes(&engine), 0);
    generate(0, 60);
    let metrics = engine.end();
    assert_eq!(get(&metrics.entries_dropped), 1);
    // 60 of the second prompt and 61 of the third; nothing of the last.
    assert_eq!(get(&metrics.cached_tokens), 121);
    assert_eq!(get(&metrics.swap_ins), 0);
}
