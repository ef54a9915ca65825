//! `examples/monitoring/` with a real Prometheus: its rules fire when they should, and each query of the dashboard and of
//! the rules finds data of a loaded Corral.

use corral_tests::authoring::root;
use corral_tests::{
    Corral, Identity, KilledOnDrop, SetOnDrop, TIMEOUT, artifacts, http_agent, new_key,
    run_command, scratch_dir, wait_for, wait_until,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn dashboard() -> Value {
    serde_json::from_str(&read("examples/monitoring/dashboard.json")).expect("JSON")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("a text: {value}"))
}

fn list(value: &Value) -> &[Value] {
    value
        .as_array()
        .unwrap_or_else(|| panic!("a list: {value}"))
}

/// A Prometheus with the example's configuration, in a directory of its own. Dropping it kills the process.
struct Prometheus {
    child: KilledOnDrop,
    url: String,
    agent: ureq::Agent,
}

impl Prometheus {
    /// Scrapes these addresses each second, with this token.
    fn start(targets: &[&str], token: &str) -> Self {
        let dir = scratch_dir();
        let mut config = read("examples/monitoring/prometheus.yml");
        let targets = json!(targets).to_string();
        for (shown, here, count) in [
            ("_interval: 15s", "_interval: 1s", 2),
            (r#"["127.0.0.1:8081"]"#, targets.as_str(), 1),
        ] {
            assert_eq!(config.matches(shown).count(), count, "{shown}");
            config = config.replace(shown, here);
        }
        let rules = read("examples/monitoring/rules.yml");
        for (name, text) in [
            ("prometheus.yml", config.as_str()),
            ("rules.yml", &rules),
            ("admin-token", token),
        ] {
            std::fs::write(dir.join(name), text).expect("own directory");
        }
        let log = dir.join("log");
        let child = Command::new(artifacts::prometheus())
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
            .arg("--web.listen-address=127.0.0.1:0")
            .current_dir(&dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).expect("own directory"))
            .spawn()
            .expect("prometheus starts");
        let mut prometheus = Prometheus {
            child: KilledOnDrop(child),
            url: String::new(),
            agent: http_agent(),
        };
        prometheus.url = wait_for("the start of Prometheus", || {
            let log = std::fs::read_to_string(&log).expect("readable");
            let ended = prometheus.child.0.try_wait().expect("a child process");
            assert!(ended.is_none(), "{ended:?}: {log}");
            let (_, rest) = log.split_once("msg=\"Listening on\" address=")?;
            let ready = log.contains("Server is ready");
            ready.then(|| format!("http://{}", rest.lines().next().unwrap_or_default()))
        });
        prometheus
    }

    /// The member `data` of a response, which must be a success.
    fn data(mut response: ureq::http::Response<ureq::Body>, what: &str) -> Value {
        let body = response.body_mut().read_to_string().expect("a body");
        let mut body: Value = serde_json::from_str(&body).expect(&body);
        assert_eq!(body["status"], "success", "{what}: {body}");
        body["data"].take()
    }

    fn get(&self, path: &str) -> Value {
        let response = self.agent.get(format!("{}{path}", self.url)).call();
        Self::data(response.expect(path), path)
    }

    /// The result of a query now: series with their values.
    fn query(&self, query: &str) -> Vec<Value> {
        let url = format!("{}/api/v1/query", self.url);
        let response = self.agent.post(url).send_form([("query", query)]);
        let data = Self::data(response.expect(query), query);
        assert_eq!(data["resultType"], "vector", "{query}");
        list(&data["result"]).to_vec()
    }

    /// Whether a query has a series with a finite value.
    fn has_data(&self, query: &str) -> bool {
        let result = self.query(query);
        let mut values = result.iter().map(|series| text(&series["value"][1]));
        values.any(|value| value.parse::<f64>().expect("a number").is_finite())
    }

