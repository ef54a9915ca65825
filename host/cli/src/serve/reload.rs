//! SIGHUP: reads the configuration, the certificate, the keys and the secrets again, opens the folders again, and applies what
//! a running server can change.
//!
//! An error in any of these files changes nothing if there is a configuration; without one, the certificate, the keys, the
//! secrets and the folders are independent of each other. The other options of the file take effect with a restart, as the log says.

use super::{note, warn};
use crate::args::{OpenFolders, PluginArg, SecretValues, ServeArgs};
use crate::command_line::{Command, CommandLine};
use crate::config::OptionChange;
use crate::{Error, logs, service_manager};
use corral_runtime::{Folders, Secrets};
use corral_server::deployments::Deployments;
use corral_server::{Access, ServerOptions};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::signal::unix::Signal;

/// Options that a running server changes.
const RELOADABLE: [&str; 13] = [
    "cors",
    "drain-delay",
    "error-format",
    "folder",
    "grace-period",
    "keys",
    "log-level",
    "open-route",
    "quota",
    "secret",
    "tls-cert",
    "tls-key",
    "verbose",
];
/// Those of them that name a file: a running server replaces such a file, but neither adds nor removes it.
const FILES: [&str; 3] = ["keys", "tls-cert", "tls-key"];

/// The options of a running server.
pub(super) struct LiveOptions {
    options: ServerOptions,
    /// The options of the start, which stay in force for everything but [`RELOADABLE`].
    started: Arc<ServeArgs>,
    /// The secrets of the runtime.
    secrets: Secrets,
    /// The folders of the runtime.
    folders: Folders,
    current: Mutex<Arc<ServeArgs>>,
    /// `None` until they serve.
    deployments: tokio::sync::Mutex<Option<Deployments>>,
}

impl LiveOptions {
    pub(super) fn new(
        args: Arc<ServeArgs>,
        options: ServerOptions,
        secrets: Secrets,
        folders: Folders,
    ) -> Self {
        LiveOptions {
            options,
            secrets,
            folders,
            current: Mutex::new(Arc::clone(&args)),
            started: args,
            deployments: tokio::sync::Mutex::default(),
        }
    }

    /// The options with the changes so far.
    pub(super) fn current(&self) -> Arc<ServeArgs> {
        let current = self.current.lock();
        Arc::clone(&current.unwrap_or_else(PoisonError::into_inner))
    }

    /// Applies the changes since the start to these deployments, and later changes too.
    pub(super) async fn serve(&self, deployments: &Deployments) {
        let mut serving = self.deployments.lock().await;
        *serving = Some(deployments.clone());
        self.apply_policies(deployments).await;
    }

    /// Reads all files again on each signal.
    pub(super) async fn reload_on(self: Arc<Self>, mut signal: Signal) {
        loop {
            signal.recv().await;
            // A server that does not serve yet has not sent READY, which must come first.
            let is_serving = self.deployments.lock().await.is_some();
            if is_serving {
                service_manager::notify_reloading();
            }
            let live = Arc::clone(&self);
            // After a panic the previous files stay in use.
            let _ = tokio::task::spawn_blocking(move || live.read_files()).await;
            if let Some(deployments) = &*self.deployments.lock().await {
                self.apply_policies(deployments).await;
            }
            if is_serving {
                service_manager::notify_ready();
            }
        }
    }

    fn read_files(&self) {
        let current = self.current();
        let Some(source) = &current.source else {
            current.public.reload_files(&self.options, note, warn);
            match current.secrets.read() {
                Ok(values) => self.replace_secrets(values),
                Err(error) => warn(format!(
                    "{}; the old secrets stay in use",
                    error.message(false)
                )),
            }
            match current.folders.open() {
                Ok(folders) => self.replace_folders(folders),
                Err(error) => warn(format!(
                    "{}; the old folders stay in use",
                    error.message(false)
                )),
            }
            return;
        };
        match self.reread() {
            Ok((new, verbose, secrets, folders)) => {
                self.log_changes(&current, &new);
                logs::set_server_filter(verbose, &new.log);
                new.public.reload_files(&self.options, note, warn);
                self.replace_secrets(secrets);
                self.replace_folders(folders);
                *self.current.lock().unwrap_or_else(PoisonError::into_inner) = new;
            }
            Err(error) => warn(format!(
                "{}; {} is not applied, and nothing changes",
                error.message(false),
                source.path()
            )),
        }
    }

