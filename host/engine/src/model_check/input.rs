//! What the parent tells the child of a check.

use corral_llama::{FileAccess, KvType};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Name of the job.
pub const CHECK_MODEL_JOB: &str = "check-model";

/// The values of [`ModelCheckInput::same_order`].
const READ: &[u8] = b"read";
const MAP: &[u8] = b"map";

/// The model to check. It crosses the pipe, with the directory of `--backend-dir`, as fields that end with a zero byte.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ModelCheckInput {
    pub path: PathBuf,
    pub kv_type: KvType,
    pub context: Option<u32>,
    pub projector: Option<PathBuf>,
    /// Name and path.
    pub adapters: Vec<(String, PathBuf)>,
    /// How the server reads the weights, if the check reads the tensors in the order of the server and reports each. Else
    /// the check maps the file, which takes less memory.
    pub same_order: Option<FileAccess>,
}

impl ModelCheckInput {
    pub fn encode(&self, backend_dir: Option<&Path>) -> Vec<u8> {
        let backend_dir = backend_dir.unwrap_or(Path::new(""));
        let context = self.context.unwrap_or(0).to_string();
        let projector = self.projector.as_deref().unwrap_or(Path::new(""));
        let mut fields = vec![
            self.path.as_os_str().as_bytes(),
            backend_dir.as_os_str().as_bytes(),
            self.kv_type.name().as_bytes(),
            context.as_bytes(),
            projector.as_os_str().as_bytes(),
            match self.same_order {
                Some(FileAccess::Read) => READ,
                Some(FileAccess::Map) => MAP,
                None => b"",
            },
        ];
        for (name, path) in &self.adapters {
            fields.extend([name.as_bytes(), path.as_os_str().as_bytes()]);
        }
        let mut bytes = fields.join(&0);
        bytes.push(0);
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Option<(Self, Option<PathBuf>)> {
        let mut fields = bytes.strip_suffix(&[0])?.split(|byte| *byte == 0);
        let text = |field: &[u8]| String::from_utf8(field.to_vec()).ok();
        let path = |field: &[u8]| PathBuf::from(OsString::from_vec(field.to_vec()));
        let file = path(fields.next()?);
        let optional = |field| Some(path(field)).filter(|path| !path.as_os_str().is_empty());
        let backend_dir = optional(fields.next()?);
        let mut model = Self {
            path: file,
            kv_type: text(fields.next()?)?.parse().ok()?,
            context: Some(text(fields.next()?)?.parse().ok()?).filter(|context| *context > 0),
            projector: optional(fields.next()?),
            same_order: match fields.next()? {
                READ => Some(FileAccess::Read),
                MAP => Some(FileAccess::Map),
                _ => None,
            },
            adapters: Vec::new(),
        };
        while let Some(name) = fields.next() {
            let adapter = (text(name)?, path(fields.next()?));
            model.adapters.push(adapter);
        }
        Some((model, backend_dir))
    }
}
