//! `corral model info`: what the header of a model file states.

use super::cache::ModelCache;
use super::reference::HubReference;
use crate::Error;
use crate::terminal::{align, mebibytes, print, printable};
use clap::Args;
use corral_engine::ModelFile;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Texts in chat templates, and the format of tool calls that they show. As in the plugin `openai`, which parses them.
const CALL_FORMATS: [(&str, &str); 4] = [
    ("<tool_call>", "Hermes"),
    ("[TOOL_CALLS]", "Mistral"),
    ("<|python_tag|>", "Llama"),
    ("\"parameters\"", "Llama"),
];
/// Texts in templates whose formats the plugin does not parse, although they contain one of the above.
const OTHER_FORMATS: [&str; 5] = [
    "<function=",
    "<arg_key>",
    "[ARGS]",
    "tool▁call",
    "<|START_ACTION|>",
];

#[derive(Args, Debug)]
pub struct InfoArgs {
    /// GGUF file, or a model in the cache: hf:ORG/REPO[:QUANT|/FILE]
    #[arg(value_name = "MODEL", value_parser = source)]
    model: Source,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug)]
enum Source {
    File(PathBuf),
    Hub(HubReference),
}

fn source(text: &str) -> Result<Source, String> {
    let hub = HubReference::parse_model(text)?;
    Ok(hub.map_or_else(|| Source::File(text.into()), Source::Hub))
}

/// Prints the facts.
pub(super) fn info(args: &InfoArgs) -> Result<ExitCode, Error> {
    let path = match &args.model {
        Source::File(path) => path.clone(),
        Source::Hub(reference) => ModelCache::open()?.expect(reference)?.file().to_owned(),
    };
    let file = ModelFile::read(&path)?;
    match args.json {
        true => print(&format!("{}\n", as_json(&path, &file))),
        false => print(&as_text(&path, &file)),
    }
}

fn as_json(path: &Path, file: &ModelFile) -> Value {
    let bytes = |(name, bytes): (String, u64)| (name, json!(bytes));
    let types = file
        .types
        .iter()
        .cloned()
        .map(bytes)
        .collect::<serde_json::Map<_, _>>();
    let cells = file
        .cell_bytes
        .iter()
        .map(|(kv, size)| (kv.to_string(), *size));
    json!({
        "file": path,
        "name": file.name,
        "architecture": file.architecture,
        "layers": file.layers,
        "trained_context": file.trained_context,
        "weight_bytes": file.weight_bytes,
        "weight_type_bytes": types,
        "kv_cells": file.cells,
        "kv_cell_bytes": cells.map(bytes).collect::<serde_json::Map<_, _>>(),
        "chat_template": file.chat_template,
        "tool_calls": file.chat_template.as_deref().and_then(call_format),
        "encodes": file.encodes,
    })
}

fn as_text(path: &Path, file: &ModelFile) -> String {
    let all: u64 = file.types.iter().map(|(_, bytes)| bytes).sum();
    // Without the small ones, such as norms.
    let share = |(name, bytes): &(String, u64)| {
        let percent = u128::from(*bytes) * 100 / u128::from(all.max(1));
        (percent > 0).then(|| format!("{name} {percent} %"))
    };
    let types: Vec<_> = file.types.iter().filter_map(share).collect();
    let cells = file.cell_bytes.iter();
    let cells = cells.map(|(kv, bytes)| format!("{} as {kv}", mebibytes(*bytes)));
    let unknown = || "not stated".to_owned();
    let template = file.chat_template.as_deref();
    let tools = match template.map(call_format) {
        None => "none, since there is no chat template",
        Some(None) => "not parsed by the plugin openai",
        Some(Some(format)) => format,
    };
    let mut rows = vec![
        ("file", path.display().to_string()),
        ("name", file.name.clone().unwrap_or_else(unknown)),
        (
            "architecture",
            file.architecture.clone().unwrap_or_else(unknown),
        ),
        ("layers", file.layers.to_string()),
        (
            "context",
            format!("{} tokens in training", file.trained_context),
        ),
        ("quantization", types.join(", ")),
        ("weights", mebibytes(file.weight_bytes)),
        (
            "KV cells",
            format!(
                "{} for {}, the default here",
                cells.collect::<Vec<_>>().join(", "),
                file.cells
            ),
        ),
        (
            "chat template",
            template.map_or_else(|| "none".to_owned(), |text| format!("{} bytes", text.len())),
        ),
        ("tool calls", tools.to_owned()),
    ];
    if !file.encodes.is_empty() {
        rows.push(("encodes", file.encodes.join(", ")));
    }
    let row = |(name, value): (&str, String)| vec![name.to_owned(), printable(&value)];
    align(&rows.into_iter().map(row).collect::<Vec<_>>(), |_| false)
}

/// The format of tool calls that a template shows, if the plugin `openai` parses it.
fn call_format(template: &str) -> Option<&'static str> {
    let contains = |text: &&str| template.contains(*text);
    if !template.contains("tools") || OTHER_FORMATS.iter().any(contains) {
        return None;
    }
    let mut formats = CALL_FORMATS.iter();
    let (_, format) = formats.find(|(text, _)| template.contains(text))?;
    Some(format)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_formats_are_those_of_openai() {
        let plugin = include_str!("../../../../plugins/conversation/src/tools/call_format.rs");
        for (text, format) in CALL_FORMATS {
            let line = format!("({text:?}, CallFormat::{format}),");
            assert!(plugin.contains(&line), "{line}");
        }
        for text in OTHER_FORMATS {
            assert!(plugin.contains(&format!("{text:?},")), "{text}");
        }
        let (all, others) = (CALL_FORMATS.len(), OTHER_FORMATS.len());
        assert!(plugin.contains(&format!("SIGNATURES: [(&str, CallFormat); {all}]")));
        assert!(plugin.contains(&format!("UNSUPPORTED_SIGNATURES: [&str; {others}]")));
    }
}
