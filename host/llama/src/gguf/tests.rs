//! Reads back files that [`Writer`] wrote, and malformed headers.

use super::reader::{Header, HeaderError, data_end};
use super::writer::ALIGNMENT;
use super::*;
use llama_cpp_sys_2 as sys;
use rand::{RngExt as _, SeedableRng as _};
use std::io::Cursor;

fn temporary(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("corral-{}-{name}.gguf", std::process::id()))
}

#[test]
fn metadata_survives_a_round_trip() {
    let values: Vec<(&str, Value)> = vec![
        ("a.u32", 7_u32.into()),
        ("a.i32", (-7_i32).into()),
        ("a.u64", u64::MAX.into()),
        ("a.i64", i64::MIN.into()),
        ("a.f32", 0.5_f32.into()),
        ("a.f64", 0.25_f64.into()),
        ("a.bool", true.into()),
        ("a.text", "h\u{e9}llo".into()),
        ("a.u32s", vec![1_u32, 2, 3].into()),
        ("a.i32s", vec![-1, 2].into()),
        ("a.f32s", vec![1.5_f32, -2.5].into()),
        ("a.bools", vec![true, false, true].into()),
        ("a.texts", vec![String::new(), "b".into()].into()),
    ];
    let mut writer = Writer::new().unwrap();
    writer.set("other", 1_u32).unwrap();
    for (key, value) in &values {
        writer.set(key, value.clone()).unwrap();
    }
    let path = temporary("metadata");
    writer.write(&path, |_, _, _| {}).unwrap();
    let read = metadata(&path, "a.").unwrap();
    std::fs::remove_file(&path).unwrap();
    let expected: Vec<_> = values
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect();
    assert_eq!(read, expected);
}

#[test]
fn fatal_input_for_llama_cpp_is_rejected() {
    let mut writer = Writer::new().unwrap();
    assert!(writer.set("general.alignment", 64_u32).is_err());
    assert!(writer.set("zero", "a\0b").is_err());
    writer.tensor("a", TensorType::Q4K, &[256, 2]).unwrap();
    for (name, tensor_type, dimensions) in [
        ("a", TensorType::F32, &[1][..]),
        (&"long".repeat(16), TensorType::F32, &[1]),
        ("b", TensorType::Q4K, &[64, 4]),
        ("b", TensorType::F32, &[]),
        ("b", TensorType::F32, &[1, 1, 1, 1, 1]),
        ("b", TensorType::F32, &[4, 0]),
        ("b", TensorType::F32, &[1 << 40, 1 << 40]),
    ] {
        assert!(
            matches!(
                writer.tensor(name, tensor_type, dimensions),
                Err(GgufError::Invalid(_))
            ),
            "{name} {dimensions:?}"
        );
    }
    let nowhere = Path::new("/nonexistent/model.gguf");
    assert!(matches!(
        writer.write(nowhere, |_, _, _| {}),
        Err(GgufError::Write { .. })
    ));
    assert!(matches!(metadata(nowhere, ""), Err(GgufError::Read { .. })));
}

