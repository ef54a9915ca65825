//! Responses of the admin API as text for a terminal: deployments, hosts, jobs and log lines. Sends no requests.

use super::wait::host_name;
use crate::terminal::{align, printable};
use serde_json::Value;
use std::time::{Duration, UNIX_EPOCH};

/// A line for each deployment.
pub(super) fn list(list: &Value) -> String {
    let deployments = || list["deployments"].as_array().into_iter().flatten();
    let mut rows = vec![head("NAME STATE ROUTES TRAFFIC")];
    let has_sources = deployments().any(|deployment| !sources(deployment).is_empty());
    rows[0].extend(has_sources.then(|| "SOURCE".to_owned()));
    for deployment in deployments() {
        rows.push(vec![
            text(&deployment["name"]),
            text(&deployment["state"]),
            routes(deployment),
            match deployment["stored"].as_bool() {
                Some(false) => "(not stored)".to_owned(),
                _ => traffic(deployment),
            },
            sources(deployment),
        ]);
    }
    let mut page = align(&rows, |_| false);
    if list["cluster"].is_object() {
        page += &cluster(&list["cluster"]);
    }
    page
}

/// A line for each host of a cluster and each of its deployments, after an empty line.
fn cluster(cluster: &Value) -> String {
    let mut rows = vec![head("HOST DEPLOYMENT TRAFFIC PROBLEM")];
    for host in cluster["hosts"].as_array().into_iter().flatten() {
        let shown = host_name(host);
        let deployments = host["deployments"].as_object();
        let deployments = deployments.filter(|deployments| !deployments.is_empty());
        let Some(deployments) = deployments else {
            rows.push(vec![
                shown,
                "(none)".to_owned(),
                String::new(),
                String::new(),
            ]);
            continue;
        };
        for (name, deployment) in deployments {
            let paused = if deployment["paused"] == true {
                " (paused)"
            } else {
                ""
            };
            rows.push(vec![
                shown.clone(),
                printable(name),
                traffic(deployment) + paused,
                deployment["error"]
                    .as_str()
                    .map_or_else(String::new, printable),
            ]);
        }
    }
    let problem = cluster["error"].as_str().map(printable);
    let problem = problem.map_or_else(String::new, |problem| {
        format!("other hosts are unknown: {problem}\n")
    });
    format!("\n{}{problem}", align(&rows, |_| false))
}

/// A deployment with its revisions.
pub(super) fn detail(detail: &Value) -> String {
    let deployment = &detail["deployment"];
    let mut page = deployment_line(deployment);
    for share in deployment["traffic"].as_array().into_iter().flatten() {
        if let Some(problem) = share["error"].as_str() {
            let revision = &share["revision"];
            page += &format!("revision {revision} cannot serve: {}\n", printable(problem));
        }
        page += &initialized_line(share);
    }
    let mut rows = vec![head("REVISION COMPONENT BYTES DEPLOYED LINKED")];
    for revision in detail["revisions"].as_array().into_iter().flatten() {
        let digest: String = text(&revision["component"]).chars().take(19).collect();
        rows.push(vec![
            text(&revision["number"]),
            digest,
            text(&revision["component_bytes"]),
            time(&revision["created_ms"]),
            linked(&revision["manifest"]["linked"]),
        ]);
    }
    page += &align(&rows, |_| false);
    for revision in detail["revisions"].as_array().into_iter().flatten() {
        let number = &revision["number"];
        if let Some(source) = revision["source"].as_str() {
            page += &format!("revision {number} is {}\n", printable(source));
        }
        let manifest = &revision["manifest"];
        let grants = |name: &str| manifest["grants"][name].as_array().into_iter().flatten();
        for grant in grants("outbound") {
            page += &format!("revision {number} may call {}\n", outbound(grant));
        }
        for name in grants("deployments") {
            page += &format!("revision {number} may call the deployment {}\n", text(name));
        }
        for subject in grants("messages") {
            page += &format!("revision {number} may publish to {}\n", text(subject));
        }
        for secret in grants("secrets") {
            page += &format!("revision {number} may read the secret {}\n", text(secret));
        }
        for folder in grants("folders") {
            page += &format!("revision {number} may read the folder {}\n", text(folder));
        }
        for (name, denied) in [("clocks", "running clocks"), ("random", "random numbers")] {
            if manifest["grants"][name] == Value::Bool(false) {
                page += &format!("revision {number} has no {denied}\n");
            }
        }
        if let Some(subjects) = manifest["messages"]["subscriptions"].as_array() {
            let subjects = Vec::from_iter(subjects.iter().map(text)).join(", ");
            page += &format!("revision {number} gets messages to {subjects}\n");
        }
        if let Some(configuration) = manifest["configuration"].as_object() {
            let names = Vec::from_iter(configuration.keys().map(|name| printable(name)));
            let names = names.join(", ");
            page += &format!("revision {number} has the configuration {names}\n");
        }
    }
    for schedule in detail["schedules"].as_array().into_iter().flatten() {
        page += &schedule_line(schedule);
    }
    page
}

