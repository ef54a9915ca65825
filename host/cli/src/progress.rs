//! Progress on a terminal's stderr; invisible elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// A bar or a spinner, cleared on drop.
#[derive(Clone)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A bar over the bytes of an upload.
    pub(crate) fn upload(name: &str, bytes: usize) -> Self {
        let bar = ProgressBar::new(bytes as u64);
        if let Ok(style) =
            ProgressStyle::with_template("uploading {msg} {bar:30} {bytes}/{total_bytes} {eta}")
        {
            bar.set_style(style);
        }
        bar.set_message(name.to_owned());
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
        bar.set_message(name.to_owned());
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
