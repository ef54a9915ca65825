//! LoRA adapters: small matrices that are added to those of a model.
//!
//! llama.cpp looks at names and shapes, and ends the process on much else: a key of another type, a
//! tensor of a type that it can't multiply, an embedding that is adapted and serves as output
//! too. So a file is looked through here before llama.cpp gets it.

use super::gguf::{self, TensorInfo, Value};
use super::log;
use super::model::Model;
use crate::error::LoadError;
use corral_scheduler::AdapterId;
use llama_cpp_sys_2 as sys;
use std::collections::BTreeMap;
use std::ffi::{CString, c_char};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::ptr::NonNull;

/// The adapters of a model, in the order of their numbers. llama.cpp frees them with the model.
pub(super) type Loaded = Vec<NonNull<sys::llama_adapter_lora>>;

impl Model {
    /// Loads an adapter from a GGUF file; it gets the next number, from 1. Before any context of the
    /// model is made, since llama.cpp makes room for its computations then.
    pub fn load_adapter(&mut self, name: &str, path: &Path) -> Result<(), LoadError> {
        let refused = |cause: String| LoadError::Adapter {
            name: name.to_owned(),
            path: path.to_owned(),
            cause,
        };
        check_magic(path).map_err(refused)?;
        check_head(path, &self.architecture()).map_err(refused)?;
        check_tensors(path).map_err(refused)?;
        let file = path.to_str().and_then(|text| CString::new(text).ok());
        let file = file.ok_or_else(|| {
            refused("its path is not valid UTF-8, which llama.cpp needs; rename it".into())
        })?;
        log::take_last_error();
        // SAFETY: the model is alive and nobody else uses it (`&mut self`); `file` is NUL-terminated
        // and outlives the call.
        let loaded = unsafe { sys::llama_adapter_lora_init(self.as_ptr(), file.as_ptr()) };
        let loaded = NonNull::new(loaded).ok_or_else(|| {
            let said = log::take_last_error().unwrap_or_else(|| "llama.cpp refused it".into());
            refused(format!(
                "{said}; give an adapter that was trained for this model"
            ))
        })?;
        self.adapters.push(loaded);
        Ok(())
    }

    /// The adapter of this number, `None` within for the model alone. `None` if there is none.
    pub(super) fn adapter(
        &self,
        adapter: AdapterId,
    ) -> Option<Option<NonNull<sys::llama_adapter_lora>>> {
        match usize::from(adapter.0).checked_sub(1) {
            None => Some(None),
            Some(index) => self.adapters.get(index).copied().map(Some),
        }
    }

    /// The kind of network, as the file names it.
    fn architecture(&self) -> String {
        let mut buffer = [0_u8; 128];
        // SAFETY: the model is alive, the key NUL-terminated, and no more is written than the buffer
        // has.
        let length = unsafe {
            sys::llama_model_meta_val_str(
                self.as_ptr(),
                c"general.architecture".as_ptr(),
                buffer.as_mut_ptr().cast::<c_char>(),
                buffer.len(),
            )
        };
        let length = usize::try_from(length).unwrap_or(0).min(buffer.len() - 1);
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }
}

fn check_magic(path: &Path) -> Result<(), String> {
    let unreadable = |cause| format!("it cannot be read: {cause}; give the path of a GGUF file");
    let mut magic = [0; 4];
    let mut file = File::open(path).map_err(unreadable)?;
    match file.read_exact(&mut magic) {
        Ok(()) if &magic == b"GGUF" => Ok(()),
        Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => Err(unreadable(error)),
        _ => Err(
            "it is not GGUF: it does not begin with these letters; convert the adapter to GGUF"
                .into(),
        ),
    }
}

/// Whether the metadata are those of a LoRA adapter for a model of this architecture.
fn check_head(path: &Path, architecture: &str) -> Result<(), String> {
    let read = |prefix| gguf::metadata(path, prefix).map_err(|error| error.to_string());
    let all = [read("general.")?, read("adapter.")?].concat();
    let value = |key: &str| all.iter().find(|(name, _)| name == key).map(|(_, v)| v);
    let text = |key| match value(key) {
        Some(Value::Text(text)) => text.as_str(),
        _ => "nothing",
    };
    let (kind, way) = (text("general.type"), text("adapter.type"));
    if kind != "adapter" {
        return Err(format!(
            "it is no adapter: it says {kind:?} of what it is; give a model by itself, and a GGUF \
             file of type \"adapter\" here"
        ));
    }
    if way != "lora" {
        return Err(format!(
            "it is an adapter of the kind {way:?}; only \"lora\" is known"
        ));
    }
    let of = text("general.architecture");
    if of != architecture {
        return Err(format!(
            "it is for a model of the architecture {of:?}, and this one is {architecture:?}; give \
             an adapter that was trained for this model"
        ));
    }
    match value("adapter.lora.alpha") {
        None => {}
        Some(Value::F32(alpha)) if alpha.is_finite() => {}
        Some(other) => return Err(format!("its alpha is {other:?}, and should be a number")),
    }
    if value("adapter.alora.invocation_tokens").is_some() {
        return Err(
            "it is switched on by tokens of the prompt (aLoRA), which is not known here; give one \
             that always applies"
                .into(),
        );
    }
    Ok(())
}

/// Whether the tensors are pairs of plain matrices that can be multiplied. Whether the model has
/// matrices of these names and shapes llama.cpp looks at.
fn check_tensors(path: &Path) -> Result<(), String> {
    let all = gguf::tensors(path).map_err(|error| error.to_string())?;
    let mut pairs: BTreeMap<&str, [Option<&TensorInfo>; 2]> = BTreeMap::new();
    for tensor in &all {
        let name = tensor.name.as_str();
        let (of, side) = match (name.strip_suffix(".lora_a"), name.strip_suffix(".lora_b")) {
            (Some(of), _) => (of, 0),
            (_, Some(of)) => (of, 1),
            _ => return Err(format!("its tensor {name} is no half of a LoRA pair")),
        };
        if !tensor.is_plain || tensor.dimensions[2..] != [1, 1] {
            return Err(format!(
                "its tensor {name} is no matrix of F32, F16, BF16 or Q8_0; convert it to one"
            ));
        }
        if of == "token_embd.weight" || of.contains("_exps.") {
            return Err(format!(
                "it adapts {of}, and embeddings and experts are not adapted here; train an adapter \
                 for the other matrices"
            ));
        }
        pairs.entry(of).or_default()[side] = Some(tensor);
    }
    if pairs.is_empty() {
        return Err("it holds no tensors; the file may be damaged: fetch or copy it again".into());
    }
    for (of, pair) in pairs {
        let [Some(a), Some(b)] = pair else {
            return Err(format!("one half of the pair for {of} is missing"));
        };
        if a.dimensions[1] != b.dimensions[0] {
            return Err(format!(
                "the halves of the pair for {of} do not fit together: {} and {} are their ranks",
                a.dimensions[1], b.dimensions[0]
            ));
        }
    }
    Ok(())
}
