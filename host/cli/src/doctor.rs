//! `corral doctor`: what this program was built with, what it finds on this machine, and why the rest is not
//! used.

use crate::Error;
use crate::args::BackendArgs;
use clap::Args;
use corral_engine::{BackendStatus, Device};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) backends: BackendArgs,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What was found.
struct Found {
    built_with: Vec<&'static str>,
    /// Where backends were looked for, if they were.
    folder: Option<String>,
    backends: Vec<BackendStatus>,
    devices: Vec<Device>,
}

/// Looks, and says what there is.
pub(crate) fn doctor(arguments: &DoctorArgs) -> Result<ExitCode, Error> {
    arguments.backends.load()?;
    let folder = arguments.backends.backend_dir.clone();
    let folder = folder.or_else(corral_engine::default_backends);
    let built_with = corral_engine::built_with();
    let found = Found {
        folder: folder
            .filter(|_| built_with.contains(&"dynamic-backends"))
            .map(|folder| folder.display().to_string()),
        built_with,
        backends: corral_engine::backends()?,
        devices: corral_engine::devices()?,
    };
    let text = match arguments.json {
        true => format!("{}\n", found.json()),
        false => found.text(),
    };
    // Whoever stops reading has seen enough.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(ExitCode::SUCCESS)
}

impl Found {
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
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "built_with": self.built_with,
            "backends_folder": self.folder,
            "devices": self.devices.iter().map(device).collect::<Vec<_>>(),
            "backends": self.backends.iter().map(backend).collect::<Vec<_>>(),
        })
    }

    fn text(&self) -> String {
        let built_with = match self.built_with.as_slice() {
            [] => "for the processor alone".to_owned(),
            features => format!("with {}", features.join(", ")),
        };
        let mut text = format!("corral {}, built {built_with}\n", env!("CARGO_PKG_VERSION"));
        // Writing to a String can't fail.
        if let Some(folder) = &self.folder {
            let _ = writeln!(text, "backends are those in {folder}");
        }
        text += "\ndevices\n";
        text += &table(&self.devices);
        text += "\nbackends\n";
        for backend in &self.backends {
            let what = match &backend.problem {
                Some(problem) => format!("not used: {problem}"),
                None => backend.devices.join(", "),
            };
            let _ = writeln!(text, "  {:6}  {what}", backend.name);
            if !backend.features.is_empty() {
                let _ = writeln!(text, "          {}", backend.features.join(" "));
            }
        }
        text
    }
}

/// A line for each device: the columns as wide as what they hold.
fn table(devices: &[Device]) -> String {
    let mebibytes = |bytes: u64| format!("{} MiB", bytes >> 20);
    let row = |device: &Device| {
        [
            device.name.clone(),
            device.kind.name().to_owned(),
            format!("{} free", mebibytes(device.free)),
            format!("of {}", mebibytes(device.total)),
            device.description.clone(),
        ]
    };
    let rows: Vec<_> = devices.iter().map(row).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let widths = rows.iter().map(|row| row[column].chars().count());
            let width = widths.max().unwrap_or(0);
            let _ = write!(line, "  {cell:width$}");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_engine::DeviceKind;

    fn found() -> Found {
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
        Found {
            built_with: vec!["dynamic-backends", "cuda"],
            folder: Some("/x".to_owned()),
            backends: vec![
                backend("CPU", &["CPU"], None),
                backend("Vulkan", &[], Some("there is no libggml-vulkan")),
            ],
            devices: vec![
                device("CUDA0", DeviceKind::Gpu, 64 << 30),
                device("CPU", DeviceKind::Cpu, 8 << 20),
            ],
        }
    }

    #[test]
    fn people_read_a_table() {
        let expected = format!(
            "corral {}, built with dynamic-backends, cuda\n\
             backends are those in /x\n\
             \n\
             devices\n  \
               CUDA0  gpu  32768 MiB free  of 65536 MiB  the CUDA0\n  \
               CPU    cpu  4 MiB free      of 8 MiB      the CPU\n\
             \n\
             backends\n  \
               CPU     CPU\n          \
                       A B=2\n  \
               Vulkan  not used: there is no libggml-vulkan\n          \
                       A B=2\n",
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(found().text(), expected);
    }

    #[test]
    fn programs_read_an_object() {
        let object = found().json();
        assert_eq!(object["devices"][0]["total_bytes"], json!(64_u64 << 30));
        assert_eq!(object["devices"][1]["kind"], "cpu");
        assert_eq!(object["backends"][0]["problem"], Value::Null);
        assert_eq!(object["backends_folder"], "/x");
    }
}
