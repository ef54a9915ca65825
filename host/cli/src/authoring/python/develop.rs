//! Builds for a developing server, so that an edit is served within a second or two.
//!
//! A component of Python is an image of the interpreter's memory: it takes long to make and to compile, and each one
//! differs from the last. So `corral watch` makes one component without the project's modules and gives it those as
//! configuration. The component is made again only if a module that the project imports, the SDK or componentize-py
//! changes; until then the server has its compiled code.

use super::{PythonProject, WORLD};
use crate::Error;
use crate::authoring::build::write_if_changed;
use crate::authoring::process::run;
use crate::authoring::wit::interface_dir;
use crate::deploy::Replacement;
use crate::user_cache::user_cache_dir;
use corral_server::deployments::Digest;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::SystemTime;

/// Collects a project's modules.
const COLLECT: &str = include_str!("collect.py");
/// Exit status of [`COLLECT`] after a syntax error.
const SYNTAX_ERROR: i32 = 3;
/// The component's main module.
const MAIN: &str = "corral_develop";
/// Begins the names of the entries of the configuration, as the SDK knows them.
const ENTRY: &str = "CORRAL_SOURCE_";
/// Bytes of an entry: what a manifest may have.
const ENTRY_BYTES: usize = 8 << 10;
/// Most entries, of the 64 that a manifest may have: about a megabyte of Python.
const MAX_ENTRIES: usize = 40;

/// What [`COLLECT`] prints.
struct Collected {
    /// The project's modules, compressed.
    source: String,
    /// Modules from elsewhere.
    imports: Vec<String>,
    /// Identifies these and the SDK.
    key: String,
}

impl Collected {
    fn read(line: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(line).ok()?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let imports = value["imports"].as_array()?;
        Some(Self {
            source: text(&value["source"])?,
            imports: imports.iter().filter_map(text).collect(),
            key: text(&value["key"])?,
        })
    }
}

impl PythonProject {
    /// The component and configuration for a developing server. `None` if the project cannot be built this way.
    pub(in crate::authoring) async fn develop(&self) -> Result<Option<Replacement>, Error> {
        let Some(collected) = self.collect().await? else {
            return Ok(None);
        };
        let entries = collected.source.as_bytes().chunks(ENTRY_BYTES);
        if entries.len() > MAX_ENTRIES {
            eprintln!("corral: the project's modules are too large for the fast build");
            return Ok(None);
        }
        let configuration = entries.enumerate().map(|(number, part)| {
            let value = String::from_utf8_lossy(part).into_owned();
            (format!("{ENTRY}{number:02}"), value)
        });
        let configuration = configuration.collect();
        let Some(component) = self.base(&collected).await? else {
            return Ok(None);
        };
        Ok(Some(Replacement {
            component,
            configuration,
        }))
    }

    /// The project's modules. `None` if they cannot be collected.
    async fn collect(&self) -> Result<Option<Collected>, Error> {
        let mut command = Command::new(self.python());
        command
            .current_dir(&self.dir)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .args(["-c", COLLECT]);
        let Ok((status, lines)) = run(&mut command, "{").await else {
            return Ok(None);
        };
        if status.code() == Some(SYNTAX_ERROR) {
            return Err(Error::failed("the build failed; Python shows why above"));
        }
        let collected = lines.first().and_then(|line| Collected::read(line));
        Ok(collected.filter(|_| status.success()))
    }

    /// The interpreter beside componentize-py, whose packages a component gets.
    fn python(&self) -> PathBuf {
        let beside = self.tool.with_file_name("python3");
        match beside.is_file() {
            true => beside,
            false => "python3".into(),
        }
    }

    /// The component without the project's modules, made at its first use. `None` if it cannot be made.
    async fn base(&self, collected: &Collected) -> Result<Option<PathBuf>, Error> {
        let Some(cache) = user_cache_dir() else {
            return Ok(None);
        };
        let interface = interface_dir()?;
        let tool = fs::metadata(&self.tool).and_then(|metadata| metadata.modified());
        let tool = tool.unwrap_or(SystemTime::UNIX_EPOCH);
        let main = main_module(&collected.imports);
        let key = format!(
            "{}\n{tool:?}\n{}\n{main}",
            collected.key,
            interface.display()
        );
        let digest = Digest::of(key.as_bytes()).to_string();
        let version = digest.trim_start_matches("sha256:").get(..16);
        let dir = cache.join(format!("python-{}", version.unwrap_or_default()));
        let component = dir.join("develop.wasm");
        if component.is_file() {
            return Ok(Some(component));
        }
        eprintln!("corral: building Python with the modules that the project imports, once");
        let written = write_if_changed(&dir.join(format!("{MAIN}.py")), main.as_bytes());
        written.map_err(Error::context(format!("cannot write to {}", dir.display())))?;
        let partial = dir.join(format!("{}.partial", std::process::id()));
        let mut command = Command::new(&self.tool);
        command
            .current_dir(&self.dir)
            .args(["-d".as_ref(), interface.as_os_str()])
            .args(["-w", WORLD, "componentize"])
            .args(["-p".as_ref(), dir.as_os_str()])
            .args(["-p", ".", MAIN, "-o"])
            .arg(&partial);
        let (status, _) = run(&mut command, "\0").await?;
        if !status.success() {
            let _ = fs::remove_file(&partial);
            return Ok(None);
        }
        fs::rename(&partial, &component).map_err(Error::context(format!(
            "cannot write {}",
            component.display()
        )))?;
        Ok(Some(component))
    }
}

/// The main module of a component with these imports. The project reports those that fail.
fn main_module(imports: &[String]) -> String {
    format!(
        "import importlib\n\nfor _name in {imports:?}:\n    try:\n        importlib.import_module(_name)\n    \
         except Exception:\n        pass\n\nfrom corral_sdk._develop import Handler\n"
    )
}
