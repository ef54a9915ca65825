//! `corral completions` and `corral man-pages`: what packages install for shells and `man`.

use crate::Error;
use crate::terminal::print;
use clap::{Args, Command};
use clap_complete::Shell;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// Shell that reads the completions, e.g. 'source <(corral completions bash)'
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

#[derive(Args, Debug)]
pub struct ManPagesArgs {
    /// Directory for one page of each command
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Prints the completions of a shell for `command`.
pub(crate) fn completions(args: &CompletionsArgs, mut command: Command) -> Result<ExitCode, Error> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "corral", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Writes the man pages of `command` and all commands below it.
pub(crate) fn man_pages(args: &ManPagesArgs, command: Command) -> Result<ExitCode, Error> {
    let dir = &args.dir;
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(command, dir))
        .map_err(Error::context(format!(
            "cannot write man pages to {}",
            dir.display()
        )))?;
    Ok(ExitCode::SUCCESS)
}
