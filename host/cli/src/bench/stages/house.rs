//! The plugins that the chosen stages need, and the server in front of those that answer over HTTP.

use super::super::http::open;
use super::http::{GENERATE, OPENAI};
use super::stage::Stage;
use crate::complaint::Complaint;
use crate::house;
use corral_engine::{Engine, Models};
use corral_runtime::{Limits, Plugin, Runtime};
use corral_server::deployments::Deployments;
use corral_server::{Access, Server, Terms};
use std::path::Path;
use std::time::Duration;

/// What stages 4 to 9 ask.
pub(super) struct House {
    /// The plugin `measure`, where a stage needs it.
    measure: Option<Plugin>,
    server: Server,
}

impl House {
    /// Loads from `folder` what the stages need, and starts the server.
    pub(super) async fn open(
        engine: &Engine,
        folder: &Path,
        stages: &[Stage],
    ) -> Result<Self, Complaint> {
        // Nobody is cut off: a large model takes minutes.
        let forever = Duration::from_secs(86_400);
        let limits = Limits {
            time: forever,
            cpu: forever,
            ..Limits::default()
        };
        let models = Models::loaded(vec![engine.clone()]);
        let runtime = house::runtime(None, &models)?;
        let load = async |name: &'static str| -> Result<Option<Plugin>, Complaint> {
            if !stages.iter().any(|stage| stage.plugin == Some(name)) {
                return Ok(None);
            }
            let file = folder.join(format!("{name}.wasm"));
            load(&runtime, name, &file, limits.clone()).await.map(Some)
        };
        let measure = load("measure").await?;
        let answering = [
            (GENERATE, load("generate").await?),
            (OPENAI, load("openai").await?),
        ];
        let deployments = Deployments::new(runtime.clone(), None, limits, Access::Open);
        for (route, plugin) in answering {
            if let Some(plugin) = plugin {
                deployments.add_fixed(route.parse()?, plugin, Terms::default())?;
            }
        }
        let server = open(models, runtime, deployments, None).await?;
        Ok(Self { measure, server })
    }

    /// The plugin `measure`.
    pub(super) fn measure(&self) -> Result<&Plugin, Complaint> {
        let missing = || Complaint::Failed("the plugin measure was not loaded".into());
        self.measure.as_ref().ok_or_else(missing)
    }

    pub(super) fn server(&self) -> &Server {
        &self.server
    }
}

async fn load(
    runtime: &Runtime,
    name: &str,
    file: &Path,
    limits: Limits,
) -> Result<Plugin, Complaint> {
    if !file.is_file() {
        return Err(Complaint::Failed(
            format!(
                "there is no {}; give --plugins the folder that 'make plugins' writes to",
                file.display()
            )
            .into(),
        ));
    }
    house::load_plugin(runtime, name, file, limits).await
}
