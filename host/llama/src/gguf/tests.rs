//! Reads back files that [`Writer`] wrote.

use super::writer::ALIGNMENT;
use super::*;

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
    std::fs::remove_file(&path).unwrap();
    let total: usize = calls.iter().map(|(_, weights)| weights).sum();
    assert_eq!(total, 1_200_005);
    assert!(calls.len() > 2);
    // The last tensor has 10 bytes padded to 32, the one before exactly 4,800,000.
    let data = bytes.len() - 32 - 4_800_000;
    assert_eq!(data % ALIGNMENT, 0);
    let last = &bytes[data + 4_800_000 - 4..][..4];
    assert_eq!(f32::from_le_bytes(last.try_into().unwrap()), 1_199_999.0);
}
