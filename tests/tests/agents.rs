//! Claude Code and Codex, as npm installs them, against a real server. The demo model says odd things to them, so the
//! tests count requests and tokens: each request is answered, and the second turn's prompts come from the prefix cache.

use corral_tests::{Corral, artifacts, run_command, scratch_dir, wait_for};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Seconds after which a turn is ended. Far above what it takes, because machines are busy.
const TURN_SECONDS: u64 = 600;

/// The prompt tokens of a turn that must be cached.
const CACHED_SHARE: f64 = 0.5;

const QUESTIONS: [&str; 2] = ["What is 12+7?", "What is 3+4?"];

/// A server for prompts of agents, which have thousands of the demo model's tokens. The limit of a response ends what the
/// model would write for too long: Codex sets no limit.
fn start() -> Corral {
    let arguments = [
        ["--error-format", "/v1=openai"],
        ["--context", "65536"],
        ["--kv-cells", "131072"],
        ["--response-limit", "1024"],
        ["--time-limit", "3600"],
    ];
    let arguments = arguments.concat();
    Corral::start_with_routes(&[("/v1", "openai")], &arguments)
}

/// An agent with a home directory and a working directory of its own.
struct Agent {
    program: PathBuf,
    home: PathBuf,
    work: PathBuf,
    /// Variables besides `PATH` and `HOME`.
    variables: Vec<(&'static str, String)>,
}

impl Agent {
    fn new(program: PathBuf) -> Self {
        let dir = scratch_dir();
        let (home, work) = (dir.join("home"), dir.join("work"));
        for dir in [&home, &work] {
            std::fs::create_dir(dir).expect("created");
        }
        Agent {
            program,
            home,
            work,
            variables: Vec::new(),
        }
    }

    /// Runs a turn to its end. What the agent prints and its exit code depend on the model, so they are only printed.
    fn turn(&self, arguments: &[&str]) {
        let mut command = Command::new("timeout");
        command
            .args(["--kill-after=10", &TURN_SECONDS.to_string()])
            .arg(&self.program)
            .args(arguments)
            .current_dir(&self.work)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &self.home)
            // The server is local.
            .env("NO_PROXY", "*")
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        let limit = Duration::from_secs(TURN_SECONDS + 60);
        let ended = run_command(&mut command, limit);
        println!(
            "exit code {:?}\n{}\n{}",
            ended.code, ended.stdout, ended.stderr
        );
    }
}

/// Requests of the log that have ended, by their lines.
fn requests(corral: &Corral) -> Vec<String> {
    let log = corral.stderr();
    let lines = log
        .lines()
        .filter(|line| line.contains(" request method=POST path=\"/v1/"));
    lines.map(str::to_owned).collect()
}

/// Runs both turns and checks what holds whatever the model says.
fn check_turns(corral: &Corral, path: &str, turn: impl Fn(usize, &str)) {
    let mut before = corral.wait_until_idle();
    let mut seen = 0;
    for (number, question) in QUESTIONS.into_iter().enumerate() {
        turn(number, question);
        // No request is running or waiting.
        let after = corral.wait_until_idle();
        let growth = |name: &str| after.growth(&format!("corral_engine_{name}_total"), &before);
        let finished = growth("requests_finished") as usize;
        assert!(finished > 0, "turn {number} sends no request");
        // The log may be behind the metrics.
        let lines = wait_for("the log of the turn's requests", || {
            Some(requests(corral)).filter(|lines| lines.len() >= seen + finished)
        });
        for line in &lines[seen..] {
            println!("{line}");
            assert!(line.contains(" status=200 "), "not answered: {line}");
            assert!(line.contains(path), "an unexpected request: {line}");
        }
        seen = lines.len();
        let (prompt, cached) = (growth("prompt_tokens"), growth("prefix_cache_hit_tokens"));
        println!("turn {number}: {finished} requests, {prompt} tokens of prompts, {cached} cached");
        assert!(prompt > 1000.0, "the prompts have instructions and tools");
        if number > 0 {
            assert!(
                cached > CACHED_SHARE * prompt,
                "the turn computes its history again"
            );
        }
        before = after;
    }
}