/// What the initialization of a revision did.
fn initialized_line(share: &Value) -> String {
    let number = |name: &str| share["initialized"][name].as_u64();
    match (number("instructions"), number("added_bytes")) {
        (Some(instructions), Some(bytes)) => format!(
            "revision {} is initialized: {instructions} instructions at its deploy, {bytes} bytes added to the component\n",
            share["revision"]
        ),
        _ => String::new(),
    }
}

/// A schedule with its next time and its last run.
fn schedule_line(schedule: &Value) -> String {
    let next = schedule["next_ms"].as_u64();
    let next = next.map_or_else(|| "never".to_owned(), timestamp);
    let last = match &schedule["runs"][0] {
        Value::Null => "has not run".to_owned(),
        run => {
            format!(
                "last {} {}",
                time(&run["scheduled_ms"]),
                text(&run["state"])
            )
        }
    };
    format!(
        "schedule '{}' ({}) of {}: {last}, next {next}\n",
        text(&schedule["schedule"]),
        text(&schedule["time_zone"]),
        text(&schedule["path"])
    )
}

/// The jobs of a deployment.
pub(super) fn jobs(list: &Value) -> String {
    let mut rows = vec![head("ID STATE TRIGGER ATTEMPTS SENT ERROR")];
    for job in list["jobs"].as_array().into_iter().flatten() {
        rows.push(vec![
            text(&job["id"]),
            text(&job["state"]),
            text(&job["trigger"]),
            format!("{}/{}", job["attempts"], job["max_attempts"]),
            time(&job["created_ms"]),
            job["error"].as_str().map_or_else(String::new, printable),
        ]);
    }
    let count = |name: &str| text(&list[name]);
    format!(
        "{} waiting, {} running, {} finished\n{}",
        count("waiting"),
        count("running"),
        count("finished"),
        align(&rows, |_| false)
    )
}

/// A job on one line.
pub(super) fn job_line(job: &Value) -> String {
    format!("{} is {}\n", text(&job["id"]), text(&job["state"]))
}

/// A grant of outgoing requests: where to, and its methods.
fn outbound(grant: &Value) -> String {
    if let Value::String(url) = grant {
        return printable(url);
    }
    let methods = grant["methods"].as_array().into_iter().flatten();
    let methods = Vec::from_iter(methods.map(text)).join(", ");
    format!("{} ({methods})", text(&grant["url"]))
}

/// The linked components of a revision: role, start of the digest, and whether it inherits grants. Middleware in its order.
fn linked(links: &Value) -> String {
    let show = |(role, link): (String, &Value)| {
        let component = match link {
            Value::Object(table) => table.get("component").unwrap_or(&Value::Null),
            other => other,
        };
        let digest: String = text(component).chars().take(19).collect();
        let inherits = match link["inherit"].as_bool() {
            Some(true) => " (inherits)",
            _ => "",
        };
        format!("{role}={digest}{inherits}")
    };
    let templating = links.get("templating");
    let templating = templating.map(|link| ("templating".to_owned(), link));
    let sampling = links["sampling"].as_object().into_iter().flatten();
    let sampling = sampling.map(|(name, link)| (printable(&format!("sampling.{name}")), link));
    let middleware = links["middleware"].as_array().into_iter().flatten();
    let middleware = middleware.map(|link| ("middleware".to_owned(), link));
    let all = templating.into_iter().chain(sampling).chain(middleware);
    Vec::from_iter(all.map(show)).join(" ")
}

/// A deployment on one line.
pub(super) fn deployment_line(deployment: &Value) -> String {
    format!(
        "{} is {} at {}, traffic {}\n",
        text(&deployment["name"]),
        text(&deployment["state"]),
        routes(deployment),
        traffic(deployment)
    )
}

/// A line of a log.
pub(super) fn log_line(line: &Value) -> String {
    let revision = line["revision"].as_u64();
    // The streams say what the level of their lines is.
    let kind = match line["stream"] == "log" {
        true => &line["level"],
        false => &line["stream"],
    };
    format!(
        "{} r{} {} {}: {}\n",
        time(&line["time_ms"]),
        revision.map_or_else(|| "-".to_owned(), |revision| revision.to_string()),
        text(&line["request_id"]),
        text(kind),
        text(&line["text"]),
    )
}

fn head(columns: &str) -> Vec<String> {
    columns.split_whitespace().map(str::to_owned).collect()
}

