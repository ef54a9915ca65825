//! The `openai` and `ollama` plugins with Python and Node clients: runs the suites in `tests/clients` against real servers.

use corral_random_model::Architecture;
use corral_tests::deployments::deploy_dir;
use corral_tests::{Corral, artifacts, long_context, new_key, run_suite, scratch_dir};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Time limit of a suite. Far above what it takes, because machines are busy.
const TIMEOUT: Duration = Duration::from_secs(1200);

/// The servers that the suites use.
struct Servers {
    /// For general use.
    open: Corral,
    /// Requires a key.
    keyed: Corral,
    /// Has one key for the plugin and one for another route.
    keys: [String; 2],
    /// Runs one request at a time with a short queue time and a small body limit.
    narrow: Corral,
    /// Allows one call at a time and no queue.
    busy: Corral,
    /// Has no prefix cache, so repeated requests that run alone give identical results.
    uncached: Corral,
    /// Has the demo model with a reasoning template and fill-in-the-middle tokens.
    thinking: Corral,
    /// Stores responses.
    stored: Corral,
    /// The keys of two tenants of that server.
    stored_keys: [String; 2],
    /// Has a model with a long context.
    long: Corral,
    /// Has a reranking model.
    rank: Corral,
}

/// A chat template with reasoning: the prompt ends in the opening tag, and the model writes `</think>`.
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

/// Control tokens of the demo model, and their names in the reasoning model: fill-in-the-middle tokens.
const RENAMED: [(&str, &str); 3] = [
    ("</tool_call>", "<fim_prefix>"),
    ("<tool_response>", "<fim_suffix>"),
    ("</tool_response>", "<fim_middle>"),
];

/// The context of the model for long prompts, in tokens.
const LONG_CONTEXT: u32 = 81_920;

/// The manifest of a deployment that stores responses.
const STORING: &str = "\
name = 'storing'
component = 'openai.wasm'
routes = ['/v1']
error-format = 'openai'
[grants]
key-value-mib = 1
[configuration]
store = 'true'
";

