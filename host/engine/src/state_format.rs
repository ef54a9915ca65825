//! The format of saved states. A state is restored only by a process with the same format.

use corral_llama::KvType;

/// What a state depends on beside the model file. Change this text when one of these changes.
const STATE_FORMAT: &[u8] = b"llama-cpp-sys-2 0.1.161, unified f16 cache, flash attention";

/// The addition to [`STATE_FORMAT`] for a type of cells; empty for the default.
fn format_suffix(kv: KvType) -> &'static [u8] {
    match kv {
        KvType::F16 => b"",
        KvType::Q8_0 => b", but q8_0",
    }
}

/// A hash of what a state depends on beside the model file.
pub(crate) fn format_hash(kv: KvType) -> u64 {
    // FNV-1a, to distinguish versions and no more.
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let format = STATE_FORMAT.iter().chain(format_suffix(kv));
    format.fold(0xcbf2_9ce4_8422_2325, mix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_format_names_the_pinned_version() {
        let manifest = include_str!("../../../Cargo.toml");
        let format = std::str::from_utf8(STATE_FORMAT).unwrap();
        let version = format.split([' ', ',']).nth(1).unwrap();
        let pinned = format!("llama-cpp-sys-2 = {{ version = \"={version}\"");
        assert!(manifest.contains(&pinned), "{pinned} is not in Cargo.toml");
    }

    #[test]
    fn format_hash_depends_on_cell_type() {
        assert_ne!(format_hash(KvType::F16), format_hash(KvType::Q8_0));
    }
}
