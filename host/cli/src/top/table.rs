//! What goes on, as lines for a terminal.
//!
//! Whatever is missing in the server's answer, or comes from another version, is shown as `-`.

use crate::terminal::printable;
use serde_json::Value;
use std::cmp::Reverse;

/// A column: its title, where its value is, and what is shown when there is none.
type Column = (&'static str, &'static str, &'static str);

const SEQUENCES: [Column; 10] = [
    ("KEY", "/key", "-"),
    ("ROUTE", "/route", "-"),
    ("PRIORITY", "/priority", "-"),
    ("ADAPTER", "/adapter", "-"),
    ("ID", "/id", "-"),
    ("STATE", "/state", "-"),
    ("PROMPT", "/prompt", "-"),
    ("CACHED", "/cached", "-"),
    ("COMPUTED", "/computed", "-"),
    ("GENERATED", "/generated", "-"),
];

const KEPT: [Column; 5] = [
    ("ENTRY", "/entry", "-"),
    ("ROUTE", "/route", "(shared)"),
    ("ID", "/id", "aside"),
    ("TOKENS", "/tokens", "-"),
    ("CLAIMED", "/claimed", "-"),
];

/// Lines for all models in at most so many rows, as far as can be: tables are cut short for it.
pub(super) fn of(address: &str, seen: &Value, rows: usize) -> String {
    let models = list(seen, "/models");
    let mut text = format!("corral at {address}\n");
    // Each model has a blank line, four lines of sums, and two tables with a blank line and a title.
    let lines = models.len() * 9 + 1;
    let most = rows.saturating_sub(lines) / models.len().max(1);
    for model in models {
        text += "\n";
        text += &summary(model);
        let running: Vec<_> = list(model, "/sequences").iter().collect();
        let mut kept: Vec<_> = list(model, "/kept").iter().collect();
        kept.sort_by_key(|entry| Reverse(number(entry, "/tokens")));
        // What runs goes first; a row stays for what is kept.
        let shown = running.len().min(most.saturating_sub(1));
        text += &table(&SEQUENCES, &running, most.saturating_sub(1));
        text += &table(&KEPT, &kept, most - shown);
    }
    text
}

/// Four lines about a model, short enough for any terminal; one if it is not loaded.
fn summary(model: &Value) -> String {
    let show = |path: &str| show(model, path, "-");
    if model["state"]
        .as_str()
        .is_some_and(|state| state != "loaded")
    {
        let mut line = format!("{}: {}", show("/model"), show("/state"));
        if let Some(progress) = model["progress"].as_f64() {
            line += &format!(", {:.0} % is read", progress * 1e2);
        }
        line += &format!(", {} calls wait\n", show("/calls_waiting"));
        if model["error"].is_string() {
            line += &format!("{}\n", show("/error"));
        }
        return line;
    }
    let megabytes = |path: &str| {
        #[allow(clippy::cast_precision_loss)]
        let bytes = number(model, path) as f64;
        format!("{:.1} MiB", bytes / f64::from(1 << 20))
    };
    let tokens: u64 = list(model, "/kept")
        .iter()
        .map(|entry| number(entry, "/tokens"))
        .sum();
    format!(
        "{}: {} running, {} waiting, {} kept with {tokens} tokens\n\
         cells: {} of {} used, {} by those that run; attention over {}\n\
         ids: {} of {} used; aside: {} in memory, {} on disk; {} of prefixes\n\
         so far: {} spilled, {} prefixes put aside, {} restored, {} lost, {} evicted, {} preempted\n",
        show("/model"),
        list(model, "/sequences").len(),
        show("/waiting"),
        list(model, "/kept").len(),
        show("/cells/used"),
        show("/cells/all"),
        show("/cells/pinned"),
        show("/cells/n_kv"),
        show("/ids/used"),
        show("/ids/all"),
        megabytes("/spilled_bytes/memory"),
        megabytes("/spilled_bytes/disk"),
        megabytes("/prefix_bytes"),
        show("/tally/spilled"),
        show("/tally/prefixes"),
        show("/tally/restored"),
        show("/tally/lost"),
        show("/tally/evicted"),
        show("/tally/preempted"),
    )
}

/// A table of at most `most` rows after a blank line and its titles; nothing if there are no rows at
/// all. If it is cut short its last row says so.
fn table(columns: &[Column], rows: &[&Value], most: usize) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let fit = if rows.len() > most {
        most.saturating_sub(1)
    } else {
        most
    };
    let shown = &rows[..rows.len().min(fit)];
    let columns: Vec<_> = columns
        .iter()
        .map(|&(title, path, none)| {
            let cells = shown.iter().map(|row| show(row, path, none));
            let numeric = shown
                .iter()
                .all(|row| row.pointer(path).is_some_and(Value::is_number));
            let cells: Vec<_> = std::iter::once(title.to_owned()).chain(cells).collect();
            let width = cells.iter().map(|cell| cell.chars().count()).max();
            (cells, width.unwrap_or(0), numeric)
        })
        .collect();
    let mut text = String::from("\n");
    for row in 0..=shown.len() {
        let mut line = String::new();
        for (cells, width, numeric) in &columns {
            let cell = &cells[row];
            line += &if *numeric {
                format!("{cell:>width$}  ")
            } else {
                format!("{cell:<width$}  ")
            };
        }
        text += line.trim_end();
        text += "\n";
    }
    if rows.len() > shown.len() {
        text += &format!("and {} more\n", rows.len() - shown.len());
    }
    text
}

