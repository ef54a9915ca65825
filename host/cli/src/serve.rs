//! `corral serve`.

use crate::arguments::{PriorityArgument, Serve};
use crate::complaint::Complaint;
use crate::house;
use corral_engine::Models;
use corral_server::{Deployment, House, Limits, Listeners, Routes, Server, stop_signal};
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// How long a call may take, and how long its plugin may compute.
const CALL: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(10));

const NO_SIGNALS: &str = "signals cannot be watched; raise the limit of open files";

/// Serves until a signal says stop.
pub(crate) fn serve(arguments: Box<Serve>) -> Result<ExitCode, Complaint> {
    let runtime = house::tokio_runtime(house::workers(arguments.models.workers))?;
    let served = runtime.block_on(serve_until_stopped(&arguments));
    // What can't be interrupted nobody needs to wait for.
    runtime.shutdown_background();
    served
}

async fn serve_until_stopped(arguments: &Serve) -> Result<ExitCode, Complaint> {
    let listeners = Listeners::bind(&arguments.listen, &arguments.admin).await?;
    let mut limits = Limits::default();
    limits.connections = usize::try_from(arguments.connections).unwrap_or(usize::MAX);
    let server = Server::start(listeners, limits)
        .map_err(Complaint::telling("the listeners could not be started"))?;
    if !server.admin_address().ip().is_loopback() {
        note(format!(
            "{} can be reached from other machines and asks for no password; \
             keep --admin on 127.0.0.1 unless a firewall stands before it",
            server.admin_address()
        ));
    }

    // Polled from here on, so that a signal counts while models are being loaded.
    let stop = stop_signal();
    tokio::pin!(stop);
    let models = house::models(&arguments.models)?;
    let house = tokio::select! {
        loaded = load(arguments, &models) => loaded?,
        stopped = stop.as_mut() => {
            stopped.map_err(Complaint::telling(NO_SIGNALS))?;
            house::end(models).await;
            return Ok(ExitCode::SUCCESS);
        }
    };
    server.open(house);
    announce(arguments, &server);

    stop.await.map_err(Complaint::telling(NO_SIGNALS))?;
    note(format!(
        "stopping; running requests have {} s to end, a second signal ends them now",
        arguments.grace.as_secs_f64()
    ));
    let hurry = async {
        tokio::select! {
            () = tokio::time::sleep(arguments.grace) => {}
            _ = stop_signal() => {}
        }
    };
    if !server.stop(hurry).await {
        note("requests were still running and have been cut off".to_owned());
    }
    house::end(models).await;
    Ok(ExitCode::SUCCESS)
}

/// Everything that has to be there before the first request.
async fn load(arguments: &Serve, models: &Models) -> Result<House, Complaint> {
    house::preload(&arguments.models, models, note).await?;
    let runtime = house::runtime(arguments.models.cache.clone(), models)?;
    if arguments.plugins.is_empty() {
        note("there is nothing to call yet; add --plugin ROUTE=FILE.wasm".to_owned());
    }
    let limits = arguments.limits.for_calls(CALL.0, CALL.1);
    let mut routes = Routes::default();
    for argument in &arguments.plugins {
        // A deployment that lasts as long as the process is known by its route.
        let name = argument.route.as_str();
        let named = |said: &&PriorityArgument| said.route == argument.route;
        let limits = corral_runtime::Limits {
            priority: arguments
                .priorities
                .iter()
                .rfind(named)
                .map_or(0, |said| said.priority),
            share_prefixes: arguments.sharing.contains(&argument.route),
            ..limits.clone()
        };
        let request_bytes = limits.request_bytes as u64;
        let plugin = house::load_plugin(&runtime, name, &argument.file, limits).await?;
        if !plugin.roles().http {
            return Err(Complaint::Failed(
                format!(
                    "{} does not answer HTTP requests: it exports no wasi:http handler; \
                 use it with 'corral run', or build it with one",
                    argument.file.display()
                )
                .into(),
            ));
        }
        let deployment = Deployment {
            plugin,
            request_bytes,
        };
        routes.add(argument.route.clone(), deployment)?;
    }
    Ok(House {
        runtime,
        models: models.clone(),
        routes,
    })
}

/// Says on stdout that requests are answered now, and where. Programs wait for these lines.
fn announce(arguments: &Serve, server: &Server) {
    let mut text = String::new();
    for plugin in &arguments.plugins {
        text += &format!("route {} is {}\n", plugin.route, plugin.file.display());
    }
    text += &format!("listening on http://{}\n", server.public_address());
    text += &format!("admin on http://{}\n", server.admin_address());
    // Serving goes on when nobody reads this.
    let _ = std::io::stdout().write_all(text.as_bytes());
    let _ = std::io::stdout().flush();
}

/// Tells the person at the terminal what goes on.
fn note(text: String) {
    eprintln!("corral: {text}");
}
