//! Progress on a terminal's stderr; invisible elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// Most characters of a name beside a bar: the line fits a terminal of 80 columns.
const NAME_CHARS: usize = 34;

/// A bar or a spinner, cleared on drop.
#[derive(Clone)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A bar over the bytes of an upload.
    pub(crate) fn upload(name: &str, bytes: usize) -> Self {
        let bar = ProgressBar::new(bytes as u64);
        if let Ok(style) =
            ProgressStyle::with_template("uploading {msg} {wide_bar} {bytes}/{total_bytes} {eta}")
        {
            bar.set_style(style);
        }
        bar.set_message(shortened(name));
        Progress(bar)
    }

    /// A bar over the bytes of a download.
    pub(crate) fn download(name: &str, bytes: u64) -> Self {
        let bar = ProgressBar::new(bytes);
        if let Ok(style) = ProgressStyle::with_template(
            "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        ) {
            bar.set_style(style);
        }
        bar.set_message(shortened(name));
        Progress(bar)
    }

    /// Whether somebody sees it.
    pub(crate) fn is_visible(&self) -> bool {
        !self.0.is_hidden()
    }

    /// Sets the bytes so far, which do not count for the speed.
    pub(crate) fn start_at(&self, bytes: u64) {
        self.0.set_position(bytes);
        self.0.reset_eta();
    }

    /// Runs `print` while the bar is not shown.
    pub(crate) fn suspend(&self, print: impl FnOnce()) {
        self.0.suspend(print);
    }

    /// A spinner beside a text.
    pub(crate) fn spinner(text: &'static str) -> Self {
        let spinner = ProgressBar::new_spinner();
        spinner.set_message(text);
        spinner.enable_steady_tick(Duration::from_millis(100));
        Progress(spinner)
    }

    pub(crate) fn add(&self, bytes: usize) {
        self.0.inc(bytes as u64);
    }

    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// A name that leaves room for the bar. Its end differs more often than its start.
fn shortened(name: &str) -> String {
    match name.chars().count().checked_sub(NAME_CHARS) {
        None | Some(0) => name.to_owned(),
        Some(excess) => {
            let end = name.chars().skip(excess + 1);
            format!("…{}", end.collect::<String>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_shortened() {
        let fits = "x".repeat(NAME_CHARS);
        assert_eq!(shortened(&fits), fits);
        let long = shortened(&format!("{fits}-Q4_K_M.gguf"));
        assert_eq!(long.chars().count(), NAME_CHARS);
        assert!(
            long.starts_with("…x") && long.ends_with("x-Q4_K_M.gguf"),
            "{long}"
        );
    }
}
