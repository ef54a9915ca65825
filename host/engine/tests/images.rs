//! Images over llama.cpp and the demo model, with a projector that makes a picture a row of tokens: the model answers a sum in a
//! picture as it answers it in text, so a wrong embedding, cell or position shows as a wrong sum.

use corral_engine::{Caller, Engine, Error, Image, ModelConfig, Sequence, Tenant};
use corral_random_model::image_projector::{PATCH, SIDE, picture, write_projector};
use image::{GrayImage, ImageFormat};
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use support::{
    SURE, block_on, check_identity, demo_model, limit, load, metric, read, sequence, snapshots,
};

mod support;

/// Positions of a picture.
const POSITIONS: usize = (SIDE * SIDE) as usize;

fn projector() -> PathBuf {
    static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
        let file = format!("corral-projector-{}.gguf", std::process::id());
        let file = std::env::temp_dir().join(file);
        write_projector(&demo_model(), &file).expect("the projector is written");
        file
    });
    FILE.clone()
}

fn sees(config: &mut ModelConfig) {
    config.projector = Some(projector());
}

/// A picture of a text, as a file.
fn png(text: &str) -> Vec<u8> {
    let side = SIDE * PATCH;
    let pixels = picture(text.as_bytes(), b'\n');
    let image = GrayImage::from_raw(side, side, pixels).expect("all pixels");
    let mut file = Cursor::new(Vec::new());
    image
        .write_to(&mut file, ImageFormat::Png)
        .expect("in memory");
    file.into_inner()
}

fn encode_for(engine: &Engine, file: Vec<u8>, caller: Caller) -> Result<Arc<Image>, Error> {
    block_on(engine.encode_image(file, caller)?)
}

/// A sequence of a text, a picture and another text.
fn seeing(engine: &Engine, before: &str, file: Vec<u8>, after: &str) -> Sequence {
    let mut sequence = sequence(engine, before);
    let image = encode_for(engine, file, Caller::default()).expect("a picture");
    assert_eq!(sequence.append_image(image), Ok(POSITIONS));
    append(engine, &mut sequence, after);
    sequence
}

fn append(engine: &Engine, sequence: &mut Sequence, text: &str) {
    let tokens = engine.tokenize(text, true).expect("short");
    sequence.append(&tokens).expect("it fits");
}

/// The answer, and the number of cached tokens.
fn answer(sequence: &mut Sequence) -> (String, u32) {
    let (chunk, outcome) = read(sequence.generate(limit(8)).expect("it is accepted"));
    let outcome = outcome.expect("it succeeds");
    (chunk.text, outcome.cached_tokens)
}

/// A sum whose picture has a text before it.
fn question((a, b): (u32, u32)) -> String {
    format!("{a}+{b}")
}

#[test]
fn tenants_share_no_picture() {
    let engine = load(sees);
    let tokens = |tenant| {
        let caller = Caller {
            tenant: Tenant(tenant),
            ..Caller::default()
        };
        let mut sequence = Sequence::new(engine.clone(), caller);
        let image = encode_for(&engine, png("12+7"), caller).expect("a picture");
        sequence.append_image(image).expect("it fits");
        sequence.tokens().to_vec()
    };
    let (one, other) = (tokens(1), tokens(2));
    assert_eq!(tokens(1), one);
    assert!(one.iter().all(|token| !other.contains(token)));
    assert_eq!(metric(&engine, "images_encoded_total"), 2.0);
    engine.shutdown();
}

#[test]
fn forks_and_truncated_sequences_see_the_picture() {
    let engine = load(sees);
    let mut first = seeing(&engine, "The old fox.\n", png("12+7"), "=");
    let mut fork = first.fork();
    assert_eq!(answer(&mut first).0, "19");
    let (text, cached) = answer(&mut fork);
    assert_eq!(
        (text.as_str(), cached as usize),
        ("19", fork.tokens().len() - 1)
    );
    // Behind the picture, and within it.
    let length = fork.tokens().len() - 1;
    fork.truncate(length).unwrap();
    append(&engine, &mut fork, "\nreverse: table\n");
    assert_eq!(answer(&mut fork).0, "elbat");
    let mut cut = first.fork();
    cut.truncate(length - 1).unwrap();
    append(&engine, &mut cut, "1=");
    assert_eq!(answer(&mut cut).0, "13");
    // Before it.
    first.truncate(length - POSITIONS).unwrap();
    append(&engine, &mut first, "20+22=");
    assert_eq!(answer(&mut first).0, "42");
    engine.shutdown();
}

