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
