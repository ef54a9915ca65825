//! What a child process cannot do, tried in real children. This binary has a `main` of its own, since a child is the
//! same binary with the hidden command.

use corral_isolation::{
    Cancel, ChildError, ChildJob, ChildProcesses, Handler, Job, JobLimits, run_as_child,
};
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

const LIMITS: JobLimits = JobLimits {
    memory: 64 << 20,
    time: Duration::from_secs(60),
    cpu: Duration::from_secs(60),
    file_size: 1 << 20,
    output: 0,
    niceness: 0,
};

/// The jobs of the children.
const HANDLERS: [(&str, Handler); 9] = [
    ("allocate", allocate),
    ("crash", |_| std::process::abort()),
    ("environment", environment),
    ("files", files),
    ("programs", programs),
    ("sleep", sleep),
    ("sockets", sockets),
    ("spin", |_| {
        loop {
            std::hint::spin_loop();
        }
    }),
    ("write", write),
];

/// A test. Those of the sandbox run where it exists.
type Test = fn(&ChildProcesses);

const TESTS: [(&str, Test); 10] = [
    (
        "child_has_no_environment_of_server",
        child_has_no_environment_of_server,
    ),
    ("child_opens_no_socket", child_opens_no_socket),
    (
        "child_starts_no_program_or_process",
        child_starts_no_program_or_process,
    ),
    (
        "child_sees_only_files_of_its_job",
        child_sees_only_files_of_its_job,
    ),
    (
        "child_over_memory_limit_fails",
        child_over_memory_limit_fails,
    ),
    (
        "child_over_cpu_limit_is_killed",
        child_over_cpu_limit_is_killed,
    ),
    ("late_child_is_killed", late_child_is_killed),
    (
        "canceled_job_ends_and_waits_for_no_permit",
        canceled_job_ends_and_waits_for_no_permit,
    ),
    ("child_writes_no_larger_file", child_writes_no_larger_file),
    ("crash_of_child_is_reported", crash_of_child_is_reported),
];

fn main() -> ExitCode {
    if let Some(code) = run_as_child(&HANDLERS) {
        return code;
    }
    let children = ChildProcesses::new().expect("this binary is known");
    for (name, test) in TESTS {
        println!("test {name}");
        test(&children);
        assert_eq!(children.counters().running, 0, "{name}");
    }
    ExitCode::SUCCESS
}

