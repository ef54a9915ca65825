//! Arguments from bytes, valid or not. After the last byte, every byte is 0.

use std::rc::Rc;
use std::vec::IntoIter;

const TEXTS: [&str; 6] = ["", "12+7=", "\n", "a", "<|im_end|>", "é\u{1f40e}"];
/// Models, adapters, samplers and snapshots.
const NAMES: [&str; 7] = ["tiny", "a", "b", "", "..", "min-p", "a/b"];

#[derive(Default)]
pub struct Arguments(IntoIter<u8>);

impl Iterator for Arguments {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        self.0.next()
    }
}

impl Arguments {
    pub fn new(bytes: Vec<u8>) -> Self {
        Arguments(bytes.into_iter())
    }

    pub fn byte(&mut self) -> u8 {
        self.next().unwrap_or_default()
    }

    pub fn flag(&mut self) -> bool {
        !self.byte().is_multiple_of(2)
    }

    pub fn number(&mut self) -> u32 {
        match self.byte() {
            255 => u32::MAX,
            254 => 65_537,
            253 => 4_097,
            byte => u32::from(byte % 32),
        }
    }

    pub fn float(&mut self) -> f32 {
        match self.byte() {
            255 => f32::NAN,
            254 => f32::INFINITY,
            253 => -1.0,
            252 => f32::MAX,
            byte => f32::from(byte % 16) / 8.0,
        }
    }

    pub fn text(&mut self) -> String {
        match self.byte() {
            byte @ ..200 => TEXTS[usize::from(byte) % TEXTS.len()].to_owned(),
            byte => {
                let bytes = (200..byte).map(|_| self.byte());
                String::from_utf8_lossy(&Vec::from_iter(bytes)).into_owned()
            }
        }
    }

    pub fn name(&mut self) -> Option<String> {
        let byte = usize::from(self.byte() % 16);
        NAMES.get(byte).map(|name| (*name).to_owned())
    }

    pub fn token(&mut self) -> u32 {
        match self.byte() {
            255 => u32::MAX,
            254 => 151_936,
            byte => u32::from(byte % 128),
        }
    }

    pub fn tokens(&mut self) -> Vec<u32> {
        let count = self.byte() % 12;
        (0..count).map(|_| self.token()).collect()
    }

    pub fn one_of<T>(&mut self, list: &[Rc<T>]) -> Option<Rc<T>> {
        let at = usize::from(self.byte());
        (!list.is_empty()).then(|| Rc::clone(&list[at % list.len()]))
    }
}
