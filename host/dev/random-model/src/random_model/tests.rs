//! Files match their parameters, and no temporary files stay.

use super::*;
use corral_llama::gguf::tensors;
use corral_llama::{DevicePlacement, LoadProgress, Model};

fn random_model(quant: Quant) -> RandomModel {
    RandomModel {
        name: "test",
        // Rows that fill the blocks of all types.
        sizes: Qwen3 {
            width: 256,
            head_size: 64,
            feed_forward: 512,
            ..Qwen3::tiny()
        },
        tokens: 1000,
        quant,
        seed: 1,
    }
}

/// The file names in a directory.
fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn fewer_bits_give_smaller_files_that_load() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.gguf");
    let all = [Quant::F16, Quant::Q4Km];
    let mut before = u64::MAX;
    for quant in all {
        let own = random_model(quant);
        assert!(!own.matches(&file), "{quant:?} is not written yet");
        own.write(&file).unwrap();
        assert_eq!(names(dir.path()), ["model.gguf"]);
        let length = file.metadata().unwrap().len();
        assert!(length < before, "{quant:?}: {length} of {before}");
        before = length;
        for other in all {
            assert_eq!(random_model(other).matches(&file), other == quant);
        }
        let model =
            Model::load(&file, DevicePlacement::default(), &LoadProgress::default()).unwrap();
        assert_eq!(model.vocabulary_size(), 1000);
    }
}

#[test]
fn other_parameters_do_not_match() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.gguf");
    let one = random_model(Quant::F16);
    one.write(&file).unwrap();
    let bytes = std::fs::read(&file).unwrap();
    let others = [
        RandomModel {
            name: "other",
            ..one.clone()
        },
        RandomModel {
            seed: 2,
            ..one.clone()
        },
    ];
    for other in others {
        assert!(!other.matches(&file));
        other.write(&file).unwrap();
        assert!(other.matches(&file) && !one.matches(&file));
    }
    one.write(&file).unwrap();
    assert!(
        std::fs::read(&file).unwrap() == bytes,
        "the same file again"
    );
    std::fs::write(&file, "no model").unwrap();
    assert!(!one.matches(&file));
}

#[test]
fn k_quants_quantize_matrices_only() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.gguf");
    random_model(Quant::Q4Km).write(&file).unwrap();
    let tensors = tensors(&file).unwrap();
    // The token embeddings, the last norm, and eleven in each layer.
    assert_eq!(tensors.len(), 2 + 2 * 11);
    for tensor in tensors {
        let expected = tensor.name.contains("norm");
        assert_eq!(tensor.is_plain, expected, "{}", tensor.name);
    }
}

#[test]
fn failed_write_leaves_no_temporary_files() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.gguf");
    // Blocks the file of the quantizer.
    let part = dir.path().join("model.gguf.part");
    std::fs::create_dir(&part).unwrap();
    let failed = random_model(Quant::Q4Km).write(&file);
    assert!(matches!(failed, Err(GgufError::Quantize { .. })));
    assert_eq!(names(dir.path()), ["model.gguf.part"]);
    let nowhere = dir.path().join("none/model.gguf");
    let failed = random_model(Quant::Q4Km).write(&nowhere);
    assert!(matches!(failed, Err(GgufError::Write { .. })));
}

#[test]
fn weights_are_normally_distributed() {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let normal = Normal::new(&mut random);
    let mut weights = vec![0.0; 400_003];
    normal.fill(&mut random, &mut weights);
    let count = weights.len() as f32;
    let mean = weights.iter().sum::<f32>() / count;
    let deviation = (weights.iter().map(|weight| weight * weight).sum::<f32>() / count).sqrt();
    assert!(mean.abs() < 0.0005, "{mean}");
    assert!((deviation - DEVIATION).abs() < 0.0005, "{deviation}");
    // A normal distribution has 68 % within one deviation, a uniform one 58 %.
    let near = weights.iter().filter(|weight| weight.abs() < DEVIATION);
    let near = near.count() as f32 / count;
    assert!((near - 0.683).abs() < 0.01, "{near}");
}