fn job(kind: &'static str) -> Job<'static> {
    Job {
        kind,
        input: &[],
        readable: &[],
        writable: None,
        limits: LIMITS,
    }
}

/// Runs a handler in this process, to show that only a child is limited.
fn run_here(handler: Handler) -> Result<Vec<u8>, String> {
    handler(ChildJob {
        input: Vec::new(),
        writable: None,
    })
}

fn check_refused<T>(what: &str, result: io::Result<T>) -> Result<(), String> {
    match result {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
        Err(error) => Err(format!("{what}: {error}")),
        Ok(_) => Err(format!("{what} is possible")),
    }
}

fn child_has_no_environment_of_server(children: &ChildProcesses) {
    assert!(std::env::var_os("PATH").is_some(), "this process has one");
    let names = children.run(&job("environment")).expect("it runs");
    let names = String::from_utf8(names).expect("text");
    assert!(names.contains("GGML_NO_BACKTRACE"), "{names}");
    assert!(!names.lines().any(|name| name == "PATH"), "{names}");
}

fn environment(_: ChildJob) -> Result<Vec<u8>, String> {
    let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    Ok(Vec::from_iter(names).join("\n").into_bytes())
}

fn child_opens_no_socket(children: &ChildProcesses) {
    if !cfg!(target_os = "linux") {
        return;
    }
    run_here(sockets).expect_err("a TCP listener is possible");
    children.run(&job("sockets")).expect("all are refused");
}

fn sockets(_: ChildJob) -> Result<Vec<u8>, String> {
    check_refused("a TCP listener", TcpListener::bind("127.0.0.1:0"))?;
    check_refused("a TCP client", TcpStream::connect("127.0.0.1:1"))?;
    check_refused("a UDP socket", UdpSocket::bind("127.0.0.1:0"))?;
    check_refused("a Unix socket", UnixDatagram::unbound())?;
    check_refused("a Unix listener", UnixListener::bind("/tmp/corral-test"))?;
    Ok(Vec::new())
}

fn child_starts_no_program_or_process(children: &ChildProcesses) {
    if !cfg!(target_os = "linux") {
        return;
    }
    run_here(programs).expect_err("a program is possible");
    children.run(&job("programs")).expect("all are refused");
}

fn programs(_: ChildJob) -> Result<Vec<u8>, String> {
    // The program exists and may be read: it is this one. With an unknown kind it ends at once.
    let program = || {
        let mut command = Command::new("/proc/self/exe");
        command.args(["isolated-job", "none", "0", "0", "0", "0", "0", ""]);
        command
    };
    let status = program().status();
    check_refused("another process", status)?;
    check_refused("another program", Err::<(), _>(program().exec()))?;
    let thread = std::thread::spawn(|| 7);
    match thread.join() {
        Ok(7) => Ok(Vec::new()),
        _ => Err("a thread fails".to_owned()),
    }
}

fn child_sees_only_files_of_its_job(children: &ChildProcesses) {
    if !has_landlock() {
        println!("skipped: this kernel has no landlock");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    let (given, other, writable) = (path("given"), path("other"), path("writable"));
    fs::write(&given, "given").expect("written");
    fs::write(&other, "other").expect("written");
    fs::create_dir(&writable).expect("created");
    let input = Vec::from_iter([&given, &other].map(|path| path.to_str().expect("UTF-8")));
    let readable: [PathBuf; 1] = [given.clone()];
    children
        .run(&Job {
            input: input.join("\n").as_bytes(),
            readable: &readable,
            writable: Some(&writable),
            ..job("files")
        })
        .expect("only its files are there");
    let written = fs::read_to_string(writable.join("new"));
    assert_eq!(written.expect("the child wrote it"), "new");
    assert_eq!(fs::read_to_string(&other).expect("it is there"), "other");
}

fn files(job: ChildJob) -> Result<Vec<u8>, String> {
    let paths = String::from_utf8(job.input).map_err(|error| error.to_string())?;
    let (given, other) = paths.split_once('\n').ok_or("two paths are missing")?;
    let writable = job.writable.ok_or("a directory is missing")?;
    let text = |error: io::Error| error.to_string();
    if fs::read_to_string(given).map_err(text)? != "given" {
        return Err("the file has another text".to_owned());
    }
    fs::write(writable.join("new"), "new").map_err(text)?;
    let outside = Path::new(other).with_file_name("outside");
    check_refused("reading another file", fs::read(other))?;
    check_refused("reading /etc/passwd", fs::read("/etc/passwd"))?;
    check_refused("listing a directory", fs::read_dir("/"))?;
    check_refused("changing the file", fs::write(given, "x"))?;
    check_refused("changing another file", fs::write(other, "x"))?;
    check_refused("a new file", fs::write(&outside, "x"))?;
    // Also `EXDEV`.
    if fs::rename(writable.join("new"), &outside).is_ok() {
        return Err("moving a file is possible".to_owned());
    }
    check_refused("removing a file", fs::remove_file(other))?;
    Ok(Vec::new())
}

#[cfg(target_os = "linux")]
fn has_landlock() -> bool {
    use landlock::{
        ABI, Access as _, AccessFs, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
    };
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V1))
        .and_then(|rules| rules.create())
        .is_ok()
}

#[cfg(not(target_os = "linux"))]
fn has_landlock() -> bool {
    false
}

