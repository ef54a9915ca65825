//! GGUF types of the KV cells.
//!
//! To support another one, add a variant here: name, block and bytes. The context gives its ggml type to llama.cpp
//! (`raw_context.rs`), and the engine's memory estimate takes its size from [`KvType::bytes`].

use llama_cpp_sys_2 as sys;
use std::str::FromStr;
use strum::{Display, IntoStaticStr};

/// The type in which cells store keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum KvType {
    /// 16 bits a number.
    #[default]
    F16,
    /// 8.5 bits a number, in blocks of 32: about half the memory, and less exact. Needs flash attention.
    Q8_0,
}

impl KvType {
    /// All types.
    pub const ALL: [Self; 2] = [Self::F16, Self::Q8_0];

    /// Its name in llama.cpp.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Numbers of a block: the length of a head's keys and of its values must be a multiple.
    pub fn block(self) -> u64 {
        match self {
            Self::F16 => 1,
            Self::Q8_0 => 32,
        }
    }

    /// Bytes of this many numbers.
    pub fn bytes(self, numbers: u64) -> u64 {
        match self {
            Self::F16 => numbers.saturating_mul(2),
            // Each block has a scale of 16 bits.
            Self::Q8_0 => numbers.div_ceil(32).saturating_mul(34),
        }
    }

    pub(crate) fn ggml(self) -> sys::ggml_type {
        match self {
            Self::F16 => sys::GGML_TYPE_F16,
            Self::Q8_0 => sys::GGML_TYPE_Q8_0,
        }
    }
}

impl FromStr for KvType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kv| kv.name() == text);
        found.ok_or_else(|| format!("'{text}' is not a type of KV cells; write f16 or q8_0"))
    }
}

#[cfg(test)]
mod tests {
    use super::KvType;

    #[test]
    fn names_parse() {
        for kv in KvType::ALL {
            assert_eq!(kv.to_string().parse(), Ok(kv));
        }
        let error = "q4_0".parse::<KvType>().expect_err("it is not supported");
        assert!(error.contains("write f16 or q8_0"), "{error}");
    }

    #[test]
    fn sizes_are_those_of_ggml() {
        for kv in KvType::ALL {
            // SAFETY: looks up constants of types that ggml has.
            let (block, row) = unsafe {
                (
                    llama_cpp_sys_2::ggml_blck_size(kv.ggml()),
                    llama_cpp_sys_2::ggml_row_size(kv.ggml(), 128),
                )
            };
            assert_eq!(u64::try_from(block), Ok(kv.block()));
            assert_eq!(row as u64, kv.bytes(128));
        }
        assert_eq!(KvType::F16.bytes(u64::MAX), u64::MAX);
    }
}
