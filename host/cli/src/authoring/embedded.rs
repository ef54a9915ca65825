//! The files that `build.rs` embeds, by path: `templates/TEMPLATE`, `sdk`, `python`, `javascript`, `c`, `go`, and the
//! `Cargo.lock` of the plugins.

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// The files of a directory, with paths relative to it.
pub(super) fn files_in(dir: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    FILES.iter().filter_map(move |(path, text)| {
        let path = path.strip_prefix(dir)?.strip_prefix('/')?;
        Some((path, *text))
    })
}

/// The text of one file.
pub(super) fn file(path: &str) -> &'static str {
    let found = FILES.iter().find(|(name, _)| *name == path);
    found.map_or("", |(_, text)| text)
}