fn child_over_memory_limit_fails(children: &ChildProcesses) {
    if !cfg!(target_os = "linux") {
        return;
    }
    let allocate = |mebibytes: u64| {
        let input = mebibytes.to_le_bytes();
        children.run(&Job {
            input: &input,
            ..job("allocate")
        })
    };
    allocate(16).expect("enough");
    match allocate(80) {
        Err(error @ ChildError::Memory { limit }) => {
            assert_eq!(limit, LIMITS.memory);
            assert!(error.is_final());
        }
        other => panic!("{other:?}"),
    }
}

fn allocate(job: ChildJob) -> Result<Vec<u8>, String> {
    let mebibytes = job.input.first().copied().ok_or("a number is missing")?;
    let bytes = vec![1_u8; usize::from(mebibytes) << 20];
    match std::hint::black_box(bytes).iter().all(|byte| *byte == 1) {
        true => Ok(Vec::new()),
        false => Err("memory is wrong".to_owned()),
    }
}

fn child_over_cpu_limit_is_killed(children: &ChildProcesses) {
    let cpu = Duration::from_secs(1);
    let limits = JobLimits { cpu, ..LIMITS };
    match children.run(&Job {
        limits,
        ..job("spin")
    }) {
        Err(ChildError::Time { limit }) => assert_eq!(limit, cpu),
        other => panic!("{other:?}"),
    }
}

fn late_child_is_killed(children: &ChildProcesses) {
    let time = Duration::from_millis(200);
    let limits = JobLimits { time, ..LIMITS };
    let began = Instant::now();
    // More than there are permits.
    for _ in 0..6 {
        match children.run(&Job {
            limits,
            ..job("sleep")
        }) {
            Err(ChildError::Time { limit }) => assert_eq!(limit, time),
            other => panic!("{other:?}"),
        }
    }
    assert!(began.elapsed() < SLEEP, "no child was waited for");
}

/// Longer than the test waits for.
const SLEEP: Duration = Duration::from_secs(600);

fn canceled_job_ends_and_waits_for_no_permit(children: &ChildProcesses) {
    let cancel = Cancel::default();
    let began = Instant::now();
    std::thread::scope(|scope| {
        // More than there are permits.
        let jobs: Vec<_> = (0..6)
            .map(|_| scope.spawn(|| children.run_until(&job("sleep"), &cancel)))
            .collect();
        while children.counters().running < 4 {
            std::thread::sleep(Duration::from_millis(1));
        }
        cancel.cancel();
        for job in jobs {
            let result = job.join().expect("no panic");
            assert!(matches!(result, Err(ChildError::Canceled)), "{result:?}");
        }
    });
    assert!(began.elapsed() < LIMITS.time, "no child was waited for");
}

fn sleep(_: ChildJob) -> Result<Vec<u8>, String> {
    std::thread::sleep(SLEEP);
    Ok(Vec::new())
}

fn child_writes_no_larger_file(children: &ChildProcesses) {
    let dir = tempfile::tempdir().expect("a directory");
    let result = children.run(&Job {
        writable: Some(dir.path()),
        ..job("write")
    });
    match result {
        Err(ChildError::Crashed { .. }) => {}
        other => panic!("{other:?}"),
    }
    let written = fs::metadata(dir.path().join("large")).expect("it has begun");
    assert_eq!(written.len(), LIMITS.file_size);
}

fn write(job: ChildJob) -> Result<Vec<u8>, String> {
    let dir = job.writable.ok_or("a directory is missing")?;
    let bytes = vec![1; usize::try_from(LIMITS.file_size).unwrap_or(0) + 1];
    fs::write(dir.join("large"), bytes).map_err(|error| error.to_string())?;
    Ok(Vec::new())
}

fn crash_of_child_is_reported(children: &ChildProcesses) {
    match children.run(&job("crash")) {
        Err(ChildError::Crashed { how }) if how.contains("SIGABRT") => {}
        other => panic!("{other:?}"),
    }
}
