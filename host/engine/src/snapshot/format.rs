//! The bytes of a snapshot file, version 1. All numbers are little-endian.
//!
//! | bytes | what                                                 |
//! |-------|------------------------------------------------------|
//! | 8     | magic, `CORRALSN`                                    |
//! | 4     | version                                              |
//! | 32    | SHA-256 of the model file                            |
//! | 8     | layout: a fingerprint of what the state depends on   |
//! | 8     | number of tokens, N                                  |
//! | 8     | number of bytes of the state, M                      |
//! | 4     | CRC-32 of the 68 bytes before                        |
//! | 4 N   | tokens                                               |
//! | M     | state, after the images: see [`SnapshotContent::state`]     |
//! | 32    | SHA-256 of everything before                         |
//!
//! The CRC detects a damaged header before the rest is read. SHA-256 covers the whole file, because
//! llama.cpp loads the state unchecked; the disk takes more time than the hash. It detects damage,
//! not malice: anyone with write access to the directory can write a valid snapshot.
//!
//! Magic and version keep their positions in every version.

use super::error::SnapshotError;
use super::{Origin, SnapshotContent};
use sha2::{Digest, Sha256};
use std::io::{self, Read, Write};

pub const MAGIC: [u8; 8] = *b"CORRALSN";
pub const VERSION: u32 = 1;
/// Bytes before the tokens.
pub const HEADER: usize = 72;
/// Offset of the header's checksum.
pub const HEADER_CHECKSUM: usize = 68;
/// Bytes of the digest at the end.
pub const DIGEST: usize = 32;
/// Bytes hashed at a time; small enough for the processor's cache.
const CHUNK: usize = 256 * 1024;

/// Size of a file with this many tokens and bytes of state; `None` on overflow.
pub fn length(tokens: u64, state: u64) -> Option<u64> {
    let fixed = (HEADER + DIGEST) as u64;
    tokens
        .checked_mul(4)?
        .checked_add(state)?
        .checked_add(fixed)
}

/// Writes a snapshot.
pub fn encode(out: &mut impl Write, contents: &SnapshotContent) -> io::Result<()> {
    let mut out = Hashed {
        inner: out,
        hash: Sha256::new(),
    };
    out.write(&header(
        &contents.origin,
        contents.tokens.len() as u64,
        contents.state.len() as u64,
    ))?;
    let mut bytes = Vec::with_capacity(CHUNK);
    for tokens in contents.tokens.chunks(CHUNK / 4) {
        bytes.clear();
        bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        out.write(&bytes)?;
    }
    for part in contents.state.chunks(CHUNK) {
        out.write(part)?;
    }
    let Hashed { inner, hash } = out;
    inner.write_all(&hash.finalize())?;
    inner.flush()
}

