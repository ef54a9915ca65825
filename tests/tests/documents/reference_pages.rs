//! The pages of reference under docs/ say what the code does: metrics, error codes and messages.

use corral_tests::authoring::root;
use corral_tests::{Corral, Identity, new_key, scratch_dir};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

/// Groups of metrics: a heading, and the beginnings of the names. The first that fits counts.
const GROUPS: [(&str, &[&str]); 6] = [
    (
        "Plugins",
        &[
            "corral_plugin",
            "corral_sampling_plugin",
            "corral_tokenization",
        ],
    ),
    (
        "Deployments",
        &["corral_cluster", "corral_deployment", "corral_job"],
    ),
    (
        "Keys, quotas and TLS",
        &["corral_api_key", "corral_quota", "corral_tls"],
    ),
    ("Models", &["corral_model"]),
    ("Engine", &["corral_engine"]),
    ("Server", &[""]),
];

/// The page before its tables.
const METRICS_INTRODUCTION: &str = "# Metrics

The metrics that `/metrics` on the admin listener has before the first request, as the server describes them. Others, such as
responses by status and latencies by deployment, appear with the first request that they count; [Monitoring](monitoring.md)
names these, and says which to watch. Changed names are listed in [CHANGELOG.md](../CHANGELOG.md). This page is generated:
`CORRAL_WRITE_SCHEMAS=1 cargo test --release --workspace --test documents reference_pages`.
";

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).expect(path)
}

/// A family of metrics.
#[derive(Default)]
struct Family {
    help: String,
    kind: String,
    labels: BTreeSet<String>,
}

/// The families of Prometheus text.
fn families(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(name), Some(help)) => {
                families.entry(name.to_owned()).or_default().help = help.to_owned();
            }
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                families.entry(name.to_owned()).or_default().kind = kind.to_owned();
            }
            _ => {
                let Some((name, labels)) = line.split_once('{') else {
                    continue;
                };
                let ends = ["", "_bucket", "_sum", "_count"];
                let family = ends.iter().find_map(|end| {
                    let name = name.strip_suffix(end)?;
                    families.contains_key(name).then_some(name)
                });
                let family = families.get_mut(family.expect(line)).expect("found");
                let names = labels
                    .split("=\"")
                    .filter_map(|part| part.rsplit(['"', ',']).next());
                let names =
                    names.filter(|name| !name.is_empty() && !name.contains('}') && *name != "le");
                family.labels.extend(names.map(str::to_owned));
            }
        }
    }
    families
}

fn metrics_page(families: &BTreeMap<String, Family>) -> String {
    let group_of = |name: &str| {
        let fits = |beginnings: &[&str]| beginnings.iter().any(|text| name.starts_with(text));
        GROUPS.iter().position(|(_, beginnings)| fits(beginnings))
    };
    let mut page = METRICS_INTRODUCTION.to_owned();
    for (number, (heading, _)) in GROUPS.iter().enumerate() {
        let _ = write!(
            page,
            "\n## {heading}\n\n| metric | kind, labels | meaning |\n|---|---|---|\n"
        );
        for (name, family) in families
            .iter()
            .filter(|(name, _)| group_of(name) == Some(number))
        {
            let labels = family.labels.iter().map(|label| format!("`{label}`"));
            let labels: Vec<_> = labels.collect();
            let kind = [std::slice::from_ref(&family.kind), &*labels].concat();
            let kind = kind.join(", ");
            let _ = writeln!(
                page,
                "| `{name}` | {kind} | {} |",
                family.help.replace('|', "\\|")
            );
        }
    }
    page
}

#[test]
fn metrics_page_is_current() {
    let dir = scratch_dir();
    let [certificate, key] = Identity::new().write(&dir);
    let keys = dir.join("keys.toml");
    let [certificate, key, keys] =
        [&certificate, &key, &keys].map(|file| file.to_str().expect("UTF-8"));
    new_key(keys, &["--tenant", "alice"]);
    // Nothing answers there.
    let cluster = "nats://127.0.0.1:1";
    let corral = Corral::start_with_store(&[
        "--cluster",
        cluster,
        "--tls-cert",
        certificate,
        "--tls-key",
        key,
        "--keys",
        keys,
        "--quota",
        "/generate=requests-per-minute:9",
    ]);
    let metrics = corral.get_admin("/metrics");
    let page = metrics_page(&families(&metrics.body));
    if std::env::var_os("CORRAL_WRITE_SCHEMAS").is_some() {
        std::fs::write(root().join("docs/metrics.md"), &page).expect("written");
    }
    assert!(
        page == read("docs/metrics.md"),
        "the metrics have changed; write docs/metrics.md again: CORRAL_WRITE_SCHEMAS=1 cargo test --test documents reference_pages"
    );
}

/// All sources and scripts whose texts people see, with the strings that Rust continues on another line joined.
fn sources() -> String {
    fn collect(dir: &Path, text: &mut String) {
        for entry in std::fs::read_dir(dir).expect("a directory").flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            match path.is_dir() {
                true if name != "target" => collect(&path, text),
                false
                    if path
                        .extension()
                        .is_some_and(|end| end == "rs" || end == "sh") =>
                {
                    *text += &std::fs::read_to_string(&path).expect("UTF-8");
                }
                _ => {}
            }
        }
    }
    let mut text = read("Makefile");
    for dir in ["host", "plugins"] {
        collect(&root().join(dir), &mut text);
    }
    let mut lines = text.split("\\\n");
    let first = lines.next().unwrap_or_default().to_owned();
    let joined = lines.fold(first, |text, line| text + line.trim_start());
    joined.replace("\\\"", "\"")
}

/// The cells of the rows of all tables.
fn rows(page: &str) -> impl Iterator<Item = Vec<&str>> {
    let lines = page
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("|---"));
    lines.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
}

/// The variant of an enum whose name is derived: `ResponseTooLarge` for `response-too-large`.
fn variant(code: &str) -> String {
    let words = code.split('-').map(|word| {
        let (first, rest) = word.split_at(1);
        first.to_uppercase() + rest
    });
    format!("\n    {}", words.collect::<String>())
}

#[test]
fn documented_error_codes_exist() {
    let sources = sources();
    let page = read("docs/api.md");
    let mut count = 0;
    for row in rows(&page) {
        if let [status, codes, ..] = row[..]
            && status.parse::<u16>().is_ok()
        {
            for code in codes.split('`').skip(1).step_by(2) {
                let literal = sources.contains(&format!("\"{code}\""));
                assert!(literal || sources.contains(&variant(code)), "{code}");
                count += 1;
            }
        }
    }
    assert!(count >= 80, "only {count} codes found");
}

#[test]
fn documented_messages_exist() {
    let sources = sources();
    let page = read("docs/troubleshooting.md");
    let mut count = 0;
    for row in rows(&page).filter(|row| row.len() == 3) {
        let Some(message) = row[0].split('`').nth(1) else {
            continue;
        };
        let parts: Vec<_> = message.split('…').map(str::trim).collect();
        assert!(
            parts.iter().any(|part| part.len() >= 10),
            "{message} says too little"
        );
        for part in parts {
            assert!(sources.contains(part), "{part}, of: {message}");
        }
        count += 1;
    }
    assert!(count >= 50, "only {count} messages found");
}