    fn replace_secrets(&self, values: SecretValues) {
        if !values.is_empty() {
            note(format!("reloaded the secrets: there are {}", values.len()));
        }
        self.secrets.replace(values);
    }

    fn replace_folders(&self, folders: OpenFolders) {
        if !folders.is_empty() {
            note(format!(
                "opened the folders again: there are {}",
                folders.len()
            ));
        }
        self.folders.replace(folders);
    }

    /// The options of the file now, whether `--verbose` is one, the secrets, and the folders. Also checks the files that a running
    /// server reads again.
    fn reread(&self) -> Result<(Arc<ServeArgs>, bool, SecretValues, OpenFolders), Error> {
        let line = match &self.started.source {
            Some(source) => source.reread()?,
            None => None,
        };
        let Some(CommandLine {
            command: Command::Serve(new),
            verbose,
        }) = line
        else {
            return Err(Error::failed("the command line has no --config"));
        };
        // Loading them reports their warnings.
        new.public.open_tls(drop)?;
        new.public.open_keys(drop)?;
        let secrets = new.secrets.read()?;
        let folders = new.folders.open()?;
        Ok((Arc::new(*new), verbose, secrets, folders))
    }

    fn log_changes(&self, current: &ServeArgs, new: &ServeArgs) {
        let changes = |old: &ServeArgs| match (&old.source, &new.source) {
            (Some(old), Some(new)) => old.changes(new),
            _ => Vec::new(),
        };
        let mut applied = changes(current);
        applied.retain(is_live);
        let mut waiting = changes(&self.started);
        waiting.retain(|change| !is_live(change));
        let file = new.source.as_ref().map(|source| source.path().to_string());
        let file = file.unwrap_or_default();
        if applied.is_empty() && waiting.is_empty() {
            note(format!("{file}: no option has changed"));
        }
        for change in applied {
            note(format!("{file}: {change}"));
        }
        for change in waiting {
            note(format!(
                "{file}: {change}, which takes effect with a restart"
            ));
        }
    }

    /// Applies access, quotas and error formats to the routes of the start that the file still has.
    async fn apply_policies(&self, deployments: &Deployments) {
        let new = self.current();
        if new.source.is_none() {
            return;
        }
        let started = &self.started.plugins;
        for PluginArg { route, .. } in &new.plugins {
            if started.iter().all(|plugin| plugin.route != *route) {
                continue;
            }
            let mut policy = new.public.request_policy(route);
            // A server starts or stops requiring API keys only with a restart. Until then no route opens.
            if new.public.keys.is_some() != self.options.api_keys.is_some() {
                policy.access = match self.options.api_keys {
                    Some(_) => Access::Keys,
                    None => Access::Open,
                };
            }
            deployments.set_static_policy(route, policy).await;
        }
    }
}

fn is_live(change: &OptionChange) -> bool {
    let is_replaced = change.from.is_some() && change.to.is_some();
    RELOADABLE.contains(&&*change.key) && (is_replaced || !FILES.contains(&&*change.key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_or_removed_files_need_a_restart() {
        let change = |key: &str, from: Option<&str>, to: Option<&str>| OptionChange {
            key: key.to_owned(),
            from: from.map(str::to_owned),
            to: to.map(str::to_owned),
        };
        assert!(is_live(&change("keys", Some("a"), Some("b"))));
        assert!(!is_live(&change("keys", None, Some("b"))));
        assert!(!is_live(&change("tls-cert", Some("a"), None)));
        assert!(is_live(&change("quota", None, Some("b"))));
        assert!(!is_live(&change("kv-cells", Some("1"), Some("2"))));
    }
}