fn list<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    let found = value.pointer(path).and_then(Value::as_array);
    found.map_or(&[], Vec::as_slice)
}

fn number(value: &Value, path: &str) -> u64 {
    value.pointer(path).and_then(Value::as_u64).unwrap_or(0)
}

fn show(value: &Value, path: &str, none: &str) -> String {
    match value.pointer(path) {
        Some(Value::String(text)) => printable(text),
        Some(Value::Bool(true)) => "yes".to_owned(),
        Some(Value::Bool(false)) => "no".to_owned(),
        Some(Value::Number(number)) => number.to_string(),
        _ => none.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn seen(kept: u64) -> Value {
        let kept: Vec<_> = (0..kept)
            .map(|n| json!({"entry": n, "route": null, "id": null, "tokens": n * 10, "claimed": n == 1}))
            .collect();
        json!({"models": [{
            "model": "ti\u{1b}ny",
            "cells": {"all": 100, "used": 12},
            "waiting": 3,
            "spilled_bytes": {"memory": 3 << 19},
            "prefix_bytes": 5 << 20,
            "sequences": [{"key": 7, "route": "/chat", "priority": 10, "adapter": 1, "id": 0, "state": "reads",
                "prompt": 1234, "cached": 0, "computed": 512, "generated": 0}],
            "kept": kept,
        }]})
    }

    #[test]
    fn all_is_shown_where_there_is_room() {
        let text = of("http://a:1", &seen(3), usize::MAX);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "corral at http://a:1",
                "",
                "ti?ny: 1 running, 3 waiting, 3 kept with 30 tokens",
                "cells: 12 of 100 used, - by those that run; attention over -",
                "ids: - of - used; aside: 1.5 MiB in memory, 0.0 MiB on disk; 5.0 MiB of prefixes",
                "so far: - spilled, - prefixes put aside, - restored, - lost, - evicted, - preempted",
                "",
                "KEY  ROUTE  PRIORITY  ADAPTER  ID  STATE  PROMPT  CACHED  COMPUTED  GENERATED",
                "  7  /chat        10        1   0  reads    1234       0       512          0",
                "",
                "ENTRY  ROUTE     ID     TOKENS  CLAIMED",
                "    2  (shared)  aside      20  no",
                "    1  (shared)  aside      10  yes",
                "    0  (shared)  aside       0  no",
            ]
        );
    }

    #[test]
    fn who_is_not_loaded_is_one_line() {
        let seen = json!({"models": [
            {"model": "a", "state": "asleep", "calls_waiting": 0, "sequences": [], "kept": []},
            {"model": "b", "state": "loading", "calls_waiting": 3, "progress": 0.25},
            {"model": "c", "state": "failed", "calls_waiting": 0, "error": "x is no\nmodel"},
        ]});
        let text = of("http://a:1", &seen, usize::MAX);
        let lines: Vec<_> = text.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!(
            lines,
            [
                "corral at http://a:1",
                "a: asleep, 0 calls wait",
                "b: loading, 25 % is read, 3 calls wait",
                "c: failed, 0 calls wait",
                "x is no?model",
            ]
        );
    }

    #[test]
    fn a_table_is_cut_to_the_terminal() {
        for rows in [0, 1, 8, 9, 10, 11, 12, 13, 24, 200] {
            let text = of("http://a:1", &seen(100), rows);
            let lines = text.lines().count();
            // The sums and titles are shown in any case.
            assert!(lines <= rows.max(12), "{rows}: {text}");
            assert_eq!(text.contains("more"), rows < 111, "{rows}: {text}");
        }
    }
}