#[test]
fn sequence_must_not_end_with_a_picture() {
    let engine = load(sees);
    let mut sequence = seeing(&engine, "The old fox.\n", png("12+7"), "");
    let error = sequence.generate(limit(8)).err();
    let Some(Error::Invalid(text)) = error else {
        panic!("{error:?}");
    };
    assert!(text.contains("ends with an image"), "{text}");
    // Guests cannot write the tokens of images.
    let foreign = sequence.tokens().last().copied().expect("a token");
    assert!(matches!(
        sequence.append(&[foreign]),
        Err(Error::Invalid(_))
    ));
    let generated = engine.generate(vec![foreign, 61], limit(1), Caller::default());
    assert!(matches!(generated, Err(Error::Invalid(_))));
    append(&engine, &mut sequence, "=");
    assert_eq!(answer(&mut sequence).0, "19");
    engine.shutdown();
}

#[test]
fn recomputed_pictures_are_right() {
    // Few cells and no swapping: sequences lose their state and are computed again.
    let engine = load(|config| {
        sees(config);
        config.context = Some(128);
        config.cells = Some(256);
        config.swap_ram = 0;
        config.prefix_offload_ram = 0;
    });
    let before = "The quiet owl looks at the river. ".repeat(2) + "\n";
    let mut all: Vec<_> = SURE
        .iter()
        .map(|&sum| seeing(&engine, &before, png(&question(sum)), "="))
        .collect();
    for _ in 0..3 {
        let generations: Vec<_> = all
            .iter_mut()
            .map(|sequence| sequence.generate(limit(8)).expect("accepted"))
            .collect();
        for (generation, (a, b)) in generations.into_iter().zip(SURE) {
            let (chunk, outcome) = read(generation);
            outcome.expect("it succeeds");
            assert_eq!(chunk.text, (a + b).to_string());
        }
    }
    engine.shutdown();
    check_identity(&engine);
}

#[test]
fn snapshots_hold_their_pictures() {
    let dir = tempfile::tempdir().unwrap();
    let start = |projector: &Path| {
        load(|config| {
            config.projector = Some(projector.to_owned());
            config.snapshots = snapshots(dir.path());
        })
    };
    // Long enough that its state is worth saving.
    let before = &"The old fox.\n".repeat(12);
    let engine = start(&projector());
    let mut saved = seeing(&engine, before, png("12+7"), "=");
    let mut cut = saved.fork();
    saved.snapshot("owner", "new").unwrap();
    assert_eq!(answer(&mut saved).0, "19");
    saved.snapshot("owner", "computed").unwrap();
    cut.truncate(cut.tokens().len() - 2).unwrap();
    cut.snapshot("owner", "cut").unwrap();
    engine.shutdown();
    drop((saved, cut, engine));

    let engine = start(&projector());
    let restore_limited = |name, max_images| {
        Sequence::restore(engine.clone(), Caller::default(), "owner", name, max_images)
    };
    let refused = restore_limited("computed", 0).err();
    assert!(matches!(refused, Some(Error::Invalid(_))), "{refused:?}");
    let restore = |name| restore_limited(name, 1);
    let mut computed = restore("computed").unwrap();
    let (text, cached) = answer(&mut computed);
    assert_eq!(
        (text.as_str(), cached as usize),
        ("19", computed.tokens().len() - 1)
    );
    // The same picture is found again, without being encoded.
    let mut same = seeing(&engine, before, png("12+7"), "=");
    assert_eq!(same.tokens(), computed.tokens());
    assert_eq!(answer(&mut same).0, "19");
    assert_eq!(metric(&engine, "images_encoded_total"), 0.0);
    assert_eq!(answer(&mut restore("new").unwrap()).0, "19");
    let mut cut = restore("cut").unwrap();
    append(&engine, &mut cut, "1=");
    assert_eq!(answer(&mut cut).0, "13");
    engine.shutdown();
    drop((computed, same, cut, engine));

    // Another projector, and none.
    let other = dir.path().join("other.gguf");
    let mut bytes = std::fs::read(projector()).unwrap();
    bytes.push(0);
    std::fs::write(&other, bytes).unwrap();
    for projector in [Some(other), None] {
        let engine = load(|config| {
            config.projector = projector;
            config.snapshots = snapshots(dir.path());
        });
        let restored = Sequence::restore(
            engine.clone(),
            Caller::default(),
            "owner",
            "new",
            usize::MAX,
        );
        let error = restored.err().expect("it belongs to another projector");
        assert!(error.to_string().contains("another projector"), "{error}");
        engine.shutdown();
    }
}
