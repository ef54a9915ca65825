//! Bytes as base64, since JSON has no bytes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Bytes, in base64 on the line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map(Bytes).map_err(de::Error::custom)
    }
}

/// Numbers of four bytes, little-endian in base64: exact, and a third of the size of decimal digits.
macro_rules! packed {
    ($name:ident, $number:ty, $doc:literal) => {
        #[doc = $doc]
        #[derive(Debug, Clone, PartialEq, Default)]
        pub struct $name(pub Vec<$number>);

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let bytes = self.0.iter().flat_map(|number| number.to_le_bytes());
                Bytes(bytes.collect()).serialize(serializer)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let Bytes(bytes) = Bytes::deserialize(deserializer)?;
                let (numbers, []) = bytes.as_chunks() else {
                    return Err(de::Error::custom("the length is no multiple of 4 bytes"));
                };
                let numbers = numbers.iter().copied().map(<$number>::from_le_bytes);
                Ok($name(numbers.collect()))
            }
        }
    };
}

packed!(
    Floats,
    f32,
    "Numbers of type `f32`, little-endian, in base64 on the line."
);
packed!(
    Words,
    u32,
    "Numbers of type `u32`, little-endian, in base64 on the line."
);
