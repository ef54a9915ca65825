//! Where a model is computed, over llama.cpp and the demo model. Without a device these tests say that
//! the processor does everything. On one (`make test-device`) they say that the layers are there and
//! that the sums stay right, whatever happens to sequences whose cells are there too.

use corral_engine::{
    Caller, Config, DeviceKind, DeviceSampling, DeviceSelection, EmbedOptions, Engine, Generation,
    GpuLayers, KvType, Options, Overlap, PrefillPolicy, Sequence, devices,
};
use support::{
    SURE, check_empty, check_idle_sums, demo_model, device, idle_sums, metric, read, settle, view,
    wait,
};

mod support;

/// The demo model's four layers, and its output, which counts as one.
const LAYERS: u32 = 5;
/// Less than its weights and 512 cells have together, 3 MiB, and more than either.
const WHOLE: u64 = 5 << 19;

fn load(change: impl FnOnce(&mut Config)) -> Engine {
    let mut config = support::config();
    change(&mut config);
    Engine::load(config).expect("the demo model loads")
}

fn limit(max_tokens: u32) -> Options {
    Options {
        max_tokens,
        ..Options::default()
    }
}

fn start(engine: &Engine, prompt: &str, options: Options) -> Generation {
    let tokens = engine.tokenize(prompt, true).unwrap();
    let generation = engine.generate(tokens, options, Caller::default());
    generation.expect("it is taken")
}

fn answer(generation: Generation) -> String {
    let (chunk, outcome) = read(generation);
    outcome.expect("it is answered");
    chunk.text
}

/// Bytes of weights, cells and what is computed with on a device that is no part of the machine's memory.
fn on_device(engine: &Engine, device: &str) -> u64 {
    let mut memory = engine.device_memory().iter();
    let found = memory.find(|(name, _)| name == device);
    found.map_or(0, |(_, bytes)| *bytes)
}

/// Many sums at once.
fn check_together(engine: &Engine) {
    let asked: Vec<_> = (1..=24).map(|n| (n, 2 * n + 1)).collect();
    let running: Vec<_> = asked
        .iter()
        .map(|(a, b)| start(engine, &format!("{a}+{b}="), limit(8)))
        .collect();
    for ((a, b), generation) in asked.into_iter().zip(running) {
        assert_eq!(answer(generation), (a + b).to_string(), "{a}+{b}");
    }
}

/// Forks of one text which go on at the same time: it is read once, and none sees another's tokens.
fn check_forks(engine: &Engine) {
    let story = "The quiet owl looks at the river and the stone.\n";
    let mut trunk = Sequence::new(engine.clone(), Caller::default());
    let tokens = engine.tokenize(&format!("{story}3+4="), true).unwrap();
    trunk.append(&tokens).unwrap();
    assert_eq!(answer(trunk.generate(limit(8)).unwrap()), "7");
    let story = engine.tokenize(story, true).unwrap().len();
    trunk.truncate(story).unwrap();
    let mut forks: Vec<_> = SURE.iter().map(|_| trunk.fork()).collect();
    let running: Vec<_> = forks
        .iter_mut()
        .zip(SURE)
        .map(|(fork, (a, b))| {
            let question = engine.tokenize(&format!("{a}+{b}="), true).unwrap();
            fork.append(&question).unwrap();
            fork.generate(limit(8)).unwrap()
        })
        .collect();
    for ((a, b), generation) in SURE.into_iter().zip(running) {
        let (chunk, outcome) = read(generation);
        assert_eq!(chunk.text, (a + b).to_string(), "{a}+{b}");
        let cached = outcome.expect("it is answered").cached_tokens as usize;
        assert!(cached >= story, "{cached} of {story} tokens were there");
    }
}

/// More sequences than there is room for: their states leave the cells and come back as they were.
fn check_states(engine: &Engine) {
    let restored = metric(engine, "swap_ins_total");
    let mut idle = idle_sums(engine);
    settle(engine);
    assert!(view(engine).spilled_ram > 0, "all of them found room");
    check_idle_sums(&mut idle);
    assert!(metric(engine, "swap_ins_total") > restored);
}

/// All of that, in an engine that has room for two longer sequences.
fn exercise(change: impl FnOnce(&mut Config)) -> Engine {
    let engine = load(|config| {
        config.context = Some(512);
        config.cells = Some(512);
        config.sequences = 8;
        change(config);
    });
    check_together(&engine);
    check_forks(&engine);
    check_states(&engine);
    assert_eq!(metric(&engine, "steps_failed_total"), 0.0);
    check_empty(&engine);
    engine
}

#[test]
fn the_whole_model_is_where_it_was_to_be() {
    demo_model();
    let there = devices().expect("devices can be listed");
    assert!(there.iter().any(|one| one.kind == DeviceKind::Cpu));
    let Some(device) = device() else {
        let engine = exercise(|config| config.placement.devices = DeviceSelection::Cpu);
        assert_eq!(engine.info().layers, LAYERS);
        assert_eq!(engine.info().gpu_layers, 0);
        assert!(engine.info().devices.is_empty());
        return;
    };
    let found = there.iter().find(|one| one.name == device);
    let found = found.unwrap_or_else(|| panic!("no {device} among {there:?}"));
    assert!(matches!(
        found.kind,
        DeviceKind::Gpu | DeviceKind::Integrated
    ));
    assert!(
        found.total > 0 && !found.description.is_empty(),
        "{found:?}"
    );
    let engine = exercise(|_| {});
    assert_eq!(engine.info().layers, LAYERS);
    assert_eq!(engine.info().gpu_layers, LAYERS);
    // That is what was asked for; this is what llama.cpp says it took there.
    if found.kind == DeviceKind::Gpu {
        let taken = on_device(&engine, &device);
        assert!(taken > WHOLE, "{taken} bytes on {device}");
    }
    assert_eq!(engine.info().devices, [device]);
}

