//! The status of models as lines of at most 80 columns. Missing values, as of another version, are shown as `-`.

use crate::terminal::{align, mebibytes, printable};
use serde_json::Value;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Instant;

/// Longest name of an owner or a model that is shown in full.
const MAX_NAME_CHARS: usize = 16;

/// A column: its title, the path of its value, and the text for a missing value.
type Column = (&'static str, &'static str, &'static str);

const REQUESTS: [Column; 9] = [
    ("REQUEST", "/request", "-"),
    ("OWNER", "/owner", "-"),
    ("PRIO", "/priority", "-"),
    ("ID", "/sequence_id", "-"),
    ("STATE", "/state", "-"),
    ("PROMPT", "/prompt_tokens", "-"),
    ("CACHED", "/cached_tokens", "-"),
    ("COMPUTED", "/computed_tokens", "-"),
    ("OUTPUT", "/generated_tokens", "-"),
];

const CACHE_ENTRIES: [Column; 5] = [
    ("ENTRY", "/entry", "-"),
    ("OWNER", "/owner", "(shared)"),
    ("ID", "/sequence_id", "offloaded"),
    ("TOKENS", "/tokens", "-"),
    ("RETAINED", "/retained", "-"),
];

/// What a line is, which sets its color.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    /// The first line of a model.
    Model,
    /// The titles of a table.
    Titles,
    /// A request whose prompt is being computed.
    Prefill,
    /// A request that waits for something.
    Waiting,
    Error,
}

/// A line of text, without control characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) text: String,
    pub(super) style: Style,
}

impl Line {
    fn new(text: impl Into<String>, style: Style) -> Self {
        Line {
            text: text.into(),
            style,
        }
    }

    pub(super) fn plain(text: impl Into<String>) -> Self {
        Self::new(text, Style::Plain)
    }

    pub(super) fn error(text: impl Into<String>) -> Self {
        Self::new(text, Style::Error)
    }
}

/// Generated tokens a second of each model, from the last two statuses.
#[derive(Debug, Default)]
pub(super) struct Rates {
    last: Option<Instant>,
    /// By model: tokens at that time, and the rate before it.
    models: HashMap<String, (u64, Option<f64>)>,
}

impl Rates {
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn update(&mut self, status: &Value, now: Instant) {
        let seconds = self
            .last
            .replace(now)
            .map(|last| (now - last).as_secs_f64());
        let old = std::mem::take(&mut self.models);
        for model in list(status, "/models") {
            let Some(tokens) = model["generated_tokens"].as_u64() else {
                continue;
            };
            let name = show(model, "/model", "-");
            let rate = match (old.get(&name), seconds) {
                // A model that was loaded again counts from 0.
                (Some((before, _)), Some(seconds)) if seconds > 0.0 => {
                    Some(tokens.saturating_sub(*before) as f64 / seconds)
                }
                _ => None,
            };
            self.models.insert(name, (tokens, rate));
        }
    }

    fn of(&self, model: &str) -> String {
        let rate = self.models.get(model).and_then(|(_, rate)| *rate);
        rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"))
    }
}

/// Lines for all models.
pub(super) fn models(address: &str, status: &Value, rates: &Rates) -> Vec<Line> {
    let mut lines = vec![Line::plain(format!("corral at {}", printable(address)))];
    for model in list(status, "/models") {
        lines.push(Line::plain(""));
        lines.extend(summary(model, rates));
        let requests: Vec<_> = list(model, "/requests").iter().collect();
        let mut entries: Vec<_> = list(model, "/prefix_cache").iter().collect();
        entries.sort_by_key(|entry| Reverse(number(entry, "/tokens")));
        lines.extend(table(&REQUESTS, &requests));
        lines.extend(table(&CACHE_ENTRIES, &entries));
    }
    lines
}

