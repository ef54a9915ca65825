//! A running `corral serve`: its start, its output and its end. `client` sends requests, `waiting` reads metrics.

use crate::{RunOutput, artifacts, http_agent, run, scratch_dir, signal};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time limit of any single wait in a test. Far above what it takes, because machines are busy.
pub const TIMEOUT: Duration = Duration::from_secs(300);

/// Context length: enough to generate for many seconds on any machine.
const CONTEXT: &str = "16384";

/// Routes of every server, and their plugins.
const OWN_ROUTES: [(&str, &str); 4] = [
    ("/generate", "generate"),
    ("/hello", "hello"),
    ("/misbehave", "misbehave"),
    ("/wasi-p2-handler", "wasi-p2-handler"),
];

/// A running `corral serve` with the demo model as `tiny` and plugins at the routes of their names:
/// `generate`, `hello`, and test plugins.
pub struct Corral {
    child: Child,
    public: String,
    admin: String,
    announced: Vec<String>,
    store: Option<PathBuf>,
    /// The file with the admin token.
    token_file: Option<PathBuf>,
    stderr: Arc<Mutex<String>>,
    /// Reads standard error to its end.
    stderr_reader: JoinHandle<()>,
    pub(crate) agent: ureq::Agent,
}

/// A shell that runs `script` and then becomes `program`.
struct Setup<'a> {
    script: &'a str,
    stdin: Stdio,
    program: &'a Path,
}

impl Corral {
    /// Starts a server and waits until it is ready.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with additional arguments.
    pub fn start_with(arguments: &[&str]) -> Self {
        Self::start_with_routes(&[], arguments)
    }

    /// Starts a server with additional routes and their plugins. Each route is a tenant, also if routes share
    /// a plugin.
    pub fn start_with_routes(routes: &[(&str, &str)], arguments: &[&str]) -> Self {
        Self::launch(&[&OWN_ROUTES, routes].concat(), arguments, &[], None, None)
    }

    /// Starts a server that stores its deployments in a new directory.
    pub fn start_with_store(arguments: &[&str]) -> Self {
        Self::start_in(&scratch_dir(), arguments)
    }

    /// Starts a server that stores its deployments in this directory.
    pub fn start_in(store: &Path, arguments: &[&str]) -> Self {
        Self::launch(&OWN_ROUTES, arguments, &[], Some(store), None)
    }

    /// Starts a server with environment variables and only `generate`.
    pub fn start_with_env(variables: &[(&str, &str)], arguments: &[&str]) -> Self {
        Self::launch(
            &[("/generate", "generate")],
            arguments,
            variables,
            None,
            None,
        )
    }

    /// Starts a server with environment variables that stores its deployments in a new directory.
    pub fn start_with_store_and_env(variables: &[(&str, &str)], arguments: &[&str]) -> Self {
        let store = scratch_dir();
        Self::launch(&OWN_ROUTES, arguments, variables, Some(&store), None)
    }

    /// Starts a server in a shell that first runs `setup`, such as `ulimit -n 64`.
    pub fn start_after(setup: &str, store: Option<&Path>, arguments: &[&str]) -> Self {
        let setup = Setup {
            script: setup,
            stdin: Stdio::null(),
            program: &artifacts::binary(),
        };
        Self::launch(&OWN_ROUTES, arguments, &[], store, Some(setup))
    }

    /// Starts `program` as a server that listens on `public` as a service manager passes it, as descriptor 3. It notifies
    /// `notify`, a Unix datagram socket, and with `watchdog` pings it at least this often.
    pub fn start_activated(
        program: &Path,
        public: &TcpListener,
        notify: &Path,
        watchdog: Option<Duration>,
        store: &Path,
    ) -> Self {
        // `Command` passes descriptors 0 to 2 only.
        let setup = "exec 3<&0 </dev/null; export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=public";
        let socket = public.try_clone().expect("a free descriptor");
        let notify = notify.to_str().expect("a path in UTF-8");
        let watchdog = watchdog.map(|time| time.as_micros().to_string());
        let mut variables = vec![("NOTIFY_SOCKET", notify)];
        variables.extend(watchdog.iter().map(|time| ("WATCHDOG_USEC", time.as_str())));
        let setup = Setup {
            script: setup,
            stdin: Stdio::from(OwnedFd::from(socket)),
            program,
        };
        Self::launch(
            &OWN_ROUTES,
            &["--grace-period", "300"],
            &variables,
            Some(store),
            Some(setup),
        )
    }

    /// Starts a server with a store that has no plugins and loads its model on demand, so that it is ready soon.
    pub fn start_bare(store: &Path) -> Self {
        Self::launch(&[], &["--preload", "none"], &[], Some(store), None)
    }