#[test]
fn a_part_of_it_can_be_offloaded() {
    if device().is_none() {
        return;
    }
    for layers in [0, 1, 3] {
        let engine = exercise(|config| config.placement.gpu_layers = GpuLayers::Exactly(layers));
        assert_eq!(engine.info().gpu_layers, layers);
        if layers == 0 {
            assert!(engine.device_memory().is_empty());
        }
    }
    let engine = load(|config| config.placement.gpu_layers = GpuLayers::Auto);
    assert_eq!(engine.info().gpu_layers, LAYERS, "there is room");
}

#[test]
fn cells_of_8_bits_hold_what_is_needed() {
    exercise(|config| config.placement.kv_type = KvType::Q8_0);
}

#[test]
fn two_engines_share_a_device() {
    let engines = [load(|_| {}), load(|_| {})];
    std::thread::scope(|scope| {
        for engine in &engines {
            scope.spawn(move || {
                check_together(engine);
                check_forks(engine);
            });
        }
    });
    for engine in engines {
        check_empty(&engine);
    }
}

#[test]
fn guessed_tokens_change_no_answer() {
    let engine = load(|_| {});
    for prompt in [
        "repeat: Blue owls, 7! Blue owls, 7!\n",
        "repeat: the old fox looks at the stone\n",
        "12+7=",
    ] {
        let said = |speculate| {
            let options = Options {
                speculate,
                ..limit(60)
            };
            answer(start(&engine, prompt, options))
        };
        assert_eq!(said(8), said(0), "{prompt}");
    }
    settle(&engine);
    assert!(metric(&engine, "draft_tokens_accepted_total") > 0.0);
    check_empty(&engine);
}

/// Prompts come while others generate: while those are sampled, a part of the prompts is read.
#[test]
fn prompts_are_read_while_others_are_answered() {
    for device_sampling in [DeviceSampling::Off, DeviceSampling::On { k: 32 }] {
        let engine = load(|config| {
            config.overlap = Overlap::On;
            config.device_sampling = device_sampling;
            // How long steps take decides nothing: on a busy machine they would have the smallest parts alone.
            config.prefill = PrefillPolicy::Budgeted { gap: 1000.0 };
            // Each reads the whole of its prompt, though all begin alike.
            config.prefix_cache = false;
        });
        let endless = Options {
            ignore_end: true,
            ..limit(200)
        };
        let others = [(); 2].map(|()| {
            let mut generation = start(&engine, "1+1=", endless.clone());
            wait(generation.next()).expect("it generates");
            generation
        });
        let story = "The cat sleeps. ".repeat(4);
        let running = SURE.map(|(a, b)| {
            let generation = start(&engine, &format!("{story}\n{a}+{b}="), limit(8));
            (a + b, generation)
        });
        for (sum, generation) in running {
            assert_eq!(answer(generation), sum.to_string());
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

/// Without being told it does so on devices alone.
#[test]
fn a_processor_reads_nothing_ahead() {
    let engine = load(|config| {
        config.placement.devices = DeviceSelection::Cpu;
        config.placement.gpu_layers = GpuLayers::Auto;
    });
    check_together(&engine);
    settle(&engine);
    assert_eq!(metric(&engine, "overlapped_steps_total"), 0.0);
}

#[test]
fn embeddings_are_those_of_the_processor() {
    let text = "The quiet owl looks at the river and the stone.";
    let embed = |change: fn(&mut Config)| {
        let engine = load(change);
        let tokens = engine.tokenize(text, true).unwrap();
        let embedding = engine.embed(vec![tokens], EmbedOptions::default(), Caller::default());
        let vectors = wait(embedding.expect("there is room")).expect("it is computed");
        vectors.inputs.into_iter().next().expect("one for the text")
    };
    let here = embed(|config| {
        config.placement.devices = DeviceSelection::Cpu;
        config.placement.gpu_layers = GpuLayers::Auto;
    });
    let there = embed(|_| {});
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let cosine = dot(&here, &there) / (dot(&here, &here) * dot(&there, &there)).sqrt();
    assert!(cosine > 0.999, "{cosine}");
}

#[test]
fn a_device_that_is_not_there_is_refused_and_those_that_are_are_named() {
    let refusal = |devices, layers| {
        let mut config = support::config();
        config.placement.devices = devices;
        config.placement.gpu_layers = layers;
        let refused = Engine::load(config).err().expect("it is refused");
        refused.to_string()
    };
    let unknown = DeviceSelection::Named(vec!["Nonsense7".into()]);
    let text = refusal(unknown, GpuLayers::Auto);
    assert!(text.contains("Nonsense7") && text.contains("CPU"), "{text}");
    if let Some(device) = device() {
        assert!(text.contains(&device), "{text}");
    }
    let text = refusal(DeviceSelection::Cpu, GpuLayers::Exactly(3));
    assert!(text.contains("3 GPU layers"), "{text}");
}