/// Encodes the header.
pub fn header(origin: &Origin, tokens: u64, state: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let fields: [&[u8]; 6] = [
        &MAGIC,
        &VERSION.to_le_bytes(),
        &origin.model,
        &origin.layout.to_le_bytes(),
        &tokens.to_le_bytes(),
        &state.to_le_bytes(),
    ];
    let mut at = 0;
    for field in fields {
        header[at..at + field.len()].copy_from_slice(field);
        at += field.len();
    }
    debug_assert_eq!(at, HEADER_CHECKSUM);
    let checksum = crc32fast::hash(&header[..at]);
    header[at..].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// Reads a snapshot of `length` bytes and checks its origin. Allocates by the file's real size, never
/// by its header.
pub fn decode(
    input: &mut impl Read,
    length: u64,
    origin: &Origin,
) -> Result<SnapshotContent, SnapshotError> {
    let mut header = Vec::with_capacity(HEADER);
    let read = input.by_ref().take(HEADER as u64).read_to_end(&mut header);
    read.map_err(unreadable)?;
    let (tokens, state) = check_header(&header, length, origin)?;
    let mut hash = Sha256::new();
    hash.update(&header);

    let mut contents = SnapshotContent {
        origin: *origin,
        tokens: room(tokens)?,
        state: room(state)?,
    };
    let mut buffer = Vec::with_capacity(CHUNK);
    let mut left = tokens.saturating_mul(4);
    while left > 0 {
        buffer.clear();
        left -= read_some(input, left, &mut buffer)?;
        hash.update(&buffer);
        let (words, _) = buffer.as_chunks::<4>();
        let tokens = words.iter().map(|word| u32::from_le_bytes(*word));
        contents.tokens.extend(tokens);
    }
    let mut left = state;
    while left > 0 {
        let before = contents.state.len();
        left -= read_some(input, left, &mut contents.state)?;
        hash.update(contents.state.get(before..).unwrap_or_default());
    }
    buffer.clear();
    read_some(input, DIGEST as u64, &mut buffer)?;
    if buffer != *hash.finalize() {
        return Err(SnapshotError::damaged(
            "its bytes do not match its checksum",
        ));
    }
    Ok(contents)
}

/// Checks the header of a file of `length` bytes. Returns the numbers of tokens and bytes of state.
pub fn check_header(
    header: &[u8],
    length: u64,
    origin: &Origin,
) -> Result<(u64, u64), SnapshotError> {
    let mut rest = header;
    if field(&mut rest) != Some(MAGIC) {
        return Err(SnapshotError::NotSnapshot);
    }
    let cut = || SnapshotError::damaged(format!("it ends after {} bytes", header.len()));
    let version = field(&mut rest).map(u32::from_le_bytes).ok_or_else(cut)?;
    if version != VERSION {
        return Err(SnapshotError::Version {
            found: version,
            expected: VERSION,
        });
    }
    let model = field(&mut rest).ok_or_else(cut)?;
    let layout = field(&mut rest).map(u64::from_le_bytes).ok_or_else(cut)?;
    let tokens = field(&mut rest).map(u64::from_le_bytes).ok_or_else(cut)?;
    let state = field(&mut rest).map(u64::from_le_bytes).ok_or_else(cut)?;
    let checksum = field(&mut rest).map(u32::from_le_bytes).ok_or_else(cut)?;
    let covered = header.get(..HEADER_CHECKSUM).unwrap_or_default();
    if crc32fast::hash(covered) != checksum {
        return Err(SnapshotError::damaged(
            "its header does not match its checksum",
        ));
    }
    if self::length(tokens, state) != Some(length) {
        return Err(SnapshotError::damaged(format!(
            "it has {length} bytes, which are not those of the {tokens} tokens and {state} bytes of state that it should hold"
        )));
    }
    if model != origin.model {
        return Err(SnapshotError::Model {
            found: model,
            expected: origin.model,
        });
    }
    if layout != origin.layout {
        return Err(SnapshotError::Layout {
            found: layout,
            expected: origin.layout,
        });
    }
    Ok((tokens, state))
}

/// Splits the next bytes off the front.
pub fn field<const BYTES: usize>(rest: &mut &[u8]) -> Option<[u8; BYTES]> {
    let (field, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(*field)
}

fn room<T>(items: u64) -> Result<Vec<T>, SnapshotError> {
    let bytes = items.saturating_mul(size_of::<T>() as u64);
    let no_memory = SnapshotError::NoMemory { bytes };
    let Ok(items) = usize::try_from(items) else {
        return Err(no_memory);
    };
    let mut list = Vec::new();
    list.try_reserve_exact(items).map_err(|_| no_memory)?;
    Ok(list)
}

/// Appends the next part and returns its length.
fn read_some(input: &mut impl Read, left: u64, into: &mut Vec<u8>) -> Result<u64, SnapshotError> {
    let part = left.min(CHUNK as u64);
    let read = input.by_ref().take(part).read_to_end(into);
    if read.map_err(unreadable)? as u64 != part {
        return Err(SnapshotError::damaged(
            "it became shorter while it was read",
        ));
    }
    Ok(part)
}

fn unreadable(error: io::Error) -> SnapshotError {
    SnapshotError::damaged(format!("it cannot be read: {error}"))
}

struct Hashed<'a, W> {
    inner: &'a mut W,
    hash: Sha256,
}

impl<W: Write> Hashed<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.inner.write_all(bytes)
    }
}
