//! The stages of a load. A load beside a check counts tensors, so both must read them in the same order.

use corral_llama::{DevicePlacement, FileAccess, LlamaError, LoadProgress, LoadStage, Model, gguf};
use std::cell::RefCell;
use std::path::{Path, PathBuf};

fn demo_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/tiny.gguf")
}

/// The stages of a load, each with the fraction of the weights that was read before it. Ends the load at stage `last`.
fn stages(access: FileAccess, last: Option<LoadStage>) -> (Vec<LoadStage>, Vec<f32>, bool) {
    let progress = LoadProgress::default();
    let seen = RefCell::new((Vec::new(), Vec::new()));
    let gate = |stage: LoadStage| {
        let mut seen = seen.borrow_mut();
        seen.0.push(stage);
        seen.1.push(progress.fraction());
        last != Some(stage)
    };
    let placement = DevicePlacement::default();
    let loaded = Model::load_gated(&demo_model(), placement, access, &progress, &gate);
    let is_canceled = matches!(loaded, Err(LlamaError::Canceled));
    let (stages, fractions) = seen.into_inner();
    (stages, fractions, is_canceled)
}

#[test]
fn loads_read_tensors_in_the_same_order() {
    for access in [FileAccess::Read, FileAccess::Map] {
        let (seen, fractions, _) = stages(access, None);
        let again = stages(access, None);
        assert_eq!((&seen, &fractions), (&again.0, &again.1), "{access:?}");
        let tensors = seen.len() - LoadStage::HEADER_PARTS - 1;
        let header = (0..LoadStage::HEADER_PARTS).map(LoadStage::Header);
        let expected = header.chain((0..tensors).map(LoadStage::Weights));
        let expected = Vec::from_iter(expected.chain([LoadStage::Context(tensors)]));
        assert_eq!(seen, expected, "{access:?}");
        let listed = gguf::tensors(&demo_model()).expect("a model").len();
        assert!(tensors > listed, "{tensors} of {listed}");
    }
}

#[test]
fn gate_ends_load_at_each_stage() {
    let (all, _, _) = stages(FileAccess::Read, None);
    for last in all {
        let (seen, _, is_canceled) = stages(FileAccess::Read, Some(last));
        assert_eq!(seen.last(), Some(&last));
        assert!(is_canceled, "{last:?}");
    }
}
