//! The plugins of the chosen stages, and the server of those that answer over HTTP.

use super::http::{GENERATE_ROUTE, OPENAI_ROUTE};
use super::stage::Stage;
use crate::local_server::{no_time_limits, open};
use corral_cli::{Error, startup};
use corral_engine::{Engine, ModelPool};
use corral_runtime::{Limits, Plugin, Runtime};
use corral_server::deployments::Deployments;
use corral_server::{Access, RequestPolicy, Server, ServerOptions};
use std::path::Path;

/// Plugins and server for stages 4 to 9.
pub(super) struct Services {
    /// The plugin `measure`, if a stage needs it.
    measure: Option<Plugin>,
    server: Server,
}

impl Services {
    /// Loads the plugins of `stages` from `dir` and starts the server.
    pub(super) async fn start(
        engine: &Engine,
        dir: &Path,
        stages: &[Stage],
    ) -> Result<Self, Error> {
        let limits = no_time_limits();
        let models = ModelPool::loaded(vec![engine.clone()]);
        let runtime = startup::runtime(None, &models)?;
        let load = async |name: &'static str| -> Result<Option<Plugin>, Error> {
            if !stages.iter().any(|stage| stage.plugin == Some(name)) {
                return Ok(None);
            }
            let file = dir.join(format!("{name}.wasm"));
            load(&runtime, name, &file, limits.clone()).await.map(Some)
        };
        let measure = load("measure").await?;
        let routes = [
            (GENERATE_ROUTE, load("generate").await?),
            (OPENAI_ROUTE, load("openai").await?),
        ];
        let deployments = Deployments::new(runtime.clone(), None, limits, Access::Open);
        for (route, plugin) in routes {
            if let Some(plugin) = plugin {
                deployments.add_static(route.parse()?, plugin, RequestPolicy::default())?;
            }
        }
        let server = open(models, runtime, deployments, None, ServerOptions::default()).await?;
        Ok(Self { measure, server })
    }

    /// The plugin `measure`.
    pub(super) fn measure(&self) -> Result<&Plugin, Error> {
        let missing = || Error::failed("the plugin measure is not loaded");
        self.measure.as_ref().ok_or_else(missing)
    }

    pub(super) fn server(&self) -> &Server {
        &self.server
    }
}

async fn load(runtime: &Runtime, name: &str, file: &Path, limits: Limits) -> Result<Plugin, Error> {
    if !file.is_file() {
        return Err(Error::failed(format!(
            "there is no {}; give --plugins the directory that 'make plugins' writes to",
            file.display()
        )));
    }
    Ok(runtime.load_plugin(name, file.to_owned(), limits).await?)
}
