//! Plugins as programs under the command line of wasmtime, without a Corral host in the process.

use crate::response::Response;
use crate::server::TIMEOUT;
use crate::{
    Corral, KilledOnDrop, RunOutput, artifacts, http_agent, run, run_command, scratch_dir,
};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A plugin that `corral compose` has composed with models elsewhere.
pub struct Program(PathBuf);

impl Program {
    /// The models are those of a server's sessions, at the route `/sessions`.
    pub fn remote(plugin: &str, corral: &Corral) -> Self {
        Self::remote_at(plugin, &format!("http://{}/sessions", corral.public()))
    }

    /// The models are those of the sessions at a URL.
    pub fn remote_at(plugin: &str, url: &str) -> Self {
        Self::compose(plugin, "--remote", url)
    }

    /// The model is a script.
    pub fn mock(plugin: &str, script: &Value) -> Self {
        let file = scratch_dir().join("script.json");
        std::fs::write(&file, script.to_string()).expect("own directory");
        Self::compose(plugin, "--mock", file.to_str().expect("a path in UTF-8"))
    }

    fn compose(plugin: &str, provider: &str, argument: &str) -> Self {
        let program = scratch_dir().join("program.wasm");
        let plugin = artifacts::plugin(plugin);
        let components = plugin.parent().expect("a directory").to_owned();
        let [plugin, components, out] = [&plugin, &components, &program].map(|path| path.to_str());
        let [plugin, components, out] = [plugin, components, out].map(|path| path.expect("UTF-8"));
        let line = [
            "compose",
            plugin,
            provider,
            argument,
            "--components",
            components,
            "--out",
            out,
        ];
        run(line).check_success();
        Program(program)
    }

    /// Runs the program's command with these variables and arguments.
    pub fn run(&self, variables: &[(&str, &str)], arguments: &[&str]) -> RunOutput {
        let mut command = self.wasmtime("run", variables);
        command.arg(&self.0).args(arguments);
        run_command(&mut command, TIMEOUT)
    }

    /// The program's file.
    pub fn path(&self) -> &str {
        self.0.to_str().expect("a path in UTF-8")
    }

    /// The program's bytes.
    pub fn component(&self) -> Vec<u8> {
        std::fs::read(&self.0).expect("own file")
    }

    /// Serves the program's handler on a free port.
    pub fn serve(&self, variables: &[(&str, &str)]) -> ServedProgram {
        self.start(self.wasmtime("serve", variables))
    }

    /// The same by a runtime without WASI 0.3 and without what it needs of components.
    pub fn serve_with_wasi_0_2(&self) -> ServedProgram {
        let mut command = Command::new(artifacts::wasmtime());
        command.args([
            "serve",
            "-S",
            "cli,http,p3=n",
            "-W",
            "component-model-async=n",
        ]);
        self.start(command)
    }

    fn start(&self, mut command: Command) -> ServedProgram {
        command.args(["--addr", "127.0.0.1:0"]).arg(&self.0);
        let child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn();
        let mut child = child.expect("wasmtime starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let mut address = None;
        for line in lines.by_ref().map_while(Result::ok) {
            if let Some(found) = line.split("http://").nth(1) {
                address = Some(found.trim_end_matches('/').to_owned());
                break;
            }
            eprintln!("wasmtime: {line}");
        }
        std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .for_each(|line| eprintln!("wasmtime: {line}"));
        });
        let address = address.expect("wasmtime says where it listens");
        ServedProgram {
            _child: KilledOnDrop(child),
            address,
        }
    }

    fn wasmtime(&self, command: &str, variables: &[(&str, &str)]) -> Command {
        let mut wasmtime = Command::new(artifacts::wasmtime());
        wasmtime
            .args([command, "-S", "cli,http,p3"])
            .stdin(Stdio::null());
        for (name, value) in variables {
            wasmtime.args(["--env", &format!("{name}={value}")]);
        }
        wasmtime
    }
}

/// A running `wasmtime serve`. Dropping it kills the process.
pub struct ServedProgram {
    _child: KilledOnDrop,
    address: String,
}

impl ServedProgram {
    /// `POST` to the program.
    pub fn post(&self, path: &str, body: impl AsRef<[u8]>) -> Response {
        let url = format!("http://{}{path}", self.address);
        let answer = http_agent().post(&url).send(body.as_ref());
        Response::read(answer.unwrap_or_else(|error| panic!("POST {url}: {error}")))
    }

    /// The address, `HOST:PORT`.
    pub fn address(&self) -> &str {
        &self.address
    }
}