/// A string as GGUF stores it: its length, then its bytes.
fn in_file(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// Replaces a text that occurs once in the file.
fn replace(file: &mut Vec<u8>, old: &[u8], new: Vec<u8>) {
    let position = file.windows(old.len()).position(|at| at == old);
    let position = position.expect("a text of the demo model");
    file.splice(position..position + old.len(), new);
}

/// The demo model with that template and those names. The template is padded to the old length, so that no
/// offset changes.
fn reasoning_model() -> PathBuf {
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
    let file = scratch_dir().join("thinking.gguf");
    std::fs::write(&file, model).expect("written");
    file
}

fn start_long() -> Corral {
    let context = LONG_CONTEXT.to_string();
    let more = ["--context", &context, "--event-keep-alive=1"];
    Corral::start_random("long", &long_context(LONG_CONTEXT), "/", &more)
}

/// A new file with the keys of these tenants and deployments, and the keys.
fn keys(holders: [[&str; 2]; 2]) -> (String, [String; 2]) {
    let file = scratch_dir().join("keys.toml");
    let keys = holders.map(|[tenant, deployment]| {
        new_key(&file, &["--tenant", tenant, "--deployment", deployment])
    });
    (file.to_str().expect("UTF-8").to_owned(), keys)
}

fn start(arguments: &[&str]) -> Corral {
    let routes = ["/"];
    let mut plugins = routes.map(|route| (route, "openai")).to_vec();
    plugins.push(("/api", "ollama"));
    let formats = routes.map(|route| format!("{route}=openai"));
    let formats = formats.iter().flat_map(|format| ["--error-format", format]);
    let mut all: Vec<_> = formats.chain(arguments.iter().copied()).collect();
    // Cached sequences of hundreds of answers would fill the cells and slow attention down.
    all.extend(["--kv-cells=6144", "--context", "4096"]);
    Corral::start_with_routes(&plugins, &all)
}

impl Servers {
    fn start() -> Self {
        let (file, keys) = keys([["clients", "/"], ["clients", "/generate"]]);
        let (stored_file, stored_keys) = self::keys([["one", "storing"], ["two", "storing"]]);
        let stored = Corral::start_with_store(&["--keys", &stored_file]);
        deploy_dir(&stored, STORING, &["openai"]);
        let thinking = format!("thinking={}", reasoning_model().display());
        let thinking = thinking.as_str();
        let narrow = ["--max-running=1", "--queue-time=0.2", "--body-limit=64"];
        Servers {
            open: start(&[]),
            keyed: start(&["--keys", &file]),
            keys,
            narrow: start(&narrow),
            busy: start(&["--max-calls", "1", "--max-queued-calls", "0"]),
            uncached: start(&["--no-prefix-cache"]),
            thinking: start(&["--model", thinking]),
            stored,
            stored_keys,
            long: start_long(),
            rank: Corral::start_random("rank", &Architecture::Bert { ranks: true }, "/", &[]),
        }
    }

    /// Runs a suite to its end and returns its output.
    fn suite(&self, command: &mut Command) -> String {
        let servers = [
            ("CORRAL_URL", &self.open),
            ("CORRAL_KEYED_URL", &self.keyed),
            ("CORRAL_NARROW_URL", &self.narrow),
            ("CORRAL_BUSY_URL", &self.busy),
            ("CORRAL_UNCACHED_URL", &self.uncached),
            ("CORRAL_THINKING_URL", &self.thinking),
            ("CORRAL_STORED_URL", &self.stored),
            ("CORRAL_LONG_URL", &self.long),
            ("CORRAL_RANK_URL", &self.rank),
        ];
        for (variable, corral) in servers {
            command.env(variable, format!("http://{}", corral.public()));
        }
        command
            .current_dir(suites())
            .env("CORRAL_ADMIN", format!("http://{}", self.open.admin()))
            .env(
                "CORRAL_NARROW_ADMIN",
                format!("http://{}", self.narrow.admin()),
            )
            .env(
                "CORRAL_STORED_ADMIN",
                format!("http://{}", self.stored.admin()),
            )
            .env("CORRAL_STORED_KEYS", self.stored_keys.join(" "))
            .env("CORRAL_KEY", &self.keys[0])
            .env("CORRAL_OTHER_KEY", &self.keys[1])
            // LiteLLM would fetch a list of prices.
            .env("LITELLM_LOCAL_MODEL_COST_MAP", "True");
        let output = run_suite(command, TIMEOUT);
        for (_, corral) in servers {
            corral.wait_until_idle();
        }
        output
    }
}

fn suites() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}

/// The number before or after a word.
fn number(output: &str, word: &str) -> u32 {
    let words: Vec<&str> = output.split([' ', ',', '\n']).collect();
    let found = words.windows(3).find_map(|near| match near {
        [before, this, behind] if *this == word => before.parse().or_else(|_| behind.parse()).ok(),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("no number of {word}"))
}

#[test]
fn python_client_suite_passes() {
    let servers = Servers::start();
    // Some clients need an older version of the package `openai`, and so an environment of their own.
    for (environment, arguments, least) in [
        ("python", ["--ignore", "openai_2"].as_slice(), 250),
        ("openai_2", &["openai_2"], 5),
    ] {
        let python = artifacts::clients().join(environment).join("bin/python");
        let output = servers.suite(
            Command::new(python)
                .args(["-m", "pytest", "-q", "--color=no", "--durations=10"])
                .args(arguments)
                .env("PYTHONDONTWRITEBYTECODE", "1"),
        );
        assert!(number(&output, "passed") > least, "tests were left out");
    }
}

#[test]
fn node_client_suite_passes() {
    let servers = Servers::start();
    let files = std::fs::read_dir(suites()).expect("the suites are there");
    let files = files.map(|file| file.expect("readable").path());
    let files = files.filter(|file| file.to_string_lossy().ends_with(".test.mjs"));
    let mut files: Vec<_> = files.collect();
    files.sort();
    let node = ["--test", "--test-reporter=tap", "--test-concurrency=1"];
    let output = servers.suite(Command::new("node").args(node).args(&files));
    assert!(number(&output, "pass") > 45, "tests were left out");
    assert_eq!(number(&output, "skipped"), 0);
}
