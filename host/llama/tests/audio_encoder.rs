//! Recordings whose encoding ends before all of their windows are encoded.

use corral_llama::{DevicePlacement, ImagePart, LoadProgress, MediaEncoder, Model};
use corral_random_model::audio_projector::{recording, write_audio_projector};
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;

#[test]
fn canceled_recording_ends_before_next_window() {
    let demo_model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/tiny.gguf");
    let dir = tempfile::tempdir().expect("a directory");
    let projector = dir.path().join("mmproj.gguf");
    write_audio_projector(&demo_model, &projector).expect("the projector is written");
    let placement = DevicePlacement::default();
    let model = Model::load(&demo_model, placement, &LoadProgress::default()).expect("a model");
    let mut encoder = MediaEncoder::load(&projector, Arc::new(model), 1).expect("a projector");
    let rate = encoder.sample_rate().expect("an encoder of audio");
    // Two windows of half a minute.
    let samples = recording(&[b'1'; 11], b'\n', rate);

    let asked = Cell::new(0);
    let mut encode = |windows: usize| {
        asked.set(0);
        encoder.encode_audio(&samples, &|| asked.replace(asked.get() + 1) == windows)
    };
    let parts = encode(usize::MAX).expect("all windows are encoded");
    let is_window = |part: &&ImagePart| matches!(part, ImagePart::Embeddings(_));
    assert_eq!(parts.iter().filter(is_window).count(), 2);
    assert_eq!(asked.get(), 2);
    for windows in [0, 1] {
        let error = encode(windows).expect_err("it is canceled");
        assert_eq!(error, "it was canceled");
        assert_eq!(asked.get(), windows + 1);
    }
}
