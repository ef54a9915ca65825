//! `corral serve`.

use crate::admin_token::{self, AdminToken};
use crate::arguments::{PriorityArgument, Serve};
use crate::complaint::Complaint;
use crate::front;
use crate::house;
use corral_engine::Models;
use corral_server::deployments::{Bounds, Deployments, Store};
use corral_server::{Access, Front, House, Listeners, ReloadSignals, Server, StopSignals};
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
    // First, since it is the store's lock that tells whether another process has it.
    let store = match &arguments.store {
        Some(folder) => Some(Store::open(folder, Bounds::default())?),
        None => None,
    };
    // On a socket in the file system nobody is asked for one.
    let token = match arguments.admin.starts_with("unix:") {
        true => None,
        false => admin_token::find(arguments.admin_token_file.as_deref(), store.as_ref())?,
    };
    let listeners = Listeners::bind(&arguments.listen, &arguments.admin)
        .await?
        .guarded_by(token.as_ref().map(|token| token.token.clone()))?;
    let front = arguments.front.front(note)?;
    // From here on no signal is lost, also while models are being loaded.
    let no_signals = || Complaint::telling(NO_SIGNALS);
    let mut stop = StopSignals::new().map_err(no_signals())?;
    let reload = ReloadSignals::new().map_err(no_signals())?;
    let reloading = tokio::spawn(reload_on_signal(front.clone(), reload));
    let server = Server::start(listeners, front)
        .map_err(Complaint::telling("the listeners could not be started"))?;
    server.admin_warning().into_iter().for_each(note);

    let models = house::models(&arguments.models)?;
    let house = tokio::select! {
        loaded = load(arguments, &models, store) => loaded?,
        () = stop.next() => {
            house::end(models).await;
            return Ok(ExitCode::SUCCESS);
        }
    };
    server.open(house);
    announce(arguments, &server, token.as_ref());

    stop.next().await;
    if let Some(delay) = arguments.drain_delay {
        server.announce_stop();
        note(format!(
            "stopping; requests are taken for {} s more, a second signal ends that now",
            delay.as_secs_f64()
        ));
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = stop.next() => {}
        }
    }
    note(format!(
        "stopping; running requests have {} s to end, a second signal ends them now",
        arguments.grace.as_secs_f64()
    ));
    let hurry = async {
        tokio::select! {
            () = tokio::time::sleep(arguments.grace) => {}
            () = stop.next() => {}
        }
    };
    if !server.stop(hurry).await {
        note("requests were still running and have been cut off".to_owned());
    }
    reloading.abort();
    house::end(models).await;
    Ok(ExitCode::SUCCESS)
}

/// Reads files again whenever SIGHUP asks for it.
async fn reload_on_signal(front: Front, mut reload: ReloadSignals) {
    loop {
        reload.next().await;
        let front = front.clone();
        // Files may take their time. Should it panic, the files stay as they were read last.
        let _ = tokio::task::spawn_blocking(move || front::reload(&front, note)).await;
    }
}

/// Everything that has to be there before the first request.
async fn load(
    arguments: &Serve,
    models: &Models,
    store: Option<Store>,
) -> Result<House, Complaint> {
    house::preload(&arguments.models, models, note).await?;
    let runtime = house::runtime(arguments.models.cache.clone(), models)?;
    let limits = arguments.limits.for_calls(CALL.0, CALL.1);
    let most = runtime.most_calls();
    if limits.concurrent > most {
        return Err(Complaint::Usage(format!(
            "--calls is {}, but one deployment runs at most {most} calls at once; give no more than that",
            limits.concurrent
        )));
    }
    if arguments.plugins.is_empty() && store.is_none() {
        note(
            "there is nothing to call yet; add --plugin ROUTE=FILE.wasm, or --store FOLDER and \
             'corral deploy'"
                .to_owned(),
        );
    }
    // With keys, whoever deploys has to say that everyone may call.
    let access = match arguments.front.keys {
        Some(_) => Access::Keys,
        None => Access::Open,
    };
    let deployments = Deployments::new(runtime.clone(), store, limits.clone(), access);
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
        let terms = arguments.front.terms(&argument.route);
        deployments.add_fixed(argument.route.clone(), plugin, terms)?;
    }
    deployments.restore().await;
    Ok(House {
        runtime,
        models: models.clone(),
        deployments,
    })
}

/// Says on stdout that requests are answered now, and where. Programs wait for these lines.
fn announce(arguments: &Serve, server: &Server, token: Option<&AdminToken>) {
    let mut text = String::new();
    for plugin in &arguments.plugins {
        text += &format!("route {} is {}\n", plugin.route, plugin.file.display());
    }
    if let Some(file) = token.and_then(|token| token.file.as_ref()) {
        text += &format!("admin token in {}\n", file.display());
    }
    let scheme = match arguments.front.tls_cert {
        Some(_) => "https",
        None => "http",
    };
    text += &format!("listening on {scheme}://{}\n", server.public_address());
    text += &format!("admin on {}\n", server.admin_address());
    // Serving goes on when nobody reads this.
    let _ = std::io::stdout().write_all(text.as_bytes());
    let _ = std::io::stdout().flush();
}

/// Tells the person at the terminal what goes on.
fn note(text: String) {
    eprintln!("corral: {text}");
}
