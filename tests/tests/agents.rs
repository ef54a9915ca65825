//! Agents, as npm and pip install them, against a real server. The demo model says odd things to them, so the tests count
//! requests and tokens: each request is answered, and the second turn's prompts come from the prefix cache.

use corral_tests::{
    Corral, RELIABLE_SUMS, artifacts, long_context, run_command, scratch_dir, wait_for,
};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Seconds after which a turn is ended. Far above what it takes, because machines are busy.
const TURN_SECONDS: u64 = 600;

/// The prompt tokens of a turn that must be cached.
const CACHED_SHARE: f64 = 0.5;

const QUESTIONS: [&str; 2] = ["What is 12+7?", "What is 3+4?"];
const ANSWERS: [&str; 2] = ["19", "7"];

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

/// A server for the instructions and all the tools that agents have unless told otherwise. Its model has random weights.
fn start_long() -> Corral {
    let arguments = [
        ["--error-format", "/v1=openai"],
        ["--context", "131072"],
        ["--kv-cells", "262144"],
        ["--response-limit", "1024"],
    ];
    Corral::start_random("tiny", &long_context(131_072), "/v1", &arguments.concat())
}

/// A text as a string of JSON, YAML and TOML.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
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

    /// Sets its variables besides `PATH` and `HOME`.
    fn with_variables<const N: usize>(mut self, variables: [(&'static str, &str); N]) -> Self {
        let owned = variables.map(|(name, value)| (name, value.to_owned()));
        self.variables = owned.to_vec();
        self
    }

    /// Writes a file into its home directory, and returns its path.
    fn write(&self, name: &str, text: &str) -> String {
        let file = self.home.join(name);
        std::fs::write(&file, text).expect("written");
        file.to_str().expect("a path in UTF-8").to_owned()
    }

    /// Runs a turn to its end, and returns what the agent prints, which depends on the model.
    fn turn(&self, arguments: &[&str]) -> String {
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
        ended.stdout + &ended.stderr
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
            let least = CACHED_SHARE * prompt;
            assert!(cached > least, "the turn computes its history again");
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

/// Claude Code as a client of this server.
fn claude_code(corral: &Corral) -> Agent {
    let processor = if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "x64"
    };
    // The program itself: the script that starts it requires a newer Node.js than the other suites.
    let package = format!("@anthropic-ai/claude-code-linux-{processor}/claude");
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
    ];
    Agent::new(installed(&package)).with_variables(variables)
}

#[test]
#[ignore = "run by make soak: the agents' packages take 2.5 GB"]
fn claude_code_reuses_its_history() {
    let corral = start();
    let mut agent = claude_code(&corral);
    let search = ("ENABLE_TOOL_SEARCH", "false".to_owned());
    agent.variables.push(search);
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
#[ignore = "run by make soak: the agents' packages take 2.5 GB"]
fn claude_code_sends_all_its_tools() {
    let corral = start_long();
    let agent = claude_code(&corral);
    check_turns(&corral, "\"/v1/messages", |number, question| {
        let mut arguments = vec!["-p", question, "--max-turns", "4"];
        if number > 0 {
            arguments.push("--continue");
        }
        agent.turn(&arguments);
    });
}

/// Codex as a client of this server, and its configuration, which begins with these lines.
fn codex(corral: &Corral, first: &str) -> (Agent, String) {
    let mut agent = Agent::new(PathBuf::from("node"));
    let configuration = format!(
        "{first}
model = \"tiny\"
model_provider = \"corral\"
check_for_update_on_startup = false
[analytics]
enabled = false
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
    agent.write("config.toml", &configuration);
    let home = agent.home.to_str().expect("a path in UTF-8").to_owned();
    agent.variables = vec![("CODEX_HOME", home)];
    (agent, configuration)
}

/// Runs a question, after the first in the same conversation.
fn ask_codex(agent: &Agent, number: usize, question: &str) -> String {
    let script = installed("@openai/codex/bin/codex.js");
    let script = script.to_str().expect("a path in UTF-8");
    // The model may call the tool that runs commands.
    let mut arguments = vec![script, "exec", "--skip-git-repo-check", "-s", "read-only"];
    if number > 0 {
        arguments.extend(["resume", "--last"]);
    }
    arguments.push(question);
    agent.turn(&arguments)
}

#[test]
#[ignore = "run by make soak: the agents' packages take 2.5 GB"]
fn codex_sends_all_its_tools() {
    let corral = start_long();
    let (agent, _) = codex(&corral, "");
    check_turns(&corral, "\"/v1/responses\"", |number, question| {
        ask_codex(&agent, number, question);
    });
}

#[test]
#[ignore = "run by make soak: the agents' packages take 2.5 GB"]
fn codex_reuses_its_history() {
    let corral = start();
    let instructions = scratch_dir().join("instructions.md");
    std::fs::write(&instructions, "Be brief.").expect("written");
    let first = format!(
        "model_instructions_file = {instructions:?}\nfeatures = {{multi_agent = false, goals = false}}"
    );
    let (agent, configuration) = codex(&corral, &first);
    check_turns(&corral, "\"/v1/responses\"", |number, question| {
        ask_codex(&agent, number, question);
    });
    // With a limit that the conversation exceeds, the next turn begins with a summary, which is an ordinary request.
    let configuration = format!(
        "model_context_window = 60000\nmodel_auto_compact_token_limit = 5000\n{configuration}"
    );
    agent.write("config.toml", &configuration);
    let before = corral.wait_until_idle();
    let output = ask_codex(&agent, 2, QUESTIONS[0]);
    assert!(output.contains("context compacted"), "{output}");
    let after = corral.wait_until_idle();
    let finished = after.growth("corral_engine_requests_finished_total", &before);
    assert!(finished >= 2.0, "a summary and an answer");
    for line in requests(&corral) {
        assert!(line.contains("\"/v1/responses\" status=200 "), "{line}");
    }
}

#[test]
#[ignore = "run by make soak: the agents' packages take 2.5 GB"]
fn aider_answers_and_reuses_its_history() {
    let corral = start();
    let base = format!("http://{}/v1", corral.public());
    let agent = Agent::new(artifacts::agents().join("aider/bin/aider")).with_variables([
        ("OPENAI_API_BASE", &base),
        ("OPENAI_API_KEY", "none"),
        ("LITELLM_LOCAL_MODEL_COST_MAP", "True"),
    ]);
    // The question is the prompt's last line, as the demo model expects it.
    let settings = "[{name: openai/tiny, edit_format: whole, reminder: none, use_repo_map: false}]";
    let settings = agent.write("settings.yml", settings);
    let limits = r#"{"openai/tiny": {"max_input_tokens": 60000, "max_output_tokens": 500,
        "litellm_provider": "openai", "mode": "chat"}}"#;
    let limits = agent.write("limits.json", limits);
    std::fs::write(agent.work.join("sums.py"), "a = 1\n").expect("written");
    check_turns(&corral, "\"/v1/chat/completions\"", |number, question| {
        let mut arguments = vec!["--model", "openai/tiny", "--no-git", "--yes-always"];
        arguments.extend(["--model-settings-file", &settings]);
        arguments.extend(["--model-metadata-file", &limits]);
        arguments.extend(["--no-check-update", "--no-show-release-notes"]);
        arguments.extend(["--analytics-disable", "--no-pretty", "--message", question]);
        arguments.push("sums.py");
        if number > 0 {
            arguments.push("--restore-chat-history");
        }
        let output = agent.turn(&arguments);
        let answer = ANSWERS[number];
        assert!(output.lines().any(|line| line == answer), "{output}");
    });
}

#[test]
#[ignore = "run by make soak: the agents' packages take 2.5 GB"]
fn continue_reuses_its_history() {
    let corral = start();
    let agent = Agent::new(PathBuf::from("node"));
    let agent = agent.with_variables([("CONTINUE_TELEMETRY_ENABLED", "0")]);
    let base = quoted(&format!("http://{}/v1", corral.public()));
    let configuration = agent.write(
        "config.yaml",
        &format!(
            "{{name: corral, version: 1.0.0, schema: v1, models: [{{name: corral, provider: openai, \
             model: tiny, apiBase: {base}, apiKey: none, roles: [chat], capabilities: [tool_use], \
             defaultCompletionOptions: {{maxTokens: 200, contextLength: 60000}}}}]}}"
        ),
    );
    let script = installed("@continuedev/cli/dist/cn.js");
    let script = script.to_str().expect("a path in UTF-8");
    check_turns(&corral, "\"/v1/chat/completions\"", |number, question| {
        let mut arguments = vec![script, "--config", &configuration, "-p", question];
        if number > 0 {
            arguments.push("--resume");
        }
        agent.turn(&arguments);
    });
}

#[test]
#[ignore = "run by make soak: the agents' packages take 2.5 GB"]
fn cline_reuses_its_instructions() {
    let corral = start();
    // There is no package for other processors.
    let agent = Agent::new(installed("@cline/cli-linux-x64/bin/cline"));
    let base = format!("http://{}/v1", corral.public());
    // State in a directory of its own keeps it from starting a background process.
    let data = agent.home.join("data");
    let data = data.to_str().expect("a path in UTF-8");
    let provider = [
        "-p",
        "openai-compatible",
        "-k",
        "none",
        "-m",
        "tiny",
        "-b",
        &base,
    ];
    agent.turn(&[&["auth", "--data-dir", data][..], &provider].concat());
    check_turns(&corral, "\"/v1/chat/completions\"", |_, question| {
        agent.turn(&["--data-dir", data, "--auto-approve", "false", question]);
    });
}

#[test]
#[ignore = "run by make soak: the agents' packages take 2.5 GB"]
fn lm_eval_scores_right_answers() {
    let corral = Corral::start_with_routes(&[("/", "openai")], &[]);
    let agent = Agent::new(artifacts::agents().join("lm-eval/bin/lm_eval"));
    let agent = agent.with_variables([("OPENAI_API_KEY", "none"), ("HF_HUB_OFFLINE", "1")]);
    let sums = RELIABLE_SUMS.map(|sum| {
        let answer = sum.answer();
        serde_json::json!({"question": sum.question(), "answer": answer, "wrong": format!("{answer}0")}).to_string()
    });
    let sums = quoted(&agent.write("sums.jsonl", &sums.join("\n")));
    let common = format!(
        "dataset_path: json\ndataset_kwargs: {{data_files: {{test: {sums}}}}}\ntest_split: test\n\
         doc_to_text: '{{{{question}}}}'\ntarget_delimiter: ''\n"
    );
    agent.write(
        "generated.yaml",
        &format!(
            "task: generated\noutput_type: generate_until\n{common}doc_to_target: '{{{{answer}}}}'\n\
             generation_kwargs: {{until: [\"\\n\"], max_gen_toks: 8, temperature: 0}}\n\
             metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]\n"
        ),
    );
    agent.write(
        "scored.yaml",
        &format!(
            "task: scored\noutput_type: multiple_choice\n{common}doc_to_target: 1\n\
             doc_to_choice: '{{{{[wrong, answer]}}}}'\n\
             metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]\n"
        ),
    );
    let model = format!(
        "base_url=http://{}/v1/completions,model=tiny,tokenizer_backend=remote,num_concurrent=2",
        corral.public()
    );
    let output = agent.turn(&[
        "run",
        "--model",
        "local-completions",
        "--model_args",
        &model,
        "--tasks",
        "generated,scored",
        "--include_path",
        agent.home.to_str().expect("a path in UTF-8"),
    ]);
    // A row of the table: task, version, filter, shots, metric, arrow, value.
    for metric in ["exact_match", "acc"] {
        let rows = output.lines().filter(|line| line.starts_with('|'));
        let cells = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
        let mut values = cells.filter(|cells| cells.contains(&metric));
        let row = values.next();
        let row = row.unwrap_or_else(|| panic!("no {metric}: {output}"));
        assert!(row.iter().any(|cell| cell.parse() == Ok(1.0)), "{row:?}");
    }
    corral.wait_until_idle();
}
