//! A server of a test's own.

use crate::artifacts;
use crate::http::{Answer, Stream};
use crate::metrics::Metrics;
use crate::sums::Sum;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long anything may take before a test fails. Far more than it takes: machines are busy.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Positions that a sequence may have: enough to go on for many seconds on any machine.
const CONTEXT: &str = "16384";

/// Tokens of [`Corral::endless`]: nearly a whole context.
pub const ENDLESS: u32 = 16_000;

/// `--cells` for four of [`Corral::endless`] at once: with fewer they would go on no longer together than one with
/// the demo model's own context.
pub const MANY_CELLS: &str = "65536";

/// What has to be zero when nothing runs.
const GAUGES: [&str; 14] = [
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

/// A running `corral serve` with the demo model as `tiny`, and plugins each at the route of its name:
/// `generate`, `hello`, and the test plugins `misbehave` and `classic`.
pub struct Corral {
    child: Child,
    public: String,
    admin: String,
    announced: Vec<String>,
    /// The admin token, when there is a store.
    token: Option<String>,
    stderr: Arc<Mutex<String>>,
    agent: ureq::Agent,
}

impl Corral {
    /// Starts a server and waits until it says that it is ready.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same with further arguments.
    pub fn start_with(arguments: &[&str]) -> Self {
        Self::start_with_routes(&[], arguments)
    }

    /// The same with further routes, each with the plugin that answers there. A route is a tenant
    /// of its own, also where others have the same plugin.
    pub fn start_with_routes(routes: &[(&str, &str)], arguments: &[&str]) -> Self {
        let own = [
            ("/generate", "generate"),
            ("/hello", "hello"),
            ("/misbehave", "misbehave"),
            ("/classic", "classic"),
        ];
        Self::launch(&[&own, routes].concat(), arguments, &[])
    }

    /// The same with further variables of the environment.
    pub fn start_where(variables: &[(&str, &str)], arguments: &[&str]) -> Self {
        Self::launch(&[("/generate", "generate")], arguments, variables)
    }

    /// Starts one that is there soon: without plugins, and with the model left to who first asks for it.
    pub fn start_bare(arguments: &[&str]) -> Self {
        Self::launch(&[], &[&["--preload", "none"], arguments].concat(), &[])
    }

    fn launch(plugins: &[(&str, &str)], arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(artifacts::binary());
        command
            .arg("serve")
            .arg("--model")
            .arg(argument("tiny", &artifacts::long_model()))
            .arg("--cache")
            .arg(artifacts::scratch().join("compiled"));
        for (option, value) in [
            ("--listen", "127.0.0.1:0"),
            ("--admin", "127.0.0.1:0"),
            ("--context", CONTEXT),
            // The demo model's steps are so small that a second thread does not pay; and where the
            // cores are busy, it makes each step wait until the system lets it run.
            ("--threads", "1"),
            // Busy machines again: no test waits for this limit, and none should meet it by chance.
            ("--time-limit", "300"),
        ] {
            if !arguments.contains(&option) {
                command.args([option, value]);
            }
        }
        // As the tests of the engine: on that device, where one is named.
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
        // From here on dropping it kills the process.
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
                Err(error) => panic!("corral said no more on stdout: {error}"),
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

    /// `HOST:PORT` of the admin listener; with a scheme before it unless that is `http`.
    pub fn admin(&self) -> &str {
        &self.admin
    }

    /// The lines that it wrote to standard output until it was ready.
    pub fn announced(&self) -> &[String] {
        &self.announced
    }

    /// What it wrote to standard error so far.
    pub fn stderr(&self) -> String {
        self.stderr.lock().expect("no panic while held").clone()
    }

    /// What it wrote to standard error once this is in it: another thread reads that, a little later.
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
    pub fn get(&self, path: &str) -> Answer {
        self.get_from(&self.public, path)
    }

    /// `GET` on the admin listener.
    pub fn get_admin(&self, path: &str) -> Answer {
        self.get_from(&self.admin, path)
    }

    /// The admin token; panics without a store.
    pub fn token(&self) -> &str {
        self.token.as_deref().expect("started with --store")
    }

    /// A request to the admin API, with the token.
    pub fn ask_admin(&self, method: &str, path: &str, body: impl AsRef<[u8]>) -> Answer {
        self.try_ask_admin(method, path, body.as_ref())
            .unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// The same, while the server may be killed.
    pub fn try_ask_admin(
        &self,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<Answer, ureq::Error> {
        self.send_admin(method, path, body)
            .and_then(Answer::try_read)
    }

    /// A request to the admin API, whose answer is read bit by bit.
    pub fn stream_admin(&self, path: &str) -> Stream {
        let sent = self.send_admin("GET", path, b"");
        Stream::new(sent.unwrap_or_else(|error| panic!("GET {path}: {error}")))
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

    fn get_from(&self, address: &str, path: &str) -> Answer {
        let response = self.agent.get(format!("http://{address}{path}")).call();
        Answer::read(response.unwrap_or_else(|error| panic!("GET {path}: {error}")))
    }

    /// `POST` on the public listener.
    pub fn post(&self, path: &str, body: impl AsRef<[u8]>) -> Answer {
        Answer::read(
            self.try_post(path, body.as_ref())
                .unwrap_or_else(|error| panic!("POST {path}: {error}")),
        )
    }

    /// `POST` on the public listener, to be read bit by bit.
    pub fn post_stream(&self, path: &str, body: impl AsRef<[u8]>) -> Stream {
        Stream::new(
            self.try_post(path, body.as_ref())
                .unwrap_or_else(|error| panic!("POST {path}: {error}")),
        )
    }

    /// `GET` on the public listener, while the server may be killed.
    pub fn try_get(&self, path: &str) -> Result<Answer, ureq::Error> {
        let address = &self.public;
        let response = self.agent.get(format!("http://{address}{path}")).call();
        response.and_then(Answer::try_read)
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

    /// Sends a `POST` on the public listener and waits for nothing. Letting go of the connection
    /// hangs up.
    pub fn begin_post(&self, path: &str, body: impl AsRef<[u8]>) -> TcpStream {
        let body = body.as_ref();
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
        let mut connection = TcpStream::connect(&self.public).expect("the server accepts");
        let sent = connection.write_all(&[head.as_bytes(), body].concat());
        sent.expect("the server reads");
        connection
    }

    /// `POST /generate`; panics unless the answer is 200.
    pub fn generate(&self, request: &Value) -> Value {
        self.generate_at("/generate", request)
    }

    /// The same at another route of the plugin `generate`.
    pub fn generate_at(&self, route: &str, request: &Value) -> Value {
        let request = request.to_string();
        let answer = self.post(route, &request);
        let start: String = request.chars().take(200).collect();
        assert_eq!(answer.status, 200, "{start}: {answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        answer.json()
    }

    /// The text that a greedy generation of at most 100 tokens gives.
    pub fn text(&self, prompt: &str) -> String {
        let answer = self.generate(&json!({"prompt": prompt, "max_tokens": 100}));
        let text = answer["text"].as_str();
        text.expect("an answer has a text").to_owned()
    }

    /// The text of the answer to one user message.
    pub fn chat(&self, message: &str) -> String {
        let messages = json!([{"role": "user", "content": message}]);
        let answer = self.generate(&json!({"messages": messages, "max_tokens": 100}));
        let text = answer["text"].as_str();
        text.expect("an answer has a text").to_owned()
    }

    /// `POST /generate` with `stream`, and `request`'s other members.
    pub fn generate_stream(&self, request: &Value) -> Stream {
        self.generate_stream_at("/generate", request)
    }

    /// The same at another route of the plugin `generate`.
    pub fn generate_stream_at(&self, route: &str, request: &Value) -> Stream {
        let mut request = request.clone();
        request["stream"] = json!(true);
        let stream = self.post_stream(route, request.to_string());
        assert_eq!(stream.status, 200, "{request}");
        stream
    }

    /// A stream that goes on for many seconds on any machine, at a route of the plugin `generate`. Its
    /// sequence runs when this returns; letting go of it hangs up.
    pub fn endless(&self, route: &str) -> Stream {
        let request = json!({"prompt": "1+1=", "ignore_end": true, "max_tokens": ENDLESS});
        let mut stream = self.generate_stream_at(route, &request);
        stream.next_text();
        stream
    }

    /// Holds this many sequence ids with [`Corral::endless`] streams at `/generate`. They want [`MANY_CELLS`].
    pub fn hold(&self, ids: usize) -> Vec<Stream> {
        (0..ids).map(|_| self.endless("/generate")).collect()
    }

    /// Asks a sum at a route of the plugin `generate`, for an answer of `tokens` that begins with the
    /// right one.
    pub fn check_long(&self, route: &str, sum: Sum, tokens: usize) {
        let answer = self.generate_at(route, &sum.long_request(tokens));
        let text = answer["text"].as_str().expect("an answer has a text");
        assert!(text.starts_with(&sum.answer()), "{sum:?}: {text:?}");
        assert_eq!(answer["tokens"], tokens, "{sum:?}");
    }

    /// Checks that the house still stands: 1+1 is answered by 2.
    pub fn check_alive(&self) {
        assert_eq!(self.text("1+1="), "2");
    }

    /// The counters now.
    pub fn metrics(&self) -> Metrics {
        let answer = self.get_admin("/metrics");
        assert_eq!(answer.status, 200, "{answer:?}");
        Metrics::read(&answer.body)
    }

    /// The counters as soon as `it_is` so. Panics when that takes too long.
    pub fn wait_until(&self, what: &str, it_is: impl Fn(&Metrics) -> bool) -> Metrics {
        let started = Instant::now();
        loop {
            let metrics = self.metrics();
            if it_is(&metrics) {
                return metrics;
            }
            let waited = started.elapsed();
            assert!(waited < PATIENCE, "no sign that {what}: {metrics:#?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The counters as soon as this many sequences wait for their turn.
    pub fn wait_for_queue(&self, waiting: usize) -> Metrics {
        self.wait_until(&format!("{waiting} wait"), |metrics| {
            metrics.get("corral_engine_requests_waiting") == waiting as f64
        })
    }

    /// The counters once nothing runs any more: no request, instance, sequence, cell. Panics if
    /// something is left over, or if tokens were counted wrongly.
    ///
    /// The engine writes its gauges between steps, so a sequence on its way to its first step is not
    /// seen yet: nothing runs when several looks in a row find nothing, and nothing new.
    pub fn settled(&self) -> Metrics {
        let started = Instant::now();
        let (mut quiet, mut decoded) = (0, -1.0);
        loop {
            let metrics = self.metrics();
            let left = metrics.not_zero(&GAUGES);
            let now = metrics.get("corral_engine_computed_tokens_total");
            quiet = if left.is_empty() && now == decoded {
                quiet + 1
            } else {
                0
            };
            decoded = now;
            if quiet == 5 {
                metrics.check_identity();
                return metrics;
            }
            assert!(
                started.elapsed() < Duration::from_secs(20),
                "left over when nothing runs: {left:?}"
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
            if let Some(status) = self.child.try_wait().expect("a child of ours") {
                return status;
            }
            assert!(started.elapsed() < limit, "still running after {limit:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Corral {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- corral's stderr ---\n{}--- end ---", self.stderr());
        }
    }
}

/// `NAME=FILE`; the file's path need not be UTF-8.
fn argument(name: &str, file: &Path) -> std::ffi::OsString {
    let mut argument = std::ffi::OsString::from(name);
    argument.push("=");
    argument.push(file);
    argument
}

/// Reads lines on a thread of its own, which ends with the pipe.
fn lines(pipe: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            // Nobody waits for more once the server is ready; the pipe is still emptied.
            let _ = sender.send(line);
        }
    });
    receiver
}

/// Appends everything to `text` on a thread of its own, which ends with the pipe.
fn collect(mut pipe: impl Read + Send + 'static, text: Arc<Mutex<String>>) {
    std::thread::spawn(move || {
        let mut some = [0; 4096];
        while let Ok(count @ 1..) = pipe.read(&mut some) {
            let more = String::from_utf8_lossy(&some[..count]);
            text.lock().expect("no panic while held").push_str(&more);
        }
    });
}