/// Lines about a model.
fn summary(model: &Value, rates: &Rates) -> Vec<Line> {
    let show = |path: &str| show(model, path, "-");
    let name = short(&show("/model"));
    if model["state"]
        .as_str()
        .is_some_and(|state| state != "loaded")
    {
        let mut line = format!("{name}: {}", show("/state"));
        if let Some(progress) = model["progress"].as_f64() {
            line += &format!(", {:.0} % loaded", progress * 1e2);
        }
        line += &format!(", {} calls waiting", show("/calls_waiting"));
        let mut lines = vec![Line::new(line, Style::Model)];
        if model["error"].is_string() {
            lines.push(Line::error(show("/error")));
        }
        return lines;
    }
    let size = |path: &str| mebibytes(number(model, path));
    let cache = list(model, "/prefix_cache").iter();
    let cached_tokens: u64 = cache.map(|entry| number(entry, "/tokens")).sum();
    let first = format!(
        "{name}: {} tokens/s, {} running, {} waiting",
        rates.of(&show("/model")),
        list(model, "/requests").len(),
        show("/requests_waiting"),
    );
    let rest = [
        format!(
            "cells:   {} running, {} cached, of {}; attention reads {}",
            show("/cells/running"),
            show("/cells/cached"),
            show("/cells/total"),
            show("/cells/attention"),
        ),
        format!(
            "ids:     {} running, {} cached, of {}",
            show("/sequence_ids/running"),
            show("/sequence_ids/cached"),
            show("/sequence_ids/total"),
        ),
        format!(
            "cache:   {} entries, {cached_tokens} tokens; {} offloaded",
            list(model, "/prefix_cache").len(),
            size("/offloaded_prefix_bytes"),
        ),
        format!(
            "swapped: {} in memory, {} on disk",
            size("/swapped_bytes/memory"),
            size("/swapped_bytes/disk"),
        ),
        format!(
            "total:   {} preempted, {} swapped out, {} in, {} lost",
            show("/counters/preempted"),
            show("/counters/swapped_out"),
            show("/counters/swapped_in"),
            show("/counters/lost"),
        ),
        format!(
            "         {} entries dropped, {} prefixes offloaded",
            show("/counters/dropped"),
            show("/counters/prefixes_offloaded"),
        ),
    ];
    let mut lines = vec![Line::new(first, Style::Model)];
    lines.extend(rest.map(Line::plain));
    lines
}

/// A table after a blank line and the titles; nothing without rows.
fn table(columns: &[Column], rows: &[&Value]) -> Vec<Line> {
    if rows.is_empty() {
        return Vec::new();
    }
    let titles = columns.iter().map(|(title, ..)| (*title).to_owned());
    let mut cells: Vec<Vec<_>> = vec![titles.collect()];
    cells.extend(rows.iter().map(|row| {
        let cells = columns.iter();
        let cell = |path, none| match show(row, path, none).as_str() {
            "waits_for_prefix" => "waits".to_owned(),
            text => short(text),
        };
        cells.map(|&(_, path, none)| cell(path, none)).collect()
    }));
    let is_number = |row: &&Value, path| row.pointer(path).is_some_and(Value::is_number);
    let is_numeric: Vec<_> = columns
        .iter()
        .map(|&(_, path, _)| rows.iter().all(|row| is_number(row, path)))
        .collect();
    let styles = rows.iter().map(|row| match row["state"].as_str() {
        None | Some("decode" | "samples") => Style::Plain,
        Some("prefill") => Style::Prefill,
        Some(_) => Style::Waiting,
    });
    let styles = std::iter::once(Style::Titles).chain(styles);
    let text = align(&cells, |column| is_numeric[column]);
    let aligned = text.lines().zip(styles);
    let lines = aligned.map(|(line, style)| Line::new(line, style));
    std::iter::once(Line::plain("")).chain(lines).collect()
}

