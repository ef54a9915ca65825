//! Device placement, over llama.cpp and the demo model. Without a device the tests check the CPU. On a device
//! (`make test-device`) they check that the layers are there, and that sums stay right when sequences fork, leave the
//! cells and return.

use corral_engine::{
    Caller, DeviceKind, DeviceSelection, DeviceTopKMode, EmbedOptions, Engine, GenerateOptions,
    Generation, GpuLayers, KvType, ModelConfig, Overlap, devices,
};
use support::{
    SURE, block_on, check_empty, check_idle_sums, demo_model, device, exactly, idle_sums, limit,
    load, metric, read, sequence, settle, start, status,
};

mod support;

/// The demo model's four layers and its output.
const LAYERS: u32 = 5;
/// Below the 3 MiB of its weights and 512 cells together, and above either.
const MIN_DEVICE_BYTES: u64 = 5 << 19;

fn text(generation: Generation) -> String {
    let (chunk, outcome) = read(generation);
    outcome.expect("the generation succeeds");
    chunk.text
}

/// Bytes on a device with its own memory.
fn on_device(engine: &Engine, device: &str) -> u64 {
    let mut memory = engine.device_memory().iter();
    let found = memory.find(|(name, _)| name == device);
    found.map_or(0, |(_, bytes)| *bytes)
}

/// Checks many concurrent sums.
fn check_concurrent(engine: &Engine) {
    let sums: Vec<_> = (1..=24).map(|n| (n, 2 * n + 1)).collect();
    let generations: Vec<_> = sums
        .iter()
        .map(|(a, b)| start(engine, &format!("{a}+{b}="), limit(8)))
        .collect();
    for ((a, b), generation) in sums.into_iter().zip(generations) {
        assert_eq!(text(generation), (a + b).to_string(), "{a}+{b}");
    }
}

/// Checks concurrent forks: the prefix is computed once, and no fork sees another's tokens.
fn check_forks(engine: &Engine) {
    let story = "The quiet owl looks at the river and the stone.\n";
    let mut trunk = sequence(engine, &format!("{story}3+4="));
    assert_eq!(text(trunk.generate(limit(8)).unwrap()), "7");
    let story = engine.tokenize(story, true).unwrap().len();
    trunk.truncate(story).unwrap();
    let mut forks: Vec<_> = SURE.iter().map(|_| trunk.fork()).collect();
    let generations: Vec<_> = forks
        .iter_mut()
        .zip(SURE)
        .map(|(fork, (a, b))| {
            let question = engine.tokenize(&format!("{a}+{b}="), true).unwrap();
            fork.append(&question).unwrap();
            fork.generate(limit(8)).unwrap()
        })
        .collect();
    for ((a, b), generation) in SURE.into_iter().zip(generations) {
        let (chunk, outcome) = read(generation);
        assert_eq!(chunk.text, (a + b).to_string(), "{a}+{b}");
        let cached = outcome.expect("the generation succeeds").cached_tokens as usize;
        assert!(cached >= story, "{cached} of {story} tokens were cached");
    }
}

/// Checks that more sequences than fit are swapped out and in.
fn check_swap(engine: &Engine) {
    let swap_ins = metric(engine, "swap_ins_total");
    let mut idle = idle_sums(engine);
    settle(engine);
    assert!(status(engine).swap_ram_bytes > 0, "none was swapped out");
    check_idle_sums(&mut idle);
    assert!(metric(engine, "swap_ins_total") > swap_ins);
}

/// Runs all checks in an engine with room for two longer sequences.
fn check_all(change: impl FnOnce(&mut ModelConfig)) -> Engine {
    let engine = load(|config| {
        config.context = Some(512);
        config.cells = Some(512);
        config.max_running = 8;
        change(config);
    });
    check_concurrent(&engine);
    check_forks(&engine);
    check_swap(&engine);
    assert_eq!(metric(&engine, "steps_failed_total"), 0.0);
    check_empty(&engine);
    engine
}

#[test]
fn whole_model_is_on_its_device() {
    demo_model();
    let all = devices().expect("backends start");
    assert!(all.iter().any(|one| one.kind == DeviceKind::Cpu));
    let Some(device) = device() else {
        let engine = check_all(|config| config.placement.devices = DeviceSelection::Cpu);
        assert_eq!(engine.info().layers, LAYERS);
        assert_eq!(engine.info().gpu_layers, 0);
        assert!(engine.info().devices.is_empty());
        return;
    };
    let found = all.iter().find(|one| one.name == device);
    let found = found.unwrap_or_else(|| panic!("no {device} among {all:?}"));
    assert!(matches!(
        found.kind,
        DeviceKind::Gpu | DeviceKind::Integrated
    ));
    assert!(
        found.total > 0 && !found.description.is_empty(),
        "{found:?}"
    );
    let engine = check_all(|_| {});
    assert_eq!(engine.info().layers, LAYERS);
    assert_eq!(engine.info().gpu_layers, LAYERS);
    // Beside the requested number, check the buffers that llama.cpp reports.
    if found.kind == DeviceKind::Gpu {
        let taken = on_device(&engine, &device);
        assert!(taken > MIN_DEVICE_BYTES, "{taken} bytes on {device}");
    }
    assert_eq!(engine.info().devices, [device]);
}

