//! The status of models as lines for a terminal. Missing values, as of another version, are shown as `-`.

use crate::terminal::{align, mebibytes, printable};
use serde_json::Value;
use std::cmp::Reverse;

/// A column: its title, the path of its value, and the text for a missing value.
type Column = (&'static str, &'static str, &'static str);

const REQUESTS: [Column; 10] = [
    ("REQUEST", "/request", "-"),
    ("OWNER", "/owner", "-"),
    ("PRIORITY", "/priority", "-"),
    ("ADAPTER", "/adapter", "-"),
    ("ID", "/sequence_id", "-"),
    ("STATE", "/state", "-"),
    ("PROMPT", "/prompt_tokens", "-"),
    ("CACHED", "/cached_tokens", "-"),
    ("COMPUTED", "/computed_tokens", "-"),
    ("GENERATED", "/generated_tokens", "-"),
];

const CACHE_ENTRIES: [Column; 5] = [
    ("ENTRY", "/entry", "-"),
    ("OWNER", "/owner", "(shared)"),
    ("ID", "/sequence_id", "offloaded"),
    ("TOKENS", "/tokens", "-"),
    ("RETAINED", "/retained", "-"),
];

/// Lines for all models. Tables are cut so that all fits into `rows` if possible.
pub(super) fn models(address: &str, status: &Value, rows: usize) -> String {
    let models = list(status, "/models");
    let mut text = format!("corral at {address}\n");
    // Each model has a blank line, four lines of summary, and two tables with a blank line and titles.
    let lines = models.len() * 9 + 1;
    let max = rows.saturating_sub(lines) / models.len().max(1);
    for model in models {
        text += "\n";
        text += &summary(model);
        let requests: Vec<_> = list(model, "/requests").iter().collect();
        let mut entries: Vec<_> = list(model, "/prefix_cache").iter().collect();
        entries.sort_by_key(|entry| Reverse(number(entry, "/tokens")));
        // Requests first; one row remains for cache entries.
        let shown = requests.len().min(max.saturating_sub(1));
        text += &table(&REQUESTS, &requests, max.saturating_sub(1));
        text += &table(&CACHE_ENTRIES, &entries, max - shown);
    }
    text
}

/// Four lines about a model, or one if it is not loaded.
fn summary(model: &Value) -> String {
    let show = |path: &str| show(model, path, "-");
    if model["state"]
        .as_str()
        .is_some_and(|state| state != "loaded")
    {
        let mut line = format!("{}: {}", show("/model"), show("/state"));
        if let Some(progress) = model["progress"].as_f64() {
            line += &format!(", {:.0} % loaded", progress * 1e2);
        }
        line += &format!(", {} calls waiting\n", show("/calls_waiting"));
        if model["error"].is_string() {
            line += &format!("{}\n", show("/error"));
        }
        return line;
    }
    let size = |path: &str| mebibytes(number(model, path));
    let cached_tokens: u64 = list(model, "/prefix_cache")
        .iter()
        .map(|entry| number(entry, "/tokens"))
        .sum();
    format!(
        "{}: {} running, {} waiting, {} cache entries with {cached_tokens} tokens\n\
         cells: {} of requests and {} cached, of {}; attention reads {}\n\
         ids: {} of requests and {} cached, of {}; swapped out: {} in memory, {} on disk; offloaded prefixes: {}\n\
         total: {} swapped out, {} prefixes offloaded, {} swapped in, {} states lost, {} entries dropped, {} preempted\n",
        show("/model"),
        list(model, "/requests").len(),
        show("/requests_waiting"),
        list(model, "/prefix_cache").len(),
        show("/cells/running"),
        show("/cells/cached"),
        show("/cells/total"),
        show("/cells/attention"),
        show("/sequence_ids/running"),
        show("/sequence_ids/cached"),
        show("/sequence_ids/total"),
        size("/swapped_bytes/memory"),
        size("/swapped_bytes/disk"),
        size("/offloaded_prefix_bytes"),
        show("/counters/swapped_out"),
        show("/counters/prefixes_offloaded"),
        show("/counters/swapped_in"),
        show("/counters/lost"),
        show("/counters/dropped"),
        show("/counters/preempted"),
    )
}

/// A table of at most `max` rows after a blank line and the titles; nothing without rows. A row at its end counts the
/// rows that do not fit.
fn table(columns: &[Column], rows: &[&Value], max: usize) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let count = match rows.len() > max {
        true => max.saturating_sub(1),
        false => rows.len(),
    };
    let shown = &rows[..count];
    let titles = columns.iter().map(|(title, ..)| (*title).to_owned());
    let mut lines: Vec<Vec<_>> = vec![titles.collect()];
    lines.extend(shown.iter().map(|row| {
        let cells = columns.iter().map(|&(_, path, none)| show(row, path, none));
        cells.collect()
    }));
    let is_number = |row: &&Value, path| row.pointer(path).is_some_and(Value::is_number);
    let is_numeric: Vec<_> = columns
        .iter()
        .map(|&(_, path, _)| shown.iter().all(|row| is_number(row, path)))
        .collect();
    let mut text = format!("\n{}", align(&lines, |column| is_numeric[column]));
    if rows.len() > count {
        text += &format!("and {} more\n", rows.len() - count);
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

    fn status(entries: u64) -> Value {
        let entries: Vec<_> = (0..entries)
            .map(|n| json!({"entry": n, "owner": null, "sequence_id": null, "tokens": n * 10, "retained": n == 1}))
            .collect();
        json!({"models": [{
            "model": "ti\u{1b}ny",
            "cells": {"total": 100, "running": 3, "cached": 9, "attention": 32},
            "requests_waiting": 3,
            "swapped_bytes": {"memory": 3 << 19},
            "offloaded_prefix_bytes": 5 << 20,
            "requests": [{"request": 7, "owner": "/chat", "priority": 10, "adapter": 1, "sequence_id": 0, "state": "prefill",
                "prompt_tokens": 1234, "cached_tokens": 0, "computed_tokens": 512, "generated_tokens": 0}],
            "prefix_cache": entries,
        }]})
    }

    #[test]
    fn unlimited_rows_show_everything() {
        let text = models("http://a:1", &status(3), usize::MAX);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "corral at http://a:1",
                "",
                "ti?ny: 1 running, 3 waiting, 3 cache entries with 30 tokens",
                "cells: 3 of requests and 9 cached, of 100; attention reads 32",
                "ids: - of requests and - cached, of -; swapped out: 1.5 MiB in memory, 0.0 MiB on disk; offloaded prefixes: 5.0 MiB",
                "total: - swapped out, - prefixes offloaded, - swapped in, - states lost, - entries dropped, - preempted",
                "",
                "REQUEST  OWNER  PRIORITY  ADAPTER  ID  STATE    PROMPT  CACHED  COMPUTED  GENERATED",
                "      7  /chat        10        1   0  prefill    1234       0       512          0",
                "",
                "ENTRY  OWNER     ID         TOKENS  RETAINED",
                "    2  (shared)  offloaded      20  no",
                "    1  (shared)  offloaded      10  yes",
                "    0  (shared)  offloaded       0  no",
            ]
        );
    }

    #[test]
    fn unloaded_model_is_one_line() {
        let status = json!({"models": [
            {"model": "a", "state": "unloaded", "calls_waiting": 0, "requests": [], "prefix_cache": []},
            {"model": "b", "state": "loading", "calls_waiting": 3, "progress": 0.25},
            {"model": "c", "state": "failed", "calls_waiting": 0, "error": "x is no\nmodel"},
        ]});
        let text = models("http://a:1", &status, usize::MAX);
        let lines: Vec<_> = text.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!(
            lines,
            [
                "corral at http://a:1",
                "a: unloaded, 0 calls waiting",
                "b: loading, 25 % loaded, 3 calls waiting",
                "c: failed, 0 calls waiting",
                "x is no?model",
            ]
        );
    }

    #[test]
    fn tables_are_cut_to_the_terminal() {
        for rows in [0, 1, 8, 9, 10, 11, 12, 13, 24, 200] {
            let text = models("http://a:1", &status(100), rows);
            let lines = text.lines().count();
            // Summaries and titles are always shown.
            assert!(lines <= rows.max(12), "{rows}: {text}");
            assert_eq!(text.contains("more"), rows < 111, "{rows}: {text}");
        }
    }
}
