//! What is seen while one waits: on a terminal only, and on standard error.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// A bar or a spinner; gone without a trace when it is dropped.
#[derive(Clone)]
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// A bar over this many bytes of what is called so.
    pub(super) fn upload(what: &str, bytes: usize) -> Self {
        let bar = ProgressBar::new(bytes as u64);
        if let Ok(style) =
            ProgressStyle::with_template("uploading {msg} {bar:30} {bytes}/{total_bytes} {eta}")
        {
            bar.set_style(style);
        }
        bar.set_message(what.to_owned());
        Progress(bar)
    }

    /// A spinner beside a text.
    pub(super) fn wait(text: &'static str) -> Self {
        let spinner = ProgressBar::new_spinner();
        spinner.set_message(text);
        spinner.enable_steady_tick(Duration::from_millis(100));
        Progress(spinner)
    }

    pub(super) fn sent(&self, bytes: usize) {
        self.0.inc(bytes as u64);
    }

    pub(super) fn done(&self) {
        self.0.finish_and_clear();
    }
}
