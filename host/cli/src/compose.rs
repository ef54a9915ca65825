//! `corral compose`: makes a program of a plugin that any WebAssembly runtime runs. A component in it answers the plugin's
//! imports of `corral:inference`, by a session on a Corral host or from a script.

use crate::Error;
use crate::terminal::print;
use clap::{ArgGroup, Args};
use corral_runtime::{compose_program, write_setting};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("provider").required(true))]
pub struct ComposeArgs {
    /// The plugin; without one, the output is the component that answers, for `wac plug`
    #[arg(value_name = "PLUGIN")]
    plugin: Option<PathBuf>,
    /// Compute on the Corral host that serves the plugin `sessions` at this URL
    #[arg(long, value_name = "URL", group = "provider")]
    remote: Option<String>,
    /// Answer from this script, without a host
    #[arg(long, value_name = "FILE", group = "provider")]
    mock: Option<PathBuf>,
    /// Leave out the interface for WASI 0.3, for runtimes without it; only with --remote and without PLUGIN
    #[arg(long, requires = "remote", conflicts_with = "plugin")]
    sync: bool,
    /// File to write
    #[arg(long, short, value_name = "FILE")]
    out: PathBuf,
    /// Directory of corral-remote.wasm, corral-remote-sync.wasm and corral-mock.wasm [default: the installed ones]
    #[arg(long, value_name = "DIR")]
    components: Option<PathBuf>,
}

/// Composes and writes the program.
pub(crate) fn compose(args: &ComposeArgs) -> Result<ExitCode, Error> {
    let plugin = args.plugin.as_deref();
    let plugin = plugin.map(|path| Ok::<_, Error>((path.display().to_string(), read(path)?)));
    let plugin = plugin.transpose()?;
    let needs_async = plugin
        .as_ref()
        .map_or(!args.sync, |(_, bytes)| imports_async(bytes));
    let (file, setting) = match (&args.remote, &args.mock) {
        (Some(url), _) if needs_async => ("corral-remote.wasm", url.clone()),
        // The program then runs where only WASI 0.2 is known.
        (Some(url), _) => ("corral-remote-sync.wasm", url.clone()),
        (None, Some(script)) => ("corral-mock.wasm", read_script(script)?),
        (None, None) => {
            let message = "name a host with --remote or a script with --mock";
            return Err(Error::usage(message));
        }
    };
    let directory = match &args.components {
        Some(directory) => directory.clone(),
        None => installed_components(file)?,
    };
    let mut provider = read(&directory.join(file))?;
    write_setting(&mut provider, &setting)?;
    let program = match &plugin {
        Some((name, plugin)) => compose_program((file, &provider), (name, plugin))?,
        None => provider,
    };
    let failed = format!("'{}' cannot be written", args.out.display());
    fs::write(&args.out, &program)
        .map_err(|error| Error::context(format!("{failed}: {error}"))(error))?;
    let kib = program.len().div_ceil(1024);
    print(&format!("wrote {} ({kib} KiB)\n", args.out.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Whether a component imports `inference-async`: its bytes hold the name as it is.
fn imports_async(component: &[u8]) -> bool {
    let name = b"corral:inference/inference-async@";
    component.windows(name.len()).any(|window| window == name)
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|error| {
        Error::context(format!("'{}' cannot be read: {error}", path.display()))(error)
    })
}

/// Reads a script and checks that it is JSON. The component checks the rest.
fn read_script(path: &Path) -> Result<String, Error> {
    let text = String::from_utf8_lossy(&read(path)?).into_owned();
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|error| {
        Error::failed(format!(
            "the script '{}' is not JSON: {error}",
            path.display()
        ))
    })?;
    Ok(value.to_string())
}

/// The directory beside the program: of a package, or of a build.
fn installed_components(file: &str) -> Result<PathBuf, Error> {
    let program = std::env::current_exe()?;
    let beside = program.parent().unwrap_or(Path::new(""));
    let candidates = [
        "../../share/corral/plugins",
        "../share/corral/plugins",
        "../plugins",
    ];
    let found = candidates
        .iter()
        .map(|relative| beside.join(relative))
        .find(|directory| directory.join(file).is_file());
    found.ok_or_else(|| {
        Error::failed(format!(
            "{file} is not installed beside {}; name its directory with --components, in a checkout the one that \
             'make where' prints",
            program.display()
        ))
    })
}
