//! `corral top`: the requests and the memory of a server's models.

mod table;

use crate::admin::{AdminArgs, AdminClient, RequestBody};
use crate::terminal::print;
use crate::{Error, startup};
use clap::Args;
use http::{Method, StatusCode};
use rustix::termios::tcgetwinsize;
use serde_json::Value;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

/// Time between two updates.
const INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of a response; the server itself takes two seconds at most.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Rows of a terminal that does not report its size.
const DEFAULT_ROWS: usize = 24;

#[derive(Args, Debug)]
pub struct TopArgs {
    #[command(flatten)]
    admin: AdminArgs,
    /// Print once, as without a terminal, instead of each second until Ctrl-C
    #[arg(long)]
    once: bool,
    /// Print the server's response, one JSON object for each update
    #[arg(long)]
    json: bool,
}

/// Shows the status until Ctrl-C. Only the first request must succeed; later ones wait for a restarting server.
pub(crate) fn top(args: &TopArgs) -> Result<ExitCode, Error> {
    startup::block_on(1, async {
        let first = fetch(&args.admin).await?;
        if args.once || !std::io::stdout().is_terminal() {
            return print(&show(args, &first, usize::MAX));
        }
        tokio::select! {
            ended = update(args, first) => ended,
            _ = tokio::signal::ctrl_c() => Ok(ExitCode::SUCCESS),
        }
    })?
}

/// Fetches the status of the models.
async fn fetch(admin: &AdminArgs) -> Result<Value, Error> {
    let client = AdminClient::without_token(admin);
    let request = client.try_request(Method::GET, "/requests", RequestBody::Empty);
    let late = Error::context(format!(
        "{} did not answer within {} s; check the server",
        admin.address,
        TIMEOUT.as_secs()
    ));
    let response = tokio::time::timeout(TIMEOUT, request).await;
    let (status, value) = response.map_err(late)??;
    match status {
        StatusCode::OK if value["models"].is_array() => Ok(value),
        status if status.is_server_error() => Err(client.response_error(status, &value)),
        // The public listener answers 404.
        _ => Err(Error::failed(client.not_corral())),
    }
}

/// Updates the screen until stdout is closed.
async fn update(args: &TopArgs, first: Value) -> Result<ExitCode, Error> {
    let mut status: Result<_, Error> = Ok(first);
    loop {
        match &status {
            Ok(status) if args.json => print(&show(args, status, rows()))?,
            Ok(status) => print(&overwrite(&show(args, status, rows())))?,
            // Stdout has JSON objects only.
            Err(error) if args.json => {
                eprintln!("corral: {}", error.message(false));
                ExitCode::SUCCESS
            }
            Err(error) => {
                let message = error.message(false);
                print(&overwrite(&format!("corral: {message} (trying again)")))?
            }
        };
        tokio::time::sleep(INTERVAL).await;
        status = fetch(&args.admin).await;
    }
}

fn show(args: &TopArgs, status: &Value, rows: usize) -> String {
    match args.json {
        true => format!("{status}\n"),
        false => table::models(&args.admin.address.to_string(), status, rows),
    }
}

/// Rows of the terminal.
fn rows() -> usize {
    let size = tcgetwinsize(std::io::stdout()).ok();
    let rows = size
        .map(|size| usize::from(size.ws_row))
        .filter(|rows| *rows > 0);
    rows.unwrap_or(DEFAULT_ROWS)
}

/// Control sequences that overwrite the screen line by line, which flickers less than clearing it first. The last line
/// has no line break, which would scroll.
fn overwrite(text: &str) -> String {
    let lines = text.trim_end_matches('\n').replace('\n', "\x1b[K\r\n");
    format!("\x1b[H{lines}\x1b[K\x1b[J")
}

#[cfg(test)]
mod tests {
    use super::overwrite;

    #[test]
    fn old_lines_are_cleared_to_their_ends() {
        assert_eq!(overwrite("a\nb\n"), "\x1b[Ha\x1b[K\r\nb\x1b[K\x1b[J");
    }
}
