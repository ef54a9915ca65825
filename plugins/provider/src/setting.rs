//! Settings of a component that answers a plugin's imports: an environment variable, or a text in the component itself.
//!
//! `corral compose` writes the text into a [`SettingSlot`], which stands once in the component: [`MARKER`], the length of the
//! room and that of the text as little-endian `u32`, and the room. So a composed program needs no argument to find its
//! server. The environment variable takes precedence.
#![forbid(unsafe_code)]

use std::hint::black_box;

/// Begins a slot. `host/runtime/src/composition/program.rs` looks for it.
pub const MARKER: [u8; 24] = *b"corral-setting-slot-v1:\n";

/// Room for a text of up to `N` bytes. The linker must keep the layout, and the compiler must not read the initial value.
#[repr(C)]
pub struct SettingSlot<const N: usize> {
    marker: [u8; 24],
    room: [u8; 4],
    length: [u8; 4],
    text: [u8; N],
}

impl<const N: usize> SettingSlot<N> {
    /// An empty slot, for a `static`.
    #[allow(clippy::new_without_default, reason = "a slot is a static")]
    pub const fn new() -> Self {
        SettingSlot {
            marker: MARKER,
            room: (N as u32).to_le_bytes(),
            length: [0; 4],
            text: [0; N],
        }
    }

    /// The setting: the environment variable's value, or the slot's text. `None` if both are empty.
    pub fn read(&'static self, variable: &str) -> Option<String> {
        let value = std::env::var(variable).ok();
        let value = value.filter(|value| !value.is_empty());
        value.or_else(|| self.text())
    }

    fn text(&'static self) -> Option<String> {
        // The whole slot, so that the marker stays, too.
        let slot = black_box(self);
        let length = u32::from_le_bytes(slot.length) as usize;
        let text = slot.text.get(..length).filter(|_| slot.marker[0] != 0)?;
        let text = String::from_utf8_lossy(text).into_owned();
        Some(text).filter(|text| !text.is_empty())
    }
}
