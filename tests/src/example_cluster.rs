//! A run of `examples/cluster`: hosts and a router, which one script starts and stops.

use crate::child::find_in_output;
use crate::{Metrics, TIMEOUT, artifacts, wait_for, wait_until};
use serde_json::{Value, json};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

/// Ports that a script uses, from `PORT` on.
const PORTS: u16 = 30;

/// A running script. Dropping it stops the script, which stops all that it has started.
pub struct ClusterRun {
    script: Child,
    router: String,
    hosts: Vec<ClusterHost>,
    agent: ureq::Agent,
}

/// A host of a run.
pub struct ClusterHost {
    /// The URL of its public listener.
    pub url: String,
    admin: String,
    process: String,
}

impl ClusterRun {
    /// Starts `examples/cluster/SCRIPT.sh` with so many hosts, and waits until it serves.
    pub fn start(script: &str, hosts: usize) -> Self {
        let port = free_ports();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/cluster");
        let mut child = Command::new(root.join(format!("{script}.sh")))
            .arg("--cache-dir")
            .arg(artifacts::scratch().join("compiled"))
            // Room for all conversations of a test on one host.
            .args(["--kv-cells", "32768"])
            .env("PATH", search_path())
            .env("PLUGINS", directory(&artifacts::plugin("openai")))
            .env("HOSTS", hosts.to_string())
            .env("PORT", port.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the script starts");
        let output = child.stdout.take().expect("piped");
        // From here on, dropping `run` stops the script.
        let mut run = ClusterRun {
            script: child,
            router: format!("http://127.0.0.1:{port}"),
            hosts: Vec::new(),
            agent: ureq::Agent::config_builder()
                .http_status_as_error(false)
                .proxy(None)
                .timeout_global(Some(TIMEOUT))
                .build()
                .into(),
        };
        find_in_output(output, |line| {
            run.hosts.extend(host(line.trim_end()));
            line.contains("Ctrl-C stops them").then_some(())
        });
        run
    }

    /// The URL of the router.
    pub fn router(&self) -> &str {
        &self.router
    }

    /// The hosts.
    pub fn hosts(&self) -> &[ClusterHost] {
        &self.hosts
    }

    /// Sends a chat to a router or host, with the session in a header unless it is empty. Returns the answer.
    ///
    /// # Errors
    /// With what came instead of an answer.
    pub fn chat(&self, url: &str, session: &str, messages: &Value) -> Result<String, String> {
        let body = json!({"model": "tiny", "messages": messages, "max_tokens": 8});
        let mut request = self
            .agent
            .post(format!("{url}/v1/chat/completions"))
            .header("content-type", "application/json");
        if !session.is_empty() {
            request = request.header("x-session-id", session);
        }
        let sent = request.send(body.to_string());
        let mut answer = sent.map_err(|error| error.to_string())?;
        let text = answer.body_mut().read_to_string().unwrap_or_default();
        let content = serde_json::from_str::<Value>(&text).ok().and_then(|body| {
            let content = body["choices"][0]["message"]["content"].as_str()?;
            Some(content.to_owned())
        });
        content.ok_or_else(|| format!("{}: {text}", answer.status()))
    }

    /// The metrics of a host.
    pub fn metrics(&self, host: usize) -> Metrics {
        let url = format!("{}/metrics", self.hosts[host].admin);
        let mut answer = self.agent.get(url).call().expect("the host answers");
        Metrics::read(&answer.body_mut().read_to_string().expect("text"))
    }

    /// Kills a host, and waits until its process is gone.
    pub fn kill_host(&self, host: usize) {
        let process = &self.hosts[host].process;
        kill("KILL", process);
        let files = Path::new("/proc").join(process);
        wait_until("the end of the host", || !files.exists());
    }

    /// Stops the script, and asserts that nothing of it is left.
    pub fn stop(mut self) {
        let ended = self.end();
        assert_eq!(ended.code(), Some(143), "the script ends by SIGTERM");
        for url in self
            .hosts
            .iter()
            .map(|host| &host.url)
            .chain([&self.router])
        {
            let address = url.strip_prefix("http://").expect("a URL");
            assert!(
                TcpListener::bind(address).is_ok(),
                "something listens at {url}"
            );
        }
    }

    fn end(&mut self) -> ExitStatus {
        kill("TERM", &self.script.id().to_string());
        wait_for("the end of the script", || {
            self.script.try_wait().expect("own child")
        })
    }
}

impl Drop for ClusterRun {
    fn drop(&mut self) {
        if self.script.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.end();
        }
    }
}

/// The host of a line of the script: `host 1 at URL, admin listener at URL, process ID`.
fn host(line: &str) -> Option<ClusterHost> {
    let (_, rest) = line.strip_prefix("host ")?.split_once(" at ")?;
    let (url, rest) = rest.split_once(", admin listener at ")?;
    let (admin, process) = rest.split_once(", process ")?;
    let [url, admin, process] = [url, admin, process].map(str::to_owned);
    Some(ClusterHost {
        url,
        admin,
        process,
    })
}

/// Sends a signal to a process that may have ended.
fn kill(signal: &str, process: &str) {
    let kill = Command::new("kill").args(["-s", signal, process]).status();
    kill.expect("kill is there");
}

fn directory(file: &Path) -> PathBuf {
    file.parent().expect("a directory").to_owned()
}

/// A search path with `corral` and all routers.
fn search_path() -> std::ffi::OsString {
    let programs = [
        artifacts::binary(),
        artifacts::nats_server(),
        artifacts::smg(),
        artifacts::haproxy(),
        artifacts::envoy(),
    ];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = programs.iter().map(|file| directory(file));
    let directories = directories.chain(std::env::split_paths(&path));
    std::env::join_paths(directories).expect("no colon in a path")
}

/// The first of 30 free ports. They are below those that the system gives to listeners of any port and to outgoing
/// connections, so nobody else takes them before or between their uses; each test process begins elsewhere.
pub fn free_ports() -> u16 {
    const SLOTS: u16 = 400;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let process = (std::process::id() % u32::from(SLOTS)) as u16;
    let is_free = |port: &u16| {
        (*port..port + PORTS).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok())
    };
    let ports = (0..SLOTS).map(|_| {
        let slot = (process + NEXT.fetch_add(1, Ordering::Relaxed)) % SLOTS;
        20_000 + slot * PORTS
    });
    let mut free = ports.filter(is_free);
    free.next().expect("free ports")
}
