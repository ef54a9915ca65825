//! `corral serve`: the order in which a server starts and stops.
//!
//! *Invariant*: the listeners answer before [`load`] returns, as not ready. Each wait at the end is bounded, and a second
//! signal ends it. What `corral run` needs as well is in `startup.rs`.

mod check;
mod reload;

use crate::admin_token::{self, ConfiguredToken};
use crate::args::{PluginArg, ServeArgs};
use crate::open_files::OpenFileShares;
use crate::{Error, logs, priority, registry, service_manager, startup};
use corral_engine::ModelPool;
use corral_runtime::{
    DeploymentState, Folders, Limits, OutboundConfig, Plugin, PluginConfig, Runtime, RuntimeConfig,
    Secrets,
};
use corral_server::deployments::{ClusterConfig, Deployments, Store, StoreLimits};
use corral_server::{
    Access, InheritedSockets, KvEvents, Route, Server, ServerSockets, Services, StartingRoutes,
    StopSignals, Telemetry,
};
use reload::LiveOptions;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Defaults of a call's time and its plugin's CPU time.
const CALL_TIME: Duration = Duration::from_secs(3600);
const CALL_CPU_TIME: Duration = Duration::from_secs(10);

/// How long to wait for the engines' steps after a second signal.
const FORCED_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves until a signal stops the process.
pub(crate) fn serve(
    mut args: ServeArgs,
    telemetry: Option<Arc<Telemetry>>,
) -> Result<ExitCode, Error> {
    if args.check {
        return check::check(args);
    }
    // First, while the process has one thread.
    let sockets = InheritedSockets::from_env()?;
    args.models.fetch(note)?;
    let shares = OpenFileShares::raise_limit(!args.folders.all().is_empty())?;
    // Before it starts threads, which inherit the priority.
    priority::raise();
    let workers = startup::workers(args.models.workers);
    startup::block_on(
        workers,
        serve_until_stopped(args.into(), sockets, shares, telemetry),
    )?
}