    /// Starts a server with these arguments and no others.
    pub fn start_exactly(arguments: &[&str]) -> Self {
        let mut command = Command::new(artifacts::binary());
        command.stdin(Stdio::null()).arg("serve").args(arguments);
        Self::wait_until_announced(command, None)
    }

    fn launch(
        plugins: &[(&str, &str)],
        arguments: &[&str],
        variables: &[(&str, &str)],
        store: Option<&Path>,
        setup: Option<Setup>,
    ) -> Self {
        let mut command = match setup {
            Some(Setup {
                script,
                stdin,
                program,
            }) => {
                let script = format!("{script} && exec \"$0\" \"$@\"");
                let mut shell = Command::new("sh");
                shell.arg("-c").arg(script).arg(program);
                shell.stdin(stdin);
                shell
            }
            None => {
                let mut command = Command::new(artifacts::binary());
                command.stdin(Stdio::null());
                command
            }
        };
        command
            .arg("serve")
            .arg("--model")
            .arg(argument("tiny", &artifacts::long_model()));
        if !arguments.contains(&"--cache-dir") {
            let cache = artifacts::scratch().join("compiled");
            command.arg("--cache-dir").arg(cache);
        }
        for (option, value) in [
            ("--listen", "127.0.0.1:0"),
            ("--admin", "127.0.0.1:0"),
            ("--context", CONTEXT),
            // Steps of the demo model are too small for a second thread; on busy cores each step
            // would wait for it.
            ("--threads", "1"),
            // No test relies on this limit; busy machines should not reach it either.
            ("--time-limit", "300"),
        ] {
            if !arguments.contains(&option) {
                command.args([option, value]);
            }
        }
        // The device that the engine's tests use, if one is named.
        if let Ok(device) = std::env::var("CORRAL_TEST_DEVICE")
            && !arguments.contains(&"--device")
        {
            command.args(["--device", &device]);
        }
        for (route, plugin) in plugins {
            command
                .arg("--plugin")
                .arg(argument(route, &artifacts::plugin(plugin)));
        }
        if let Some(store) = store {
            command.arg("--store").arg(store);
        }
        command.args(arguments).envs(variables.iter().copied());
        Self::wait_until_announced(command, store)
    }

