//! The plugin `openai`, as the official clients for Python and Node find it: their suites in
//! `tests/clients` are run against real servers.

use corral_tests::{Corral, artifacts, run, scratch_folder};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long a suite may take. Far more than it takes: machines are busy.
const PATIENCE: Duration = Duration::from_secs(1200);

/// The servers that the suites ask.
struct Servers {
    /// What all can use.
    open: Corral,
    /// Asks for a key.
    keyed: Corral,
    /// Has one key for the plugin, and one for something else.
    keys: [String; 2],
    /// Computes one sequence at a time, lets nobody wait for long, and takes no large bodies.
    narrow: Corral,
    /// Has one call at a time, and nobody waits.
    busy: Corral,
    /// Keeps no prefixes: who asks it alone the same twice has the same computed, to the last bit.
    forgetful: Corral,
    /// Has the demo model with a template that lets it think, and with tokens for a text between two others.
    thinking: Corral,
}

/// A chat template for thoughts: the prompt has the first tag, and `</think>` comes from the model.
const THINKING: &str = "\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is not defined or enable_thinking %}
        {{- '<think>\\n' }}
    {%- endif %}
{%- endif %}
";

/// Control tokens of the demo model, and what they are called in the model that thinks: those for a text
/// between two others.
const RENAMED: [(&str, &str); 3] = [
    ("</tool_call>", "<fim_prefix>"),
    ("<tool_response>", "<fim_suffix>"),
    ("</tool_response>", "<fim_middle>"),
];

/// A text as a model's file has it: its length, then its bytes.
fn in_file(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// Puts one text in place of another, which a file has once.
fn replace(file: &mut Vec<u8>, old: &[u8], new: Vec<u8>) {
    let place = file.windows(old.len()).position(|at| at == old);
    let place = place.expect("the demo model has it");
    file.splice(place..place + old.len(), new);
}

/// The demo model with that template and those names. The template fills what its own one took, so all
/// behind it stays where it was.
fn thinking_model() -> PathBuf {
    let file = artifacts::model();
    let mut model = std::fs::read(&file).expect("readable");
    let length = model.len();
    let own = file.with_file_name("chat_template.jinja");
    let own = std::fs::read_to_string(own).expect("readable");
    for (old, new) in RENAMED {
        replace(&mut model, &in_file(old), in_file(new));
    }
    let gained = length - model.len();
    let rest = own.len() + gained - THINKING.len() - "{#</think>#}".len();
    let template = format!("{THINKING}{{#</think>{}#}}", " ".repeat(rest));
    replace(&mut model, &in_file(&own), in_file(&template));
    assert_eq!(model.len(), length);
    let file = scratch_folder().join("thinking.gguf");
    std::fs::write(&file, model).expect("written");
    file
}

fn start(arguments: &[&str]) -> Corral {
    let routes = ["/v1", "/tokenize", "/detokenize"];
    let plugins = routes.map(|route| (route, "openai"));
    let formats = routes.map(|route| format!("{route}=openai"));
    let formats = formats.iter().flat_map(|format| ["--error-format", format]);
    let mut all: Vec<_> = formats.chain(arguments.iter().copied()).collect();
    // What stays of hundreds of answers fills the cells, and attention runs over all of them.
    all.extend(["--cells=6144", "--context", "4096"]);
    Corral::start_with_routes(&plugins, &all)
}

impl Servers {
    fn start() -> Self {
        let file = scratch_folder().join("keys.toml");
        std::fs::write(&file, "").expect("written");
        let file = file.to_str().expect("UTF-8");
        let keys = ["/v1", "/generate"].map(|route| {
            let tenant = ["keys", "new", "--tenant", "clients", "--deployment", route];
            let ended = run([&tenant[..], &["--append", file]].concat());
            assert_eq!(ended.code, Some(0), "{ended:?}");
            ended.stdout.trim().to_owned()
        });
        let thinking = format!("thinking={}", thinking_model().display());
        let thinking = thinking.as_str();
        let narrow = ["--sequences=1", "--queue-time=0.2", "--body-limit=64"];
        Servers {
            open: start(&[]),
            keyed: start(&["--keys", file]),
            keys,
            narrow: start(&narrow),
            busy: start(&["--calls", "1", "--queue", "0"]),
            forgetful: start(&["--no-prefix-cache"]),
            thinking: start(&["--model", thinking]),
        }
    }

    /// Runs a suite to its end; returns what it wrote.
    fn suite(&self, command: &mut Command) -> String {
        let log = scratch_folder().join("log");
        let file = std::fs::File::create(&log).expect("created");
        let servers = [
            ("CORRAL_URL", &self.open),
            ("CORRAL_KEYED_URL", &self.keyed),
            ("CORRAL_NARROW_URL", &self.narrow),
            ("CORRAL_BUSY_URL", &self.busy),
            ("CORRAL_FORGETFUL_URL", &self.forgetful),
            ("CORRAL_THINKING_URL", &self.thinking),
        ];
        for (variable, corral) in servers {
            command.env(variable, format!("http://{}", corral.public()));
        }
        let child = command
            .current_dir(suites())
            .env("CORRAL_ADMIN", format!("http://{}", self.open.admin()))
            .env(
                "CORRAL_NARROW_ADMIN",
                format!("http://{}", self.narrow.admin()),
            )
            .env("CORRAL_KEY", &self.keys[0])
            .env("CORRAL_OTHER_KEY", &self.keys[1])
            // The servers are on this machine.
            .env("NO_PROXY", "*")
            .env_remove("OPENAI_API_KEY")
            .env_remove("OPENAI_BASE_URL")
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a second handle"))
            .stderr(file)
            .spawn()
            .expect("the suite starts");
        let status = wait(child);
        let said = String::from_utf8_lossy(&std::fs::read(&log).expect("readable")).into_owned();
        println!("{said}");
        let status = status.expect("the suite ends in time");
        assert!(status.success(), "the suite fails: {status}");
        for (_, corral) in servers {
            corral.wait_until_idle();
        }
        said
    }
}

fn suites() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}

