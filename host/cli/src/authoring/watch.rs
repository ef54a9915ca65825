//! `corral watch`: builds and deploys a project after each save. An error is shown, and the last good revision stays.

use super::build::Profile;
use super::file_changes::FileSnapshot;
use super::project::Project;
use crate::admin::AdminArgs;
use crate::deploy::{DeployArgs, ManifestArgs, ServerArgs, deploy_if_changed, is_developing};
use crate::registry::ArtifactArgs;
use crate::terminal::print;
use crate::{Error, startup};
use clap::Args;
use serde_json::Value;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(Args, Debug)]
pub struct WatchArgs {
    /// Directory of the project, with a corral.toml, and a Cargo.toml, an app.py, an app.js, a plugin.c or a go.mod
    #[arg(value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Watches until Ctrl-C.
pub(crate) fn watch(args: WatchArgs, verbose: bool) -> Result<ExitCode, Error> {
    let project = Project::open(&args.dir)?;
    args.admin.check_ca(&[&args.admin.address])?;
    let deploy = DeployArgs {
        manifest: ManifestArgs {
            file: project.dir().to_owned(),
            name: None,
            routes: Vec::new(),
            linked: Vec::new(),
            configuration: Vec::new(),
            middleware: Vec::new(),
        },
        no_traffic: false,
        wait: false,
        schema: false,
        artifact: ArtifactArgs::default(),
        server: ServerArgs {
            admin: args.admin,
            json: false,
        },
    };
    let mut watcher = Watcher {
        project,
        deploy,
        deployed: None,
        verbose,
    };
    startup::block_on(1, async {
        tokio::select! {
            result = watcher.run() => result,
            signal = tokio::signal::ctrl_c() => signal.map(|()| ExitCode::SUCCESS).map_err(Error::from),
        }
    })?
}

struct Watcher {
    project: Project,
    deploy: DeployArgs,
    /// The manifest of the newest revision, with digests of its components.
    deployed: Option<Value>,
    verbose: bool,
}

impl Watcher {
    async fn run(&mut self) -> Result<ExitCode, Error> {
        let mut saved = None;
        let mut snapshot = FileSnapshot::read(self.project.dir())?;
        loop {
            if let Err(error) = self.build_and_deploy(saved).await {
                let _ = error.report("corral", self.verbose);
                if self.deployed.is_some() {
                    eprintln!("the last revision goes on serving; waiting for the next save");
                } else {
                    eprintln!("waiting for the next save");
                }
            }
            // Also notices saves during the build.
            saved = Some(snapshot.wait_for_change(self.project.dir()).await?);
        }
    }

    /// `saved` is when the save that causes this build was noticed; `None` for the first build.
    async fn build_and_deploy(&mut self, saved: Option<Instant>) -> Result<(), Error> {
        let started = Instant::now();
        // The first build may take long; cargo shows how far it is.
        let profile = Profile::Watch {
            quiet: saved.is_some(),
        };
        let replacement = match is_developing(&self.deploy.server).await? {
            true => self.project.develop().await?,
            false => None,
        };
        if replacement.is_none() {
            self.project.build(profile).await?;
        }
        let built = seconds(started.elapsed());
        let deploying = deploy_if_changed(&self.deploy, replacement.as_ref(), &mut self.deployed);
        let deployed = deploying.await?;
        let outcome = deployed.unwrap_or_else(|| "nothing changed".to_owned());
        let since_save =
            saved.map(|saved| format!(", {} after the save", seconds(saved.elapsed())));
        print(&format!(
            "built in {built}{}: {}\n",
            since_save.unwrap_or_default(),
            outcome.trim_end()
        ))?;
        Ok(())
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