/// A time in milliseconds, or nothing.
fn time(value: &Value) -> String {
    value.as_u64().map_or_else(String::new, timestamp)
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => printable(text),
        other => printable(&other.to_string()),
    }
}

fn routes(deployment: &Value) -> String {
    let routes = deployment["routes"].as_array().into_iter().flatten();
    let routes = Vec::from_iter(routes.map(text));
    match routes.is_empty() {
        true => "no route".to_owned(),
        false => routes.join(" "),
    }
}

fn traffic(deployment: &Value) -> String {
    let shares = deployment["traffic"].as_array().into_iter().flatten();
    let shares = Vec::from_iter(shares);
    if let [only] = shares[..] {
        return text(&only["revision"]);
    }
    let shares = shares
        .iter()
        .map(|share| format!("{}={}", share["revision"], share["weight"]));
    Vec::from_iter(shares).join(" ")
}

/// The artifacts of the revisions that get requests.
fn sources(deployment: &Value) -> String {
    let shares = deployment["traffic"].as_array().into_iter().flatten();
    let sources = shares.filter_map(|share| share["source"].as_str());
    let mut sources = Vec::from_iter(sources.map(printable));
    sources.dedup();
    sources.join(" ")
}

/// A time as RFC 3339, to the second.
fn timestamp(milliseconds: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_millis(milliseconds);
    humantime::format_rfc3339_seconds(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn list_has_a_line_for_each_deployment() {
        let traffic = json!([{"revision": 3, "weight": 90}, {"revision": 4, "weight": 10}]);
        let page = list(&json!({"deployments": [
            {"name": "/x", "stored": false, "state": "serving", "routes": ["/x"], "traffic": []},
            {"name": "chat", "stored": true, "state": "paused", "routes": ["/a", "/b"],
             "traffic": traffic},
        ]}));
        let expected = "NAME  STATE    ROUTES  TRAFFIC\n\
                        /x    serving  /x      (not stored)\n\
                        chat  paused   /a /b   3=90 4=10\n";
        assert_eq!(page, expected);
    }

    #[test]
    fn hosts_of_cluster_have_lines() {
        let serving = json!({"version": 2, "traffic": [{"revision": 3, "weight": 1}]});
        let failed =
            json!({"version": 0, "traffic": [], "failed_version": 2, "error": "no secret"});
        let host = |name: &str, deployments: Value| json!({"name": name, "address": "h:1", "deployments": deployments});
        let hosts = [
            host("one", json!({"a": serving, "b": failed})),
            host("two", json!({})),
        ];
        let cluster = json!({"hosts": hosts, "connected": true});
        let page = list(&json!({"deployments": [], "cluster": cluster}));
        let expected = "NAME  STATE  ROUTES  TRAFFIC\n\n\
                        HOST       DEPLOYMENT  TRAFFIC  PROBLEM\n\
                        one (h:1)  a           3\n\
                        one (h:1)  b                    no secret\n\
                        two (h:1)  (none)\n";
        let lines =
            |page: &str| Vec::from_iter(page.lines().map(|line| line.trim_end().to_owned()));
        assert_eq!(lines(&page), lines(expected));
        let cluster = json!({"hosts": [], "connected": false, "error": "no answer"});
        let page = list(&json!({"deployments": [], "cluster": cluster}));
        assert!(
            page.ends_with("other hosts are unknown: no answer\n"),
            "{page}"
        );
    }

    #[test]
    fn sources_are_shown() {
        let traffic = json!([{"revision": 2, "weight": 1, "source": "oci://a/b:1@sha256:0"}]);
        let deployment = json!({"name": "a", "stored": true, "state": "serving", "routes": ["/a"],
                                "traffic": traffic});
        let page = list(&json!({"deployments": [deployment]}));
        let expected = "NAME  STATE    ROUTES  TRAFFIC  SOURCE\n\
                        a     serving  /a      2        oci://a/b:1@sha256:0\n";
        assert_eq!(page, expected);
        let revision = json!({"number": 2, "source": "oci://a/b:1@sha256:0"});
        let page = detail(&json!({"deployment": deployment, "revisions": [revision]}));
        assert!(
            page.ends_with("\nrevision 2 is oci://a/b:1@sha256:0\n"),
            "{page}"
        );
    }

    #[test]
    fn jobs_and_schedules_have_lines() {
        let page = jobs(&json!({"waiting": 1, "running": 0, "finished": 2, "jobs": [
            {"id": "7", "state": "dead", "trigger": "job", "attempts": 3, "max_attempts": 5,
             "created_ms": 0, "error": "no"},
        ]}));
        let expected = "1 waiting, 0 running, 2 finished\n\
                        ID  STATE  TRIGGER  ATTEMPTS  SENT                  ERROR\n\
                        7   dead   job      3/5       1970-01-01T00:00:00Z  no\n";
        assert_eq!(page, expected);
        let line = schedule_line(
            &json!({"schedule": "0 3 * * *", "time_zone": "UTC", "path": "/a",
            "next_ms": 1000, "runs": [{"scheduled_ms": 0, "state": "succeeded"}]}),
        );
        assert_eq!(
            line,
            "schedule '0 3 * * *' (UTC) of /a: last 1970-01-01T00:00:00Z succeeded, next 1970-01-01T00:00:01Z\n"
        );
    }

    #[test]
    fn log_line_shows_level_or_stream() {
        let line = |stream: &str, level: Option<&str>| {
            let line = json!({"time_ms": 0, "revision": 2, "request_id": "a", "stream": stream, "level": level,
                              "text": "it"});
            log_line(&line)
        };
        let head = "1970-01-01T00:00:00Z r2 a";
        assert_eq!(line("log", Some("warn")), format!("{head} warn: it\n"));
        assert_eq!(line("stdout", Some("info")), format!("{head} stdout: it\n"));
        assert_eq!(line("stderr", None), format!("{head} stderr: it\n"));
    }

    #[test]
    fn revision_shows_what_it_may_call_and_read() {
        let outbound = json!(["https://*.example.com", {"url": "http://127.0.0.1:9", "methods": ["GET", "POST"]}]);
        let revision = json!({"number": 2, "component": "sha256:0", "component_bytes": 9, "created_ms": 0,
                              "manifest": {"grants": {"outbound": outbound, "messages": ["orders.*"], "secrets": ["key"],
                                                      "folders": ["docs"], "clocks": false, "random": false},
                                           "messages": {"subscriptions": ["a.>", "b"]},
                                           "configuration": {"GREETING": "hidden", "URL": "hidden"}}});
        let deployment = json!({"name": "a", "state": "serving", "routes": ["/a"], "traffic": []});
        let page = detail(&json!({"deployment": deployment, "revisions": [revision]}));
        let expected = "revision 2 may call https://*.example.com\n\
                        revision 2 may call http://127.0.0.1:9 (GET, POST)\n\
                        revision 2 may publish to orders.*\n\
                        revision 2 may read the secret key\n\
                        revision 2 may read the folder docs\n\
                        revision 2 has no running clocks\n\
                        revision 2 has no random numbers\n\
                        revision 2 gets messages to a.>, b\n\
                        revision 2 has the configuration GREETING, URL\n";
        assert!(page.ends_with(expected), "{page}");
    }

    #[test]
    fn revision_shows_its_initialization() {
        let share = json!({"revision": 2, "weight": 1, "state": "serving",
                           "initialized": {"instructions": 7, "added_bytes": 9}});
        let deployment =
            json!({"name": "a", "state": "serving", "routes": ["/a"], "traffic": [share]});
        let page = detail(&json!({"deployment": deployment, "revisions": []}));
        let expected = "revision 2 is initialized: 7 instructions at its deploy, 9 bytes added to the component";
        assert_eq!(page.lines().nth(1), Some(expected), "{page}");
    }

    #[test]
    fn revision_shows_linked_components() {
        let digest = |letter: &str| format!("sha256:{}", letter.repeat(64));
        let revision = |number: u64, links: Value| {
            json!({"number": number, "component": digest("a"), "component_bytes": 9,
                   "created_ms": 0, "manifest": {"linked": links}})
        };
        let links = json!({
            "templating": {"component": digest("b"), "inherit": true},
            "sampling": {"min-p": digest("c")},
            "middleware": [digest("d"), {"component": digest("e"), "inherit": true}],
        });
        let bare = json!({"number": 1, "component": digest("a"), "component_bytes": 9,
                          "created_ms": 0, "manifest": {}});
        let deployment = json!({"name": "a", "state": "serving", "routes": ["/a"], "traffic": []});
        let detail = json!({"deployment": deployment, "revisions": [bare, revision(2, links)]});
        let page = super::detail(&detail);
        let mut lines = page.lines().skip(1);
        assert!(
            lines
                .next()
                .expect("a head")
                .ends_with("DEPLOYED              LINKED")
        );
        assert!(lines.next().expect("one").ends_with("1970-01-01T00:00:00Z"));
        let linked = "templating=sha256:bbbbbbbbbbbb (inherits) sampling.min-p=sha256:cccccccccccc \
                      middleware=sha256:dddddddddddd middleware=sha256:eeeeeeeeeeee (inherits)";
        assert!(lines.next().expect("two").ends_with(linked), "{page}");
    }
}