    fn wait_until_announced(mut command: Command, store: Option<&Path>) -> Self {
        command
            .env_remove("RUST_LOG")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let stderr = Arc::new(Mutex::new(String::new()));
        let stderr_reader = collect(child.stderr.take().expect("piped"), stderr.clone());
        let lines = lines(child.stdout.take().expect("piped"));
        // From here on, dropping `corral` kills the process.
        let mut corral = Corral {
            child,
            public: String::new(),
            admin: String::new(),
            announced: Vec::new(),
            store: store.map(Path::to_owned),
            token_file: None,
            stderr,
            stderr_reader,
            agent: http_agent(),
        };
        let deadline = Instant::now() + TIMEOUT;
        while corral.admin.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = match lines.recv_timeout(left) {
                Ok(line) => line,
                Err(error) => {
                    let ended = corral.child.try_wait();
                    panic!(
                        "corral did not announce its listeners: {error}, {ended:?}; it wrote: {}",
                        corral.stderr()
                    )
                }
            };
            if let Some(file) = line.strip_prefix("admin token in ") {
                corral.token_file = Some(file.into());
            }
            let address = line.strip_prefix("listening on http://");
            let address = address.or(line.strip_prefix("listening on https://"));
            if let Some(address) = address {
                corral.public = address.to_owned();
            }
            if let Some(address) = line.strip_prefix("admin on ") {
                let bare = address.strip_prefix("http://");
                corral.admin = bare.unwrap_or(address).to_owned();
            }
            corral.announced.push(line);
        }
        corral
    }

    /// `HOST:PORT` of the public listener.
    pub fn public(&self) -> &str {
        &self.public
    }

    /// `HOST:PORT` of the admin listener, with the scheme unless it is `http`.
    pub fn admin(&self) -> &str {
        &self.admin
    }

    /// The lines on standard output until the server was ready.
    pub fn announced(&self) -> &[String] {
        &self.announced
    }

    /// Standard error so far.
    pub fn stderr(&self) -> String {
        self.stderr.lock().expect("no panic while held").clone()
    }

    /// Waits until whole lines of standard error contain `text`, and returns all of them.
    pub fn wait_for_stderr(&self, text: &str) -> String {
        wait_for(text, || {
            let mut all = self.stderr();
            all.truncate(all.rfind('\n').map_or(0, |end| end + 1));
            Some(all).filter(|all| all.contains(text))
        })
    }

    /// The directory of the deployments. Panics without a store.
    pub fn store(&self) -> &Path {
        self.store.as_deref().expect("started with a store")
    }

    /// The file of a stored component.
    pub fn component_file(&self, digest: &str) -> PathBuf {
        let digits = digest.strip_prefix("sha256:").expect("a digest");
        self.store().join(format!("components/{digits}.wasm"))
    }

    /// The admin token, if the server has a store.
    pub fn token(&self) -> Option<String> {
        let file = self.token_file.as_ref()?;
        let token = std::fs::read_to_string(file).expect("the server wrote its token");
        Some(token.trim().to_owned())
    }

    /// Runs a command of `corral` for this server's admin listener.
    pub fn cli(&self, arguments: &[&str]) -> RunOutput {
        let mut line = [arguments, &["--admin", &self.admin]].concat();
        let file = self.token_file.as_ref();
        if let Some(file) = file.and_then(|file| file.to_str()) {
            line.extend(["--token-file", file]);
        }
        run(line)
    }

    /// [`cli`](Self::cli) with a command that must succeed; returns its output.
    pub fn cli_output(&self, arguments: &[&str]) -> String {
        let ended = self.cli(arguments);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        ended.stdout
    }

    /// [`cli_output`](Self::cli_output) as JSON.
    pub fn cli_json(&self, arguments: &[&str]) -> Value {
        let output = self.cli_output(&[arguments, &["--json"]].concat());
        serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"))
    }

    /// The process id of the server.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Bytes of memory that the process holds now.
    pub fn resident_bytes(&self) -> u64 {
        status_bytes(self.pid(), "VmRSS:").expect("it runs")
    }

    /// Most bytes of memory that the process ever held.
    pub fn peak_bytes(&self) -> u64 {
        peak_bytes(self.pid()).expect("it runs")
    }

    /// Sends a signal, by its name without `SIG`.
    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// Stops the process, as Ctrl-Z does, and waits until all its threads are stopped. The signal `CONT` continues it.
    pub fn stop(&self) {
        self.signal("STOP");
        let tasks = format!("/proc/{}/task", self.pid());
        let is_stopped = |task: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            // The name before the state may contain anything.
            stat.rsplit(')')
                .next()
                .is_some_and(|rest| rest.starts_with(" T "))
        };
        wait_until("the stop of all threads", || {
            let mut tasks = std::fs::read_dir(&tasks).expect("it runs").flatten();
            tasks.all(is_stopped)
        });
    }

    /// Waits for the process to end by itself. Then [`stderr`](Self::stderr) is complete.
    pub fn wait(&mut self) -> ExitStatus {
        let status = wait_for("the end of the process", || {
            self.child.try_wait().expect("a child process")
        });
        wait_until("the end of its output", || self.stderr_reader.is_finished());
        status
    }

    /// Ends the process with `SIGTERM`, which must succeed.
    pub fn shut_down(&mut self) {
        self.signal("TERM");
        self.wait_for_success();
    }

    /// Waits for the process to end by itself, which must succeed.
    pub fn wait_for_success(&mut self) {
        let status = self.wait();
        assert_eq!(status.code(), Some(0), "{}", self.stderr());
    }
}

/// Most bytes of memory that a process ever held; nothing if it has ended.
pub fn peak_bytes(pid: u32) -> Option<u64> {
    status_bytes(pid, "VmHWM:")
}

fn status_bytes(pid: u32, field: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

/// Calls `poll` until it returns a value. Panics after [`TIMEOUT`].
pub fn wait_for<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(started.elapsed() < TIMEOUT, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until `condition` holds, as [`wait_for`] does.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, || condition().then_some(()));
}

impl Drop for Corral {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- corral's stderr ---\n{}--- end ---", self.stderr());
        }
    }
}

/// `NAME=FILE`; the path need not be UTF-8.
pub(crate) fn argument(name: &str, file: &Path) -> std::ffi::OsString {
    let mut argument = std::ffi::OsString::from(name);
    argument.push("=");
    argument.push(file);
    argument
}

/// Reads lines on a thread that ends with the pipe.
fn lines(pipe: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            // After startup nothing receives the lines, but the pipe must be drained.
            let _ = sender.send(line);
        }
    });
    receiver
}

/// Appends everything to `text` on a thread that ends with the pipe.
pub(crate) fn collect(
    mut pipe: impl Read + Send + 'static,
    text: Arc<Mutex<String>>,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut some = [0; 4096];
        while let Ok(count @ 1..) = pipe.read(&mut some) {
            let more = String::from_utf8_lossy(&some[..count]);
            text.lock().expect("no panic while held").push_str(&more);
        }
    })
}
