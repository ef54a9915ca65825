//! A terminal that shows lines, of which the arrow keys scroll. No line wraps.

use super::table::{Line, Style};
use crate::Error;
use crate::terminal::print;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{IsTerminal, Read};
use tokio::sync::mpsc;

/// Size of a terminal that does not report it.
const DEFAULT_SIZE: (usize, usize) = (80, 24);
/// Enters the alternate screen, hides the cursor, and cuts long lines; and the reverse.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// What a key does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Scroll(Scroll),
}

/// A movement over the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scroll {
    Up,
    Down,
    PageUp,
    PageDown,
    Start,
    End,
}

/// The screen of the terminal. Dropping it restores what was there.
pub(super) struct Screen {
    lines: Vec<Line>,
    /// Number of the first line shown below the head.
    first: usize,
    has_colors: bool,
    /// The modes of the terminal that keys come from.
    modes: Option<Termios>,
}

impl Screen {
    /// Keys arrive at once and are not echoed.
    pub(super) fn open() -> Self {
        let modes = tcgetattr(std::io::stdin()).ok();
        if let Some(mut modes) = modes.clone() {
            modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            // Without them keys wait for Enter.
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &modes);
        }
        // A closed terminal fails in `draw`.
        let _ = print(ENTER);
        Screen {
            lines: Vec::new(),
            first: 0,
            has_colors: shows_colors(),
            modes,
        }
    }

    /// Replaces the lines. The first one stays at the top.
    pub(super) fn set(&mut self, lines: Vec<Line>) {
        self.lines = lines;
    }

    pub(super) fn scroll(&mut self, scroll: Scroll) {
        let page = size().1.saturating_sub(3).max(1);
        self.first = match scroll {
            Scroll::Up => self.first.saturating_sub(1),
            Scroll::Down => self.first.saturating_add(1),
            Scroll::PageUp => self.first.saturating_sub(page),
            Scroll::PageDown => self.first.saturating_add(page),
            Scroll::Start => 0,
            Scroll::End => usize::MAX,
        };
    }

    pub(super) fn draw(&mut self) -> Result<(), Error> {
        let (columns, rows) = size();
        let (text, first) = page(&self.lines, self.first, columns, rows, self.has_colors);
        self.first = first;
        print(&text).map(drop)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = print(LEAVE);
        if let Some(modes) = &self.modes {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, modes);
        }
    }
}

/// Columns and rows of the terminal.
fn size() -> (usize, usize) {
    let size = tcgetwinsize(std::io::stdout()).ok();
    let size = size.map(|size| (usize::from(size.ws_col), usize::from(size.ws_row)));
    size.filter(|(columns, rows)| *columns > 0 && *rows > 0)
        .unwrap_or(DEFAULT_SIZE)
}

/// Control sequences that overwrite the screen line by line, which flickers less than clearing it first: the first
/// line, then the lines from `first` on, then the keys. Returns the number of the first line that is shown, too.
fn page(
    lines: &[Line],
    first: usize,
    columns: usize,
    rows: usize,
    has_colors: bool,
) -> (String, usize) {
    let (head, rest) = lines.split_at(lines.len().min(1));
    let room = rows.saturating_sub(2);
    let first = first.min(rest.len().saturating_sub(room));
    let shown = &rest[first..rest.len().min(first + room)];
    let keys = match rest.len() > room {
        false => "q quits".to_owned(),
        true => format!(
            "lines {} to {} of {}; arrows and page keys scroll, q quits",
            first + 1,
            first + shown.len(),
            rest.len()
        ),
    };
    let mut text = "\x1b[H".to_owned();
    for line in head.iter().chain(shown) {
        let cut = line.text.chars().take(columns).collect();
        let line = Line { text: cut, ..*line };
        text += &format!("{}\x1b[K\r\n", styled(&line, has_colors));
    }
    // The last line has no line break, which would scroll.
    let keys = keys.chars().take(columns).collect::<String>();
    let text = format!("{text}\x1b[J\x1b[{rows};1H{keys}");
    (text, first)
}

/// The line with control sequences for its style.
pub(super) fn styled(line: &Line, has_colors: bool) -> String {
    let code = match line.style {
        Style::Plain => "",
        Style::Model => "1",
        Style::Titles => "7",
        Style::Prefill => "36",
        Style::Waiting => "33",
        Style::Error => "31",
    };
    match code {
        "" => line.text.clone(),
        _ if !has_colors => line.text.clone(),
        code => format!("\x1b[{code}m{}\x1b[0m", line.text),
    }
}

