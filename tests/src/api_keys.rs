//! Files with API keys.

use crate::{run, scratch_dir};
use std::path::Path;

/// Generates a key with these options and appends its entry to a file.
pub fn new_key(file: impl AsRef<Path>, options: &[&str]) -> String {
    let file = file.as_ref().to_str().expect("a path in UTF-8");
    let made = run([&["keys", "new", "--append", file], options].concat());
    assert_eq!(made.code, Some(0), "{made:?}");
    made.stdout.trim().to_owned()
}

/// A new file with a key of the tenant alice, and the key.
pub fn key_file() -> (String, String) {
    let file = scratch_dir().join("keys.toml");
    let key = new_key(&file, &["--tenant", "alice"]);
    (file.to_str().expect("a path in UTF-8").to_owned(), key)
}

/// The same with these limits, as in a file of keys.
pub fn limited_key_file(limits: &str) -> (String, String) {
    let (file, key) = key_file();
    let text = std::fs::read_to_string(&file).expect("readable");
    std::fs::write(&file, text + limits).expect("own directory");
    (file, key)
}