#[test]
fn rows_are_filled_in_order_and_aligned() {
    let mut writer = Writer::new().unwrap();
    // More than one chunk, and a size that is not a multiple of the alignment.
    writer
        .tensor("long", TensorType::F32, &[3, 400_000])
        .unwrap();
    writer.tensor("short", TensorType::F16, &[5]).unwrap();
    let path = temporary("rows");
    let mut next = 0.0;
    let mut calls = Vec::new();
    writer
        .write(&path, |_, tensor, weights| {
            calls.push((tensor.name.clone(), weights.len()));
            for weight in weights {
                *weight = next;
                next += 1.0;
            }
        })
        .unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let read = tensors(&path).unwrap();
    let end = data_end(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let sizes = read
        .iter()
        .map(|tensor| (&*tensor.name, tensor.dimensions, tensor.bytes));
    let expected = [
        ("long", [3, 400_000, 1, 1], 4_800_000),
        ("short", [5, 1, 1, 1], 10),
    ];
    assert_eq!(Vec::from_iter(sizes), expected);
    assert_eq!(end, bytes.len() as u64 - 22, "without padding");
    let total: usize = calls.iter().map(|(_, weights)| weights).sum();
    assert_eq!(total, 1_200_005);
    assert!(calls.len() > 2);
    // The last tensor has 10 bytes padded to 32, the one before exactly 4,800,000.
    let data = bytes.len() - 32 - 4_800_000;
    assert_eq!(data % ALIGNMENT, 0);
    let last = &bytes[data + 4_800_000 - 4..][..4];
    assert_eq!(f32::from_le_bytes(last.try_into().unwrap()), 1_199_999.0);
}

/// The header of a file with one key, or one tensor, or claims of more.
fn header(tensors: u64, keys: u64, rest: &[&[u8]]) -> Vec<u8> {
    let (tensors, keys) = (tensors.to_le_bytes(), keys.to_le_bytes());
    [b"GGUF\x03\0\0\0", &tensors[..], &keys, &rest.concat()].concat()
}

/// Reads all that a header has.
fn read_all(bytes: &[u8]) -> Result<usize, HeaderError> {
    let begin = || Header::begin(Cursor::new(bytes), bytes.len() as u64);
    let skipped = begin()?.data_end();
    let mut header = begin()?;
    let found = header.metadata(|_| true)?.len() + header.tensors()?.len();
    skipped.map(|_| found)
}

#[test]
fn hostile_counts_are_refused() {
    let number = |number: u64| number.to_le_bytes();
    let kind = |kind: u32| kind.to_le_bytes();
    let (one, array) = (number(1), kind(sys::GGUF_TYPE_ARRAY));
    let (u32s, texts) = (kind(sys::GGUF_TYPE_UINT32), kind(sys::GGUF_TYPE_STRING));
    let f32 = kind(sys::GGML_TYPE_F32);
    assert_eq!(
        read_all(&header(0, 1, &[&one, b"k", &u32s, &kind(7)])),
        Ok(1)
    );
    let tensor = |rows: u64, f32: &[u8]| {
        let columns = number(4);
        header(
            1,
            0,
            &[
                &one,
                b"t",
                &kind(2),
                &columns,
                &number(rows),
                f32,
                &number(0),
            ],
        )
    };
    assert_eq!(read_all(&tensor(9, &f32)), Ok(1));
    for hostile in [1 << 31, 1 << 40, 1 << 61, u64::MAX - 7, u64::MAX] {
        let count = number(hostile);
        for bytes in [
            header(hostile, 0, &[]),
            header(0, hostile, &[]),
            // The lengths of a key, a text and an array.
            header(0, 1, &[&count, b"k"]),
            header(0, 1, &[&one, b"k", &texts, &count]),
            header(0, 1, &[&one, b"k", &array, &u32s, &count, &[0; 64]]),
            header(0, 1, &[&one, b"k", &array, &texts, &count, &[0; 64]]),
            header(1, 0, &[&count, b"t"]),
            header(1, 0, &[&one, b"t", &kind(hostile as u32 | 5)]),
            tensor(9, &kind(hostile as u32 | 1 << 20)),
        ] {
            assert!(read_all(&bytes).is_err(), "{bytes:?}");
        }
    }
    // Sizes that do not fit 64 bits. An array of arrays nests no further.
    assert!(read_all(&tensor(1 << 62, &f32)).is_err());
    assert!(read_all(&tensor(u64::MAX, &f32)).is_err());
    let nested = header(0, 1, &[&one, b"k", &array, &array, &one, &[0; 64]]);
    assert!(read_all(&nested).is_err());
}

#[test]
fn refused_header_names_the_reason() {
    let cause = |bytes: &[u8]| match read_all(bytes) {
        Err(HeaderError::Invalid(cause)) => cause,
        other => panic!("{other:?}"),
    };
    for version in [0_u32, 1, 4] {
        let mut bytes = header(0, 0, &[]);
        bytes[4..8].copy_from_slice(&version.to_le_bytes());
        let expected = format!("its version is {version}; expected 2 or 3");
        assert!(cause(&bytes).starts_with(&expected), "{}", cause(&bytes));
    }
    // A value that the file has, and one that it lacks, beyond the limit of a header.
    let large = 65_u64 << 20;
    let kind = sys::GGUF_TYPE_STRING.to_le_bytes();
    let start = header(
        0,
        1,
        &[&1_u64.to_le_bytes(), b"k", &kind, &large.to_le_bytes()],
    );
    let mut file = start.clone();
    file.resize(start.len() + large as usize, b'x');
    assert_eq!(read_all(&file), Err(HeaderError::TooLarge));
    assert!(cause(&start).contains("0 are left"), "{}", cause(&start));
    let path = temporary("large");
    std::fs::write(&path, file).unwrap();
    let text = metadata(&path, "").unwrap_err().to_string();
    std::fs::remove_file(&path).unwrap();
    assert!(text.contains("more than 64 MiB"), "{text}");
    assert!(!text.contains("damaged"), "{text}");
}

#[test]
fn damaged_headers_never_panic() {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/tiny.gguf");
    let mut original = std::fs::read(tiny).unwrap();
    original.truncate(12_000);
    assert!(read_all(&original).is_ok());
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(1);
    let mut refused = 0;
    for _ in 0..20_000 {
        let mut bytes = original.clone();
        for _ in 0..random.random_range(1..=3) {
            let at = random.random_range(4..10_000);
            match random.random_range(0..3) {
                0 => bytes[at] ^= 1 << random.random_range(0..8),
                1 => bytes[at..at + 4].copy_from_slice(&random.random::<[u8; 4]>()),
                _ => bytes[at..at + 8].fill(0xff),
            }
        }
        refused += usize::from(read_all(&bytes).is_err());
    }
    assert!((1..20_000).contains(&refused), "{refused} refused");
}