    /// The alerts of `rules.yml`, each without an error.
    fn alerts(&self) -> Vec<Value> {
        let rules = self.get("/api/v1/rules");
        let groups = list(&rules["groups"]).iter();
        let rules: Vec<_> = groups.flat_map(|group| list(&group["rules"])).collect();
        assert!(rules.len() >= 15, "{rules:?}");
        for rule in &rules {
            assert_eq!(rule["type"], "alerting", "{rule}");
            assert_eq!(rule["lastError"], Value::Null, "{rule}");
        }
        rules.into_iter().cloned().collect()
    }
}

/// The selectors of an expression, such as `up{job="corral"}`: names of metrics with their matchers.
fn selectors(expression: &str) -> Vec<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(start) = rest.find(is_part) {
        rest = &rest[start..];
        let name = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let end = match rest[name..].starts_with('{') {
            true => rest.find('}').expect("closed") + 1,
            false => name,
        };
        let is_metric = ["corral_", "process_", "up{"]
            .iter()
            .any(|begin| rest.starts_with(begin));
        if is_metric {
            found.push(&rest[..end]);
        }
        rest = &rest[end..];
    }
    found
}

/// The queries of the panels, as the dashboard writes them.
fn panel_queries(dashboard: &Value) -> Vec<&str> {
    let panels = list(&dashboard["panels"]).iter();
    let targets = panels
        .filter(|panel| panel["type"] != "row")
        .flat_map(|panel| list(&panel["targets"]));
    targets.map(|target| text(&target["expr"])).collect()
}

/// The metric and the label of the dashboard's variable `label_values(METRIC, LABEL)`.
fn variables(dashboard: &Value) -> Vec<(&str, &str, &str)> {
    let variables = list(&dashboard["templating"]["list"]).iter();
    let queries = variables.filter(|variable| variable["type"] == "query");
    queries
        .map(|variable| {
            let query = text(&variable["query"]["query"]);
            let inner = query.strip_prefix("label_values(");
            let inner = inner.and_then(|inner| inner.strip_suffix(')'));
            let inner = inner.expect(query);
            let (metric, label) = inner.rsplit_once(", ").expect(query);
            (text(&variable["name"]), metric, label)
        })
        .collect()
}

/// A query with the dashboard's variables replaced.
fn filled(query: &str, [instance, model, deployment]: [&str; 3]) -> String {
    let query = query
        .replace("$__rate_interval", "15s")
        .replace("$instance", instance)
        .replace("$model", model)
        .replace("$deployment", deployment);
    assert!(!query.contains('$'), "an unknown variable: {query}");
    query
}

#[test]
fn dashboard_is_well_formed() {
    let dashboard = dashboard();
    let source = json!({"type": "prometheus", "uid": "${datasource}"});
    let variables = list(&dashboard["templating"]["list"]);
    assert_eq!(variables[0]["type"], "datasource");
    assert_eq!(variables[0]["query"], "prometheus");
    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();
    let mut queries = String::new();
    for panel in list(&dashboard["panels"]) {
        let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{panel}"));
        assert!(ids.insert(number(&panel["id"])), "two panels: {panel}");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| number(&panel["gridPos"][side]));
        assert!(w > 0 && h > 0 && x + w <= 24, "outside the grid: {panel}");
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(cell), "panels overlap: {panel}");
        }
        assert_ne!(text(&panel["title"]), "");
        if panel["type"] == "row" {
            continue;
        }
        assert_ne!(text(&panel["description"]), "", "{panel}");
        assert_eq!(panel["datasource"], source, "{panel}");
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string());
        let mut names = BTreeSet::new();
        for target in list(&panel["targets"]) {
            // It has the panel's.
            assert_eq!(target["datasource"], Value::Null, "{panel}");
            assert!(names.insert(text(&target["refId"])), "{panel}");
            queries.push_str(text(&target["expr"]));
        }
        assert!(!names.is_empty(), "{panel}");
    }
    for variable in &variables[1..] {
        assert_eq!(variable["datasource"], source, "{variable}");
        let used = format!("=~\"${}\"", text(&variable["name"]));
        assert!(queries.contains(&used), "{used} is used nowhere");
    }
}

