//! `corral top`: what goes on in the models of a server, as its admin listener tells it.

mod client;
mod table;

use crate::Error;
use crate::admin::Admin;
use clap::Args;
use rustix::termios::tcgetwinsize;
use serde_json::Value;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) admin: Admin,
    /// Look once, as is done anyway where the output is no terminal; otherwise each second until Ctrl-C.
    #[arg(long)]
    pub(crate) once: bool,
    /// Print what the server says, one JSON object for each look.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Shows it. Only the first look must succeed: a server that is busy or started anew is waited for.
pub(crate) fn top(arguments: &TopArgs) -> Result<ExitCode, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::context(
            "nothing can be waited for; raise the limit of open files",
        ))?;
    runtime.block_on(async {
        let first = client::look(&arguments.admin).await?;
        if arguments.once || !std::io::stdout().is_terminal() {
            write(&show(arguments, &first, usize::MAX))?;
            return Ok(ExitCode::SUCCESS);
        }
        tokio::select! {
            ended = go_on(arguments, first) => ended,
            // Nothing has to be put back as it was.
            _ = tokio::signal::ctrl_c() => Ok(ExitCode::SUCCESS),
        }
    })
}

/// Looks again and again, as long as somebody reads.
async fn go_on(arguments: &TopArgs, first: Value) -> Result<ExitCode, Error> {
    let mut seen: Result<_, Error> = Ok(first);
    loop {
        match &seen {
            Ok(seen) if arguments.json => write(&show(arguments, seen, rows()))?,
            Ok(seen) => write(&redrawn(&show(arguments, seen, rows())))?,
            // Programs read objects and nothing else.
            Err(complaint) if arguments.json => eprintln!("{}", complaint.message(false)),
            Err(complaint) => write(&redrawn(&(complaint.message(false) + " (trying again)")))?,
        }
        tokio::time::sleep(PAUSE).await;
        seen = client::look(&arguments.admin).await;
    }
}

fn show(arguments: &TopArgs, seen: &Value, rows: usize) -> String {
    if arguments.json {
        return format!("{seen}\n");
    }
    table::of(&arguments.admin.address.to_string(), seen, rows)
}

/// Rows of the terminal. One that does not tell has as many as they had of old.
fn rows() -> usize {
    let size = tcgetwinsize(std::io::stdout()).ok();
    let rows = size
        .map(|size| usize::from(size.ws_row))
        .filter(|rows| *rows > 0);
    rows.unwrap_or(24)
}

/// The text in place of what the terminal shows: each line over the old one, then nothing below, which
/// flickers less than clearing first. The last line keeps its place: a line break there would scroll.
fn redrawn(text: &str) -> String {
    let lines = text.trim_end_matches('\n').replace('\n', "\x1b[K\r\n");
    format!("\x1b[H{lines}\x1b[K\x1b[J")
}

fn write(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(Error::context("nobody reads what is shown"))
}

#[cfg(test)]
mod tests {
    use super::redrawn;

    #[test]
    fn old_lines_are_overwritten_to_their_ends() {
        assert_eq!(redrawn("a\nb\n"), "\x1b[Ha\x1b[K\r\nb\x1b[K\x1b[J");
    }
}
