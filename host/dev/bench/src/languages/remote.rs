//! A plugin outside this host, with a session on it.

use super::read;
use corral_cli::Error;
use corral_cli::terminal::printable;
use corral_runtime::{compose_program, write_setting};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Longest start of wasmtime, which compiles the program.
const START_TIME: Duration = Duration::from_secs(120);

/// A plugin composed with a component that has a session at `url`.
pub(super) fn compose(plugin: &Path, remote: &Path, url: &str) -> Result<Vec<u8>, Error> {
    let mut provider = read(remote)?;
    write_setting(&mut provider, url)?;
    let plugin = ("the plugin", &*read(plugin)?);
    Ok(compose_program(("corral-remote", &provider), plugin)?)
}

/// A program under `wasmtime serve`. Dropping it kills the process.
pub(super) struct ServedProgram {
    process: Child,
    pub(super) address: SocketAddr,
}

impl ServedProgram {
    pub(super) fn start(wasmtime: &Path, program: &Path) -> Result<Self, Error> {
        let mut command = Command::new(wasmtime);
        command.args(["serve", "-S", "cli,http,p3", "--addr", "127.0.0.1:0"]);
        command.arg(program).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().map_err(Error::context(format!(
            "cannot start {}; name the command line of wasmtime, 46 or later",
            wasmtime.display()
        )))?;
        let (sender, receiver) = mpsc::channel();
        if let Some(errors) = process.stderr.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(errors).lines().map_while(Result::ok) {
                    match address(&line) {
                        // The receiver takes the first one only.
                        Some(address) => drop(sender.send(address)),
                        None => eprintln!("wasmtime: {}", printable(&line)),
                    }
                }
            });
        }
        // Dropped if it does not listen.
        let mut program = Self {
            process,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
        };
        program.address = receiver.recv_timeout(START_TIME).map_err(Error::context(
            "wasmtime does not serve the program; its messages above say why",
        ))?;
        Ok(program)
    }
}

impl Drop for ServedProgram {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The address of `Serving HTTP on http://127.0.0.1:PORT/`.
fn address(line: &str) -> Option<SocketAddr> {
    let (_, address) = line.split_once("http://")?;
    address.trim_end_matches('/').parse().ok()
}
