//! Deployments as people read them.

use crate::terminal::printable;
use serde_json::Value;

/// All deployments of a list, one on a line.
pub(super) fn list(list: &Value) -> String {
    let mut rows = vec![["NAME", "STATE", "ROUTES", "TRAFFIC"].map(str::to_owned)];
    for deployment in list["deployments"].as_array().into_iter().flatten() {
        rows.push([
            text(&deployment["name"]),
            text(&deployment["state"]),
            routes(deployment),
            match deployment["kept"].as_bool() {
                Some(false) => "(not kept)".to_owned(),
                _ => traffic(deployment),
            },
        ]);
    }
    align(&rows)
}

/// A deployment with its revisions.
pub(super) fn show(detail: &Value) -> String {
    let deployment = &detail["deployment"];
    let mut page = deployment_line(deployment);
    for part in deployment["traffic"].as_array().into_iter().flatten() {
        if let Some(problem) = part["problem"].as_str() {
            let revision = &part["revision"];
            page += &format!("revision {revision} cannot serve: {}\n", printable(problem));
        }
    }
    let mut rows = vec![["REVISION", "COMPONENT", "BYTES", "DEPLOYED", "LINKS"].map(str::to_owned)];
    for revision in detail["revisions"].as_array().into_iter().flatten() {
        let digest: String = text(&revision["component"]).chars().take(19).collect();
        rows.push([
            text(&revision["number"]),
            digest,
            text(&revision["component_bytes"]),
            revision["created_ms"]
                .as_u64()
                .map_or_else(String::new, moment),
            links(&revision["manifest"]["links"]),
        ]);
    }
    page + &align(&rows)
}

/// What a revision is linked with: each link with the beginning of its digest, and whether it inherits.
fn links(links: &Value) -> String {
    let one = |(name, link): (String, &Value)| {
        let component = match link {
            Value::Object(table) => table.get("component").unwrap_or(&Value::Null),
            other => other,
        };
        let digest: String = text(component).chars().take(19).collect();
        let inherits = match link["inherit"].as_bool() {
            Some(true) => " (inherits)",
            _ => "",
        };
        format!("{name}={digest}{inherits}")
    };
    let templating = links.get("templating");
    let templating = templating.map(|link| ("templating".to_owned(), link));
    let sampling = links["sampling"].as_object().into_iter().flatten();
    let sampling = sampling.map(|(name, link)| (printable(&format!("sampling.{name}")), link));
    let all = templating.into_iter().chain(sampling).map(one);
    Vec::from_iter(all).join(" ")
}

/// One deployment on one line.
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
    format!(
        "{} r{} {} {}: {}\n",
        line["time_ms"].as_u64().map_or_else(String::new, moment),
        revision.map_or_else(|| "-".to_owned(), |revision| revision.to_string()),
        text(&line["call"]),
        text(&line["stream"]),
        text(&line["text"]),
    )
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

/// Columns side by side, two blanks between them.
fn align<const N: usize>(rows: &[[String; N]]) -> String {
    let widths: [usize; N] = std::array::from_fn(|column| {
        let width = |row: &[String; N]| row[column].chars().count();
        rows.iter().map(width).max().unwrap_or(0)
    });
    let mut page = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let gap = width + 2 - cell.chars().count();
            line += cell;
            line.extend(std::iter::repeat_n(' ', gap));
        }
        page += line.trim_end();
        page.push('\n');
    }
    page
}

/// A time as RFC 3339 writes it, to the second. Days to date: Howard Hinnant, "chrono-compatible
/// low-level date algorithms", civil_from_days.
fn moment(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_list_has_a_line_for_each() {
        let traffic = json!([{"revision": 3, "weight": 90}, {"revision": 4, "weight": 10}]);
        let page = list(&json!({"deployments": [
            {"name": "/x", "kept": false, "state": "serving", "routes": ["/x"], "traffic": []},
            {"name": "chat", "kept": true, "state": "paused", "routes": ["/a", "/b"],
             "traffic": traffic},
        ]}));
        let expected = "NAME  STATE    ROUTES  TRAFFIC\n\
                        /x    serving  /x      (not kept)\n\
                        chat  paused   /a /b   3=90 4=10\n";
        assert_eq!(page, expected);
    }

    #[test]
    fn a_revision_shows_its_links() {
        let digest = |letter: &str| format!("sha256:{}", letter.repeat(64));
        let revision = |number: u64, links: Value| {
            json!({"number": number, "component": digest("a"), "component_bytes": 9,
                   "created_ms": 0, "manifest": {"links": links}})
        };
        let linked = json!({
            "templating": {"component": digest("b"), "inherit": true},
            "sampling": {"min-p": digest("c")},
        });
        let bare = json!({"number": 1, "component": digest("a"), "component_bytes": 9,
                          "created_ms": 0, "manifest": {}});
        let deployment = json!({"name": "a", "state": "serving", "routes": ["/a"], "traffic": []});
        let detail = json!({"deployment": deployment, "revisions": [bare, revision(2, linked)]});
        let page = show(&detail);
        let mut lines = page.lines().skip(1);
        assert!(
            lines
                .next()
                .expect("a head")
                .ends_with("DEPLOYED              LINKS")
        );
        assert!(lines.next().expect("one").ends_with("1970-01-01T00:00:00Z"));
        let linked = "templating=sha256:bbbbbbbbbbbb (inherits) sampling.min-p=sha256:cccccccccccc";
        assert!(lines.next().expect("two").ends_with(linked), "{page}");
    }

    #[test]
    fn moments_are_written_as_dates() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_827_696, "2000-02-29T12:34:56Z"),
            (4_102_444_799, "2099-12-31T23:59:59Z"),
        ] {
            assert_eq!(moment(seconds * 1000 + 999), expected);
        }
    }
}
