//! Files of audio: the decoder either has finite samples within its limits or says what is wrong.

#![no_main]

use corral_engine::testing::decode_audio;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| {
    if let Ok((rate, samples)) = decode_audio(file) {
        assert!(samples.len() <= file.len());
        assert!(samples.len() as u64 <= u64::from(rate) * 120);
        assert!(samples.iter().all(|sample| sample.abs() <= 1.0));
    }
});
