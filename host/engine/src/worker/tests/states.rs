//! States that are put aside, and those who wait for them.

use super::*;

/// Files in memory; a read waits until it may.
#[derive(Default)]
struct Gate {
    files: HashMap<u64, Vec<u8>>,
    reads: Arc<AtomicU64>,
    open: Option<Receiver<()>>,
}

impl crate::swap_store::Disk for Gate {
    fn write(&mut self, file: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.files.insert(file, bytes.to_vec());
        Ok(())
    }

    fn read(&mut self, file: u64, _: u64) -> std::io::Result<Vec<u8>> {
        self.reads
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if let Some(open) = &self.open {
            let _ = open.recv();
        }
        Ok(self.files[&file].clone())
    }

    fn remove(&mut self, file: u64) -> std::io::Result<()> {
        self.files.remove(&file);
        Ok(())
    }
}

/// Two wait for one state on disk, and the later one goes away: the other one's wait goes on.
#[test]
fn who_no_longer_waits_for_a_state_does_not_send_it_back_from_under_others() {
    let (open, gate) = sync_channel(9);
    let disk = Gate {
        open: Some(gate),
        ..Gate::default()
    };
    let reads = disk.reads.clone();
    let (commands, inbox) = sync_channel(256);
    let look = commands.clone();
    let wake = move || {
        let _ = look.try_send(Command::Wake);
    };
    // What is put next drives what was put before to the disk.
    let spill = SwapStore::with_disk(600, 1 << 20, disk, EngineWaker::new(wake)).unwrap();
    let bench = Bench::with(Duration::ZERO, commands, inbox, spill);
    let claim = Retention::default();
    let mut simulator = Simulator::new(
        Size {
            seq_ids: 1,
            cells: 256,
            step_tokens: 256,
            vocabulary: VOCABULARY,
        },
        Machine::default(),
        Default::default(),
    );
    for first in [0, 100, 200] {
        let tokens: Vec<Token> = (first..first + 60).collect();
        let step: Vec<_> = (0..)
            .zip(&tokens)
            .map(|(position, &token)| TokenInput {
                token,
                position,
                seq: SeqId(0),
                output: false,
            })
            .collect();
        simulator.clear(SeqId(0));
        simulator.decode(&simulated(&step)).unwrap();
        let adoption = ImportState {
            scope: Caller::default().scope(),
            tokens,
            layout: corral_scheduler::Layout::new(std::iter::once(0..60).collect()).unwrap(),
            state: simulator.save(SeqId(0), usize::MAX).unwrap(),
            retention: claim.downgrade(),
        };
        let adopt = Command::ImportState(Box::new(adoption));
        bench.commands.send(adopt).unwrap();
        std::thread::sleep(Duration::from_millis(200));
    }
    let prompt = |last| (0..60).chain([last]).collect::<Vec<Token>>();
    let stays = bench.submit(prompt(300), limit(3));
    let goes = bench.submit(prompt(400), limit(3));
    let until = Instant::now() + Duration::from_secs(60);
    while value(&reads) == 0 {
        assert!(Instant::now() < until, "nothing is read");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(goes);
    bench.commands.send(Command::Wake).unwrap();
    while value(&bench.counters.cancelled) == 0 {
        assert!(Instant::now() < until, "nobody is cancelled");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(50));
    for _ in 0..9 {
        open.send(()).unwrap();
    }
    let (_, outcome) = read(stays);
    assert_eq!(outcome.unwrap().cached_tokens, 60);
    assert_eq!(value(&reads), 1);
    bench.commands.send(Command::Shutdown).unwrap();
    bench.end();
}
