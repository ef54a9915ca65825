//! Texts of plugins in messages: no more of them than somebody reads.

/// Most names of a list that are shown.
const SHOWN: usize = 16;
/// Most characters of one of them.
const NAME: usize = 128;
/// Most characters of a reason.
const CAUSE: usize = 2_000;

/// These names with commas between them, the first of them where there are many.
pub(crate) fn listed(names: &[String]) -> String {
    let shown = names.iter().take(SHOWN).map(|name| cut(name, NAME));
    let shown = Vec::from_iter(shown).join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown}, … and {more} more"),
    }
}

/// What wasmtime says of a component, whose names it may quote.
pub(crate) fn cause(error: &wasmtime::Error) -> String {
    cut(&format!("{error:#}"), CAUSE)
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
    fn long_lists_and_long_names_are_cut() {
        let names = |number: usize| Vec::from_iter((0..number).map(|name| format!("f{name}")));
        assert_eq!(listed(&[]), "");
        assert_eq!(listed(&names(2)), "f0, f1");
        assert!(listed(&names(16)).ends_with(", f14, f15"));
        assert!(listed(&names(1_000)).ends_with(", f14, f15, … and 984 more"));
        let long = listed(&["ä".repeat(1_000)]);
        assert_eq!(long, "ä".repeat(128) + "…");
        let error = wasmtime::Error::msg("x".repeat(100_000));
        assert_eq!(cause(&error).chars().count(), 2_001);
    }
}