async fn serve_until_stopped(
    args: Arc<ServeArgs>,
    sockets: InheritedSockets,
    shares: OpenFileShares,
    telemetry: Option<Arc<Telemetry>>,
) -> Result<ExitCode, Error> {
    if let Some(telemetry) = &telemetry {
        let settings = telemetry.settings();
        settings.warnings().iter().cloned().for_each(warn);
        note(format!("telemetry: {settings}"));
    }
    // First, since the store's lock shows whether another process uses it.
    let store = match &args.store {
        Some(dir) => Some(Store::open(dir, StoreLimits::default())?),
        None => None,
    };
    // A unix socket needs no token.
    let admin_is_unix = sockets.admin_is_unix();
    let token = match admin_is_unix.unwrap_or(args.admin.starts_with("unix:")) {
        true => None,
        false => admin_token::find(args.admin_token_file.as_deref(), store.as_ref())?,
    };
    let sockets = ServerSockets::bind_missing(sockets, &args.listen, &args.admin)
        .await?
        .with_admin_token(token.as_ref().map(|token| token.token.clone()))?;
    let mut options = args.public.open(shares, warn)?;
    options.lost_log_lines = logs::lost_lines();
    options.telemetry.clone_from(&telemetry);
    options.develop = args.develop;
    if let Some(file) = &args.verify_key {
        options.verify_key = Some(registry::read_verify_key(file)?.into());
    }
    let cluster = args.cluster.read()?;
    let kv_events = args.kv_events.bind(warn).await?;
    options.kv_events.clone_from(&kv_events);
    options.console = !args.no_console;
    options.starting = starting_routes(&args, store.as_ref());
    // Watch signals before models load, which takes long.
    let no_signals = || Error::context("cannot watch signals; raise the limit of open files");
    let mut stop = StopSignals::new().map_err(no_signals())?;
    let reload = signal(SignalKind::hangup()).map_err(no_signals())?;
    let secrets = Secrets::default();
    secrets.replace(args.secrets.read()?);
    let folders = Folders::default();
    folders.replace(args.folders.open()?);
    let live = LiveOptions::new(
        Arc::clone(&args),
        options.clone(),
        secrets.clone(),
        folders.clone(),
    );
    let live = Arc::new(live);
    let reloading = tokio::spawn(Arc::clone(&live).reload_on(reload));
    let server =
        Server::start(sockets, options).map_err(Error::context("cannot start the listeners"))?;
    server.admin_warning().into_iter().for_each(warn);

    let cache_feed = kv_events.as_ref().map(|events| events.feed());
    let models = startup::model_pool_to_serve(&args.models, cache_feed)?;
    let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let outbound = OutboundConfig {
        connections: size(shares.outbound),
        admin_listener: server.admin_socket_address(),
        ..startup::outbound()
    };
    let config = RuntimeConfig {
        develop: args.develop,
        outbound,
        secrets,
        folders,
        folder_files: size(shares.folder_files),
        ..RuntimeConfig::default()
    };
    let address = server.public_address().to_string();
    let cluster = cluster.map(|cluster| (cluster, address));
    let services = tokio::select! {
        loaded = load(&args, &models, store, config, cluster) => match loaded {
            Ok(services) => services,
            Err(error) => {
                tracing::error!(target: "corral", "the server cannot start: {}", error.message(false));
                send_rest(telemetry, FORCED_TIMEOUT).await;
                return Err(error);
            }
        },
        () = stop.next() => {
            startup::shut_down(models, &args.models, stop.next()).await;
            send_rest(telemetry, FORCED_TIMEOUT).await;
            return Ok(ExitCode::SUCCESS);
        }
    };
    live.serve(&services.deployments).await;
    let deployments = services.deployments.clone();
    server.serve(services);
    // What was logged before stands above the addresses on a terminal.
    logs::flush();
    announce(&args, &server, kv_events.as_deref(), token.as_ref());
    service_manager::notify_ready();

    tokio::select! {
        () = stop.next() => {}
        never = service_manager::run_watchdog(&server) => match never {},
    }
    service_manager::notify_stopping();
    deployments.leave().await;
    drop(deployments);
    reloading.abort();
    let args = live.current();
    if let Some(delay) = args.drain_delay {
        server.mark_not_ready();
        note(format!(
            "stopping: new requests are accepted for {} s; a second signal skips this",
            delay.as_secs_f64()
        ));
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = stop.next() => {}
        }
    }
    note(format!(
        "stopping: running requests have {} s; a second signal ends them now",
        args.grace_period.as_secs_f64()
    ));
    let mut is_forced = false;
    let deadline = async {
        tokio::select! {
            () = tokio::time::sleep(args.grace_period) => {}
            () = stop.next() => is_forced = true,
        }
    };
    let all_ended = server.stop(deadline).await;
    if !all_ended {
        warn("requests were still running and have been cut off".to_owned());
    }
    match is_forced {
        // Steps end soon; prefixes are not written to the end.
        true => {
            let soon = tokio::time::sleep(FORCED_TIMEOUT);
            startup::shut_down(models, &args.models, soon).await;
            send_rest(telemetry, FORCED_TIMEOUT).await;
        }
        false => {
            startup::shut_down(models, &args.models, stop.next()).await;
            send_rest(telemetry, startup::STEPS_TIMEOUT).await;
        }
    }
    // The operator set the grace period, but a second signal may come from anywhere.
    match is_forced && !all_ended {
        true => Ok(ExitCode::FAILURE),
        false => Ok(ExitCode::SUCCESS),
    }
}

/// Sends the telemetry that is left, while the engines end their steps.
async fn send_rest(telemetry: Option<Arc<Telemetry>>, time: Duration) {
    if let Some(telemetry) = telemetry
        && !telemetry.shut_down(time).await
    {
        warn("the collector did not take the last telemetry in time".to_owned());
    }
}

/// How to answer at the routes until their plugins are loaded.
fn starting_routes(args: &ServeArgs, store: Option<&Store>) -> StartingRoutes {
    let mut routes = StartingRoutes::default();
    for PluginArg { route, .. } in &args.plugins {
        routes.add(route.clone(), args.public.request_policy(route));
    }
    if let Some(store) = store {
        routes.add_stored(store);
    }
    routes
}

