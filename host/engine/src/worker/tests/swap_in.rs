//! Requests that wait for a swapped-out state.

use super::support::*;
use super::trace::{Records, only, traced};
use crate::metrics::get;
use crate::swap_store::SwapStore;
use crate::worker::{Command, ImportState};
use crate::{Caller, Token};
use corral_scheduler::{AdapterId, PositionOrder, Retention};
use corral_simulator::SimulatedBackend;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

/// A disk in memory whose reads wait for a message.
struct GatedDisk {
    files: HashMap<u64, Vec<u8>>,
    reads: Arc<AtomicU64>,
    gate: Receiver<()>,
}

impl crate::swap_store::Disk for GatedDisk {
    fn write(&mut self, file: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.files.insert(file, bytes.to_vec());
        Ok(())
    }

    fn read(&mut self, file: u64, _: u64) -> std::io::Result<Vec<u8>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let _ = self.gate.recv();
        Ok(self.files[&file].clone())
    }

    fn remove(&mut self, file: u64) -> std::io::Result<()> {
        self.files.remove(&file);
        Ok(())
    }
}

#[test]
fn canceled_request_leaves_swap_in_of_another() {
    let (open, gate) = sync_channel(9);
    let reads = Arc::new(AtomicU64::new(0));
    let disk = GatedDisk {
        files: HashMap::new(),
        reads: reads.clone(),
        gate,
    };
    let engine = TestConfig::default()
        .start_with_store(|waker| SwapStore::with_disk(600, 1 << 20, disk, waker).unwrap());
    let retention = Retention::default();
    // Each state drives the previous ones from memory to the disk.
    for first in [0, 100, 200] {
        let tokens: Vec<Token> = (first..first + 60).collect();
        let import = ImportState {
            scope: Caller::default().scope(),
            state: SimulatedBackend::state_of(&tokens, AdapterId::NONE),
            tokens,
            order: PositionOrder::new(std::iter::once(0..60).collect()).unwrap(),
            retention: retention.downgrade(),
        };
        engine.send(Command::ImportState(Box::new(import)));
        // The third state needs the room of the first.
        wait_until(|| first == 0 || get(&engine.metrics.swap_disk_written_bytes) > 0);
    }
    let prompt = |last| (0..60).chain([last]).collect::<Vec<Token>>();
    let records = Arc::new(Records::default());
    let stays = engine.generate(prompt(300), traced(&records, 3));
    let canceled = engine.generate(prompt(400), limit(3));
    wait_until(|| reads.load(Ordering::Relaxed) > 0);
    drop(canceled);
    engine.send(Command::Wake);
    wait_until(|| get(&engine.metrics.canceled) > 0);
    std::thread::sleep(Duration::from_millis(50));
    for _ in 0..9 {
        open.send(()).unwrap();
    }
    let (_, outcome) = read(stays);
    assert_eq!(outcome.unwrap().cached_tokens, 60);
    assert_eq!(reads.load(Ordering::Relaxed), 1);
    engine.send(Command::Shutdown);
    engine.end();
    let swap_ins = only(&records).swap_ins;
    assert_eq!(swap_ins.len(), 1);
    assert!(swap_ins[0].1.is_some());
}
