//! `corral run`.

use crate::args::{LINKED_HINT, LinkedArg, RunArgs};
use crate::{Error, startup};
use corral_runtime::{LinkedComponent, LinkedComponents, OutboundGrant, OutboundUrl, PluginConfig};
use std::process::ExitCode;
use std::time::Duration;

/// Default time and CPU time: the user can press Ctrl-C.
const DAY: Duration = Duration::from_secs(86_400);

/// Runs the plugin once and returns its exit code.
pub(crate) fn run(mut args: RunArgs) -> Result<ExitCode, Error> {
    args.models.fetch(log)?;
    startup::block_on(startup::workers(args.models.workers), run_plugin(&args))?
}

async fn run_plugin(args: &RunArgs) -> Result<ExitCode, Error> {
    let models = startup::model_pool(&args.models)?;
    startup::check_models(&args.models, &models, log).await?;
    let runtime = startup::runtime(args.models.cache_dir.clone(), &models)?;
    let stem = args.plugin.file_stem();
    let name = stem.map_or_else(|| "plugin".into(), |stem| stem.to_string_lossy());
    let config = PluginConfig {
        limits: args.limits.limits(DAY, DAY),
        linked: linked_components(&args.linked),
        outbound: args.outbound.iter().cloned().map(all_methods).collect(),
        ..PluginConfig::default()
    };
    let deployment = runtime.new_deployment();
    let file = args.plugin.clone();
    let loaded = runtime
        .load_plugin_into(&deployment, &name, file, config)
        .await;
    let plugin = loaded.map_err(|error| match error.code() {
        "not-linked" => Error::failed(format!("{error}{LINKED_HINT}")),
        _ => error.into(),
    })?;
    if !plugin.roles().cli {
        return Err(Error::failed(format!(
            "{} does not export wasi:cli/run; use it with 'corral serve --plugin ROUTE=FILE'",
            args.plugin.display()
        )));
    }
    startup::preload(&args.models, &models, log).await?;
    let exit = plugin.run(&args.arguments).await;
    startup::shut_down(models, &args.models, std::future::pending()).await;
    // The system takes one byte, and 0 only for success.
    Ok(match exit?.code() {
        0 => ExitCode::SUCCESS,
        code => ExitCode::from(u8::try_from(code).unwrap_or(1)),
    })
}

/// Only logs a message: the output belongs to the plugin.
fn log(message: String) {
    tracing::info!("{message}");
}

/// A grant of the command line.
fn all_methods(url: OutboundUrl) -> OutboundGrant {
    OutboundGrant {
        url,
        methods: Vec::new(),
    }
}

/// The linked components of the command line, none of which inherits grants.
fn linked_components(args: &[LinkedArg]) -> LinkedComponents {
    let mut linked = LinkedComponents::default();
    for LinkedArg { sampler, file } in args {
        let component = file.clone().into();
        match sampler {
            Some(name) => {
                linked.sampling.insert(name.clone(), component);
            }
            None => {
                linked.templating = Some(LinkedComponent {
                    component,
                    inherit: false,
                });
            }
        }
    }
    linked
}
