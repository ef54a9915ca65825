//! The files of a split model.

use std::path::{Path, PathBuf};

/// The files of a model: `NAME-00001-of-00003.gguf` and the following if it is split, as llama.cpp names them.
pub fn split_files(path: &Path) -> Vec<PathBuf> {
    let single = || vec![path.to_owned()];
    let name = path.file_name().and_then(|name| name.to_str());
    let Some(stem) = name.and_then(|name| name.strip_suffix(".gguf")) else {
        return single();
    };
    let Some((first, count)) = stem.rsplit_once("-of-") else {
        return single();
    };
    let (Some(base), Ok(count @ 2..=99_999)) = (first.strip_suffix("-00001"), count.parse::<u32>())
    else {
        return single();
    };
    let part = |part| path.with_file_name(format!("{base}-{part:05}-of-{count:05}.gguf"));
    if part(1) != path {
        return single();
    }
    (1..=count).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_model_lists_all_files() {
        let part = |n: u32| PathBuf::from(format!("/m/big-{n:05}-of-00003.gguf"));
        assert_eq!(split_files(&part(1)), [part(1), part(2), part(3)]);
        for single in [
            "/m/x.gguf",
            "/m/x",
            "/m/x-of-3.gguf",
            "/m/x-00001-of-3.gguf",
            "/m/x-00001-of-00001.gguf",
        ] {
            assert_eq!(split_files(Path::new(single)), [PathBuf::from(single)]);
        }
    }
}
