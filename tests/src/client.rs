//! Requests to a running server.

use crate::response::{EventStream, Response};
use crate::sums::{Sum, distinct_sums};
use crate::{Corral, block_on};
use serde_json::{Value, json};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};

/// Tokens of [`Corral::endless`]: nearly a whole context.
pub const ENDLESS_TOKENS: u32 = 16_000;

/// `--kv-cells` for four [`Corral::endless`] streams at once.
pub const MANY_CELLS: &str = "65536";

const JSON: (&str, &str) = ("content-type", "application/json");

/// A response whose body is not read yet.
type Sent = ureq::http::Response<ureq::Body>;

impl Corral {
    /// `GET` on the public listener.
    pub fn get(&self, path: &str) -> Response {
        self.request("GET", path, &[], "")
    }

    /// `GET` on the admin listener, without the token.
    pub fn get_admin(&self, path: &str) -> Response {
        self.request_admin_as("GET", path, &[], "")
    }

    /// Sends a request to the admin listener, with the token if the server has one.
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
        EventStream::new(self.send_admin("GET", path, b"").expect(path))
    }

    /// `POST` on the admin listener with the token, read as a stream.
    pub fn stream_admin_post(&self, path: &str, body: impl AsRef<[u8]>) -> EventStream {
        let sent = self.send_admin("POST", path, body.as_ref());
        EventStream::new(sent.expect(path))
    }

    /// Sends a request with these headers to the admin listener, without the token.
    pub fn request_admin_as(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Response {
        Response::read(self.send(self.admin(), method, path, headers, body.as_bytes()))
    }

    /// `POST` on the public listener.
    pub fn post(&self, path: &str, body: impl AsRef<[u8]>) -> Response {
        Response::read(self.send(self.public(), "POST", path, &[JSON], body.as_ref()))
    }

    /// [`post`](Self::post); the response must be 200.
    #[track_caller]
    pub fn post_ok(&self, path: &str, body: impl AsRef<[u8]>) -> Response {
        let body = body.as_ref();
        let answer = self.post(path, body);
        let start = String::from_utf8_lossy(&body[..body.len().min(200)]);
        assert_eq!(answer.status, 200, "{path} {start}: {answer:?}");
        answer
    }

    /// Posts JSON; the response must be 200, with JSON.
    #[track_caller]
    pub fn post_json(&self, path: &str, body: &Value) -> Value {
        self.post_ok(path, body.to_string()).json()
    }

    /// Any request with these headers on the public listener.
    pub fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Response {
        Response::read(self.send(self.public(), method, path, headers, body.as_bytes()))
    }

    /// `POST` with these headers on the public listener, read as a stream.
    pub fn post_stream_with(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> EventStream {
        EventStream::new(self.send(self.public(), "POST", path, headers, body.as_bytes()))
    }

    /// `POST` on the public listener, read as a stream.
    pub fn post_stream(&self, path: &str, body: impl AsRef<[u8]>) -> EventStream {
        EventStream::new(self.send(self.public(), "POST", path, &[JSON], body.as_ref()))
    }

    /// Sends a request to the admin listener, with the token if the server has one.
    fn send_admin(&self, method: &str, path: &str, body: &[u8]) -> Result<Sent, ureq::Error> {
        let token = self.token().map(|token| format!("Bearer {token}"));
        let mut headers = vec![JSON];
        headers.extend(token.as_deref().map(|token| ("authorization", token)));
        self.try_send(self.admin(), method, path, &headers, body)
    }

    fn send(
        &self,
        address: &str,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Sent {
        self.try_send(address, method, path, headers, body)
            .unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    fn try_send(
        &self,
        address: &str,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Sent, ureq::Error> {
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("http://{address}{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        match method {
            "POST" | "PUT" => self.agent.run(request.body(body).expect("a good request")),
            _ => self.agent.run(request.body(()).expect("a good request")),
        }
    }

    /// Sends a `POST` on the public listener without reading the response. Dropping the connection hangs up.
    pub fn begin_post(&self, path: &str, body: impl AsRef<[u8]>) -> TcpStream {
        let body = body.as_ref();
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
        let mut connection = TcpStream::connect(self.public()).expect("the server accepts");
        let sent = connection.write_all(&[head.as_bytes(), body].concat());
        sent.expect("the server reads");
        connection
    }

    /// Connects to the public listener from another address of this machine, such as 127.0.0.2.
    pub fn connect_from(&self, address: &str) -> TcpStream {
        let connect = async {
            let socket = tokio::net::TcpSocket::new_v4()?;
            socket.bind(SocketAddr::new(address.parse().expect("an address"), 0))?;
            let server = self.public().parse().expect("an address");
            socket.connect(server).await?.into_std()
        };
        let stream = block_on(connect).expect("the server accepts");
        stream.set_nonblocking(false).expect("a socket");
        stream
    }

    /// `POST /generate`. Panics unless the status is 200.
    pub fn generate(&self, request: &Value) -> Value {
        self.generate_at("/generate", request)
    }

    /// The same at another route of `generate`.
    pub fn generate_at(&self, route: &str, request: &Value) -> Value {
        let answer = self.post_ok(route, request.to_string());
        assert_eq!(answer.header("content-type"), Some("application/json"));
        answer.json()
    }

    /// The text of a greedy generation of at most 100 tokens.
    pub fn text(&self, prompt: &str) -> String {
        text_of(&self.generate(&json!({"prompt": prompt, "max_tokens": 100})))
    }

    /// The answer to one user message.
    pub fn chat(&self, message: &str) -> String {
        let messages = json!([{"role": "user", "content": message}]);
        text_of(&self.generate(&json!({"messages": messages, "max_tokens": 100})))
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
        let request = json!({"prompt": "1+1=", "ignore_eos": true, "max_tokens": ENDLESS_TOKENS});
        let mut stream = self.generate_stream_at(route, &request);
        stream.next_text();
        stream
    }

    /// Starts a response of `misbehave` that goes on until it is dropped, at a route of the plugin.
    pub fn drip(&self, route: &str) -> EventStream {
        let mut stream = self.post_stream(&format!("{route}/drip"), "");
        stream.next_drip();
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
        let text = text_of(&answer);
        assert!(text.starts_with(&sum.answer()), "{sum:?}: {text:?}");
        assert_eq!(answer["tokens"], tokens, "{sum:?}");
    }

    /// Asserts that this many sums are answered right.
    pub fn check_sums(&self, count: usize) {
        for sum in distinct_sums(count) {
            assert_eq!(self.text(&sum.question()), sum.answer());
        }
    }

    /// Asserts that the server answers 1+1 with 2.
    pub fn check_alive(&self) {
        assert_eq!(self.text("1+1="), "2");
    }
}

/// The `text` of a response of `generate`.
fn text_of(answer: &Value) -> String {
    let text = answer["text"].as_str();
    text.expect("the response has a text").to_owned()
}
