//! `corral top`: the requests and the memory of a server's models.

mod screen;
mod table;

use crate::admin::{AdminArgs, AdminClient, RequestBody};
use crate::terminal::print;
use crate::{Error, startup};
use clap::Args;
use http::{Method, StatusCode};
use screen::{Key, Screen};
use serde_json::Value;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use table::{Line, Rates};
use tokio::signal::unix::{SignalKind, signal};

/// Time between two updates.
const INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of a response; the server itself takes two seconds at most.
const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Args, Debug)]
pub struct TopArgs {
    #[command(flatten)]
    admin: AdminArgs,
    /// Print once, as without a terminal, instead of each second until 'q'
    #[arg(long)]
    once: bool,
    /// Print the server's response, one JSON object for each update
    #[arg(long)]
    json: bool,
}

/// Shows the status until `q` or Ctrl-C. Only the first request must succeed; later ones wait for a restarting server.
pub(crate) fn top(args: &TopArgs) -> Result<ExitCode, Error> {
    startup::block_on(1, async {
        args.admin.check_ca(&[&args.admin.address])?;
        let client = AdminClient::new(&args.admin)?;
        let first = fetch(args, &client).await?;
        let is_terminal = std::io::stdout().is_terminal();
        match (args.once || !is_terminal, args.json) {
            (true, true) => print(&format!("{first}\n")),
            (true, false) => {
                let lines = lines(args, &first, &mut Rates::default());
                let style = is_terminal && screen::shows_colors();
                let lines = lines.iter().map(|line| screen::styled(line, style));
                print(&lines.map(|line| line + "\n").collect::<String>())
            }
            (false, true) => tokio::select! {
                ended = print_updates(args, &client, first) => ended,
                _ = tokio::signal::ctrl_c() => Ok(ExitCode::SUCCESS),
            },
            (false, false) => show_updates(args, &client, &first).await,
        }
    })?
}

/// Fetches the status of the models.
async fn fetch(args: &TopArgs, client: &AdminClient) -> Result<Value, Error> {
    let request = client.try_request(Method::GET, "/requests", RequestBody::Empty);
    let late = Error::context(format!(
        "{} did not answer within {} s; check the server",
        args.admin.address,
        TIMEOUT.as_secs()
    ));
    let response = tokio::time::timeout(TIMEOUT, request).await;
    let (status, value) = response.map_err(late)??;
    match status {
        StatusCode::OK if value["models"].is_array() => Ok(value),
        StatusCode::UNAUTHORIZED => Err(client.response_error(status, &value)),
        status if status.is_server_error() => Err(client.response_error(status, &value)),
        // The public listener answers 404.
        _ => Err(Error::failed(client.not_corral())),
    }
}

/// Prints JSON objects until stdout is closed.
async fn print_updates(
    args: &TopArgs,
    client: &AdminClient,
    first: Value,
) -> Result<ExitCode, Error> {
    let mut status: Result<_, Error> = Ok(first);
    loop {
        match &status {
            Ok(status) => drop(print(&format!("{status}\n"))?),
            // Stdout has JSON objects only.
            Err(error) => eprintln!("corral: {}", error.message(false)),
        }
        tokio::time::sleep(INTERVAL).await;
        status = fetch(args, client).await;
    }
}

/// Updates the screen until a key or a signal ends it.
async fn show_updates(
    args: &TopArgs,
    client: &AdminClient,
    first: &Value,
) -> Result<ExitCode, Error> {
    let no_signals = || Error::context("cannot watch signals; raise the limit of open files");
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signals())?;
    let mut resize = signal(SignalKind::window_change()).map_err(no_signals())?;
    let mut rates = Rates::default();
    let mut screen = Screen::open();
    let mut keys = screen::keys();
    screen.set(lines(args, first, &mut rates));
    let next = || async {
        tokio::time::sleep(INTERVAL).await;
        fetch(args, client).await
    };
    // Keys do not interrupt it.
    let mut update = Box::pin(next());
    loop {
        screen.draw()?;
        tokio::select! {
            status = &mut update => {
                screen.set(match status {
                    Ok(status) => lines(args, &status, &mut rates),
                    Err(error) => vec![Line::error(format!(
                        "corral: {} (trying again)",
                        error.message(false)
                    ))],
                });
                update.set(next());
            }
            Some(key) = keys.recv() => match key {
                Key::Quit => return Ok(ExitCode::SUCCESS),
                Key::Scroll(scroll) => screen.scroll(scroll),
            },
            _ = resize.recv() => {}
            _ = tokio::signal::ctrl_c() => return Ok(ExitCode::SUCCESS),
            _ = terminate.recv() => return Ok(ExitCode::SUCCESS),
        }
    }
}

fn lines(args: &TopArgs, status: &Value, rates: &mut Rates) -> Vec<Line> {
    rates.update(status, Instant::now());
    table::models(&args.admin.address.to_string(), status, rates)
}
