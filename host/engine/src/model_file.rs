//! Facts that the header of a model file states, for people. Loads nothing and checks nothing else of the file.

use crate::LoadError;
use crate::kv_cache_size::cells_within;
use crate::machine_memory::machine_memory;
use crate::memory_estimate::{MemoryEstimate, header_error};
use crate::model_config::ModelConfig;
use crate::split_files::split_files;
use corral_llama::KvType;
use corral_llama::gguf::{Value, metadata_where, tensors};
use std::collections::HashMap;
use std::path::Path;

const ARCHITECTURE: &str = "general.architecture";
const NAME: &str = "general.name";
const CHAT_TEMPLATE: &str = "tokenizer.chat_template";
/// Keys of a projector, and what it encodes.
const ENCODERS: [(&str, &str); 2] = [
    ("clip.has_vision_encoder", "images"),
    ("clip.has_audio_encoder", "audio"),
];

/// Facts about a model file, or about the files of a split model.
#[derive(Clone, Debug)]
pub struct ModelFile {
    /// The name of the architecture in llama.cpp.
    pub architecture: Option<String>,
    /// The model's name.
    pub name: Option<String>,
    /// Number of layers.
    pub layers: u64,
    /// Positions that the model was trained on.
    pub trained_context: u32,
    /// Types of the weights and their bytes, the largest first.
    pub types: Vec<(String, u64)>,
    /// Bytes of the weights, as the size of the files.
    pub weight_bytes: u64,
    /// Default number of KV cells of type f16 on this machine, if they lie in its memory and not on a GPU.
    pub cells: u32,
    /// Bytes of these cells, by each type that they can have.
    pub cell_bytes: Vec<(KvType, u64)>,
    /// The Jinja chat template.
    pub chat_template: Option<String>,
    /// What a projector encodes: `images`, `audio`. Empty for a model.
    pub encodes: Vec<&'static str>,
}

impl ModelFile {
    /// Reads the header of a file, or of the first of several. Fails if a file can't be read or is not GGUF.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        let estimate = MemoryEstimate::read(path)?;
        let wanted = |key: &str| {
            [ARCHITECTURE, NAME, CHAT_TEMPLATE].contains(&key)
                || ENCODERS.iter().any(|(encoder, _)| *encoder == key)
        };
        let found = metadata_where(path, wanted).map_err(|error| header_error(path, error))?;
        let has = |encoder: &str| {
            let mut found = found.iter();
            found.any(|(key, value)| key == encoder && matches!(value, Value::Bool(true)))
        };
        let encodes = ENCODERS.iter().filter(|(encoder, _)| has(encoder));
        let encodes = encodes.map(|(_, what)| *what).collect();
        let mut texts: HashMap<_, _> = found
            .into_iter()
            .filter_map(|(key, value)| match value {
                Value::Text(text) => Some((key, text)),
                _ => None,
            })
            .collect();
        let mut types: HashMap<String, u64> = HashMap::new();
        for part in split_files(path) {
            for tensor in tensors(&part).map_err(|error| header_error(&part, error))? {
                let bytes = types.entry(tensor.type_name).or_default();
                *bytes = bytes.saturating_add(tensor.bytes);
            }
        }
        let mut types = Vec::from_iter(types);
        types.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        let memory = machine_memory().unwrap_or(u64::MAX);
        let cells = cells_within(memory, &ModelConfig::new("", path), &estimate);
        let kv_types = KvType::ALL.into_iter();
        let kv_types = kv_types.filter(|kv| estimate.check_kv_type(*kv).is_ok());
        Ok(Self {
            architecture: texts.remove(ARCHITECTURE),
            name: texts.remove(NAME),
            layers: estimate.layers(),
            trained_context: estimate.trained_context(),
            types,
            weight_bytes: estimate.weight_bytes(),
            cells,
            cell_bytes: kv_types
                .map(|kv| (kv, estimate.cell_bytes(cells, kv)))
                .collect(),
            chat_template: texts.remove(CHAT_TEMPLATE),
            encodes,
        })
    }
}
