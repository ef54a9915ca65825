//! A service manager passes the listening socket, is notified, and replaces the server without losing a request.

use corral_tests::{
    Connection, Corral, HttpVersion, TIMEOUT, artifacts, block_on, distinct_sums, run, run_command,
    scratch_dir, wait_until,
};
use serde_json::json;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What a service manager holds for a service: its program, its listening socket, and the socket for notifications.
struct Manager {
    program: PathBuf,
    public: TcpListener,
    notify: UnixDatagram,
    notify_path: PathBuf,
    store: PathBuf,
}

impl Manager {
    fn new() -> Self {
        let dir = scratch_dir();
        // The scratch directory's path may be too long for a socket.
        let name = format!("corral-notify-{}-{:p}", std::process::id(), &dir);
        let notify_path = std::env::temp_dir().join(name);
        let notify = UnixDatagram::bind(&notify_path).expect("a free path");
        notify.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        Manager {
            program: artifacts::binary(),
            public: TcpListener::bind("127.0.0.1:0").expect("a free port"),
            notify,
            notify_path,
            store: dir.join("store"),
        }
    }

    fn start(&self, watchdog: Option<Duration>) -> Corral {
        Corral::start_activated(
            &self.program,
            &self.public,
            &self.notify_path,
            watchdog,
            &self.store,
        )
    }

    fn address(&self) -> String {
        self.public.local_addr().expect("bound").to_string()
    }

    /// The next notification.
    fn notification(&self) -> String {
        let mut buffer = [0; 1024];
        let length = self.notify.recv(&mut buffer).expect("a notification");
        String::from_utf8_lossy(&buffer[..length]).trim().to_owned()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.notify_path);
    }
}

/// Two files of the program that differ, as two versions do: one without debug information, one without any symbols.
fn versions(dir: &Path) -> [PathBuf; 2] {
    ["--strip-debug", "--strip-all"].map(|flag| {
        let file = dir.join(format!("corral{flag}"));
        let mut strip = Command::new("strip");
        strip.args([flag, "-o"]).args([&file, &artifacts::binary()]);
        run_command(&mut strip, TIMEOUT).check_success();
        file
    })
}

/// Moves a version over `program`, as package managers do.
fn install(version: &Path, program: &Path) {
    let new = program.with_extension("new");
    std::fs::hard_link(version, &new).expect("own directory");
    std::fs::rename(&new, program).expect("own directory");
}

/// Whether the process executes this file, whatever its name.
fn executes(corral: &Corral, file: &Path) -> bool {
    let executed = std::fs::metadata(format!("/proc/{}/exe", corral.pid())).expect("it runs");
    let file = std::fs::metadata(file).expect("own directory");
    (executed.dev(), executed.ino()) == (file.dev(), file.ino())
}

#[test]
fn upgrade_under_load_loses_no_request() {
    const CLIENTS: usize = 8;
    const UPGRADES: usize = 3;
    let dir = scratch_dir();
    let versions = versions(&dir);
    let size = |file: &Path| file.metadata().expect("own file").len();
    assert_ne!(size(&versions[0]), size(&versions[1]));
    let mut manager = Manager::new();
    manager.program = dir.join("corral");
    install(&versions[0], &manager.program);
    let mut corral = manager.start(None);
    assert!(executes(&corral, &versions[0]));
    assert_eq!(corral.public(), manager.address());
    let done = Arc::new(AtomicBool::new(false));
    let answered = Arc::new(AtomicUsize::new(0));
    let retries = Arc::new(AtomicUsize::new(0));
    let work = |client: usize| {
        let (done, address) = (done.clone(), manager.address());
        let (answered, retries) = (answered.clone(), retries.clone());
        std::thread::spawn(move || {
            let sums = distinct_sums(5000);
            let mut sums = sums.into_iter().cycle().skip(client * 500);
            while !done.load(Ordering::Relaxed) {
                block_on(async {
                    let mut client = connect(&address).await;
                    let connected = Instant::now();
                    // Several requests on a connection, until the server announces its end.
                    for (number, sum) in sums.by_ref().take(5).enumerate() {
                        let request =
                            json!({"prompt": sum.question(), "max_tokens": 20}).to_string();
                        let mut sent = client.send("/generate", &[], &request).await;
                        // A server that stops closes a new connection, too, if nothing comes for 0.3 s.
                        let was_idle =
                            number > 0 || connected.elapsed() > Duration::from_millis(250);
                        if was_idle && sent.as_ref().is_err_and(is_closed_idle) {
                            retries.fetch_add(1, Ordering::Relaxed);
                            client = connect(&address).await;
                            sent = client.send("/generate", &[], &request).await;
                        }
                        let answer = match sent {
                            Ok(response) => response.whole().await,
                            Err(error) => Err(error),
                        };
                        let answer = answer.unwrap_or_else(|error| panic!("{sum:?}: {error:?}"));
                        assert_eq!(answer.ok_json()["text"], sum.answer(), "{sum:?}");
                        answered.fetch_add(1, Ordering::Relaxed);
                        if answer.header("connection") == Some("close") {
                            break;
                        }
                    }
                });
            }
        })
    };
    let clients: Vec<_> = (0..CLIENTS).map(work).collect();
    let answers_more = || {
        let before = answered.load(Ordering::Relaxed);
        wait_until("further answers", || {
            answered.load(Ordering::Relaxed) >= before + 5 * CLIENTS
        });
    };
    for version in versions.iter().cycle().skip(1).take(UPGRADES) {
        answers_more();
        install(version, &manager.program);
        assert!(!executes(&corral, &manager.program));
        answers_more();
        corral.shut_down();
        // Some errors of clients are accepted above; the server knows what it has left unanswered.
        let stderr = corral.stderr();
        for text in ["cut off", "complete=false"] {
            assert!(!stderr.contains(text), "{stderr}");
        }
        // Clients wait in the backlog until this one is ready.
        corral = manager.start(None);
        assert!(executes(&corral, version));
    }
    answers_more();
    done.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().expect("every answer is right");
    }
    // Only a server that stops closes idle connections, at most one of each client.
    let retries = retries.load(Ordering::Relaxed);
    let most = CLIENTS * UPGRADES;
    assert!(retries <= most, "{retries} requests were sent again");
    // The files are large.
    std::fs::remove_dir_all(dir).expect("own directory");
}