/// A file of the installed packages.
fn installed(file: &str) -> PathBuf {
    let file = artifacts::agents().join("node_modules").join(file);
    assert!(file.is_file(), "there is no {}", file.display());
    file
}

/// The MCP server with a tool that the demo model knows.
fn sums() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/agents/sums.mjs");
    file.to_str().expect("a path in UTF-8").to_owned()
}

#[test]
#[ignore = "run by make soak: the agents' packages take 0.8 GB"]
fn claude_code_reuses_its_history() {
    let corral = start();
    let processor = if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "x64"
    };
    // The program itself: the script that starts it requires a newer Node.js than the other suites.
    let package = format!("@anthropic-ai/claude-code-linux-{processor}/claude");
    let mut agent = Agent::new(installed(&package));
    let variables = [
        (
            "ANTHROPIC_BASE_URL",
            &*format!("http://{}", corral.public()),
        ),
        ("ANTHROPIC_AUTH_TOKEN", "none"),
        ("ANTHROPIC_MODEL", "tiny"),
        ("ANTHROPIC_SMALL_FAST_MODEL", "tiny"),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
        ("CLAUDE_CODE_MAX_OUTPUT_TOKENS", "4096"),
        ("DISABLE_AUTOUPDATER", "1"),
        ("ENABLE_TOOL_SEARCH", "false"),
    ];
    agent.variables = variables
        .map(|(name, value)| (name, value.to_owned()))
        .to_vec();
    let servers =
        serde_json::json!({"mcpServers": {"sums": {"command": "node", "args": [sums()]}}});
    let servers = servers.to_string();
    check_turns(&corral, "\"/v1/messages", |number, question| {
        let mut arguments = vec!["-p", question];
        if number > 0 {
            arguments.push("--continue");
        }
        // Short prompts: the demo model's tokens are bytes.
        arguments.extend(["--system-prompt", "Brief.", "--disable-slash-commands"]);
        arguments.extend(["--tools", "Read,Edit", "--mcp-config", &servers]);
        arguments.extend(["--max-turns", "4", "--output-format", "json"]);
        agent.turn(&arguments);
    });
}

#[test]
#[ignore = "run by make soak: the agents' packages take 0.8 GB"]
fn codex_reuses_its_history() {
    let corral = start();
    let mut agent = Agent::new(PathBuf::from("node"));
    let instructions = agent.home.join("instructions.md");
    std::fs::write(&instructions, "Be brief.").expect("written");
    let configuration = format!(
        "model = \"tiny\"
model_provider = \"corral\"
model_instructions_file = {instructions:?}
check_for_update_on_startup = false
[analytics]
enabled = false
[features]
multi_agent = false
goals = false
[model_providers.corral]
name = \"Corral\"
base_url = \"http://{}/v1\"
wire_api = \"responses\"
request_max_retries = 0
stream_max_retries = 0
[mcp_servers.sums]
command = \"node\"
args = [{:?}]
",
        corral.public(),
        sums(),
    );
    std::fs::write(agent.home.join("config.toml"), configuration).expect("written");
    let home = agent.home.to_str().expect("a path in UTF-8").to_owned();
    agent.variables = vec![("CODEX_HOME", home)];
    let script = installed("@openai/codex/bin/codex.js");
    let script = script.to_str().expect("a path in UTF-8");
    check_turns(&corral, "\"/v1/responses\"", |number, question| {
        // The model may call the tool that runs commands.
        let mut arguments = vec![script, "exec", "--skip-git-repo-check", "-s", "read-only"];
        if number > 0 {
            arguments.extend(["resume", "--last"]);
        }
        arguments.push(question);
        agent.turn(&arguments);
    });
}
