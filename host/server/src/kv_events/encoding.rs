//! Batches of events as MessagePack: the array of the time, the events, and the rank of the engine, which is always 0.
//! Events are maps whose member `type` tells which. <https://github.com/msgpack/msgpack/blob/master/spec.md>

use super::blocks::Event;
use corral_engine::{CACHE_BLOCK, EntryLocation};

/// A batch of events at a time, in seconds since 1970.
pub(super) fn encode(seconds: f64, events: &[Event]) -> Vec<u8> {
    let mut out = Packer::default();
    out.array(3);
    out.float(seconds);
    out.array(events.len());
    for event in events {
        encode_event(&mut out, event);
    }
    out.uint(0);
    out.0
}

/// The name of a location, as other servers call theirs: cells are on the GPU, if there is one.
fn medium(location: EntryLocation) -> &'static str {
    match location {
        EntryLocation::Cells => "GPU",
        EntryLocation::Memory => "CPU",
        EntryLocation::Disk => "DISK",
    }
}

fn encode_event(out: &mut Packer, event: &Event) {
    match event {
        Event::Stored {
            hashes,
            parent,
            tokens,
            location,
            adapter,
            salt,
        } => {
            out.map(9);
            out.member("type").text("BlockStored");
            out.member("block_hashes").uints(hashes.iter().copied());
            match parent {
                Some(parent) => out.member("parent_block_hash").uint(*parent),
                None => out.member("parent_block_hash").nil(),
            }
            out.member("token_ids")
                .uints(tokens.iter().copied().map(u64::from));
            out.member("block_size").uint(CACHE_BLOCK.into());
            out.member("lora_id").nil();
            out.member("medium").text(medium(*location));
            match adapter {
                Some(adapter) => out.member("lora_name").text(adapter),
                None => out.member("lora_name").nil(),
            }
            out.member("extra_keys");
            match salt {
                Some(salt) => {
                    out.array(hashes.len());
                    out.array(1);
                    out.text(salt);
                    (1..hashes.len()).for_each(|_| out.nil());
                }
                None => out.nil(),
            }
        }
        Event::Removed { hashes, location } => {
            out.map(3);
            out.member("type").text("BlockRemoved");
            out.member("block_hashes").uints(hashes.iter().copied());
            out.member("medium").text(medium(*location));
        }
        Event::Cleared => {
            out.map(1);
            out.member("type").text("AllBlocksCleared");
        }
    }
}

/// Writes MessagePack.
#[derive(Default)]
struct Packer(Vec<u8>);

impl Packer {
    fn nil(&mut self) {
        self.0.push(0xc0);
    }

    fn float(&mut self, number: f64) {
        self.0.push(0xcb);
        self.0.extend(number.to_be_bytes());
    }

    fn uint(&mut self, number: u64) {
        match number {
            0..=0x7f => self.0.push(number as u8),
            0x80..=0xff => self.0.extend([0xcc, number as u8]),
            0x100..=0xffff => {
                self.0.push(0xcd);
                self.0.extend((number as u16).to_be_bytes());
            }
            0x1_0000..=0xffff_ffff => {
                self.0.push(0xce);
                self.0.extend((number as u32).to_be_bytes());
            }
            _ => {
                self.0.push(0xcf);
                self.0.extend(number.to_be_bytes());
            }
        }
    }

    /// Texts, arrays and maps are shorter than 2^32 here.
    fn length(&mut self, code: u8, length: usize) {
        self.0.push(code);
        self.0
            .extend(u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    }

    fn text(&mut self, text: &str) {
        self.length(0xdb, text.len());
        self.0.extend(text.as_bytes());
    }

    fn array(&mut self, length: usize) {
        match length {
            0..=15 => self.0.push(0x90 | length as u8),
            _ => self.length(0xdd, length),
        }
    }

    fn map(&mut self, members: u8) {
        self.0.push(0x80 | members);
    }

    fn member(&mut self, name: &str) -> &mut Self {
        self.text(name);
        self
    }

    fn uints(&mut self, numbers: impl ExactSizeIterator<Item = u64>) {
        self.array(numbers.len());
        numbers.for_each(|number| self.uint(number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        data_encoding::HEXLOWER.encode(bytes)
    }

    #[test]
    fn numbers_take_as_few_bytes_as_possible() {
        for (number, expected) in [
            (0, "00"),
            (127, "7f"),
            (128, "cc80"),
            (256, "cd0100"),
            (65_536, "ce00010000"),
            (1 << 32, "cf0000000100000000"),
        ] {
            let mut out = Packer::default();
            out.uint(number);
            assert_eq!(hex(&out.0), expected);
        }
    }

    #[test]
    fn batch_is_an_array_of_maps() {
        let events = [
            Event::Cleared,
            Event::Removed {
                hashes: vec![7; 16],
                location: EntryLocation::Memory,
            },
        ];
        let text = |text: &str| format!("db{:08x}{}", text.len(), hex(text.as_bytes()));
        let expected = [
            "93cb3ff8000000000000".to_owned(),
            "92".to_owned(),
            "81".to_owned() + &text("type") + &text("AllBlocksCleared"),
            "83".to_owned() + &text("type") + &text("BlockRemoved"),
            text("block_hashes") + "dd00000010" + &"07".repeat(16),
            text("medium") + &text("CPU"),
            "00".to_owned(),
        ];
        assert_eq!(hex(&encode(1.5, &events)), expected.concat());
    }
}
