//! `corral run`.

use crate::arguments::{ADVICE, LinkArgument, Run};
use crate::complaint::Complaint;
use crate::house;
use corral_runtime::{Link, Links, Terms};
use std::process::ExitCode;
use std::time::Duration;

/// How long a run may take or compute: the person in front of it has Ctrl-C.
const A_DAY: Duration = Duration::from_secs(86_400);

/// Runs the plugin once; its exit status is ours.
pub(crate) fn run(arguments: Box<Run>) -> Result<ExitCode, Complaint> {
    let runtime = house::tokio_runtime(house::workers(arguments.models.workers))?;
    let ended = runtime.block_on(run_plugin(&arguments));
    runtime.shutdown_background();
    ended
}

async fn run_plugin(arguments: &Run) -> Result<ExitCode, Complaint> {
    // Silent: what is seen is the plugin's output.
    let models = house::models(&arguments.models)?;
    house::preload(&arguments.models, &models, |text| tracing::info!("{text}")).await?;
    let runtime = house::runtime(arguments.models.cache.clone(), &models)?;
    let name = arguments
        .plugin
        .file_stem()
        .map_or_else(|| "plugin".into(), |stem| stem.to_string_lossy());
    let terms = Terms {
        limits: arguments.limits.for_calls(A_DAY, A_DAY),
        links: links(&arguments.links),
        ..Terms::default()
    };
    let account = runtime.account();
    let file = arguments.plugin.clone();
    let loaded = runtime.plugin_for(&account, &name, file, terms).await;
    let plugin = loaded.map_err(|error| match error.code() {
        "not-linked" => Complaint::Failed(format!("{error}{ADVICE}").into()),
        _ => error.into(),
    })?;
    if !plugin.roles().cli {
        return Err(Complaint::Failed(
            format!(
                "{} is no command: it exports no wasi:cli/run; use it with \
             'corral serve --plugin ROUTE=FILE', or build it with one",
                arguments.plugin.display()
            )
            .into(),
        ));
    }
    let exit = plugin.run(&arguments.arguments).await;
    house::end(models).await;
    Ok(status(exit?.code()))
}

/// What the command line links, which inherits nothing.
fn links(arguments: &[LinkArgument]) -> Links {
    let mut links = Links::default();
    for LinkArgument { sampler, file } in arguments {
        let component = file.clone().into();
        match sampler {
            Some(name) => {
                links.sampling.insert(name.clone(), component);
            }
            None => {
                links.templating = Some(Link {
                    component,
                    inherit: false,
                });
            }
        }
    }
    links
}

/// An exit code as the system has them: one byte, and 0 only for success.
fn status(code: i32) -> ExitCode {
    match code {
        0 => ExitCode::SUCCESS,
        code => ExitCode::from(u8::try_from(code).unwrap_or(1)),
    }
}
