//! Shortens lists and texts that come from plugins, for error messages.

/// Most names of a list.
const MAX_NAMES: usize = 16;
/// Most characters of a name.
const MAX_NAME_CHARS: usize = 128;
/// Most characters of a reason.
const MAX_CAUSE_CHARS: usize = 2_000;

/// The first names of a list, separated by commas, and how many more there are.
pub(crate) fn list(names: &[String]) -> String {
    let shown = names.iter().take(MAX_NAMES);
    let shown = Vec::from_iter(shown.map(|name| cut(name, MAX_NAME_CHARS))).join(", ");
    match names.len().saturating_sub(MAX_NAMES) {
        0 => shown,
        more => format!("{shown}, … and {more} more"),
    }
}

/// An error of wasmtime, which may quote a component's names.
pub(crate) fn cause(error: &wasmtime::Error) -> String {
    reason(&format!("{error:#}"))
}

/// A text of a plugin that says why something failed.
pub(crate) fn reason(text: &str) -> String {
    cut(text, MAX_CAUSE_CHARS)
}

fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_and_names_are_cut() {
        let names = |number: usize| Vec::from_iter((0..number).map(|name| format!("f{name}")));
        assert_eq!(list(&[]), "");
        assert_eq!(list(&names(2)), "f0, f1");
        assert!(list(&names(16)).ends_with(", f14, f15"));
        assert!(list(&names(1_000)).ends_with(", f14, f15, … and 984 more"));
        let long = list(&["ä".repeat(1_000)]);
        assert_eq!(long, "ä".repeat(128) + "…");
        let error = wasmtime::Error::msg("x".repeat(100_000));
        assert_eq!(cause(&error).chars().count(), 2_001);
    }
}
