//! Files of pictures: the decoder either shows them or says what is wrong, within its limits.

#![no_main]

use corral_engine::testing::decode_picture;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| {
    if let Ok((width, height, pixels)) = decode_picture(file) {
        assert_eq!(
            pixels.len() as u64,
            u64::from(width) * u64::from(height) * 3
        );
    }
});