#[test]
fn alerts_fire_on_their_series_only() {
    let dir = root().join("examples/monitoring");
    // Its rule tests compare labels and texts, too, and that nothing fires before its time.
    let checks: [&[&str]; 2] = [
        &["check", "rules", "rules.yml"],
        &["test", "rules", "rules_test.yml"],
    ];
    for arguments in checks {
        let mut promtool = Command::new(artifacts::promtool());
        let ended = run_command(promtool.args(arguments).current_dir(&dir), TIMEOUT);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        assert!(ended.stdout.contains("SUCCESS"), "{arguments:?}: {ended:?}");
    }
    // Each alert has both tests.
    let tests = read("examples/monitoring/rules_test.yml");
    let mut tests = tests.split("\n  - name: ").skip(1);
    let healthy = tests.next().expect("a healthy server");
    let broken: Vec<_> = tests.collect();
    let troubleshooting = read("docs/troubleshooting.md");
    let sections = troubleshooting
        .lines()
        .filter_map(|line| line.strip_prefix("### "));
    let sections = sections.map(|title| title.to_lowercase().replace(' ', "-"));
    let sections: Vec<_> = sections.collect();
    let mut used = BTreeSet::new();
    for alert in Prometheus::start(&["127.0.0.1:1"], "none").alerts() {
        let name = text(&alert["name"]);
        let silent = |time: &str| {
            format!("      - {{alertname: {name}, eval_time: {time}, exp_alerts: []}}")
        };
        assert!(healthy.contains(&silent("14m")), "{name}");
        assert!(healthy.contains(&silent("2h")), "{name}");
        let begin = format!("{name}\n");
        let own = broken.iter().find(|test| test.starts_with(&begin));
        let own = own.unwrap_or_else(|| panic!("no test of {name}"));
        let fires = format!("      - alertname: {name}\n");
        assert!(own.contains(&fires) && own.contains("exp_labels"), "{name}");
        assert!(own.contains("exp_alerts: []"), "{name}");

        assert!(alert["duration"].as_f64() >= Some(60.0), "{name}");
        let severity = text(&alert["labels"]["severity"]);
        assert!(["critical", "warning"].contains(&severity), "{name}");
        let annotations = &alert["annotations"];
        assert_ne!(text(&annotations["summary"]), "", "{name}");
        assert_ne!(text(&annotations["description"]), "", "{name}");
        let section = text(&annotations["runbook"]).strip_prefix("docs/troubleshooting.md#");
        let section = section.unwrap_or_else(|| panic!("the runbook of {name}"));
        assert!(sections.iter().any(|known| known == section), "{section}");
        used.insert(section.to_owned());
    }
    let unused: Vec<_> = sections.iter().filter(|s| !used.contains(*s)).collect();
    assert!(unused.is_empty(), "no alert names {unused:?}");
}

/// A server that has a certificate and keys, beside one with a store.
fn start_with_certificate() -> Corral {
    let dir = scratch_dir();
    let keys = dir.join("keys.toml");
    let [certificate, key] = Identity::new().write(&dir);
    let [certificate, key, keys] =
        [&certificate, &key, &keys].map(|file| file.to_str().expect("UTF-8"));
    new_key(keys, &["--tenant", "alice"]);
    let options = ["--tls-cert", certificate, "--tls-key", key, "--keys", keys];
    Corral::start_with(&options)
}

#[test]
fn every_query_has_data_of_loaded_server() {
    // Not on loopback, so that the scrape needs the token.
    let admin = ["--admin", "0.0.0.0:0"];
    let quota = ["--quota", "/hello=requests-per-minute:1"];
    let corral = Corral::start_with_store(&[admin, quota].concat());
    assert_eq!(corral.get_admin("/metrics").status, 401);
    let port = corral.admin().rsplit(':').next().expect("a port");
    let address = format!("127.0.0.1:{port}");
    let other = start_with_certificate();
    let token = corral.token().expect("it has a store");
    let prometheus = Prometheus::start(&[&address, other.admin()], &token);

    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let request = json!({"prompt": "12+7=", "max_tokens": 20});
                assert_eq!(corral.generate(&request)["text"], "19");
                corral.get("/hello");
                assert_eq!(corral.post("/misbehave/trap", "").status, 500);
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        });
        // The load ends also if a check fails.
        let _stop = SetOnDrop(&stop);
        check_queries(&prometheus, &address);
    });
}

