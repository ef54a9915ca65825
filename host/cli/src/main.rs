//! The binary `corral`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    corral_cli::main()
}
