//! `corral completions` and `corral man-pages`: what packages install for shells and `man`.

use crate::Error;
use crate::command_line::CommandLine;
use crate::terminal::print;
use clap::{Args, CommandFactory};
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

/// Prints the completions of a shell.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<ExitCode, Error> {
    let mut script = Vec::new();
    clap_complete::generate(
        args.shell,
        &mut CommandLine::command(),
        "corral",
        &mut script,
    );
    print(&String::from_utf8_lossy(&script))
}

/// Writes the man pages of all commands.
pub(crate) fn man_pages(args: &ManPagesArgs) -> Result<ExitCode, Error> {
    let dir = &args.dir;
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(CommandLine::command(), dir))
        .map_err(Error::context(format!(
            "cannot write man pages to {}",
            dir.display()
        )))?;
    Ok(ExitCode::SUCCESS)
}