#[test]
fn some_layers_can_be_on_a_device() {
    if device().is_none() {
        return;
    }
    for layers in [0, 1, 3] {
        let engine = check_all(|config| config.placement.gpu_layers = GpuLayers::Exactly(layers));
        assert_eq!(engine.info().gpu_layers, layers);
        if layers == 0 {
            assert!(engine.device_memory().is_empty());
        }
    }
    let engine = load(|config| config.placement.gpu_layers = GpuLayers::Auto);
    assert_eq!(engine.info().gpu_layers, LAYERS, "all layers fit");
}

#[test]
fn q8_0_cells_give_right_sums() {
    check_all(|config| config.placement.kv_type = KvType::Q8_0);
}

#[test]
fn two_engines_share_a_device() {
    let engines = [load(|_| {}), load(|_| {})];
    std::thread::scope(|scope| {
        for engine in &engines {
            scope.spawn(move || {
                check_concurrent(engine);
                check_forks(engine);
            });
        }
    });
    for engine in engines {
        check_empty(&engine);
    }
}

#[test]
fn drafts_do_not_change_the_output() {
    let engine = load(|_| {});
    for prompt in [
        "repeat: Blue owls, 7! Blue owls, 7!\n",
        "repeat: the old fox looks at the stone\n",
        "12+7=",
    ] {
        let output = |max_draft_tokens| {
            let options = GenerateOptions {
                max_draft_tokens: Some(max_draft_tokens),
                ..limit(60)
            };
            text(start(&engine, prompt, options))
        };
        assert_eq!(output(8), output(0), "{prompt}");
    }
    settle(&engine);
    assert!(metric(&engine, "draft_tokens_accepted_total") > 0.0);
    check_empty(&engine);
}

#[test]
fn prefill_overlaps_with_sampling() {
    for device_top_k in [DeviceTopKMode::Off, DeviceTopKMode::On { k: 32 }] {
        let engine = load(|config| {
            config.overlap = Overlap::On;
            config.device_top_k = device_top_k;
            // Each request computes its whole prompt, despite the common prefix.
            config.prefix_cache = false;
        });
        // A huge budget, so that the time of a step has no influence.
        let caller = Caller {
            latency: "1000,1000,3600000".parse().expect("a latency"),
            ..Caller::default()
        };
        let start = |prompt: &str, options| {
            let tokens = engine.tokenize(prompt, true).unwrap();
            let generation = engine.generate(tokens, options, caller);
            generation.expect("the request is accepted")
        };
        let others = [(); 2].map(|()| {
            let mut generation = start("1+1=", exactly(200));
            block_on(generation.next()).expect("it generates");
            generation
        });
        let story = "The cat sleeps. ".repeat(4);
        let generations = SURE.map(|(a, b)| {
            let generation = start(&format!("{story}\n{a}+{b}="), limit(8));
            (a + b, generation)
        });
        for (sum, generation) in generations {
            assert_eq!(text(generation), sum.to_string());
        }
        drop(others);
        settle(&engine);
        assert!(metric(&engine, "overlapped_steps_total") > 0.0);
        assert!(metric(&engine, "overlapped_prefill_tokens_total") > 0.0);
        assert_eq!(metric(&engine, "decode_rows_skipped_total"), 0.0);
        assert_eq!(metric(&engine, "steps_failed_total"), 0.0);
        check_empty(&engine);
    }
}

#[test]
fn cpu_does_not_overlap_by_default() {
    let engine = load(|config| {
        config.placement.devices = DeviceSelection::Cpu;
        config.placement.gpu_layers = GpuLayers::Auto;
    });
    check_concurrent(&engine);
    settle(&engine);
    assert_eq!(metric(&engine, "overlapped_steps_total"), 0.0);
}

#[test]
fn device_embeddings_match_the_cpu() {
    let text = "The quiet owl looks at the river and the stone.";
    let embed = |change: fn(&mut ModelConfig)| {
        let engine = load(change);
        let tokens = engine.tokenize(text, true).unwrap();
        let embedding = engine.embed(vec![tokens], EmbedOptions::default(), Caller::default());
        let vectors = block_on(embedding.expect("all layers fit")).expect("the embedding succeeds");
        vectors.inputs.into_iter().next().expect("one vector")
    };
    let cpu = embed(|config| {
        config.placement.devices = DeviceSelection::Cpu;
        config.placement.gpu_layers = GpuLayers::Auto;
    });
    let other = embed(|_| {});
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let cosine = dot(&cpu, &other) / (dot(&cpu, &cpu) * dot(&other, &other)).sqrt();
    assert!(cosine > 0.999, "{cosine}");
}