async fn connect(address: &str) -> Connection {
    let client = Connection::connect(address, HttpVersion::Http1, None).await;
    client.expect("the socket is open")
}

/// Whether the server closed a connection before any byte of a response. HTTP/1.1 lets it close an idle one at any time, so
/// a client that has used the connection before sends the request again on another.
fn is_closed_idle(error: &hyper::Error) -> bool {
    let cause = std::error::Error::source(error);
    let cause = cause.and_then(|cause| cause.downcast_ref::<std::io::Error>());
    let is_reset = |cause: &std::io::Error| {
        matches!(
            cause.kind(),
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
        )
    };
    error.is_canceled()
        || error.is_closed()
        || error.is_incomplete_message()
        || cause.is_some_and(is_reset)
}

#[test]
fn inherited_socket_waits_until_ready() {
    let manager = Manager::new();
    let mut waiting = TcpStream::connect(manager.address()).expect("in the backlog");
    waiting.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    let request = b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    waiting.write_all(request).expect("buffered");
    let mut corral = manager.start(None);
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).expect("answered");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(manager.notification(), "READY=1");
    corral.signal("HUP");
    let reloading = manager.notification();
    let expected = "RELOADING=1\nMONOTONIC_USEC=";
    assert!(reloading.starts_with(expected), "{reloading}");
    assert_eq!(manager.notification(), "READY=1");
    corral.shut_down();
    assert_eq!(manager.notification(), "STOPPING=1");
    // The next process answers this one.
    TcpStream::connect(manager.address()).expect("the socket stays open");
}

#[test]
fn watchdog_is_pinged_while_engine_works() {
    let manager = Manager::new();
    let watchdog = Duration::from_secs(2);
    let corral = manager.start(Some(watchdog));
    assert_eq!(manager.notification(), "READY=1");
    assert_eq!(manager.notification(), "WATCHDOG=1");
    let stream = corral.endless("/generate");
    assert_eq!(manager.notification(), "WATCHDOG=1");
    drop(stream);
    // A stopped process cannot ping; what it sent before is read first.
    corral.stop();
    manager.notify.set_nonblocking(true).expect("a socket");
    while manager.notify.recv(&mut [0; 1024]).is_ok() {}
    let silence = Instant::now();
    while silence.elapsed() < watchdog {
        assert!(manager.notify.recv(&mut [0; 1024]).is_err(), "a ping");
        std::thread::sleep(Duration::from_millis(50));
    }
    manager.notify.set_nonblocking(false).expect("a socket");
    corral.signal("CONT");
    assert_eq!(manager.notification(), "WATCHDOG=1");
}

#[test]
fn packages_get_completions_and_man_pages() {
    for (shell, expected) in [
        ("bash", "complete -F _corral"),
        ("zsh", "#compdef corral"),
        ("fish", "complete -c corral"),
    ] {
        let ended = run(["completions", shell]).check_success();
        assert!(ended.stdout.contains(expected), "{shell}");
        assert!(ended.stdout.contains("kv-cells"), "{shell}");
    }
    run(["completions", "tcl"]).check_error(2, &["tcl"]);
    let dir = scratch_dir();
    let path = dir.to_str().expect("a path in UTF-8");
    run(["man-pages", path]).check_success();
    let page = |name: &str| std::fs::read_to_string(dir.join(name)).expect(name);
    assert!(page("corral.1").contains("corral\\-serve(1)"));
    assert!(page("corral-serve.1").contains("\\-\\-kv\\-cells"));
    for (alias, command) in [("ls", "list"), ("rm", "remove"), ("ps", "top")] {
        let help = |name| run([name, "--help"]).stdout;
        assert_eq!(help(alias), help(command), "{alias}");
    }
}