/// Waits for data of each query, and checks what the queries select.
fn check_queries(prometheus: &Prometheus, address: &str) {
    let wait_for_data = |query: &str| {
        wait_until(query, || prometheus.has_data(query));
    };
    wait_for_data("sum(up{job=\"corral\"}) == 2");

    let dashboard = dashboard();
    let queries = panel_queries(&dashboard);
    assert!(queries.len() >= 60, "{queries:?}");
    for query in &queries {
        wait_for_data(&filled(query, [".*"; 3]));
    }
    // Each query honours the variables: a chosen server has data of its own, an unknown one has none.
    let unknown = [address, "no-model", "no-deployment"];
    for query in &queries {
        for selector in selectors(query) {
            let has = |name: &str| selector.contains(&format!("{name}=~\"${name}\""));
            let of_model = ["corral_engine_", "corral_model_"];
            let of_model = of_model.iter().any(|begin| selector.starts_with(begin));
            let of_deployment = selector.starts_with("corral_deployment_");
            assert!(has("instance"), "{query}");
            assert!(has("model") || !of_model, "{query}");
            assert!(has("deployment") || !of_deployment, "{query}");
        }
        let elsewhere = filled(query, ["127.0.0.1:1", ".*", ".*"]);
        assert!(prometheus.query(&elsewhere).is_empty(), "{elsewhere}");
        if query.contains("$model") || query.contains("$deployment") {
            let nothing = filled(query, unknown);
            assert!(prometheus.query(&nothing).is_empty(), "{nothing}");
        }
    }
    for (name, metric, label) in variables(&dashboard) {
        let metric = metric.replace("$instance", address);
        let expected = match name {
            "instance" => address,
            "model" => "tiny",
            "deployment" => "/generate",
            _ => panic!("an unknown variable {name}"),
        };
        // A scrape that takes too long ends the series until the next.
        wait_until(name, || {
            let values = prometheus.query(&format!("count by ({label}) ({metric})"));
            let mut found = values.iter().map(|s| text(&s["metric"][label]));
            found.any(|found| found == expected)
        });
    }

    let alerts = prometheus.alerts();
    let conditions: Vec<_> = alerts.iter().map(|alert| text(&alert["query"])).collect();
    for condition in &conditions {
        let selectors = selectors(condition);
        assert!(!selectors.is_empty(), "{condition}");
        for selector in selectors {
            wait_for_data(&format!("count({selector})"));
        }
    }
    for alert in &alerts {
        let evaluated = wait_for("an evaluation", || {
            let alerts = prometheus.alerts();
            let same = alerts.into_iter().find(|one| one["name"] == alert["name"]);
            same.filter(|alert| alert["health"] != "unknown")
        });
        assert_eq!(evaluated["health"], "ok", "{evaluated}");
    }

    // So have the queries and metrics by which the example of Kubernetes scales and routes.
    let scaling = read("examples/kubernetes/autoscaling/scaled-object.yaml");
    let scaling = scaling
        .lines()
        .filter_map(|line| line.split_once(" query: "));
    let scaling: Vec<_> = scaling.map(|(_, query)| query).collect();
    let routing = read("examples/kubernetes/routing/picker.yaml");
    let routing = selectors(&routing);
    assert_eq!((scaling.len(), routing.len()), (2, 3));
    for query in scaling.into_iter().chain(routing) {
        wait_for_data(query);
    }

    // A metric of a query is one that the reference or the server has.
    let names = prometheus.get("/api/v1/label/__name__/values");
    let scraped: BTreeSet<_> = list(&names).iter().map(text).collect();
    let reference = read("docs/metrics.md");
    for query in queries.iter().chain(&conditions) {
        for selector in selectors(query) {
            let name = selector.split('{').next().expect("a name");
            let family = name.trim_end_matches("_bucket");
            let documented = reference.contains(&format!("| `{family}` |"));
            assert!(documented || scraped.contains(name), "{name} in {query}");
        }
    }
}
