//! A running `corral serve`, one per test.

use crate::artifacts;
use crate::metrics::Metrics;
use crate::response::{EventStream, Response};
use crate::sums::Sum;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time limit of any single wait in a test. Far above what it takes, because machines are busy.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Context length: enough to generate for many seconds on any machine.
const CONTEXT: &str = "16384";

/// Tokens of [`Corral::endless`]: nearly a whole context.
pub const ENDLESS_TOKENS: u32 = 16_000;

/// `--kv-cells` for four [`Corral::endless`] streams at once.
pub const MANY_CELLS: &str = "65536";

/// Metrics that are 0 when nothing runs.
const IDLE_ZERO: [&str; 14] = [
    "corral_engine_requests_waiting",
    "corral_engine_requests_running",
    "corral_engine_sequence_ids_used",
    "corral_engine_kv_cells_used",
    "corral_engine_kv_cells_reserved",
    "corral_engine_kv_cells_leaked",
    "corral_engine_attention_cells",
    "corral_plugin_calls_waiting",
    "corral_plugin_instances",
    "corral_sampling_plugin_instances",
    "corral_deployment_calls_running",
    "corral_deployment_calls_waiting",
    "corral_http_requests_in_flight",
    "corral_engine_steps_failed_total",
];

/// A running `corral serve` with the demo model as `tiny` and plugins at the routes of their names:
/// `generate`, `hello`, and test plugins.
pub struct Corral {
    child: Child,
    public: String,
    admin: String,
    announced: Vec<String>,
    /// The admin token, if the server has a store.
    token: Option<String>,
    stderr: Arc<Mutex<String>>,
    agent: ureq::Agent,
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
        let own = [
            ("/generate", "generate"),
            ("/hello", "hello"),
            ("/misbehave", "misbehave"),
            ("/classic", "classic"),
        ];
        Self::launch(&[&own, routes].concat(), arguments, &[])
    }

    /// Starts a server with environment variables and only `generate`.
    pub fn start_with_env(variables: &[(&str, &str)], arguments: &[&str]) -> Self {
        Self::launch(&[("/generate", "generate")], arguments, variables)
    }

    /// Starts a server without plugins that loads its model on demand, so that it is ready soon.
    pub fn start_bare(arguments: &[&str]) -> Self {
        Self::launch(&[], &[&["--preload", "none"], arguments].concat(), &[])
    }

    fn launch(plugins: &[(&str, &str)], arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(artifacts::binary());
        command
            .arg("serve")
            .arg("--model")
            .arg(argument("tiny", &artifacts::long_model()))
            .arg("--cache-dir")
            .arg(artifacts::scratch().join("compiled"));
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
        command
            .args(arguments)
            .env_remove("RUST_LOG")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let stderr = Arc::new(Mutex::new(String::new()));
        collect(child.stderr.take().expect("piped"), stderr.clone());
        let lines = lines(child.stdout.take().expect("piped"));
        // From here on, dropping `corral` kills the process.
        let mut corral = Corral {
            child,
            public: String::new(),
            admin: String::new(),
            announced: Vec::new(),
            token: None,
            stderr,
            agent: ureq::Agent::config_builder()
                .http_status_as_error(false)
                .proxy(None)
                .timeout_global(Some(PATIENCE))
                .max_idle_connections(64)
                .max_idle_connections_per_host(64)
                .build()
                .into(),
        };
        let deadline = Instant::now() + PATIENCE;
        while corral.admin.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = match lines.recv_timeout(left) {
                Ok(line) => line,
                Err(error) => panic!("corral did not announce its listeners: {error}"),
            };
            if let Some(file) = line.strip_prefix("admin token in ") {
                let token = std::fs::read_to_string(file).expect("it was written");
                corral.token = Some(token.trim().to_owned());
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

    /// Waits until standard error contains `text`, and returns all of it.
    pub fn wait_for_stderr(&self, text: &str) -> String {
        let started = Instant::now();
        loop {
            let written = self.stderr();
            if written.contains(text) {
                return written;
            }
            assert!(started.elapsed() < PATIENCE, "no {text:?} in {written}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// `GET` on the public listener.
    pub fn get(&self, path: &str) -> Response {
        self.get_from(&self.public, path)
    }

    /// `GET` on the admin listener.
    pub fn get_admin(&self, path: &str) -> Response {
        self.get_from(&self.admin, path)
    }

    /// The admin token. Panics without a store.
    pub fn token(&self) -> &str {
        self.token.as_deref().expect("started with --store")
    }

    /// Sends a request with the token to the admin API.
    pub fn request_admin(&self, method: &str, path: &str, body: impl AsRef<[u8]>) -> Response {
        self.try_request_admin(method, path, body.as_ref())
            .unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// [`request_admin`](Self::request_admin) to a server that may be killed meanwhile.
    pub fn try_request_admin(
        &self,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<Response, ureq::Error> {
        self.send_admin(method, path, body)
            .and_then(Response::try_read)
    }

    /// `GET` on the admin API, read as a stream.
    pub fn stream_admin(&self, path: &str) -> EventStream {
        let sent = self.send_admin("GET", path, b"");
        EventStream::new(sent.unwrap_or_else(|error| panic!("GET {path}: {error}")))
    }

    fn send_admin(
        &self,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<ureq::http::Response<ureq::Body>, ureq::Error> {
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.admin))
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {}", self.token()));
        if matches!(method, "GET" | "DELETE") {
            self.agent.run(request.body(()).expect("a good request"))
        } else {
            self.agent.run(request.body(body).expect("a good request"))
        }
    }

    fn get_from(&self, address: &str, path: &str) -> Response {
        let response = self.agent.get(format!("http://{address}{path}")).call();
        Response::read(response.unwrap_or_else(|error| panic!("GET {path}: {error}")))
    }

    /// `POST` on the public listener.
    pub fn post(&self, path: &str, body: impl AsRef<[u8]>) -> Response {
        Response::read(
            self.try_post(path, body.as_ref())
                .unwrap_or_else(|error| panic!("POST {path}: {error}")),
        )
    }

    /// `POST` on the public listener, read as a stream.
    pub fn post_stream(&self, path: &str, body: impl AsRef<[u8]>) -> EventStream {
        EventStream::new(
            self.try_post(path, body.as_ref())
                .unwrap_or_else(|error| panic!("POST {path}: {error}")),
        )
    }

    /// `GET` on the public listener of a server that may be killed meanwhile.
    pub fn try_get(&self, path: &str) -> Result<Response, ureq::Error> {
        let address = &self.public;
        let response = self.agent.get(format!("http://{address}{path}")).call();
        response.and_then(Response::try_read)
    }

    fn try_post(
        &self,
        path: &str,
        body: &[u8],
    ) -> Result<ureq::http::Response<ureq::Body>, ureq::Error> {
        self.agent
            .post(format!("http://{}{path}", self.public))
            .header("content-type", "application/json")
            .send(body)
    }

    /// Sends a `POST` on the public listener without reading the response. Dropping the connection hangs up.
    pub fn begin_post(&self, path: &str, body: impl AsRef<[u8]>) -> TcpStream {
        let body = body.as_ref();
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
        let mut connection = TcpStream::connect(&self.public).expect("the server accepts");
        let sent = connection.write_all(&[head.as_bytes(), body].concat());
        sent.expect("the server reads");
        connection
    }

    /// `POST /generate`. Panics unless the status is 200.
    pub fn generate(&self, request: &Value) -> Value {
        self.generate_at("/generate", request)
    }

    /// The same at another route of `generate`.
    pub fn generate_at(&self, route: &str, request: &Value) -> Value {
        let request = request.to_string();
        let answer = self.post(route, &request);
        let start: String = request.chars().take(200).collect();
        assert_eq!(answer.status, 200, "{start}: {answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        answer.json()
    }

    /// The text of a greedy generation of at most 100 tokens.
    pub fn text(&self, prompt: &str) -> String {
        let answer = self.generate(&json!({"prompt": prompt, "max_tokens": 100}));
        let text = answer["text"].as_str();
        text.expect("an answer has a text").to_owned()
    }

    /// The answer to one user message.
    pub fn chat(&self, message: &str) -> String {
        let messages = json!([{"role": "user", "content": message}]);
        let answer = self.generate(&json!({"messages": messages, "max_tokens": 100}));
        let text = answer["text"].as_str();
        text.expect("an answer has a text").to_owned()
    }

    /// `POST /generate` with `stream: true`.
    pub fn generate_stream(&self, request: &Value) -> EventStream {
        self.generate_stream_at("/generate", request)
    }

    /// The same at another route of `generate`.
    pub fn generate_stream_at(&self, route: &str, request: &Value) -> EventStream {
        let mut request = request.clone();
        request["stream"] = json!(true);
        let stream = self.post_stream(route, request.to_string());
        assert_eq!(stream.status, 200, "{request}");
        stream
    }

    /// Starts a stream of many seconds at a route of `generate` and reads its first event. Dropping it hangs
    /// up.
    pub fn endless(&self, route: &str) -> EventStream {
        let request = json!({"prompt": "1+1=", "ignore_end": true, "max_tokens": ENDLESS_TOKENS});
        let mut stream = self.generate_stream_at(route, &request);
        stream.next_text();
        stream
    }

    /// Occupies `ids` sequence ids with [`Corral::endless`] streams. They need [`MANY_CELLS`].
    pub fn hold(&self, ids: usize) -> Vec<EventStream> {
        (0..ids).map(|_| self.endless("/generate")).collect()
    }

    /// Asks a sum at a route of `generate` for `tokens` tokens, and checks that the output begins with the right
    /// answer.
    pub fn check_long(&self, route: &str, sum: Sum, tokens: usize) {
        let answer = self.generate_at(route, &sum.long_request(tokens));
        let text = answer["text"].as_str().expect("an answer has a text");
        assert!(text.starts_with(&sum.answer()), "{sum:?}: {text:?}");
        assert_eq!(answer["tokens"], tokens, "{sum:?}");
    }

    /// Asserts that the server answers 1+1 with 2.
    pub fn check_alive(&self) {
        assert_eq!(self.text("1+1="), "2");
    }

    /// The current metrics.
    pub fn metrics(&self) -> Metrics {
        let answer = self.get_admin("/metrics");
        assert_eq!(answer.status, 200, "{answer:?}");
        Metrics::read(&answer.body)
    }

    /// Waits until `condition` holds and returns the metrics.
    pub fn wait_until(&self, what: &str, condition: impl Fn(&Metrics) -> bool) -> Metrics {
        let started = Instant::now();
        loop {
            let metrics = self.metrics();
            if condition(&metrics) {
                return metrics;
            }
            let waited = started.elapsed();
            assert!(waited < PATIENCE, "{what} did not happen: {metrics:#?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until `waiting` requests are in the queue.
    pub fn wait_for_queue(&self, waiting: usize) -> Metrics {
        self.wait_until(&format!("a queue of {waiting}"), |metrics| {
            metrics.get("corral_engine_requests_waiting") == waiting as f64
        })
    }

    /// Waits until no request, instance, sequence or cell is in use, and returns the metrics. Panics if
    /// something is left over or the token identity does not hold.
    ///
    /// The engine updates its gauges between steps, so a request before its first step is invisible. Five
    /// equal scrapes in a row count as idle.
    pub fn wait_until_idle(&self) -> Metrics {
        let started = Instant::now();
        let (mut quiet, mut decoded) = (0, -1.0);
        loop {
            let metrics = self.metrics();
            let left = metrics.nonzero(&IDLE_ZERO);
            let now = metrics.get("corral_engine_computed_tokens_total");
            quiet = if left.is_empty() && now == decoded {
                quiet + 1
            } else {
                0
            };
            decoded = now;
            if quiet == 5 {
                metrics.check_token_identity();
                return metrics;
            }
            assert!(
                started.elapsed() < Duration::from_secs(20),
                "still in use: {left:?}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends a signal, by its name without `SIG`.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .arg(format!("-{name}"))
            .arg(self.child.id().to_string())
            .status()
            .expect("kill is there");
        assert!(status.success(), "kill -{name}");
    }

    /// Waits for the process to end by itself.
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("own child") {
                return status;
            }
            assert!(started.elapsed() < limit, "still running after {limit:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
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
fn argument(name: &str, file: &Path) -> std::ffi::OsString {
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
fn collect(mut pipe: impl Read + Send + 'static, text: Arc<Mutex<String>>) {
    std::thread::spawn(move || {
        let mut some = [0; 4096];
        while let Ok(count @ 1..) = pipe.read(&mut some) {
            let more = String::from_utf8_lossy(&some[..count]);
            text.lock().expect("no panic while held").push_str(&more);
        }
    });
}