/// How it ended; nothing if it had to be killed.
fn wait(mut child: Child) -> Option<ExitStatus> {
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        if let Some(status) = child.try_wait().expect("a child of ours") {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill().expect("a child of ours");
    child.wait().expect("a child of ours");
    None
}

/// The number right before a word, or right behind it.
fn number(said: &str, word: &str) -> u32 {
    let words: Vec<&str> = said.split([' ', ',', '\n']).collect();
    let found = words.windows(3).find_map(|near| match near {
        [before, this, behind] if *this == word => before.parse().or_else(|_| behind.parse()).ok(),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("it does not say how many {word}"))
}

#[test]
fn python_client_suite_passes() {
    let servers = Servers::start();
    let python = artifacts::clients().join("python/bin/python");
    let said = servers.suite(
        Command::new(python)
            .args(["-m", "pytest", "-q", "--color=no", "--durations=10"])
            .env("PYTHONDONTWRITEBYTECODE", "1"),
    );
    assert!(number(&said, "passed") > 200, "tests were left out");
}

#[test]
fn node_client_suite_passes() {
    let servers = Servers::start();
    let files = std::fs::read_dir(suites()).expect("the suites are there");
    let files = files.map(|file| file.expect("readable").path());
    let mut files: Vec<_> = files
        .filter(|file| file.to_string_lossy().ends_with(".test.mjs"))
        .collect();
    files.sort();
    let node = ["--test", "--test-reporter=tap", "--test-concurrency=1"];
    let said = servers.suite(Command::new("node").args(node).args(&files));
    assert!(number(&said, "pass") > 30, "tests were left out");
    assert_eq!(number(&said, "skipped"), 0);
}