/// The text, cut where it would make a table too wide.
fn short(text: &str) -> String {
    match text.char_indices().nth(MAX_NAME_CHARS) {
        None => text.to_owned(),
        Some(_) => text.chars().take(MAX_NAME_CHARS - 1).chain(['…']).collect(),
    }
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
    use std::time::Duration;

    fn status(entries: u64) -> Value {
        let entries: Vec<_> = (0..entries)
            .map(|n| json!({"entry": n, "owner": null, "sequence_id": null, "tokens": n * 10, "retained": n == 1}))
            .collect();
        json!({"models": [{
            "model": "ti\u{1b}ny",
            "cells": {"total": 100, "running": 3, "cached": 9, "attention": 32},
            "requests_waiting": 3,
            "generated_tokens": 70,
            "swapped_bytes": {"memory": 3 << 19},
            "offloaded_prefix_bytes": 5 << 20,
            "requests": [{"request": 7, "owner": "/chat", "priority": 10, "adapter": 1, "sequence_id": 0, "state": "prefill",
                "prompt_tokens": 1234, "cached_tokens": 0, "computed_tokens": 512, "generated_tokens": 0}],
            "prefix_cache": entries,
        }]})
    }

    fn texts(lines: &[Line]) -> Vec<&str> {
        lines.iter().map(|line| line.text.as_str()).collect()
    }

    #[test]
    fn loaded_model_shows_requests_and_cache() {
        let lines = models("http://a:1", &status(3), &Rates::default());
        assert_eq!(
            texts(&lines),
            [
                "corral at http://a:1",
                "",
                "ti?ny: - tokens/s, 1 running, 3 waiting",
                "cells:   3 running, 9 cached, of 100; attention reads 32",
                "ids:     - running, - cached, of -",
                "cache:   3 entries, 30 tokens; 5.0 MiB offloaded",
                "swapped: 1.5 MiB in memory, 0.0 MiB on disk",
                "total:   - preempted, - swapped out, - in, - lost",
                "         - entries dropped, - prefixes offloaded",
                "",
                "REQUEST  OWNER  PRIO  ID  STATE    PROMPT  CACHED  COMPUTED  OUTPUT",
                "      7  /chat    10   0  prefill    1234       0       512       0",
                "",
                "ENTRY  OWNER     ID         TOKENS  RETAINED",
                "    2  (shared)  offloaded      20  no",
                "    1  (shared)  offloaded      10  yes",
                "    0  (shared)  offloaded       0  no",
            ]
        );
        assert_eq!(lines[11].style, Style::Prefill);
    }

    #[test]
    fn unloaded_model_is_one_line() {
        let status = json!({"models": [
            {"model": "a", "state": "unloaded", "calls_waiting": 0, "requests": [], "prefix_cache": []},
            {"model": "b", "state": "loading", "calls_waiting": 3, "progress": 0.25},
            {"model": "c", "state": "failed", "calls_waiting": 0, "error": "x is no\nmodel"},
        ]});
        let mut lines = models("http://a:1", &status, &Rates::default());
        lines.retain(|line| !line.text.is_empty());
        assert_eq!(
            texts(&lines),
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
    fn large_values_fit_80_columns() {
        let mut status = status(1);
        let model = &mut status["models"][0];
        model["model"] = json!("m".repeat(100));
        model["cells"] =
            json!({"total": 1 << 20, "running": 1 << 20, "cached": 1 << 20, "attention": 1 << 20});
        model["counters"] = json!({"preempted": 1 << 20, "swapped_out": 1 << 20, "swapped_in": 1 << 20, "lost": 1 << 20});
        let request = &mut model["requests"][0];
        request["owner"] = json!("o".repeat(100));
        request["state"] = json!("waits_for_prefix");
        for tokens in ["prompt_tokens", "cached_tokens", "computed_tokens"] {
            request[tokens] = json!(131_072);
        }
        for line in models("http://a:1", &status, &Rates::default()) {
            let width = line.text.chars().count();
            assert!(width <= 80, "{width}: {}", line.text);
        }
    }

    #[test]
    fn rate_is_that_of_the_last_interval() {
        let (mut rates, start) = (Rates::default(), Instant::now());
        let mut status = status(0);
        rates.update(&status, start);
        assert_eq!(rates.of("ti?ny"), "-");
        for (second, tokens, expected) in [(2, 100, "15.0"), (3, 100, "0.0"), (4, 7, "0.0")] {
            status["models"][0]["generated_tokens"] = json!(tokens);
            rates.update(&status, start + Duration::from_secs(second));
            assert_eq!(rates.of("ti?ny"), expected);
        }
    }
}