/// Loads models, plugins and deployments, those of the cluster included.
async fn load(
    args: &ServeArgs,
    models: &ModelPool,
    store: Option<Store>,
    config: RuntimeConfig,
    cluster: Option<(ClusterConfig, String)>,
) -> Result<Services, Error> {
    // First what fails soon: headers of model files, then plugins. Loading models takes longest.
    startup::check_models(&args.models, models, warn).await?;
    let cache = args.models.cache_dir.clone();
    let store_dir = args.store.as_deref();
    let runtime = startup::runtime_to_serve(cache, store_dir, config, models)?;
    let limits = call_limits(args, &runtime)?;
    if args.plugins.is_empty() && store.is_none() {
        warn(
            "there is no plugin; add --plugin ROUTE=FILE.wasm, or --store DIR and 'corral deploy'"
                .to_owned(),
        );
    }
    // With keys, a manifest must open its routes explicitly.
    let access = match args.public.keys {
        Some(_) => Access::Keys,
        None => Access::Open,
    };
    let deployments = Deployments::new(runtime.clone(), store, limits.clone(), access);
    if cluster.is_none() {
        deployments.open_triggers()?;
    }
    for arg in &args.plugins {
        let limits = plugin_limits(args, &arg.route, &limits);
        let policy = args.public.request_policy(&arg.route);
        let (runtime, arg) = (runtime.clone(), arg.clone());
        let route = arg.route.clone();
        if args.develop {
            deployments.add_static_while_loading(route, policy, |state| async move {
                let loaded = load_plugin(&runtime, &state, &arg, limits).await;
                loaded.map_err(|error| error.message(false))
            })?;
        } else {
            let state = runtime.new_deployment();
            let plugin = load_plugin(&runtime, &state, &arg, limits).await?;
            deployments.add_static(route, plugin, policy)?;
        }
    }
    startup::preload(&args.models, models, note).await?;
    match args.develop {
        true => deployments.restore_in_background(),
        false => deployments.restore().await,
    }
    if let Some((config, address)) = cluster {
        deployments.join(config, address).await?;
    }
    Ok(Services {
        runtime,
        models: models.clone(),
        deployments,
    })
}

/// Limits of the calls of a deployment that sets none.
fn call_limits(args: &ServeArgs, runtime: &Runtime) -> Result<Limits, Error> {
    let mut limits = args.limits.limits(CALL_TIME, CALL_CPU_TIME);
    limits.latency = args.latency(None).unwrap_or_default();
    let max_calls = runtime.max_calls();
    match limits.concurrent > max_calls {
        true => Err(Error::usage(format!(
            "--max-calls is {}, and a deployment runs at most {max_calls} calls at once; give less",
            limits.concurrent
        ))),
        false => Ok(limits),
    }
}

/// Limits of the plugin at a route.
fn plugin_limits(args: &ServeArgs, route: &Route, limits: &Limits) -> Limits {
    Limits {
        priority: args.priority(route),
        latency: args.latency(Some(route)).unwrap_or(limits.latency),
        share_prefixes: args.share_prefixes.contains(route),
        ..limits.clone()
    }
}

/// Loads the plugin of `--plugin`, whose name is its route.
async fn load_plugin(
    runtime: &Runtime,
    deployment: &DeploymentState,
    arg: &PluginArg,
    limits: Limits,
) -> Result<Plugin, Error> {
    let name = arg.route.as_str();
    let config = PluginConfig {
        limits,
        ..PluginConfig::default()
    };
    let loading = runtime.load_plugin_into(deployment, name, arg.file.clone(), config);
    let plugin = loading.await?;
    match plugin.roles().http {
        true => Ok(plugin),
        false => Err(Error::failed(format!(
            "{} does not export a wasi:http handler; use it with 'corral run'",
            arg.file.display()
        ))),
    }
}

/// Prints on stdout that the server is ready, and its addresses. Programs wait for these lines.
fn announce(
    args: &ServeArgs,
    server: &Server,
    kv_events: Option<&KvEvents>,
    token: Option<&ConfiguredToken>,
) {
    let mut text = String::new();
    for plugin in &args.plugins {
        text += &format!("route {} is {}\n", plugin.route, plugin.file.display());
    }
    if let Some(file) = token.and_then(|token| token.file.as_ref()) {
        text += &format!("admin token in {}\n", file.display());
    }
    let scheme = match args.public.tls_cert {
        Some(_) => "https",
        None => "http",
    };
    for address in kv_events.map_or(&[][..], KvEvents::addresses) {
        text += &format!("KV events on tcp://{address}\n");
    }
    text += &format!("listening on {scheme}://{}\n", server.public_address());
    text += &format!("admin on {}\n", server.admin_address());
    // The server runs on if nothing reads this.
    let _ = std::io::stdout().write_all(text.as_bytes());
    let _ = std::io::stdout().flush();
}

/// Logs what the server does.
fn note(message: String) {
    tracing::info!("{message}");
}

/// Logs what the operator should change.
fn warn(message: String) {
    tracing::warn!("{message}");
}
