//! `corral doctor`: the features of this build, the devices of this machine, and why the other backends are not used;
//! and what authors of plugins need.

use crate::Error;
use crate::args::BackendArgs;
use crate::authoring::{Tool, tools};
use crate::terminal::{align, print};
use clap::Args;
use corral_engine::{BackendStatus, Device};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::process::ExitCode;

#[derive(Args, Debug)]
pub struct DoctorArgs {
    #[command(flatten)]
    backends: BackendArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Most characters of a line of words.
const LINE_WIDTH: usize = 80;

struct Report {
    features: Vec<&'static str>,
    /// The directory of dynamic backends.
    backend_dir: Option<String>,
    backends: Vec<BackendStatus>,
    devices: Vec<Device>,
    /// For authors of plugins.
    tools: Vec<Tool>,
}

/// Prints the report.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<ExitCode, Error> {
    args.backends.load()?;
    let dir = args.backends.backend_dir.clone();
    let dir = dir.or_else(corral_engine::default_backend_dir);
    let features = corral_engine::built_with();
    let report = Report {
        backend_dir: dir
            .filter(|_| features.contains(&"dynamic-backends"))
            .map(|dir| dir.display().to_string()),
        features,
        backends: corral_engine::backends()?,
        devices: corral_engine::devices()?,
        tools: tools(),
    };
    match args.json {
        true => print(&format!("{}\n", report.json())),
        false => print(&report.text()),
    }
}

impl Report {
    fn json(&self) -> Value {
        let device = |device: &Device| {
            json!({
                "name": device.name,
                "description": device.description,
                "kind": device.kind.name(),
                "backend": device.backend,
                "free_bytes": device.free,
                "total_bytes": device.total,
            })
        };
        let backend = |backend: &BackendStatus| {
            json!({
                "name": backend.name,
                "devices": backend.devices,
                "features": backend.features,
                "problem": backend.problem,
            })
        };
        let tool = |tool: &Tool| {
            let hint = tool.found.is_none().then_some(&tool.hint);
            json!({"name": tool.name, "found": tool.found, "hint": hint})
        };
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "built_with": self.features,
            "backend_dir": self.backend_dir,
            "devices": self.devices.iter().map(device).collect::<Vec<_>>(),
            "backends": self.backends.iter().map(backend).collect::<Vec<_>>(),
            "authoring": self.tools.iter().map(tool).collect::<Vec<_>>(),
        })
    }

    fn text(&self) -> String {
        let features = match self.features.as_slice() {
            [] => "with the CPU backend only".to_owned(),
            features => format!("with {}", features.join(", ")),
        };
        let mut text = format!("corral {}, built {features}\n", env!("CARGO_PKG_VERSION"));
        // Writing to a String does not fail.
        if let Some(dir) = &self.backend_dir {
            let _ = writeln!(text, "backends from {dir}");
        }
        text += "\ndevices\n";
        text += &device_table(&self.devices);
        text += "\nbackends\n";
        for backend in &self.backends {
            let status = match &backend.problem {
                Some(problem) => format!("not used: {problem}"),
                None => backend.devices.join(", "),
            };
            let label = format!("  {:6}  ", backend.name);
            text += &labeled(&label, &status);
            if !backend.features.is_empty() {
                text += &labeled(&" ".repeat(label.len()), &backend.features.join(" "));
            }
        }
        text += "\nwriting plugins\n";
        for tool in &self.tools {
            let status = match &tool.found {
                Some(found) => found.clone(),
                None => format!("missing: {}", tool.hint),
            };
            text += &labeled(&format!("  {:11}  ", tool.name), &status);
        }
        text
    }
}

/// Words after a label, on lines of at most [`LINE_WIDTH`] characters that begin below the first word.
fn labeled(label: &str, words: &str) -> String {
    let mut text = String::new();
    let mut line = label.to_owned();
    for word in words.split_whitespace() {
        let mut is_first = line.len() == label.len();
        if !is_first && line.len() + 1 + word.len() > LINE_WIDTH {
            text += &line;
            text.push('\n');
            line = " ".repeat(label.len());
            is_first = true;
        }
        if !is_first {
            line.push(' ');
        }
        line += word;
    }
    text + &line + "\n"
}

fn device_table(devices: &[Device]) -> String {
    let row = |device: &Device| {
        vec![
            format!("  {}", device.name),
            device.kind.name().to_owned(),
            format!("{} MiB free", device.free >> 20),
            format!("of {} MiB", device.total >> 20),
            device.description.clone(),
        ]
    };
    let rows: Vec<_> = devices.iter().map(row).collect();
    align(&rows, |_| false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_engine::DeviceKind;

    fn report() -> Report {
        let device = |name: &str, kind, total: u64| Device {
            name: name.to_owned(),
            description: format!("the {name}"),
            kind,
            backend: "x".to_owned(),
            free: total / 2,
            total,
            id: None,
        };
        let backend = |name: &str, devices: &[&str], problem: Option<&str>| BackendStatus {
            name: name.to_owned(),
            devices: devices.iter().map(|name| (*name).to_owned()).collect(),
            features: vec!["A".to_owned(), "B=2".to_owned()],
            problem: problem.map(str::to_owned),
        };
        Report {
            features: vec!["dynamic-backends", "cuda"],
            backend_dir: Some("/x".to_owned()),
            backends: vec![
                backend("CPU", &["CPU"], None),
                backend("Vulkan", &[], Some("there is no libggml-vulkan")),
            ],
            tools: vec![
                Tool {
                    name: "cargo",
                    found: Some("cargo 1.95.0".to_owned()),
                    hint: "get it".to_owned(),
                },
                Tool {
                    name: "WebAssembly",
                    found: None,
                    hint: "add it".to_owned(),
                },
            ],
            devices: vec![
                device("CUDA0", DeviceKind::Gpu, 64 << 30),
                device("CPU", DeviceKind::Cpu, 8 << 20),
            ],
        }
    }

    #[test]
    fn text_contains_device_table() {
        let expected = format!(
            "corral {}, built with dynamic-backends, cuda\n\
             backends from /x\n\
             \n\
             devices\n  \
               CUDA0  gpu  32768 MiB free  of 65536 MiB  the CUDA0\n  \
               CPU    cpu  4 MiB free      of 8 MiB      the CPU\n\
             \n\
             backends\n  \
               CPU     CPU\n          \
                       A B=2\n  \
               Vulkan  not used: there is no libggml-vulkan\n          \
                       A B=2\n\
             \n\
             writing plugins\n  \
               cargo        cargo 1.95.0\n  \
               WebAssembly  missing: add it\n",
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(report().text(), expected);
    }

    #[test]
    fn long_lines_wrap_between_words() {
        let word = "x".repeat(30);
        let text = labeled("  CPU  ", &format!("{word} {word} {word}"));
        assert_eq!(text, format!("  CPU  {word} {word}\n       {word}\n"));
        assert_eq!(labeled("  CPU  ", ""), "  CPU  \n");
    }

    #[test]
    fn json_contains_devices_and_backends() {
        let object = report().json();
        assert_eq!(object["devices"][0]["total_bytes"], json!(64_u64 << 30));
        assert_eq!(object["devices"][1]["kind"], "cpu");
        assert_eq!(object["backends"][0]["problem"], Value::Null);
        assert_eq!(object["backend_dir"], "/x");
        assert_eq!(object["authoring"][0]["hint"], Value::Null);
        assert_eq!(object["authoring"][1]["hint"], "add it");
    }
}
