//! The tools that a client offers: its own, and those that its usual server would run.

use corral_sdk::Error;
use corral_sdk::fields::Fields;
use serde_json::Value;

use conversation::tools::{Tool, ToolChoice, Tools};
use conversation::{message, unsupported, without_effect};

/// The tools of a request.
#[derive(Default)]
pub struct OfferedTools {
    /// Tools that the client runs.
    pub own: Vec<Tool>,
    /// Paths and names of tools that a server would run. They are left out of the prompt.
    left_out: Vec<(String, String)>,
}

impl OfferedTools {
    /// Reads the entries of `tools`. `read` adds the tools of an entry, or returns the type of one that the
    /// client does not run.
    pub fn read(
        fields: &mut Fields,
        mut read: impl FnMut(Fields, &mut Vec<Tool>) -> Result<Option<String>, Error>,
    ) -> Result<Self, Error> {
        let mut offered = OfferedTools::default();
        let list = fields.list("tools")?.unwrap_or_default();
        for (index, tool) in list.into_iter().enumerate() {
            let path = format!("tools[{index}]");
            let tool = Fields::at(path.clone(), tool)?;
            if let Some(kind) = read(tool, &mut offered.own)? {
                offered.left_out.push((path, kind));
            }
        }
        Ok(offered)
    }

    /// Whether a tool of such a type is left out.
    pub fn leaves_out(&self, prefix: &str) -> bool {
        let mut kinds = self.left_out.iter().map(|(_, kind)| kind);
        kinds.any(|kind| kind.starts_with(prefix))
    }

    /// Applies the choice. An error if only tools that a server would run could be called.
    pub fn choose(self, choice: Option<ToolChoice>, parallel: bool) -> Result<Tools, Error> {
        let why =
            |kind: &str| format!("no tool of the type {kind:?} runs here; offer your own tools");
        for (path, kind) in &self.left_out {
            if self.own.is_empty() && choice != Some(ToolChoice::None) {
                return Err(unsupported(&format!("{path}.type"), &why(kind)));
            }
            without_effect(&format!("{path}.{kind}"), &why(kind))?;
        }
        Tools::new(self.own, choice, parallel)
    }
}

/// Reads the text of a tool's result. Images and files become a note, since the conversation could not
/// go on otherwise.
pub fn result_text(path: &str, content: Value, kinds: &[&str]) -> Result<String, Error> {
    let Value::Array(mut parts) = content else {
        return message::text(path, content, kinds);
    };
    for (index, part) in parts.iter_mut().enumerate() {
        let Some(kind) = part["type"].as_str() else {
            continue;
        };
        if !kinds.contains(&kind) {
            let kind = kind.to_owned();
            let field = format!("{path}[{index}].{kind}");
            without_effect(&field, "models read text only")?;
            *part = format!("[{kind}: not shown, the model reads text only]").into();
        }
    }
    message::text(path, parts.into(), kinds)
}
