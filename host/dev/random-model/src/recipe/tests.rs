//! Files are made as the recipe says, and nothing is left beside them.

use super::*;
use corral_llama::gguf::tensors;
use corral_llama::{DevicePlacement, LoadProgress, Model};
use std::cell::RefCell;
use std::rc::Rc;

fn sized(quant: Quant) -> Recipe {
    Recipe {
        name: "test",
        // Rows that fill the blocks of all types.
        shape: Qwen3 {
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

/// The names of what lies in a folder.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn each_quantisation_gives_a_smaller_file_that_loads_and_says_how_it_was_made() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    let all = [
        Quant::F16,
        Quant::Q8_0,
        Quant::Q6K,
        Quant::Q5Km,
        Quant::Q4Km,
        Quant::Q4_0,
    ];
    let mut before = u64::MAX;
    for quant in all {
        let recipe = sized(quant);
        assert!(!recipe.made(&file), "{quant:?} is not there yet");
        recipe.write(&file, |_, _, _| {}).unwrap();
        assert_eq!(names(folder.path()), ["model.gguf"]);
        let length = file.metadata().unwrap().len();
        assert!(length < before, "{quant:?}: {length} of {before}");
        before = length;
        for other in all {
            assert_eq!(sized(other).made(&file), other == quant);
        }
        let model =
            Model::load(&file, DevicePlacement::default(), &LoadProgress::default()).unwrap();
        assert_eq!(model.vocabulary_size(), 1000);
    }
}

#[test]
fn another_shape_or_seed_is_another_file_and_so_is_what_is_no_model() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    let one = sized(Quant::F16);
    one.write(&file, |_, _, _| {}).unwrap();
    let bytes = std::fs::read(&file).unwrap();
    let others = [
        Recipe {
            name: "other",
            ..one.clone()
        },
        Recipe {
            seed: 2,
            ..one.clone()
        },
    ];
    for other in others {
        assert!(!other.made(&file));
        other.write(&file, |_, _, _| {}).unwrap();
        assert!(other.made(&file) && !one.made(&file));
    }
    one.write(&file, |_, _, _| {}).unwrap();
    assert!(std::fs::read(&file).unwrap() == bytes, "the same again");
    std::fs::write(&file, "no model").unwrap();
    assert!(!one.made(&file));
}

#[test]
fn a_k_quant_keeps_norms_and_quantises_matrices() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    sized(Quant::Q4Km).write(&file, |_, _, _| {}).unwrap();
    let tensors = tensors(&file).unwrap();
    // The embedding, which is the output matrix too; the last norm; eleven in each layer.
    assert_eq!(tensors.len(), 2 + 2 * 11);
    for tensor in tensors {
        assert_eq!(
            tensor.is_plain,
            tensor.name.contains("norm"),
            "{}",
            tensor.name
        );
    }
}

#[test]
fn one_is_told_of_all_weights_and_then_of_each_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    let told = Rc::new(RefCell::new(Vec::new()));
    let heard = told.clone();
    sized(Quant::Q4_0)
        .write(&file, move |stage, done, all| {
            heard.borrow_mut().push((stage, done, all));
        })
        .unwrap();
    let told = told.take();
    let (writing, quantising): (Vec<&_>, Vec<&_>) =
        told.iter().partition(|told| told.0 == Stage::Writing);
    assert!(told.is_sorted_by_key(|told| told.0 == Stage::Quantizing));
    let weights = writing[0].2;
    assert_eq!(writing.last(), Some(&&(Stage::Writing, weights, weights)));
    assert!(writing.is_sorted_by_key(|told| told.1));
    let expected: Vec<_> = (0..24).map(|n| (Stage::Quantizing, n, 24)).collect();
    assert!(quantising.into_iter().eq(&expected));
}

#[test]
fn what_fails_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    // In the way of what the quantiser writes.
    let part = folder.path().join("model.gguf.part");
    std::fs::create_dir(&part).unwrap();
    let failed = sized(Quant::Q4Km).write(&file, |_, _, _| {});
    assert!(matches!(failed, Err(GgufError::Quantize { .. })));
    assert_eq!(names(folder.path()), ["model.gguf.part"]);
    let nowhere = folder.path().join("none/model.gguf");
    let failed = sized(Quant::Q4Km).write(&nowhere, |_, _, _| {});
    assert!(matches!(failed, Err(GgufError::Write { .. })));
}

#[test]
fn too_little_room_is_said_with_how_much_is_needed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    check_room(&file, 1).unwrap();
    check_room(Path::new("model.gguf"), 1).unwrap();
    let error = check_room(&file, u64::MAX).unwrap_err().to_string();
    assert!(error.contains("needs 18446744073710 MB"), "{error}");
}

#[test]
fn weights_are_of_the_scale_of_a_real_model() {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let normal = Normal::new(&mut random);
    let mut weights = vec![0.0; 400_003];
    normal.fill(&mut random, &mut weights);
    let count = weights.len() as f32;
    let mean = weights.iter().sum::<f32>() / count;
    let deviation = (weights.iter().map(|weight| weight * weight).sum::<f32>() / count).sqrt();
    assert!(mean.abs() < 0.0005, "{mean}");
    assert!((deviation - DEVIATION).abs() < 0.0005, "{deviation}");
    // Two thirds within one deviation, as a normal distribution has it; a uniform one has 0.58.
    let near = weights.iter().filter(|weight| weight.abs() < DEVIATION);
    let near = near.count() as f32 / count;
    assert!((near - 0.683).abs() < 0.01, "{near}");
}
