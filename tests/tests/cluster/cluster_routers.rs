//! Hosts behind routers: the runs of `examples/cluster`, each started by its script.

use corral_tests::{ClusterRun, concurrently, distinct_sums, wait_for, wait_until};
use serde_json::{Value, json};

/// Conversations, turns of each, and conversations at once.
const CONVERSATIONS: usize = 64;
const TURNS: usize = 8;
const CLIENTS: usize = 4;

fn user(content: String) -> Value {
    json!({"role": "user", "content": content})
}

#[test]
fn each_script_serves_a_chat() {
    let question = json!([user("12+7=".to_owned())]);
    for (script, hosts) in [
        ("nats", 2),
        ("nats", 3),
        ("smg", 2),
        ("haproxy", 2),
        ("envoy", 2),
    ] {
        let run = ClusterRun::start(script, hosts);
        assert_eq!(run.hosts().len(), hosts, "{script}");
        let mut urls: Vec<_> = run.hosts().iter().map(|host| host.url.as_str()).collect();
        // With NATS there is no router: all hosts serve what was deployed on the first.
        if script != "nats" {
            urls.push(run.router());
        }
        for url in urls {
            let answer = run.chat(url, "", &question);
            assert_eq!(answer.as_deref(), Ok("19"), "{script}: {url}");
        }
        run.stop();
    }
}

/// Generations that a host has finished.
fn finished(run: &ClusterRun, host: usize) -> f64 {
    run.metrics(host)
        .get("corral_engine_requests_finished_total")
}

#[test]
fn sessions_keep_hosts_until_one_is_killed() {
    let sums = distinct_sums(30);
    // The requests that each of these hosts gets.
    let ask_all = |run: &ClusterRun, hosts: &[usize]| {
        let before = Vec::from_iter(hosts.iter().map(|&host| finished(run, host)));
        for (session, sum) in sums.iter().enumerate() {
            let question = json!([user(sum.question())]);
            let answer = run.chat(run.router(), &session.to_string(), &question);
            answer.expect("an answer");
        }
        wait_for("all requests on these hosts", || {
            let counts = hosts.iter().zip(&before);
            let counts = counts.map(|(&host, before)| finished(run, host) - before);
            let counts = Vec::from_iter(counts);
            (counts.iter().sum::<f64>() == sums.len() as f64).then_some(counts)
        })
    };
    for script in ["haproxy", "envoy", "smg"] {
        let run = ClusterRun::start(script, 3);
        let first = ask_all(&run, &[0, 1, 2]);
        assert!(first.iter().all(|&count| count > 0.0), "{first:?}");
        // SMG does not know sessions.
        if script != "smg" {
            assert_eq!(ask_all(&run, &[0, 1, 2]), first, "{script}");
        }
        run.kill_host(1);
        ask_all(&run, &[0, 2]);
    }
}

/// Prompt tokens that all hosts together compute for the conversations.
fn computed(script: &str, hosts: usize, has_sessions: bool) -> f64 {
    let run = ClusterRun::start(script, hosts);
    let conversations: Vec<usize> = (0..CONVERSATIONS).collect();
    concurrently(CLIENTS, &conversations, |&number| {
        let numbers = (1..24).map(|step| (number * 31 + step * 17) % 97);
        let numbers: Vec<_> = numbers.map(|number| number.to_string()).collect();
        let mut messages = vec![user(format!("{number}: {}.", numbers.join(" ")))];
        let session = match has_sessions {
            true => format!("conversation-{number}"),
            false => String::new(),
        };
        for turn in 0..TURNS {
            let answer = run.chat(run.router(), &session, &json!(messages));
            let answer = answer.expect("an answer");
            messages.push(json!({"role": "assistant", "content": answer}));
            messages.push(user(format!("{}+{turn}=", number + 10)));
        }
    });
    wait_until("all requests", || {
        let finished: f64 = (0..hosts).map(|host| finished(&run, host)).sum();
        finished == (CONVERSATIONS * TURNS) as f64
    });
    let computed = (0..hosts).map(|host| {
        let metrics = run.metrics(host);
        let of = |name: &str| metrics.get(&format!("corral_engine_{name}_total"));
        of("prompt_tokens") - of("prefix_cache_hit_tokens")
    });
    computed.sum()
}

#[test]
fn affinity_computes_as_little_as_one_host() {
    let one = computed("haproxy", 1, true);
    let by_session = computed("haproxy", 3, true);
    let by_prefix = computed("smg", 3, false);
    let in_turns = computed("haproxy", 3, false);
    println!(
        "prompt tokens computed: one host {one}, three by session {by_session}, by prefix {by_prefix}, in turns {in_turns}"
    );
    for three in [by_session, by_prefix] {
        assert!(three <= 1.1 * one, "{three} of {one}");
    }
    assert!(in_turns > 1.5 * one, "{in_turns} of {one}");
}