/// Whether the user wants colors (see no-color.org).
pub(super) fn shows_colors() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !is_set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// The keys that are pressed from now on; none if stdin is not a terminal.
pub(super) fn keys() -> mpsc::UnboundedReceiver<Key> {
    let (sender, receiver) = mpsc::unbounded_channel();
    if std::io::stdin().is_terminal() {
        // It reads until the process ends.
        std::thread::spawn(move || {
            let mut bytes = [0; 64];
            while let Ok(count @ 1..) = std::io::stdin().lock().read(&mut bytes) {
                for key in parse(&bytes[..count]) {
                    if sender.send(key).is_err() {
                        return;
                    }
                }
            }
        });
    }
    receiver
}

/// The keys in the input of a terminal; unknown bytes mean nothing.
fn parse(mut bytes: &[u8]) -> Vec<Key> {
    const KEYS: [(&[u8], Key); 21] = [
        (b"q", Key::Quit),
        (b"Q", Key::Quit),
        (b"k", Key::Scroll(Scroll::Up)),
        (b"\x1b[A", Key::Scroll(Scroll::Up)),
        (b"\x1bOA", Key::Scroll(Scroll::Up)),
        (b"j", Key::Scroll(Scroll::Down)),
        (b"\n", Key::Scroll(Scroll::Down)),
        (b"\x1b[B", Key::Scroll(Scroll::Down)),
        (b"\x1bOB", Key::Scroll(Scroll::Down)),
        (b"b", Key::Scroll(Scroll::PageUp)),
        (b"\x1b[5~", Key::Scroll(Scroll::PageUp)),
        (b" ", Key::Scroll(Scroll::PageDown)),
        (b"\x1b[6~", Key::Scroll(Scroll::PageDown)),
        (b"g", Key::Scroll(Scroll::Start)),
        (b"\x1b[H", Key::Scroll(Scroll::Start)),
        (b"\x1b[1~", Key::Scroll(Scroll::Start)),
        (b"\x1bOH", Key::Scroll(Scroll::Start)),
        (b"G", Key::Scroll(Scroll::End)),
        (b"\x1b[F", Key::Scroll(Scroll::End)),
        (b"\x1b[4~", Key::Scroll(Scroll::End)),
        (b"\x1bOF", Key::Scroll(Scroll::End)),
    ];
    let mut keys = Vec::new();
    while let Some(rest) = bytes.get(1..) {
        let known = KEYS.iter().find(|(text, _)| bytes.starts_with(text));
        bytes = known.map_or(rest, |(text, _)| &bytes[text.len()..]);
        keys.extend(known.map(|(_, key)| *key));
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(count: usize) -> Vec<Line> {
        let texts = (0..count).map(|n| format!("{n} {}", "x".repeat(100)));
        texts.map(Line::plain).collect()
    }

    /// The visible lines of a page.
    fn visible(text: &str) -> Vec<String> {
        let text = text.replace("\x1b[K", "").replace("\x1b[J", "");
        let text = text.replace("\x1b[H", "").replace("\x1b[5;1H", "");
        text.split("\r\n").map(str::to_owned).collect()
    }

    #[test]
    fn page_fits_the_terminal_and_scrolls() {
        let (text, first) = page(&lines(10), 2, 20, 5, false);
        let shown = visible(&text);
        assert_eq!(first, 2);
        let starts: Vec<_> = shown.iter().map(|line| &line[..2]).collect();
        assert_eq!(starts, ["0 ", "3 ", "4 ", "5 ", "li"]);
        assert!(shown.iter().all(|line| line.len() <= 20), "{shown:?}");
        assert_eq!(page(&lines(10), usize::MAX, 20, 5, false).1, 6, "the end");
        let (text, first) = page(&lines(4), 9, 80, 5, false);
        assert_eq!(first, 0, "all lines fit");
        assert!(text.ends_with("\x1b[5;1Hq quits"), "{text:?}");
    }

    #[test]
    fn colors_surround_the_cut_line() {
        let line = Line::error("abcdef".to_owned());
        assert_eq!(styled(&line, true), "\x1b[31mabcdef\x1b[0m");
        assert_eq!(styled(&line, false), "abcdef");
        let (text, _) = page(&[line], 0, 3, 5, true);
        assert!(text.contains("\x1b[31mabc\x1b[0m\x1b[K"), "{text:?}");
    }

    #[test]
    fn keys_are_read_from_escape_sequences() {
        let up = Key::Scroll(Scroll::Up);
        let expected = [up, Key::Scroll(Scroll::PageDown), up, Key::Quit];
        assert_eq!(parse(b"\x1b[A\x1b[6~xkq"), expected);
        assert!(parse(b"\x1b[Z\x1b").is_empty());
    }
}
