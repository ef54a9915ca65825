//! Text for terminals: printing, tables, and texts of servers made safe to show.

use crate::Error;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// Writes `text` to stdout and flushes.
pub fn print(text: &str) -> Result<ExitCode, Error> {
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe => Error::OutputClosed,
            _ => Error::context("cannot write to standard output")(error),
        })?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a message to stderr.
pub(crate) fn note(message: String) {
    eprintln!("corral: {message}");
}

/// The text with `?` for control characters: a server must not control the terminal.
pub fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() { '?' } else { c };
    text.chars().map(shown).collect()
}

/// A number of bytes in MiB.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Aligns rows of cells: two blanks between columns, and no blanks at the ends of lines. `is_right` names the
/// columns that are aligned to the right.
pub fn align(rows: &[Vec<String>], is_right: impl Fn(usize) -> bool) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            line += &match is_right(column) {
                true => format!("{cell:>width$}  "),
                false => format!("{cell:<width$}  "),
            };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fit_their_widest_cells() {
        let rows = [["a", "bb", ""], ["äää", "1", "c"]].map(|row| row.map(str::to_owned).to_vec());
        let text = align(&rows, |column| column == 1);
        assert_eq!(text, "a    bb\näää   1  c\n");
    }

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(printable("a\u{1b}[2J\nb"), "a?[2J?b");
    }
}
