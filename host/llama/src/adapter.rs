//! LoRA adapters of a model.
//!
//! llama.cpp checks names and shapes, and ends the process on other faults: a metadata key of another type, a tensor
//! type that it can't multiply, an adapted embedding that serves as output too. So this module checks a file before
//! llama.cpp reads it.

use crate::gguf::{self, TensorInfo, Value};
use crate::{LlamaError, Model, log};
use llama_cpp_sys_2 as sys;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::Path;
use std::ptr::NonNull;

impl Model {
    /// Loads an adapter from a GGUF file. Its index is the number of adapters before it. Load adapters before making
    /// a context, which reserves memory for their computations.
    pub fn load_adapter(&mut self, name: &str, path: &Path) -> Result<(), LlamaError> {
        let failed = |cause: String| LlamaError::Adapter {
            name: name.to_owned(),
            path: path.to_owned(),
            cause,
        };
        check_is_gguf(path).map_err(failed)?;
        let architecture = self.metadata("general.architecture").unwrap_or_default();
        check_metadata(path, &architecture).map_err(failed)?;
        check_tensors(path).map_err(failed)?;
        let file = path.to_str().and_then(|text| CString::new(text).ok());
        let file = file.ok_or_else(|| {
            failed("its path is not valid UTF-8, which llama.cpp needs; rename it".into())
        })?;
        log::take_first_error();
        // SAFETY: the model is alive and this call has it alone (`&mut self`); `file` is NUL-terminated and outlives
        // the call.
        let loaded = unsafe { sys::llama_adapter_lora_init(self.as_ptr(), file.as_ptr()) };
        let loaded = NonNull::new(loaded).ok_or_else(|| {
            let cause = log::take_first_error().unwrap_or_else(|| "llama.cpp refused it".into());
            failed(format!(
                "{cause}; give an adapter that was trained for this model"
            ))
        })?;
        self.adapters.push(loaded);
        Ok(())
    }
}

fn check_is_gguf(path: &Path) -> Result<(), String> {
    match gguf::has_magic(path) {
        Ok(true) => Ok(()),
        Ok(false) => Err(
            "it is not GGUF: it does not begin with these letters; convert the adapter to GGUF"
                .into(),
        ),
        Err(cause) => Err(format!(
            "it cannot be read: {cause}; give the path of a GGUF file"
        )),
    }
}

/// Checks that the metadata describe a LoRA adapter for a model of this architecture.
fn check_metadata(path: &Path, architecture: &str) -> Result<(), String> {
    let read = |prefix| gguf::metadata(path, prefix).map_err(|error| error.to_string());
    let all = [read("general.")?, read("adapter.")?].concat();
    let value = |key: &str| all.iter().find(|(name, _)| name == key).map(|(_, v)| v);
    let text = |key| match value(key) {
        Some(Value::Text(text)) => text.as_str(),
        _ => "nothing",
    };
    let (general_type, adapter_type) = (text("general.type"), text("adapter.type"));
    if general_type != "adapter" {
        return Err(format!(
            "it is not an adapter: its general.type is {general_type:?}; give a GGUF file of type \
             \"adapter\""
        ));
    }
    if adapter_type != "lora" {
        return Err(format!(
            "its adapter.type is {adapter_type:?}; only \"lora\" is supported"
        ));
    }
    let trained_for = text("general.architecture");
    if trained_for != architecture {
        return Err(format!(
            "it is for a model of the architecture {trained_for:?}, and this one is \
             {architecture:?}; give an adapter that was trained for this model"
        ));
    }
    match value("adapter.lora.alpha") {
        None => {}
        Some(Value::F32(alpha)) if alpha.is_finite() => {}
        Some(other) => return Err(format!("its alpha is {other:?}; expected a finite number")),
    }
    if value("adapter.alora.invocation_tokens").is_some() {
        return Err(
            "tokens of the prompt activate it (aLoRA), which is not supported; give an adapter \
             that always applies"
                .into(),
        );
    }
    Ok(())
}

/// Checks that the tensors are pairs of matrices that can be multiplied. llama.cpp checks that the model has matrices of
/// these names and shapes.
fn check_tensors(path: &Path) -> Result<(), String> {
    let all = gguf::tensors(path).map_err(|error| error.to_string())?;
    let mut pairs: BTreeMap<&str, [Option<&TensorInfo>; 2]> = BTreeMap::new();
    for tensor in &all {
        let name = tensor.name.as_str();
        let (adapted, side) = match (name.strip_suffix(".lora_a"), name.strip_suffix(".lora_b")) {
            (Some(adapted), _) => (adapted, 0),
            (_, Some(adapted)) => (adapted, 1),
            _ => return Err(format!("its tensor {name} is not half of a LoRA pair")),
        };
        if !tensor.is_plain || tensor.dimensions[2..] != [1, 1] {
            return Err(format!(
                "its tensor {name} is not a matrix of F32, F16, BF16 or Q8_0; convert it to one"
            ));
        }
        if adapted == "token_embd.weight" || adapted.contains("_exps.") {
            return Err(format!(
                "it adapts {adapted}, and adapters of embeddings and experts are not supported; \
                 train an adapter for the other matrices"
            ));
        }
        pairs.entry(adapted).or_default()[side] = Some(tensor);
    }
    if pairs.is_empty() {
        return Err("it holds no tensors; the file may be damaged: fetch or copy it again".into());
    }
    for (adapted, pair) in pairs {
        let [Some(a), Some(b)] = pair else {
            return Err(format!("one half of the pair for {adapted} is missing"));
        };
        if a.dimensions[1] != b.dimensions[0] {
            return Err(format!(
                "the halves of the pair for {adapted} have different ranks: {} and {}",
                a.dimensions[1], b.dimensions[0]
            ));
        }
    }
    Ok(())
}
